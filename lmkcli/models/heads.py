"""Sentence modules of a model folder: what happens to a pooled vector before it is normalised."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from lmkcli.errors import DataError
from lmkcli.models.folder import ModelFolder, read_json

_ACTIVATIONS = {
    "Identity": torch.nn.Identity,
    "Tanh": torch.nn.Tanh,
    "ReLU": torch.nn.ReLU,
    "GELU": torch.nn.GELU,
    "SiLU": torch.nn.SiLU,
}
_VECTOR = "sentence_embedding"  # where sentence-transformers keeps the pooled vector


def open_heads(folder: ModelFolder, device: torch.device) -> torch.nn.Sequential:
    """The Dense and LayerNorm modules in order, in float32; empty for most models."""
    made = [_BUILDERS[module.kind](module.folder) for module in folder.modules]
    return torch.nn.Sequential(*made).to(device).eval()


def _dense(folder: Path) -> torch.nn.Module:
    config = read_json(folder / "config.json")
    name = config.get("activation_function", "torch.nn.modules.activation.Tanh").rsplit(".", 1)[-1]
    if name not in _ACTIVATIONS:
        raise DataError(
            f"{folder}/config.json: unknown activation {name}; lmk knows {', '.join(_ACTIVATIONS)}"
        )
    if config.get("use_residual") or config.get("module_input_name", _VECTOR) != _VECTOR:
        raise DataError(
            f"{folder}/config.json: lmk applies Dense to the pooled vector, without a residual"
        )
    linear = torch.nn.Linear(
        config["in_features"], config["out_features"], config.get("bias", True)
    )
    _load(linear, folder, "linear.")
    return torch.nn.Sequential(linear, _ACTIVATIONS[name]())


def _layer_norm(folder: Path) -> torch.nn.Module:
    norm = torch.nn.LayerNorm(read_json(folder / "config.json")["dimension"])
    _load(norm, folder, "norm.")
    return norm


_BUILDERS = {"Dense": _dense, "LayerNorm": _layer_norm}


def _load(module: torch.nn.Module, folder: Path, prefix: str) -> None:
    if (folder / "model.safetensors").exists():
        weights: dict[str, Any] = load_file(folder / "model.safetensors")
    elif (folder / "pytorch_model.bin").exists():
        weights = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    else:
        raise DataError(f"{folder} has no weights (model.safetensors or pytorch_model.bin)")
    module.load_state_dict(
        {name.removeprefix(prefix): value.float() for name, value in weights.items()}
    )
