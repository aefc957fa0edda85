"""A tiny TITE with random weights through all five verbs."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from lmkcli.data.collection import open_collection
from lmkcli.models.lookup import read_model
from lmkcli.plugins.tite.config import TiteConfig
from lmkcli.plugins.tite.model import TiteModel
from lmkcli.vectors.stored import Vectors
from tests import tiny

Lmk = Callable[..., Any]
LENGTH, WIDTH = 40, 32


@pytest.fixture(scope="module")
def tite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 positions (some documents are longer), upscaled from 16 to 32, no special tokens."""
    folder = tmp_path_factory.mktemp("models") / "tite"
    torch.manual_seed(7)
    config = TiteConfig(
        vocab_size=tiny.VOCABULARY, num_hidden_layers=4, hidden_sizes=[16, 16, 32, WIDTH],
        num_attention_heads=4, intermediate_sizes=64, max_position_embeddings=LENGTH,
        kernel_sizes=[None, 4, 4, 3], strides=[None, 4, 4, 3], initializer_range=0.3,
        norm_location="post", norm_type="layer", absolute_positional_embedding_type="learned",
    )  # fmt: skip
    TiteModel(config).save_pretrained(folder)
    tiny.wordpiece(markers=False).save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_all_five_verbs(lmk: Lmk, tite: Path, beir: Path, tmp_path: Path) -> None:
    tokens, vectors, graph, run = (tmp_path / name for name in ("t", "v", "i", "run.trec"))
    assert lmk("tokenize", beir, "-m", tite, "-o", tokens, "--json").json["documents"] == 60
    for source in (
        beir,
        tokens,
    ):  # both sources give the same vectors, so the second run does nothing
        made = lmk("encode", source, "-m", tite, "-o", vectors, "--json")
        assert (made.json["docs"], made.json["vectors"], made.json["empty"]) == (60, 60, 0)
    assert re.search(rf"pool model.*\b{LENGTH}\b.*\bdot\b", made.err)
    assert "guess" not in made.err
    lmk("index", vectors, "-o", graph)
    for place in (vectors, graph):
        path = run.with_stem(place.name)
        lmk("search", place, beir, "-k", 100, "-o", path)
        assert lmk("eval", path, "--json").json[0]["R@100"] == 1.0  # all documents are encoded
    assert lmk("verify", vectors, "--json").json["least cosine"] > 0.999
    shown = lmk("show", vectors, "--json").json
    assert shown["execution"]["attention"] == "packed"
    recipe = Vectors(vectors).recipe
    assert (recipe.doc.pool, recipe.doc.similarity, recipe.doc.normalize) == ("model", "dot", False)
    assert (recipe.doc.max_length, recipe.query.max_length) == (LENGTH, 32)


def test_states_of_a_model_without_pooling_are_pooled_like_any_encoders(
    lmk: Lmk, beir: Path, tmp_path: Path
) -> None:
    torch.manual_seed(7)
    config = TiteConfig(
        vocab_size=tiny.VOCABULARY, num_hidden_layers=2, hidden_sizes=WIDTH, num_attention_heads=4,
        intermediate_sizes=64, max_position_embeddings=LENGTH, initializer_range=0.3,
    )  # fmt: skip
    TiteModel(config).save_pretrained(tmp_path / "m")
    tiny.wordpiece().save_pretrained(tmp_path / "m")
    made = lmk("encode", beir, "-m", tmp_path / "m", "-o", tmp_path / "v", "--dtype", "fp32")
    assert "declares no pooling" in made.err
    lmk("encode", beir, "-m", tmp_path / "m", "--pool", "lmk", "--gran", 4, "-o", tmp_path / "l")
    lmk("verify", tmp_path / "l", "--sample", 5)
    model = TiteModel.from_pretrained(tmp_path / "m").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    stored = Vectors(tmp_path / "v")
    text = next(open_collection(str(beir)).docs().__iter__()).content
    with torch.inference_mode():
        states = model(tokenizer(text, return_tensors="pt").input_ids).last_hidden_state[0]
    mean = torch.nn.functional.normalize(states.mean(0), dim=0)
    np.testing.assert_allclose(stored.at(np.array([0])).vectors[0], mean, rtol=0, atol=2e-3)


