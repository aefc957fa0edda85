"""Merging: the low-rank matrices of LoRA (arXiv 2106.09685) added to the weights of their base."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModel
from transformers.utils.logging import disable_progress_bar

from lmkcli.errors import DataError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # peft's, before the names of the base model
_COPIED = {".json", ".txt", ".model", ".jinja"}
_LEFT = {CONFIG, "README.md"}


def merge(state: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """The tensors of a model whose layers hold LoRA matrices, these added to the weights in float64.

    Names are those of peft's layers: X.base_layer.weight, X.lora_A.default.weight and so on. In float64 the
    products of fp16 matrices are exact, so that every machine makes the same weights of an adapter.
    """
    merged = {}
    for name, value in state.items():
        stem, wrapped, rest = name.partition(".base_layer.")
        if wrapped:
            delta = _delta(state, stem, ".default") if rest == "weight" else None
            value = value if delta is None else _sum(value, delta, scale)
            merged[f"{stem}.{rest}"] = value
        elif ".lora_" not in name:
            merged[name] = value
    return merged


def low_rank(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The LoRA matrices of a model's linear layers under peft's names."""
    return {
        PREFIX + name.replace(".default", ""): value
        for name, value in state.items()
        if ".lora_A." in name or ".lora_B." in name
    }


def whole(name: str) -> str:
    """What an adapter calls a tensor of the base that it replaces."""
    return PREFIX + name


def _delta(state: Mapping[str, Tensor], stem: str, adapter: str = "") -> Tensor | None:
    """B A of a linear layer, its transpose of an embedding; None where there is none."""
    first = state.get(f"{stem}.lora_A{adapter}.weight")
    if first is not None:
        return state[f"{stem}.lora_B{adapter}.weight"].double() @ first.double()
    first = state.get(f"{stem}.lora_embedding_A{adapter}")
    if first is None:
        return None
    return (state[f"{stem}.lora_embedding_B{adapter}"].double() @ first.double()).T


def _sum(weight: Tensor, delta: Tensor, scale: float) -> Tensor:
    return (weight.double() + scale * delta).float()


def write(growing: Path, folder: Path, base: Path, scale: float) -> None:
    """The model of an adapter and its base, with the files of both; DataError where they do not fit."""
    for file in (*base.iterdir(), *folder.iterdir()):
        if file.is_file() and file.suffix in _COPIED and file.name not in _LEFT:
            shutil.copyfile(file, growing / file.name)
        elif file.parent == folder and file.is_dir():
            shutil.copytree(file, growing / file.name)
    disable_progress_bar()  # type: ignore[no-untyped-call]  # of shards of small files
    try:
        added = load_file(folder / WEIGHTS)
        model = AutoModel.from_pretrained(base, dtype="float32")
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(f"the adapter {folder} cannot be merged: {error}") from None
    state = _added(model.state_dict(), added, scale, folder)
    table = next((v for k, v in state.items() if k.endswith("position_embeddings.weight")), None)
    if table is not None:
        model.config.max_position_embeddings = len(table)
    model.save_pretrained(growing, state_dict=state)


def _added(
    state: dict[str, Tensor], added: dict[str, Tensor], scale: float, folder: Path
) -> dict[str, Tensor]:
    added = {name.removeprefix(PREFIX): value for name, value in added.items()}
    merged, used = dict(state), 0
    for name in state:
        delta = _delta(added, name.removesuffix(".weight"))
        if name in added:
            merged[name], used = added[name].float(), used + 1
        elif delta is not None and delta.shape == state[name].shape:
            merged[name], used = _sum(state[name], delta, scale), used + 2
    if used != len(added):
        raise DataError(
            f"{folder} has {len(added) - used} tensors that its base model has no place for: it was "
            "made for another model"
        )
    return merged
