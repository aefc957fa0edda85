"""Configurations of models that name code or other files: refused without --trust-remote-code."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file
from transformers.integrations import hub_kernels

from lmkcli.errors import DataError
from lmkcli.models import consent
from lmkcli.models.consent import check_declarations, opening
from lmkcli.models.forward import ModelOptions
from lmkcli.models.lookup import read_model
from lmkcli.models.model_folder import NO_LIMIT
from lmkcli.models.tokenizer_folder import open_tokenizer
from lmkcli.models.transformer import length_limit, open_model
from lmkcli.spec.recipe import EncoderConfig
from tests import tiny

Models = Callable[[str], Path]
CODE = [
    ("attn_implementation", "kernels-community/flash-attn2"),
    ("attn_implementation", "evil/attention@main:forward"),
    ("attn_implementation", {"": "sdpa", "text_config": "evil/attention"}),
    ("attn_implementation", {"text_config": {"": "evil/attention"}}),
    ("_attn_implementation", "evil/attention"),
    ("_attn_implementation_internal", "evil/attention"),
    ("attn_implementation", "paged|evil/attention"),
    ("attn_implementation", ["evil/attention"]),
    ("experts_implementation", "deepgemm"),
    ("_experts_implementation", "sonicmoe"),
    ("quantization_config", {"quant_method": "mxfp4"}),
    ("quantization_config", {"bits": 4}),
    ("quantization_config", "gptq"),
    ("use_kernels", True),
    ("kernel_config", {"a": "b"}),
    ("fusion_config", {"patch_embeddings": True}),
    ("use_timm_backbone", True),
]
FILES = [
    ("transformers_weights", "adapter_model.safetensors"),
    ("configuration_files", ["config.4.0.0.json"]),
    ("fast_tokenizer_files", ["tokenizer.4.0.json"]),
    ("vocab", "../vocab.txt"),
    ("merges", "/srv/merges.txt"),
]


@pytest.fixture
def folder(tiny_model: Models, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_model("bert"), tmp_path / "model")


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def open_all(folder: Path) -> None:
    made = read_model(str(folder))
    open_model(made, ModelOptions("fp32", "cpu"))
    open_tokenizer(made, EncoderConfig(str(folder), "", ""))


@pytest.mark.parametrize(("key", "value"), CODE)
@pytest.mark.parametrize("below", [None, "text_config"])
def test_a_key_that_can_load_code_is_refused(
    folder: Path, key: str, value: Any, below: str | None
) -> None:
    changes = {below: {key: value}} if below else {key: value}
    edit(folder / "config.json", **changes)
    with pytest.raises(DataError, match=rf"config\.json has {key} = .* --trust-remote-code"):
        open_all(folder)
    check_declarations(folder, trust=True)


@pytest.mark.parametrize(("key", "value"), FILES)
@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_key_that_selects_other_files_is_refused(
    folder: Path, key: str, value: Any, trust: bool, name: str
) -> None:
    edit(folder / name, **{key: value})
    with pytest.raises(DataError, match=f"selects other files with the key {key}"):
        check_declarations(folder, trust)


def test_a_vocabulary_outside_the_folder_is_not_read(folder: Path, tmp_path: Path) -> None:
    """Its words would not be in the digest of the model."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "tokenizer.json").unlink()
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    (tmp_path / "other.txt").write_text("\n".join([*words[:5], *words[:4:-1]]))
    settings = {"tokenizer_class": "BertTokenizer", "vocab": str(tmp_path / "other.txt")}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(DataError, match="selects other files with the key vocab"):
        open_all(folder)


@pytest.mark.parametrize(
    "values",
    [
        {"attn_implementation": "sdpa"},
        {"_attn_implementation": "eager"},
        {"attn_implementation": None, "quantization_config": None, "use_kernels": False},
        {"auto_map": {"AutoModel": "modeling_x.X"}},  # the class of transformers reads it
    ],
)
def test_usual_values_are_accepted(folder: Path, values: dict[str, Any]) -> None:
    edit(folder / "config.json", **values)
    open_all(folder)


def test_an_attention_that_is_not_installed_is_not_replaced_by_code_of_the_hub(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(folder / "config.json", attn_implementation="flash_attention_2")
    monkeypatch.setattr(consent, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="flash_attention_2"):
        open_all(folder)


@pytest.mark.parametrize("kind", ["vit", "wav2vec2"])
def test_models_of_images_and_sounds_are_refused_before_they_are_created(
    folder: Path, kind: str
) -> None:
    edit(folder / "config.json", model_type=kind)
    with pytest.raises(DataError, match="does not read text"):
        open_model(read_model(str(folder)), ModelOptions("fp32", "cpu"))


def test_libraries_are_offline_while_a_model_opens(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever key asks for a download: the libraries have no network."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for trust in (False, True):
        with opening(folder, "the model", trust):
            assert huggingface_hub.is_offline_mode() is not trust
        assert not constants.HF_HUB_OFFLINE


def test_the_package_kernels_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it is installed, it downloads and imports code for some architectures, such as Mamba."""
    assert os.environ["USE_HUB_KERNELS"] == "0"  # if transformers is imported later
    monkeypatch.setattr(hub_kernels, "_kernels_enabled", True)
    consent.disable_kernels()
    assert not hub_kernels._kernels_enabled


def test_the_user_is_never_asked_for_consent(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """transformers asks on the terminal unless it is told; an adapter must not make it ask."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda *words: asked.append("asked"))
    ran = tmp_path / "ran"
    code = f"from pathlib import Path\nfrom transformers import BertConfig\nPath({str(ran)!r}).touch()\n"
    (folder / "strange.py").write_text(
        code + "class Config(BertConfig):\n    model_type = 'strange'\n"
    )
    edit(folder / "config.json", model_type="strange", auto_map={"AutoConfig": "strange.Config"})
    upper = tmp_path / "adapter"
    upper.mkdir()
    layer = "base_model.model.encoder.layer.0.attention.self.query"
    a, b = torch.ones(2, tiny.WIDTH), torch.ones(tiny.WIDTH, 2)
    matrices = {f"{layer}.lora_A.weight": a, f"{layer}.lora_B.weight": b}
    save_file(matrices, upper / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": str(folder)}
    (upper / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match="--trust-remote-code"):
        read_model(str(upper))
    assert not asked
    assert not ran.exists()
    assert length_limit(read_model(str(folder)), trust=False) == NO_LIMIT
    assert not asked
