"""Folders of M2-BERT in the layout of the releases: weights, a configuration and code, without a tokenizer.

The names and shapes are those of the official code's listing, with random weights at a small size. The
vectors are compared with the equations of the paper, in float64, without lmk.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import erf
from transformers import AutoTokenizer

from lmkcli.data.collection import open_collection
from lmkcli.errors import DataError
from lmkcli.models.lookup import read_model
from lmkcli.vectors.stored import Vectors
from tests import tiny

Lmk = Callable[..., Any]
Floats = NDArray[np.float64]
Weights = dict[str, Floats]
LENGTH, WIDTH, INNER, ORDER, LAYERS, BLOCKS = 40, 32, 64, 16, 2, 4
ROWS = tiny.VOCABULARY  # a multiple of 8
TOKENIZER = "google-bert/bert-base-uncased"
# Fields of the authors' configuration and of the class that transformers wrote it for.
CONFIG = {
    "alibi_starting_size": 512, "architectures": ["BertForSequenceClassification"],
    "attention_probs_dropout_prob": 0.0, "bidirectional": True, "classifier_dropout": None,
    "gather_sentence_embeddings": True, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": WIDTH, "hyena_emb_dim": 5, "hyena_filter_dropout": 0.2, "hyena_filter_order": ORDER,
    "hyena_lr_pos_emb": 1e-05,
    "hyena_training_additions": False, "hyena_w": 10, "hyena_w_mod": 1, "hyena_wd": 0.1,
    "initializer_range": 0.02, "intermediate_size": INNER, "layer_norm_eps": 1e-12,
    "long_conv_kernel_learning_rate": 0.001, "long_conv_l_max": LENGTH, "max_position_embeddings": LENGTH,
    "model_type": "m2_bert", "monarch_mixer_sequence_mixing": True, "monarch_mlp_nblocks": BLOCKS,
    "num_attention_heads": 4, "num_hidden_layers": LAYERS, "pad_token_id": 0, "pool_all": False,
    "position_embedding_type": "absolute", "residual_long_conv": True, "torch_dtype": "float32",
    "transformers_version": "4.28.1", "type_vocab_size": 2, "use_cache": True, "use_cls_token": False,
    "use_flash_fft": False, "use_flash_mm": False, "use_glu_mlp": True, "use_monarch_mlp": True,
    "use_positional_encodings": True, "vocab_size": ROWS,
    "auto_map": {
        "AutoConfig": "configuration_bert.BertConfig",
        "AutoModelForMaskedLM": "bert_layers.BertForMaskedLM",
        "AutoModelForSequenceClassification": "bert_layers.BertForSequenceClassification",
    },
}  # fmt: skip
CODE = ("bert_layers.py", "configuration_bert.py", "monarch_mixer_sequence_mixer.py")


def small(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a tensor of the 2k model, at the size of this test."""
    if name.endswith("gated_layers.weight"):
        return BLOCKS, 2 * INNER // BLOCKS, WIDTH // BLOCKS
    if name.endswith("wo.weight"):
        return BLOCKS, WIDTH // BLOCKS, INNER // BLOCKS
    sizes = {2048: LENGTH, 768: WIDTH, 2304: 3 * WIDTH, 30528: ROWS, 128: ORDER}
    return tuple(sizes.get(each, each) for each in shape)


def random_weights(listing: Path) -> Weights:
    """Random weights with all names of the official code; the sines of a filter share one frequency."""
    random, weights = np.random.default_rng(5), {}
    for line in listing.read_text().splitlines()[1:]:
        name, given, *_ = line.split("\t")
        part = name.split(".")
        if part[1:3] == ["encoder", "layer"] and int(part[3]) >= LAYERS:
            continue
        shape = small(name, tuple(map(int, given.strip("()").rstrip(",").split(","))))
        value = random.normal(0, 0.3, shape)
        if name.endswith("position_ids"):
            value = np.arange(LENGTH)[None].astype(float)
        elif name.endswith("pos_emb.t"):
            value = np.linspace(0, 1, LENGTH)[None, :, None]
        elif name.endswith("deltas"):
            value = np.linspace(np.log(0.01) / 1.5, np.log(0.01) / 0.3, WIDTH)[None, None]
        elif name.endswith(("LayerNorm.weight", "layernorm.weight")):
            value = 1 + value
        elif name.endswith(".freq"):
            owner = name.partition(".implicit_filter")[0]
            value = weights.setdefault(owner, 10 + random.normal(0, 1, shape))
        weights[name] = value
    stored = {name: value.astype(np.float32).astype(np.float64) for name, value in weights.items()}
    return {name: value for name, value in stored.items() if not name.endswith(("fn", "fn2"))}