@pytest.mark.parametrize("pool", [("--pool", "cls"), ("--pool", "lmk", "--gran", 4)])
def test_the_folder_of_a_model_without_pooling_keeps_its_pooler(
    lmk: Lmk, beir: Path, tmp_path: Path, pool: tuple[Any, ...]
) -> None:
    config = TiteConfig(
        vocab_size=tiny.VOCABULARY, num_hidden_layers=2, hidden_sizes=WIDTH, num_attention_heads=4,
        intermediate_sizes=64, max_position_embeddings=LENGTH, initializer_range=0.3,
    )  # fmt: skip
    TiteModel(config).save_pretrained(tmp_path / "m")
    tiny.wordpiece().save_pretrained(tmp_path / "m")
    exact = ("--dtype", "fp32", "--store-dtype", "fp32")
    lmk(
        "export", "--to", "sentence-transformers", "-m", tmp_path / "m", *pool, "-o", tmp_path / "s"
    )
    lmk("encode", beir, "-m", tmp_path / "m", *pool, *exact, "-o", tmp_path / "v")
    lmk("encode", beir, "-m", tmp_path / "s", *exact, "-o", tmp_path / "w")
    one, other = (
        np.concatenate([block.vectors for block in Vectors(tmp_path / name)]) for name in "vw"
    )
    np.testing.assert_array_equal(one, other)
    model = SentenceTransformer(str(tmp_path / "s"), trust_remote_code=True)
    texts = [doc.content for doc in open_collection(str(beir)).docs()]
    np.testing.assert_allclose(model.encode_document(texts), one, rtol=0, atol=1e-5)


def test_a_vector_is_the_output_of_the_model(
    lmk: Lmk, tite: Path, beir: Path, tmp_path: Path
) -> None:
    lmk(
        "encode", beir, "-m", tite, "-o", tmp_path / "v", "--dtype", "fp32", "--store-dtype", "fp32"
    )
    stored = Vectors(tmp_path / "v")
    model, tokenizer = TiteModel.from_pretrained(tite).eval(), AutoTokenizer.from_pretrained(tite)
    texts = [doc.content.strip() for doc in open_collection(str(beir)).docs()]
    batch = tokenizer(texts, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
    with torch.inference_mode():
        wanted = model(batch["input_ids"], batch["attention_mask"]).last_hidden_state[:, 0]
    np.testing.assert_allclose(
        np.concatenate([block.vectors for block in stored]), wanted, rtol=0, atol=2e-5
    )


def test_truncated_tokens_are_counted(lmk: Lmk, tite: Path, beir: Path, tmp_path: Path) -> None:
    plan = lmk("encode", beir, "-m", tite, "--dry-run", "--json").json
    made = lmk("encode", beir, "-m", tite, "-o", tmp_path / "v", "--json").json
    contents = lmk("show", tmp_path / "v", "--json").json["contents"]
    assert plan["texts cut"] == contents["cut"] > 0
    assert plan["tokens lost"] == contents["lost"] > 0
    assert made["docs"] == plan["documents"] == 60
    whole = lmk("encode", beir, "-m", tite, "-o", tmp_path / "w", "--window", LENGTH, "--json").json
    assert lmk("show", tmp_path / "w", "--json").json["contents"]["cut"] == 0
    assert whole["vectors"] == 60  # the mean of a text's windows


def test_no_special_token_is_added(lmk: Lmk, tite: Path) -> None:
    (shown,) = lmk("tokenize", "--show", "copper conducts", "-m", tite, "--json").json["inputs"]
    assert "".join(shown["tokens"]).replace("##", "") == "copperconducts"
    assert "[CLS]" not in lmk("tokenize", "--show", "copper", "-m", tite).out


def test_an_empty_text_is_counted(lmk: Lmk, tite: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    tiny.write_jsonl(corpus, [{"_id": "none", "text": " "}, {"_id": "some", "text": "copper wire"}])
    assert lmk("encode", corpus, "-m", tite, "-o", tmp_path / "v", "--json").json["empty"] == 1
    assert len(lmk("search", tmp_path / "v", "-q", "copper", "--json").json) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--pool", "mean"], "tite .*one vector.*--pool mean"),
        (["--max-length", "41"], "--max-length 41: .* 40 positions.*--window"),
        (["--unit", "token"], "--unit token: .*--unit chunk --gran 256 --window chunk"),
        (
            ["--unit", "chunk", "--gran", "8"],
            "--unit chunk: .*--unit chunk --gran 256 --window chunk",
        ),
    ],
)
def test_unsupported_settings_are_refused(
    lmk: Lmk, tite: Path, beir: Path, tmp_path: Path, flags: list[str], message: str
) -> None:
    err = lmk("encode", beir, "-m", tite, "-o", tmp_path / "v", *flags, code=2).err
    assert re.search(message, err)
    assert "--extend" not in err


def test_other_weights_are_another_model(tite: Path, tmp_path: Path) -> None:
    before = read_model(str(tite)).weights_digest
    model = TiteModel.from_pretrained(tite)
    with torch.no_grad():
        model.embeddings.norm.bias += 1
    model.save_pretrained(tmp_path / "other")
    assert read_model(str(tmp_path / "other")).weights_digest != before
