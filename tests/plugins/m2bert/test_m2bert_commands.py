"""A tiny M2-BERT with random weights through all five verbs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from lmkcli.data.collection import open_collection
from lmkcli.errors import DataError
from lmkcli.models.forward import ModelOptions
from lmkcli.models.lookup import read_model
from lmkcli.plugins.m2bert.config import M2BertConfig
from lmkcli.plugins.m2bert.kind import M2Bert, open_model
from lmkcli.plugins.m2bert.model import M2BertModel
from lmkcli.vectors.stored import Vectors
from tests import tiny

Lmk = Callable[..., Any]
LENGTH, WIDTH = 40, 32


@pytest.fixture(scope="module")
def m2bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 positions (some documents are longer), and a tokenizer with a limit of 512, as for BERT."""
    folder = tmp_path_factory.mktemp("models") / "m2bert"
    torch.manual_seed(7)
    config = M2BertConfig(
        vocab_size=tiny.VOCABULARY, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=2,
        max_position_embeddings=LENGTH, hyena_filter_order=16, initializer_range=0.2,
    )  # fmt: skip
    M2BertModel(config).save_pretrained(folder)
    tokenizer = tiny.wordpiece()
    tokenizer.model_max_length = 512
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_all_five_verbs(lmk: Lmk, m2bert: Path, beir: Path, tmp_path: Path) -> None:
    tokens, vectors, graph, run = (tmp_path / name for name in ("t", "v", "i", "run.trec"))
    assert lmk("tokenize", beir, "-m", m2bert, "-o", tokens, "--json").json["documents"] == 60
    for source in (
        beir,
        tokens,
    ):  # both sources give the same vectors, so the second run does nothing
        made = lmk("encode", source, "-m", m2bert, "-o", vectors, "--json")
        assert (made.json["docs"], made.json["vectors"], made.json["empty"]) == (60, 60, 0)
    assert f"pool model, max length {LENGTH}, padded" in made.err
    assert "guess" not in made.err
    lmk("index", vectors, "-o", graph)
    for place in (vectors, graph):
        path = run.with_stem(place.name)
        lmk("search", place, beir, "-k", 100, "-o", path)
        assert lmk("eval", path, "--json").json[0]["R@100"] == 1.0  # all documents are encoded
    assert lmk("verify", vectors, "--json").json["least cosine"] > 0.999
    shown = lmk("show", vectors, "--json").json
    assert shown["execution"]["attention"] == "padded"
    assert shown["documents"]["pad_to_max"] is shown["queries"]["pad_to_max"] is True
    recipe = Vectors(vectors).recipe
    assert (recipe.doc.max_length, recipe.query.max_length) == (LENGTH, LENGTH)
    assert recipe.doc.pad_to_max
    assert recipe.query.pad_to_max


