"""Files of a model that declare sizes, ids and texts far beyond what they contain."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, normalizers

from lmkcli.errors import DataError
from lmkcli.models.crossencoder import open_cross_encoder
from lmkcli.models.heads import open_heads, open_latent
from lmkcli.models.lookup import read_model
from lmkcli.models.model_files import loading
from lmkcli.models.model_folder import ModelFolder, SentenceModule
from lmkcli.models.tensors import read_tensors
from lmkcli.models.tokenizer_folder import open_tokenizer
from lmkcli.spec.recipe import EncoderConfig

Models = Callable[[str], Path]
CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", ["Dense", "LayerNorm"])
def test_sizes_of_a_module_are_believed_only_with_its_weights(tmp_path: Path, kind: str) -> None:
    sizes = {"in_features": 100_000, "out_features": 1_000_000_000, "dimension": 2_000_000_000}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    name = "norm" if kind == "LayerNorm" else "linear"
    save_file(
        {f"{name}.weight": torch.ones(4, 4), f"{name}.bias": torch.ones(4)},
        tmp_path / "model.safetensors",
    )
    folder = ModelFolder(tmp_path, "x", modules=(SentenceModule(kind, tmp_path),))
    with pytest.raises(DataError, match="cannot be loaded"):
        open_heads(folder, CPU)


def test_the_width_of_a_latent_attention_is_believed_only_with_its_weights(tmp_path: Path) -> None:
    save_file({"latents": torch.ones(1, 100_000)}, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match="no latent attention as LMK writes it"):
        open_latent(tmp_path)


@pytest.fixture
def folder(tiny_model: Models, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_model("bert"), tmp_path / "model")


def opened(folder: Path) -> object:
    return open_tokenizer(read_model(str(folder)), EncoderConfig(str(folder), "", ""))(
        ["water " * 10]
    )


@pytest.mark.parametrize("place", ["template", "vocabulary"])
def test_token_ids_that_no_model_has_are_refused(folder: Path, place: str) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    huge = 4_000_000_000
    if place == "template":
        content["post_processor"]["special_tokens"]["[CLS]"]["ids"] = [huge]
    else:
        content["model"]["vocab"]["water"] = huge
    path.write_text(json.dumps(content))
    with pytest.raises(DataError):
        opened(folder)


def long(*parts: normalizers.Normalizer) -> normalizers.Normalizer:
    return normalizers.Sequence(list(parts))


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.Replace("a", "b" * 1000),
        long(*(normalizers.Replace("a", "aa") for _ in range(7))),
        long(long(normalizers.Replace("a", "b" * 20)), normalizers.Replace("b", "c" * 20)),
        normalizers.Prepend("x" * 100_000),
        # 40 doublings of each character: even the special tokens have no end
        long(*(normalizers.Replace(Regex("."), "ab") for _ in range(40))),
    ],
)
def test_a_normalizer_that_expands_texts_is_refused(
    folder: Path, normalizer: normalizers.Normalizer
) -> None:
    opened(folder)
    fast = Tokenizer.from_file(str(folder / "tokenizer.json"))
    fast.normalizer = normalizer
    fast.save(str(folder / "tokenizer.json"))
    with pytest.raises(DataError, match="times longer"):
        opened(folder)
    with pytest.raises(DataError, match="times longer"):
        open_cross_encoder(str(folder), "cpu", offline=True)


def test_padding_that_a_file_asks_for_has_no_effect(folder: Path) -> None:
    fast = Tokenizer.from_file(str(folder / "tokenizer.json"))
    fast.enable_padding(length=1_000_000_000)
    fast.save(str(folder / "tokenizer.json"))
    opened(folder)


def test_usual_normalizers_are_accepted(folder: Path) -> None:
    fast = Tokenizer.from_file(str(folder / "tokenizer.json"))
    replaced = [
        normalizers.Replace(" ", "\u2581"),
        normalizers.Replace("``", '"'),
        normalizers.NFKC(),
    ]
    fast.normalizer = long(normalizers.Prepend("\u2581"), *replaced)
    fast.save(str(folder / "tokenizer.json"))
    opened(folder)


def test_a_message_does_not_list_all_tensors_of_a_file() -> None:
    text = "unexpected " + ", ".join(f"tensor {number}" for number in range(300_000))
    with pytest.raises(DataError) as failed, loading("the model"):
        raise RuntimeError(text)
    assert len(str(failed.value)) < 1000


def test_a_message_gives_no_advice_to_load_pickled_objects(tmp_path: Path) -> None:
    torch.save({"a": Path("x")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(DataError, match="other objects than tensors") as failed:
        read_tensors(tmp_path / "pytorch_model.bin", "the weights")
    assert "weights_only" not in str(failed.value)
