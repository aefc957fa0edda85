"""The conformance table: each family of models makes the vectors of sentence-transformers.

Or lmk refuses the model with a sentence. Vectors are compared alone, in packs with long texts, and in
another order; sentence-transformers reads each text alone.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer

import lmkcli
from lmkcli.encoding.resolution import resolve
from lmkcli.encoding.sentence_folder import export_model
from lmkcli.errors import DataError
from lmkcli.models.forward import ModelOptions
from lmkcli.models.lookup import read_model
from lmkcli.models.transformer import open_model
from lmkcli.spec.recipe import RecipeOptions
from tests import tiny
from tests.levels import sample
from tests.models.families import FAMILIES, WIDTH, add_pooling, save

LENGTH = 48
TEXTS = [
    "green tea",
    tiny.sentence(3, 200),  # longer than the length
    "",
    " a space at both ends \n",
    tiny.sentence(7, 30),
    "x",
    "\n\n",
    "Straße, café  and   spaces",
]
PROMPTS = {
    "none": {},
    "both": {"query": "query: ", "document": "text: "},
    "other": {"passage": "p: "},
}
NEAR = 1e-5


def by_sentence_transformers(folder: Path, side: str, texts: list[str]) -> NDArray[np.float32]:
    """Return the vectors of sentence-transformers, each text read alone by a model without a history."""
    made = []
    model = SentenceTransformer(str(folder), device="cpu")
    config = folder / "config.json"
    stateful = config.is_file() and "dynamic" in config.read_text()
    for text in texts:
        if stateful:
            model = SentenceTransformer(str(folder), device="cpu")
        encode = getattr(model, f"encode_{side}")
        made.append(encode([text], normalize_embeddings=True, show_progress_bar=False)[0])
    return np.stack(made)


def check(folder: Path, side: str, texts: list[str] = TEXTS) -> None:
    """Compare the vectors of all texts together, in another order, and each alone."""
    expected = by_sentence_transformers(folder, side, texts)
    encoder = lmkcli.load_encoder(
        str(folder), settings=lmkcli.EncodeSettings(dtype="fp32", device="cpu"), offline=True
    )
    encode = encoder.encode_documents if side == "document" else encoder.encode_queries
    together = encode(texts).vectors
    turned = encode(texts[::-1]).vectors[::-1]
    alone = np.concatenate([encode([text]).vectors for text in texts])
    for name, made in (("together", together), ("turned", turned), ("alone", alone)):
        apart = np.abs(made - expected).max(1)
        wrong = {texts[i][:20]: float(apart[i]) for i in np.flatnonzero(apart > NEAR)}
        assert not wrong, f"{name}: {wrong}"


CASES = itertools.product(FAMILIES, ["mean", "cls", "lasttoken"], PROMPTS, ["document", "query"])


@pytest.mark.parametrize(("family", "pool", "prompts", "side"), sample("families", CASES, 5))
def test_families(tmp_path: Path, family: str, pool: str, prompts: str, side: str) -> None:
    row = FAMILIES[family]
    if pool == "cls" and row.tokenizer()("x").input_ids[0] not in (0, 1, 2):
        pool = "mean"  # the tokenizer has no special token before a text
    folder = add_pooling(save(tmp_path / "model", family), pool, LENGTH, prompts=PROMPTS[prompts])
    read = row.tokenizer()
    check(
        folder, side, [text for text in TEXTS if read(text).input_ids]
    )  # the library needs a token


@pytest.mark.parametrize("family", sample("runs", FAMILIES, 3))
def test_each_family_runs_as_the_table_says(tmp_path: Path, family: str) -> None:
    model = open_model(read_model(str(save(tmp_path, family))), ModelOptions("fp32", "cpu"))
    runs = "packed" if model.packed else {"any": "padded", "equal": "equal"}[model.together]
    assert runs == FAMILIES[family].runs


# Settings of files that change vectors, for a tokenizer of bytes: the keys of sentence_bert_config.json, then
# those of tokenizer_config.json
OBEYED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cut at the left": ({}, {"truncation_side": "left"}),
    "cut at the left, by options": ({"processor_kwargs": {"truncation_side": "left"}}, {}),
    "old options": ({"tokenizer_args": {"truncation_side": "left", "padding_side": "left"}}, {}),
    "length by options": ({"processor_kwargs": {"model_max_length": 20}}, {}),
    "lengths of both sides": ({"query_length": 9, "document_length": 17}, {}),
    "length of texts": ({"processing_kwargs": {"text": {"max_length": 11}}}, {}),
    "lower case": ({"do_lower_case": True}, {}),
    "no length": ({"max_seq_length": None}, {}),
    "length of the tokenizer": ({"max_seq_length": None}, {"model_max_length": 13}),
    "padding at the left": ({}, {"padding_side": "left"}),
}


SIDES = itertools.product(OBEYED, ["document", "query"])


@pytest.mark.parametrize(("name", "side"), sample("obeyed", SIDES, 5))
def test_settings_are_obeyed(tmp_path: Path, name: str, side: str) -> None:
    settings, tokenizer = OBEYED[name]
    folder = save(tmp_path / "model", "Qwen3")
    add_pooling(folder, "mean", LENGTH, settings=settings, prompts=PROMPTS["both"])
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | tokenizer))
    check(folder, side)


REFUSED: dict[str, dict[str, Any]] = {
    "message": {
        "modality_config": {
            kind: {"method": "forward", "method_output_name": "last_hidden_state"}
            for kind in ("text", "message")
        },
        "module_output_name": "token_embeddings",
    },
    "transformer_task fill-mask": {"transformer_task": "fill-mask"},
    "model_kwargs rotary_base": {"model_kwargs": {"rotary_base": 3}},
    "config_kwargs is_causal": {"config_args": {"is_causal": False}},
    "processor_kwargs do_lower_case": {"processor_kwargs": {"do_lower_case": True}},
    "processing_kwargs text.add_special_tokens": {
        "processing_kwargs": {"text": {"add_special_tokens": False}}
    },
    "tokenizer_name_or_path": {"tokenizer_name_or_path": "other"},
    "query_expansion": {"query_expansion": {"strategy": "fixed", "length": 8}},
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_lmk_lacks_are_refused(tmp_path: Path, name: str) -> None:
    folder = add_pooling(save(tmp_path / "model", "BERT"), "mean", LENGTH, settings=REFUSED[name])
    with pytest.raises(DataError, match=name):
        read_model(str(folder))


def test_unknown_keys_are_noted(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "BERT")
    add_pooling(folder, "mean", LENGTH, settings={"strange_key": 1})
    assert any("strange_key" in note for note in read_model(str(folder)).notes)


@pytest.mark.parametrize("name", ["BertTokenizer", "PreTrainedTokenizerFast"])
def test_a_class_that_contradicts_the_file_is_refused(tmp_path: Path, name: str) -> None:
    """transformers gives BertTokenizer its own normalizer and splitter, whatever the file has."""
    folder = add_pooling(save(tmp_path / "model", "BERT"), "mean", LENGTH)
    for file, changes in (
        ("tokenizer.json", {"normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}}),
        ("tokenizer_config.json", {"tokenizer_class": name}),
    ):
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    if name == "BertTokenizer":
        with pytest.raises(DataError, match="split texts differently"):
            lmkcli.load_encoder(str(folder), offline=True).encode_documents(["tea"])
    else:
        check(folder, "document")


def test_an_exported_folder_keeps_white_space(tmp_path: Path) -> None:
    folder = add_pooling(save(tmp_path / "model", "Qwen3"), "lasttoken", LENGTH)
    resolved = resolve(RecipeOptions(model=str(folder)), offline=True)
    export_model(resolved, tmp_path / "out")
    expected = by_sentence_transformers(folder, "document", TEXTS)
    made = by_sentence_transformers(tmp_path / "out", "document", TEXTS)
    np.testing.assert_allclose(made, expected, atol=NEAR)
    check(tmp_path / "out", "document")


@pytest.mark.parametrize("activation", ["Sigmoid", "Identity", "Mish"])
def test_activations_after_dense(tmp_path: Path, activation: str) -> None:
    modules = [("2_Dense", "Dense"), ("3_Normalize", "Normalize")]
    folder = add_pooling(save(tmp_path / "model", "BERT"), "mean", LENGTH, modules=modules)
    for path, _ in modules:
        (folder / path).mkdir()
    declared = {
        "in_features": WIDTH, "out_features": 8, "bias": False,
        "activation_function": f"torch.nn.modules.activation.{activation}".replace(
            "activation.Identity", "linear.Identity"
        ),
    }  # fmt: skip
    (folder / "2_Dense/config.json").write_text(json.dumps(declared))
    (folder / "3_Normalize/config.json").write_text("{}")
    weight = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1))
    save_file({"linear.weight": weight}, folder / "2_Dense/model.safetensors")
    check(folder, "document", TEXTS[:3])