def from_python(folder: Path, texts: list[str], pad: bool) -> np.ndarray:
    """The released protocol without lmk: special tokens, cut by slicing, right padding, cosine."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), M2BertModel.from_pretrained(folder)
    rows = []
    for text in texts:
        found = tokenizer(text)["input_ids"][:LENGTH]
        filling = [0] * (LENGTH - len(found) if pad else 0)
        inputs = {
            "input_ids": torch.tensor([found + filling]),
            "attention_mask": torch.tensor([[1] * len(found) + filling]),
        }
        with torch.inference_mode():
            rows.append(model(**inputs).pooler_output[0])
    return torch.nn.functional.normalize(torch.stack(rows), dim=-1).numpy()


@pytest.mark.parametrize("flags", [[], ["--no-pad-to-max"]], ids=["padded", "not-padded"])
def test_vectors_are_those_of_the_model_in_python(
    lmk: Lmk, m2bert: Path, beir: Path, tmp_path: Path, flags: list[str]
) -> None:
    precise = ["--dtype", "fp32", "--store-dtype", "fp32"]
    lmk("encode", beir, "-m", m2bert, "-o", tmp_path / "v", *precise, *flags)
    vectors = Vectors(tmp_path / "v")
    assert vectors.recipe.doc.pad_to_max == (not flags)
    texts = [doc.content.strip() for doc in open_collection(str(beir)).docs()]
    wanted = from_python(m2bert, texts, not flags)
    np.testing.assert_allclose(vectors.at(np.arange(60)).vectors, wanted, atol=1e-5)
    lmk("encode", beir, "-m", m2bert, "-o", tmp_path / "w", *precise, *flags, "--batch-tokens", 50)
    again = Vectors(tmp_path / "w").at(np.arange(60)).vectors
    np.testing.assert_allclose(again, wanted, atol=1e-5)


def test_padded_and_not_padded_are_different_recipes(
    lmk: Lmk, m2bert: Path, beir: Path, tmp_path: Path
) -> None:
    lmk("encode", beir, "-m", m2bert, "-o", tmp_path / "v")
    other = lmk("encode", beir, "-m", m2bert, "-o", tmp_path / "v", "--no-pad-to-max", code=3)
    assert "recipe.doc.pad_to_max: True | False" in other.err


def test_chunk_and_average_is_a_window(lmk: Lmk, m2bert: Path, tmp_path: Path) -> None:
    text = tiny.sentence(3, 90)
    tiny.write_jsonl(tmp_path / "one.jsonl", [{"_id": "d", "text": text}])
    precise = ["--dtype", "fp32", "--store-dtype", "fp32", "--window", LENGTH]
    lmk("encode", tmp_path / "one.jsonl", "-m", m2bert, "-o", tmp_path / "v", *precise)
    tokenizer = AutoTokenizer.from_pretrained(m2bert)
    content = tokenizer(text, add_special_tokens=False)["input_ids"]
    room = LENGTH - 2
    model, made = M2BertModel.from_pretrained(m2bert), []
    for start in range(0, len(content), room):
        piece = [2, *content[start : start + room], 3]
        ids = torch.tensor([piece + [0] * (LENGTH - len(piece))])
        with torch.inference_mode():
            made.append(model(ids).pooler_output[0])
    assert len(made) > 2
    wanted = torch.nn.functional.normalize(torch.stack(made).mean(0), dim=-1)
    np.testing.assert_allclose(
        Vectors(tmp_path / "v").at(np.arange(1)).vectors[0], wanted, atol=1e-5
    )


def test_show_counts_and_dry_run(lmk: Lmk, m2bert: Path, beir: Path, tmp_path: Path) -> None:
    text = " ".join(tiny.WORDS)
    shown = lmk("tokenize", "--show", text, "-m", m2bert, "--json").json
    (one,) = shown["inputs"]
    assert (len(one["ids"]), one["tokens"][0], one["marks"]) == (LENGTH, "[CLS]", [0])
    assert shown["lost"] > 0
    plan = lmk("encode", beir, "-m", m2bert, "--dry-run", "--json").json
    made = lmk("encode", beir, "-m", m2bert, "-o", tmp_path / "v", "--json").json
    assert plan["texts cut"] == made["cut"] > 0
    assert plan["tokens lost"] == made["lost"] > 0


@pytest.mark.parametrize(
    "flags", [["--max-length", "41"], ["--pool", "mean"], ["--unit", "chunk", "--gran", "8"]]
)
def test_unsupported_settings_are_refused(
    lmk: Lmk, m2bert: Path, beir: Path, tmp_path: Path, flags: list[str]
) -> None:
    assert (
        "Traceback"
        not in lmk("encode", beir, "-m", m2bert, "-o", tmp_path / "v", *flags, code=2).err
    )


@pytest.mark.parametrize("named", ["bert", "m2_bert", None])
def test_a_released_folder_is_known_by_its_mixer(
    lmk: Lmk, m2bert: Path, beir: Path, tmp_path: Path, named: str | None
) -> None:
    """A model with another model type, code of its own, and weights in model.bin."""
    folder = tmp_path / "hub"
    shutil.copytree(m2bert, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": named, "auto_map": {"AutoConfig": "configuration_bert.BertConfig"}}
    config = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").unlink()
    torch.save(M2BertModel.from_pretrained(m2bert).state_dict(), folder / "model.bin")
    declared = read_model(str(folder))
    assert (declared.kind, declared.pool, declared.max_length) == ("m2bert", "model", LENGTH)
    for number, source in enumerate((m2bert, folder)):
        lmk("encode", beir, "-m", source, "-o", tmp_path / f"v{number}", "--dtype", "fp32")
    one, other = (Vectors(tmp_path / f"v{i}") for i in range(2))
    assert np.array_equal(one.at(np.arange(60)).vectors, other.at(np.arange(60)).vectors)
    digest = declared.weights_digest
    weights = torch.load(folder / "model.bin")
    torch.save(weights | {"bert.pooler.dense.bias": torch.zeros(WIDTH)}, folder / "model.bin")
    assert read_model(str(folder)).weights_digest != digest


def opened(folder: Path, pad: bool) -> M2Bert:
    return open_model(read_model(str(folder)), ModelOptions("fp32", "cpu", pad_to_max=pad))


@pytest.mark.parametrize("pad", [True, False])
def test_a_vector_does_not_depend_on_its_company(m2bert: Path, pad: bool) -> None:
    model = opened(m2bert, pad)
    random = np.random.default_rng(0)
    lengths = (5, 40, 1, 17, 29, 5)
    sequences = [random.integers(5, 500, n).astype(np.int32) for n in lengths]
    together = model.states(sequences)
    alone = torch.cat([model.states([sequence]) for sequence in sequences])
    assert together.shape == (6, WIDTH)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)


def test_the_declared_settings(m2bert: Path) -> None:
    padded, bare = opened(m2bert, True), opened(m2bert, False)
    assert (padded.limit, padded.dim, padded.pad_to, bare.pad_to) == (LENGTH, WIDTH, LENGTH, 0)
    assert padded.one_vector
    assert not padded.packed
    whole = padded.weight_bytes
    for conv in padded.module.long_convs:
        conv.keep = False
    assert whole - padded.weight_bytes == 4 * WIDTH * (LENGTH + 1) * 8  # complex64, 2 layers of 2
    conv.keep = True
    assert conv.filter(LENGTH).spectrum.nbytes == WIDTH * (LENGTH + 1) * 8


def test_filters_are_not_kept_where_memory_is_short(
    m2bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(conv.keep for conv in opened(m2bert, True).module.long_convs)
    monkeypatch.setattr("lmkcli.plugins.m2bert.kind.free_memory", lambda: 1000)
    short = opened(m2bert, True)
    assert not any(conv.keep for conv in short.module.long_convs)
    sequences = [np.array([2, 9, 3], np.int32)]
    assert torch.equal(short.states(sequences), opened(m2bert, True).states(sequences))


def test_incomplete_weights_are_refused(m2bert: Path, tmp_path: Path) -> None:
    weights = M2BertModel.from_pretrained(m2bert).state_dict()
    del weights["bert.pooler.dense.weight"]
    shutil.copytree(m2bert, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    torch.save(weights, tmp_path / "m" / "pytorch_model.bin")
    with pytest.raises(DataError, match=r"pooler\.dense\.weight"):
        opened(tmp_path / "m", True)
