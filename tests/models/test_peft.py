"""Adapters that peft wrote: lmk makes the states of peft itself, or refuses them with a sentence."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, YosoConfig

from lmkcli.errors import DataError
from lmkcli.models.forward import ModelOptions
from lmkcli.models.lookup import read_model
from lmkcli.models.transformer import open_model
from tests.models.families import add_pooling, save

QUERY, KEY = "attention.self.query", "attention.self.key"
BERT = ["query", "key", "output.dense"]
LORA: dict[str, Any] = {"r": 4, "lora_alpha": 6, "target_modules": BERT}
MERGED: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("BERT", LORA),
    "a rank of some layers": ("BERT", LORA | {"rank_pattern": {"key": 2, f"layer.1.{QUERY}": 3}}),
    "an alpha of some layers": ("BERT", LORA | {"alpha_pattern": {"query": 1, f"0.{KEY}": 2}}),
    "both": (
        "BERT",
        LORA | {"rank_pattern": {f"^encoder.layer.0.{KEY}": 1}, "alpha_pattern": {"key": 9}},
    ),
    "rsLoRA": ("BERT", LORA | {"use_rslora": True}),
    "rsLoRA with ranks": ("BERT", LORA | {"use_rslora": True, "rank_pattern": {"query": 2}}),
    "biases of its layers": ("BERT", LORA | {"bias": "lora_only"}),
    "all biases": ("BERT", LORA | {"bias": "all"}),
    "biases of the matrices": ("BERT", LORA | {"lora_bias": True}),
    "whole modules": ("BERT", LORA | {"modules_to_save": ["intermediate.dense"]}),
    "embeddings": ("BERT", LORA | {"target_modules": ["word_embeddings", "query"]}),
    "embeddings as a whole": ("BERT", LORA | {"modules_to_save": ["word_embeddings"]}),
    "some layers": ("BERT", LORA | {"layers_to_transform": [1]}),
    "gaussian": ("BERT", LORA | {"init_lora_weights": "gaussian"}),
    "weights as [in, out]": ("GPT-2", LORA | {"target_modules": ["c_attn", "c_proj"]}),
    "DoRA": ("BERT", LORA | {"use_dora": True}),
    "DoRA with ranks and rsLoRA": (
        "BERT",
        LORA | {"use_dora": True, "rank_pattern": {"key": 2}, "use_rslora": True, "bias": "all"},
    ),
    "DoRA of embeddings": (
        "BERT",
        LORA | {"use_dora": True, "target_modules": ["word_embeddings", "query"]},
    ),
    "DoRA, weights as [in, out]": (
        "GPT-2",
        LORA | {"use_dora": True, "target_modules": ["c_attn", "c_proj"]},
    ),
    "DoRA of a decoder": ("Qwen3", LORA | {"use_dora": True, "target_modules": "all-linear"}),
    "a decoder": ("Qwen3", LORA | {"target_modules": "all-linear"}),
}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "trainable_token_indices": ("BERT", {"trainable_token_indices": [7, 9]}),
    "alora_invocation_tokens": ("Qwen3", {"alora_invocation_tokens": [7]}),
    "layer_replication": ("Qwen3", {"layer_replication": [[0, 1], [0, 1]]}),
    "init_lora_weights = 'pissa'": ("BERT", {"init_lora_weights": "pissa"}),
    "init_lora_weights = 'olora'": ("BERT", {"init_lora_weights": "olora"}),
}


def adapter_of(folder: Path, family: str, settings: dict[str, Any]) -> tuple[Path, Any]:
    """Write an adapter with random tensors in all trained places; return it and the model of peft."""
    return trained(save(folder / "base", family), settings)


def trained(base: Path, settings: dict[str, Any]) -> tuple[Path, Any]:
    """As adapter_of, for a base model that exists."""
    folder = base.parent
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(AutoModel.from_pretrained(base), peft.LoraConfig(**settings))
        with torch.no_grad():
            for weight in model.parameters():
                if weight.requires_grad:
                    weight.add_(torch.randn(weight.shape) / 4)
        model.save_pretrained(str(folder / "adapter"))
        loaded = AutoModel.from_pretrained(base)
        opened = peft.PeftModel.from_pretrained(loaded, folder / "adapter")
    return folder / "adapter", opened.eval()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of merged models of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", MERGED)
def test_merged_adapters_make_the_states_of_peft(tmp_path: Path, name: str) -> None:
    folder, reference = adapter_of(tmp_path, *MERGED[name])
    ids = np.arange(30, 50, dtype=np.int32)
    with torch.inference_mode():
        expected = reference(input_ids=torch.from_numpy(ids).long()[None]).last_hidden_state[0]
        base = AutoModel.from_pretrained(tmp_path / "base")
        before = base(input_ids=torch.from_numpy(ids).long()[None]).last_hidden_state[0]
    made = open_model(read_model(str(folder)), ModelOptions("fp32", "cpu")).states([ids])
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(made, before, atol=1e-2)


def test_an_adapter_of_a_model_with_rows_before_the_first_position(tmp_path: Path) -> None:
    """The table of positions of YOSO has two rows more than its configuration has positions."""
    base = save(tmp_path / "base", "BERT")
    config = YosoConfig(
        vocab_size=AutoConfig.from_pretrained(base).vocab_size, hidden_size=48, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=48, max_position_embeddings=64, use_expectation=True,
    )  # fmt: skip
    AutoModel.from_config(config).save_pretrained(base)
    folder, reference = trained(base, LORA)
    ids = np.arange(30, 50, dtype=np.int32)
    with torch.inference_mode():
        expected = reference(input_ids=torch.from_numpy(ids).long()[None]).last_hidden_state[0]
    made = open_model(read_model(str(folder)), ModelOptions("fp32", "cpu")).states([ids])
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4)


def test_merged_magnitudes_are_those_of_peft(tmp_path: Path) -> None:
    folder, reference = adapter_of(tmp_path, "BERT", LORA | {"use_dora": True})
    expected = reference.merge_and_unload().state_dict()
    made = load_file(read_model(str(folder)).path / "model.safetensors")
    for name, value in made.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_an_adapter_without_its_magnitudes_is_refused(tmp_path: Path, damage: str) -> None:
    folder, _ = adapter_of(tmp_path, "BERT", LORA | {"use_dora": True})
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    name = next(each for each in tensors if "magnitude" in each)
    if damage == "missing":
        del tensors[name]
    else:
        tensors[name] = tensors[name][:-1].clone()
    save_file(tensors, file)
    with pytest.raises(DataError, match="DoRA needs 32"):
        read_model(str(folder))


@pytest.mark.parametrize("name", REFUSED)
def test_other_variants_are_refused(tmp_path: Path, name: str) -> None:
    family, more = REFUSED[name]
    targets = {"target_modules": "all-linear"} if family == "Qwen3" else {}
    folder, _ = adapter_of(tmp_path, family, LORA | targets | more)
    with pytest.raises(DataError, match=f"adapter_config.json has {name}, .*merge_and_unload"):
        read_model(str(folder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r": 8}, "have the rank 4, and adapter_config.json declares 8"),
        ({"rank_pattern": {"(a+)+b": 2}}, "rank_pattern by '.a"),
        ({"alpha_pattern": {"key": float("inf")}}, "lora_alpha that is not finite"),
        ({"a_new_variant": {"x": 1}}, "has a_new_variant, a variant"),
    ],
)
def test_settings_that_contradict_the_tensors_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder, _ = adapter_of(tmp_path, "BERT", LORA)
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(DataError, match=message):
        read_model(str(folder))


def test_an_adapter_of_a_causal_language_model(tmp_path: Path) -> None:
    """Its names have `model.` before those of the decoder; older releases of peft pickle the tensors."""
    base = save(tmp_path / "base", "Qwen3")
    torch.manual_seed(1)
    settings = LORA | {
        "target_modules": ["q_proj", "down_proj"],
        "rank_pattern": {"^model.layers.1.self_attn.q_proj": 2},
        "task_type": "CAUSAL_LM",
    }
    model = peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), peft.LoraConfig(**settings)
    )
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape) / 4)
    folder = tmp_path / "adapter"
    model.save_pretrained(str(folder))
    ids = np.arange(30, 50, dtype=np.int32)
    with torch.inference_mode():
        given = torch.from_numpy(ids).long()[None]
        expected = model.eval()(input_ids=given, output_hidden_states=True).hidden_states[-1][0]
    for pickled in (False, True):
        file = folder / "adapter_model.safetensors"
        if pickled:
            torch.save(load_file(file), folder / "adapter_model.bin")
            file.unlink()
        made = open_model(read_model(str(folder)), ModelOptions("fp32", "cpu")).states([ids])
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4)


def test_adapters_of_tasks_in_the_folders_of_a_model(tmp_path: Path) -> None:
    """The model itself is the base, and a note names the adapters; the folder of an adapter is a model."""
    folder, reference = adapter_of(tmp_path, "JinaBERT v3", LORA | {"target_modules": "all-linear"})
    folder = folder.rename(tmp_path / "base/retrieval_query")
    add_pooling(tmp_path / "base", "cls", 48)
    whole = read_model(str(tmp_path / "base"))
    assert any("(retrieval_query)" in note and f"-m {folder}" in note for note in whole.notes)
    found = read_model(str(folder))
    assert (found.pool, found.notes) == ("cls", ())
    ids = np.arange(30, 50, dtype=np.int32)
    with torch.inference_mode():
        expected = reference(input_ids=torch.from_numpy(ids).long()[None]).last_hidden_state[0]
    made = open_model(found, ModelOptions("fp32", "cpu")).states([ids])
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4)


def test_weights_that_contain_an_adapter_are_refused(tmp_path: Path) -> None:
    file = save(tmp_path / "model", "JinaBERT v3") / "model.safetensors"
    name = "embeddings.word_embeddings.parametrizations.weight.0.lora_A"
    save_file(load_file(file) | {name: torch.ones(5, 4, 8)}, file, metadata={"format": "pt"})
    with pytest.raises(DataError, match="contain an adapter that its architecture does not have"):
        open_model(read_model(str(tmp_path / "model")), ModelOptions("fp32", "cpu"))
