"""Weights that do not fit the configuration, or are damaged: an error that names the tensor, never chance."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

import lmkcli
from lmkcli.errors import DataError
from lmkcli.models.crossencoder import open_cross_encoder
from lmkcli.models.forward import ModelOptions
from lmkcli.models.lookup import read_model
from lmkcli.models.transformer import open_masked
from tests.models.families import FAMILIES, add_pooling, save
from tests.models.test_conformance import LENGTH, check

Weights = dict[str, Tensor]


def rewrite(folder: Path, change: Callable[[Weights], Weights]) -> None:
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def matrix(weights: Weights, part: str) -> str:
    """The name of the first matrix with `part` in its name."""
    return next(name for name in sorted(weights) if part in name and weights[name].ndim == 2)


def encode(folder: Path) -> None:
    settings = lmkcli.EncodeSettings(dtype="fp32", device="cpu")
    lmkcli.load_encoder(str(folder), settings=settings, offline=True).encode_documents(["tea"])


def classifier(folder: Path) -> Path:
    """A cross-encoder."""
    save(folder, "BERT")
    config = AutoConfig.from_pretrained(folder)
    config.num_labels = 1
    torch.manual_seed(1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    return folder


def score(folder: Path) -> list[float]:
    return list(open_cross_encoder(str(folder), "cpu", True)("green tea", ["tea", "bread"]).scores)


def with_nan(weights: Weights) -> Weights:
    weights[matrix(weights, "attention")][0, 0] = float("nan")
    return weights


def shortened(weights: Weights) -> Weights:
    name = matrix(weights, "intermediate")
    return weights | {name: weights[name][:-3].contiguous()}


def wrapped(weights: Weights) -> Weights:
    return {f"module.{name}": value for name, value in weights.items()}


DAMAGE: dict[str, tuple[Callable[[Weights], Weights], str]] = {
    "nan": (with_nan, r"encoder.layer.0.attention.output.dense.weight has values that are not finite"),
    "shape": (shortened, r"layer.0.intermediate.dense.weight has the shape \[45, 32\] instead of \[48, 32\]"),
    "wrapped": (wrapped, r"start with 'module\.'.*save_pretrained"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_the_tensor_is_named(tmp_path: Path, name: str) -> None:
    folder = add_pooling(save(tmp_path / "model", "BERT"), "mean", LENGTH)
    change, message = DAMAGE[name]
    rewrite(folder, change)
    with pytest.raises(DataError, match=message):
        encode(folder)


@pytest.mark.parametrize("name", DAMAGE)
def test_cross_encoders_name_it_too(tmp_path: Path, name: str) -> None:
    """sentence-transformers warns at most, and returns NaN or random scores."""
    folder = classifier(tmp_path / "model")
    change, message = DAMAGE[name]
    rewrite(folder, change)
    with pytest.raises(DataError, match=message):
        score(folder)


@pytest.mark.parametrize("lost", ["classifier", "pooler"])
def test_a_cross_encoder_needs_its_head_and_its_pooler(tmp_path: Path, lost: str) -> None:
    folder = classifier(tmp_path / "model")
    rewrite(folder, lambda weights: {k: v for k, v in weights.items() if lost not in k})
    with pytest.raises(DataError, match=rf"(no weights for|lack 2 tensors).*{lost}"):
        score(folder)


@pytest.mark.parametrize("family", ["BERT", "Qwen3"])
def test_outputs_as_tuples(tmp_path: Path, family: str) -> None:
    """The key return_dict changes the form of outputs, and no vector."""
    folder = add_pooling(save(tmp_path / "model", family), "mean", LENGTH)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"return_dict": False}))
    check(folder, "document")


def test_outputs_of_cross_encoders_as_tuples(tmp_path: Path) -> None:
    folder = classifier(tmp_path / "model")
    expected, file = score(folder), folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"return_dict": False}))
    assert score(folder) == expected


def adapter(base: Path, folder: Path) -> Path:
    """A folder with an adapter of a base, in place of weights."""
    torch.manual_seed(6)
    targets = LoraConfig(r=4, lora_alpha=16, target_modules=["query"], init_lora_weights=False)
    get_peft_model(AutoModel.from_pretrained(base), targets).save_pretrained(folder)
    FAMILIES["BERT"].tokenizer().save_pretrained(folder)
    return add_pooling(folder, "mean", LENGTH)


@pytest.mark.parametrize("name", ["lost", "shape", "wrapped"])
def test_the_base_of_an_adapter_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """transformers draws the tensors that the base lacks, so that each merge would be another model."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base = save(tmp_path / "base", "BERT")
    folder = adapter(base, tmp_path / "model")
    part = "encoder.layer.1.output.dense"
    damage = DAMAGE | {
        "lost": (lambda w: {k: v for k, v in w.items() if part not in k}, f"the base .*lack 2.*{part}")
    }  # fmt: skip
    change, message = damage[name]
    rewrite(base, change)
    with pytest.raises(DataError, match=message):
        encode(folder)


def test_a_merged_model_has_no_random_pooler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base = save(tmp_path / "base", "BERT")
    rewrite(base, lambda weights: {k: v for k, v in weights.items() if "pooler" not in k})
    folder = adapter(base, tmp_path / "model")
    digests = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        digests.append(read_model(str(folder)).weights_digest)
        encode(folder)
    assert digests[0] == digests[1]


def test_the_head_of_a_masked_model_is_not_random(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter with the names of a masked model, and a base without a head."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base = save(tmp_path / "base", "BERT")
    masked = AutoModelForMaskedLM.from_pretrained(base)
    targets = LoraConfig(r=4, lora_alpha=16, target_modules=["query"], init_lora_weights=False)
    folder = tmp_path / "model"
    get_peft_model(masked, targets).save_pretrained(folder)
    FAMILIES["BERT"].tokenizer().save_pretrained(folder)
    add_pooling(folder, "mean", LENGTH)
    encode(folder)
    with pytest.raises(DataError, match="lack"):
        open_masked(read_model(str(folder)), ModelOptions("fp32", "cpu"))
