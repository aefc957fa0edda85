"""Heads of a model folder: what happens to states before they are pooled, and to a pooled vector
before it is normalised."""

from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from safetensors.torch import load_file

from lmkcli.errors import DataError, UsageError
from lmkcli.models.files import Count, loading, read_shape
from lmkcli.models.folder import ModelFolder
from lmkcli.models.latent import open_latent

_ACTIVATIONS = {
    "Identity": torch.nn.Identity,
    "Tanh": torch.nn.Tanh,
    "ReLU": torch.nn.ReLU,
    "GELU": torch.nn.GELU,
    "SiLU": torch.nn.SiLU,
}
# where sentence-transformers keeps the pooled vector, and the states before
_VECTOR, _STATES = "sentence_embedding", "token_embeddings"


class _Dense(TypedDict):
    in_features: Count
    out_features: Count
    bias: NotRequired[bool]
    activation_function: NotRequired[str]
    use_residual: NotRequired[bool]
    module_input_name: NotRequired[str]


class _LayerNorm(TypedDict):
    dimension: Count


def open_heads(folder: ModelFolder, device: torch.device) -> torch.nn.Sequential:
    """The Dense and LayerNorm modules in order, in float32; empty for most models."""
    modules = [_BUILDERS[module.kind](module.folder) for module in folder.modules]
    return torch.nn.Sequential(*modules).to(device).eval()


class TokenHead(torch.nn.Sequential):
    """Modules that act on states [n, d], each position alone, in float32; often there are none."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[n, d] in any floating dtype -> [n, d'] in float32; without modules as it came."""
        projected = (
            states.to(torch.promote_types(states.dtype, torch.float32)) if len(self) else states
        )
        for module in self:
            projected = module(projected)
        return projected


def open_token_head(folder: ModelFolder, pool: str, device: torch.device) -> TokenHead:
    """What the states go through before pooling: latent attention where `pool` is 'latent', then the
    projections of a ColBERT folder; empty for most models.

    UsageError for 'latent' where the folder has no latent attention.
    """
    if pool == "latent" and folder.latent is None:
        raise UsageError(
            f"--pool latent averages states after a learned head, and {folder.name} has no folder "
            "latent_attn_model; choose another --pool, for instance mean"
        )
    modules: list[torch.nn.Module] = []
    if pool == "latent" and folder.latent is not None:
        modules.append(open_latent(folder.latent))
    modules += [_PROJECTIONS[module.kind](module.folder) for module in folder.projections]
    return TokenHead(*modules).to(device).eval()


def _projection(folder: Path) -> torch.nn.Module:
    """PyLate's Dense: a linear map, without an activation unless its settings name one."""
    return _linear(folder, {"activation_function": "Identity", "bias": False}, _STATES)


def _dense(folder: Path) -> torch.nn.Module:
    return _linear(folder, {"activation_function": "Tanh"}, _VECTOR)


def _linear(folder: Path, usual: dict[str, Any], acts_on: str) -> torch.nn.Module:
    config: dict[str, Any] = {**usual, **read_shape(folder / "config.json", _Dense)}
    name = config["activation_function"].rsplit(".", 1)[-1]
    if name not in _ACTIVATIONS:
        raise DataError(
            f"{folder}/config.json: unknown activation {name}; lmk knows {', '.join(_ACTIVATIONS)}"
        )
    if config.get("use_residual") or config.get("module_input_name", acts_on) != acts_on:
        what = "the pooled vector" if acts_on == _VECTOR else "the states of a ColBERT model"
        raise DataError(f"{folder}/config.json: lmk applies Dense to {what}, without a residual")
    linear = torch.nn.Linear(
        config["in_features"], config["out_features"], config.get("bias", True)
    )
    _load(linear, folder, "linear.")
    return torch.nn.Sequential(linear, _ACTIVATIONS[name]())


def _layer_norm(folder: Path) -> torch.nn.Module:
    norm = torch.nn.LayerNorm(read_shape(folder / "config.json", _LayerNorm)["dimension"])
    _load(norm, folder, "norm.")
    return norm


_BUILDERS = {"Dense": _dense, "LayerNorm": _layer_norm}
_PROJECTIONS = {"Dense": _projection, "LayerNorm": _layer_norm}


def _load(module: torch.nn.Module, folder: Path, prefix: str) -> None:
    file = folder / "model.safetensors"
    file = file if file.exists() else folder / "pytorch_model.bin"
    if not file.exists():
        raise DataError(f"{folder} has no weights (model.safetensors or pytorch_model.bin)")
    with loading(f"{file}, the weights that its config.json describes,"):
        weights: dict[str, Any] = (
            load_file(file)
            if file.suffix == ".safetensors"
            else torch.load(file, map_location="cpu", weights_only=True)
        )
        module.load_state_dict(
            {name.removeprefix(prefix): value.float() for name, value in weights.items()}
        )