def norm(x: Floats, weights: Weights, name: str) -> Floats:
    centred = x - x.mean(-1, keepdims=True)
    unit = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    return unit * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x: Floats, weights: Weights, name: str) -> Floats:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def taps(weights: Weights, name: str, direction: str) -> Floats:
    """The taps of a filter, [positions, width]: a network over the features of the positions, with decay."""
    x = weights[f"{name}.pos_emb.z"][0]
    for layer in (0, 2, 4):
        x = linear(x, weights, f"{name}.{direction}.{layer}")
        x = np.sin(weights[f"{name}.{direction}.{layer + 1}.freq"] * x)
    x = x @ weights[f"{name}.{direction}.6.weight"].T
    decay = np.abs(weights[f"{name}.modulation.deltas"][0])
    return x * np.exp(-weights[f"{name}.pos_emb.t"][0] * decay)


def convolved(x: Floats, weights: Weights, name: str) -> Floats:
    """The sum over all pairs of positions: earlier ones by the forward filter, later ones by the reverse."""
    forward, reverse = (taps(weights, name, f"implicit_filter{end}") for end in ("", "_rev"))
    y = weights[f"{name}.bias"] * x
    for i in range(len(x)):
        for j in range(len(x)):
            y[i] += (forward[i - j] if j <= i else reverse[j - i - 1]) * x[j]
    return y


def mixed(x: Floats, weights: Weights, name: str) -> Floats:
    """The mixer: gated long convolutions after a short causal one, and a long convolution of the input."""
    u = linear(x, weights, f"{name}.in_linear")
    short, before = weights[f"{name}.short_filter.weight"][:, 0], np.zeros((2, u.shape[1]))
    padded = np.concatenate([before, u])
    u = sum(short[:, k] * padded[k : k + len(u)] for k in range(3))
    gate, other, v = np.split(u + weights[f"{name}.short_filter.bias"], 3, axis=1)
    y = other * convolved(v * gate, weights, f"{name}.filter_fn")
    return linear(y + convolved(x, weights, f"{name}.filter_fn2"), weights, f"{name}.out_linear")


def blocks(x: Floats, matrices: Floats) -> Floats:
    pieces = np.split(x, BLOCKS, axis=1)
    return np.concatenate([p @ m.T for p, m in zip(pieces, matrices, strict=True)], axis=1)


def plain_vector(weights: Weights, ids: list[int]) -> Floats:
    """The vector of one text of the full length, in float64."""
    embeddings, layers = "bert.embeddings", "bert.encoder.layer"
    x = weights[f"{embeddings}.word_embeddings.weight"][ids]
    x = x + weights[f"{embeddings}.token_type_embeddings.weight"][0]
    x = norm(
        x + weights[f"{embeddings}.position_embeddings.weight"], weights, f"{embeddings}.LayerNorm"
    )
    for n in range(LAYERS):
        x = mixed(x, weights, f"{layers}.{n}.attention")
        mlp = f"{layers}.{n}.mlp"
        a, c = np.split(blocks(x, weights[f"{mlp}.gated_layers.weight"]), 2, axis=1)
        y = blocks(a * (1 + erf(a / np.sqrt(2))) / 2 * c, weights[f"{mlp}.wo.weight"])
        x = norm(y + weights[f"{mlp}.wo.bias"] + x, weights, f"{mlp}.layernorm")
    vector: Floats = np.tanh(linear(x[:1], weights, "bert.pooler.dense")[0])
    return vector / np.linalg.norm(vector)


@pytest.fixture
def weights(parity: Callable[[str], Path]) -> Weights:
    return random_weights(parity("m2/state_dict_m2-bert-80M-2k.txt"))


@pytest.fixture
def released(weights: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder; the working directory has the tokenizer under its name on the hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tokenizer = tiny.wordpiece()
    tokenizer.model_max_length = 512
    tokenizer.save_pretrained(tmp_path / TOKENIZER)
    folder = tmp_path / "m2-bert-80M-2k-retrieval"
    folder.mkdir()
    for name in CODE:
        (folder / name).write_text("raise SystemExit('code of the folder ran')\n")
    (folder / "README.md").write_text("The tokenizer is that of bert-base-uncased.\n")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = {name: torch.from_numpy(value).float() for name, value in weights.items()}
    tensors["bert.embeddings.position_ids"] = torch.arange(LENGTH)[None]
    torch.save(tensors, folder / "pytorch_model.bin")
    return folder


def texts_of(folder: Path) -> list[str]:
    return [doc.content.strip() for doc in open_collection(str(folder)).docs()]


def test_vectors_are_those_of_the_paper(
    lmk: Lmk, released: Path, weights: Weights, beir: Path, tmp_path: Path
) -> None:
    precise = ["--dtype", "fp32", "--store-dtype", "fp32"]
    made = lmk("encode", beir, "-m", released, "-o", tmp_path / "v", *precise)
    assert f"{released} has no tokenizer; lmk reads that of {TOKENIZER}" in made.err
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    found = Vectors(tmp_path / "v").at(np.arange(12)).vectors
    for vector, text in zip(found, texts_of(beir), strict=False):
        ids = tokenizer(text)["input_ids"][:LENGTH]
        wanted = plain_vector(weights, ids + [0] * (LENGTH - len(ids)))
        np.testing.assert_allclose(vector, wanted, atol=1e-4)  # sines amplify rounding


def test_the_tokenizer_is_a_part_of_the_recipe(
    lmk: Lmk, released: Path, beir: Path, tmp_path: Path
) -> None:
    """Another tokenizer makes other vectors, so lmk does not mix them."""
    lmk("encode", beir, "-m", released, "-o", tmp_path / "v")
    own = tmp_path / "with-tokenizer"
    shutil.copytree(released, own)
    for file in (tmp_path / TOKENIZER).glob("*.json"):
        shutil.copy(file, own)
    assert read_model(str(own)).tokenizer_digest == read_model(str(released)).tokenizer_digest
    other = tiny.wordpiece()
    other.add_tokens(["landmark"])
    other.save_pretrained(tmp_path / TOKENIZER)
    assert read_model(str(own)).tokenizer_digest != read_model(str(released)).tokenizer_digest
    refused = lmk("encode", beir, "-m", released, "-o", tmp_path / "v", code=3)
    assert "recipe.doc.tokenizer" in refused.err


def test_a_training_gives_the_model_the_tokenizer(
    lmk: Lmk, released: Path, beir: Path, tmp_path: Path
) -> None:
    examples = tmp_path / "examples.jsonl"
    tiny.write_jsonl(
        examples,
        [{"query": tiny.sentence(n, 4), "pos": [tiny.sentence(n, 9)]} for n in range(4)],
    )
    settings = ["--loss", "infonce", "--steps", 1, "--batch-size", 2]
    lmk("train", examples, "-m", released, *settings, "-o", tmp_path / "trained")
    shutil.rmtree(tmp_path / "google-bert")
    made = lmk("encode", beir, "-m", tmp_path / "trained", "-o", tmp_path / "v")
    assert "no tokenizer" not in made.err


def test_without_the_tokenizer_the_message_names_it(released: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "google-bert")
    with pytest.raises(
        DataError, match=rf"no tokenizer.* {TOKENIZER}.*lmk fetch -m {TOKENIZER} .*{released}"
    ):
        read_model(str(released), offline=True)
