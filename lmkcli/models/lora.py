"""LoRA (arXiv 2106.09685): merge low-rank matrices into the weights of their base.

A layer with weight W [out, in] and matrices A [r, in], B [out, r] becomes W + scale * B A. The product
is computed in float64, where products of fp16 numbers are exact, so that every machine computes the same
weights.

DoRA (arXiv 2402.09353) also trains the length of each row of this sum, the magnitudes m [out]: the rows are
scaled to these lengths. In the table of an embedding, they are the lengths of the columns.
"""

import json
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM
from transformers.pytorch_utils import Conv1D
from transformers.utils.logging import disable_progress_bar

from lmkcli.errors import DataError
from lmkcli.models.consent import opening
from lmkcli.models.loaded_weights import POOLER, REPORTED, check_loaded
from lmkcli.models.model_files import (
    TEXTS,
    WEIGHTS,
    Adapter,
    Scales,
    copy_files,
    listed_modules,
    model_files,
)
from lmkcli.models.tensors import read_tensors
from lmkcli.models.unmapped import unmapped

PREFIX = "base_model.model."  # peft writes it before the names of the base model
# The tensors of a layer; the first dimension of A is the rank
_MATRICES = ("lora_A.weight", "lora_B.weight", "lora_embedding_A", "lora_embedding_B")
_MAGNITUDES = ("lora_magnitude_vector", "lora_magnitude_vector.weight")  # of releases of peft
_CONFIG = "adapter_config.json"
_FIX = "download the adapter again"
# Fields of config.json that merging can change; those of positions are there under one of two names
_CHANGED = ("architectures", "dtype", "max_position_embeddings", "n_positions")
_POSITIONS = "position_embeddings.weight"  # a table of positions, which an adapter can lengthen


def merge(state: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Return the tensors of a model with peft's layers, with the LoRA matrices merged into the weights.

    The names in `state` are X.base_layer.weight, X.lora_A.default.weight, and so on; X.weight in the result.
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
    """Return the LoRA matrices of a model's linear layers under the names of peft's files."""
    return {
        PREFIX + name.replace(".default", ""): value
        for name, value in state.items()
        if ".lora_A." in name or ".lora_B." in name
    }


def _shift(added: Mapping[str, Tensor], layer: str, end: str) -> tuple[Tensor | None, set[str]]:
    """Return the summand of a layer's weight or bias, without its factor, and the names of its tensors.

    DataError for matrices that have no product.
    """
    if end == "bias":
        name = f"{layer}.lora_B.bias"
        return added.get(name), {name}
    names = {f"{layer}.{matrix}" for matrix in _MATRICES}
    return (_delta(added, layer) if end == "weight" else None), names & set(added)


def _delta(state: Mapping[str, Tensor], stem: str, adapter: str = "") -> Tensor | None:
    """Return B A of a linear layer, its transpose for an embedding, None for layers without LoRA.

    DataError for matrices that have no product.
    """
    names = ((".lora_A", ".lora_B", ".weight"), (".lora_embedding_A", ".lora_embedding_B", ""))
    for first, second, end in names:
        a, b = (state.get(f"{stem}{name}{adapter}{end}") for name in (first, second))
        if a is None and b is None:
            continue
        if a is None or b is None:
            raise DataError(f"{stem} has only one of {first[1:]} and {second[1:]}; {_FIX}")
        if a.ndim != 2 or b.ndim != 2 or len(a) != b.shape[1]:
            shapes = f"{first[1:]} {list(a.shape)} and {second[1:]} {list(b.shape)}"
            raise DataError(f"the matrices of {stem} have no product ({shapes}); {_FIX}")
        product = b.double() @ a.double()
        return product if end else product.T
    return None


def _sum(weight: Tensor, delta: Tensor, scale: float) -> Tensor:
    return (weight.double() + scale * delta).float()


def _with_lengths(
    weight: Tensor, added: Mapping[str, Tensor], found: list[str], columns: bool
) -> Tensor:
    """Return a weight whose rows or columns have the lengths that DoRA trained.

    DataError for a layer without as many magnitudes.
    """
    lengths = weight.double().norm(dim=0 if columns else 1)
    if not found or added[found[0]].shape != lengths.shape:
        what = f"{found[0]} {list(added[found[0]].shape)}" if found else "no magnitudes"
        raise DataError(f"a layer has {what}, and DoRA needs {len(lengths)} for it; {_FIX}")
    factors = added[found[0]].double() / lengths
    merged: Tensor = weight.double() * (factors if columns else factors[:, None])
    return merged.float()


def write_merged(growing: Path, adapter: Adapter, base: Path) -> None:
    """Write the merged model of an adapter and its base, with the other files of both.

    DataError if the tensors of the adapter do not belong to the base.
    """
    copy_files(model_files(base, TEXTS), growing)
    copy_files(adapter.texts, growing)
    for path, files in _modules(growing, adapter, base).items():
        copy_files(files, growing / path)
    disable_progress_bar()  # type: ignore[no-untyped-call]  # it would count shards of small files
    added = read_tensors(adapter.matrices, "the matrices of an adapter")
    # whole tensors of a layer that has matrices, too, such as its bias, are below `base_layer`
    added = {
        name.removeprefix(PREFIX).replace(".base_layer.", "."): value
        for name, value in added.items()
    }
    with (
        opening(base, f"the base model {base} of the adapter {adapter.folder}", trust=False),
        unmapped(base) as arguments,
    ):
        kind, prefix = _kind_of(base, added)
        model, loaded = kind.from_pretrained(
            base, dtype="float32", trust_remote_code=False, **REPORTED, **arguments
        )
    # transformers has drawn them at random: the merged model lacks them, too
    lost = {name for name in loaded["missing_keys"] if f"{prefix}{name}" not in added}
    own = f"{model.base_model_prefix}." if kind is AutoModelForMaskedLM else ""
    needed = {name for name in lost if name.startswith(own)}
    if hasattr(model, "encoder"):  # T5: the files of an encoder have no decoder
        needed = {name for name in needed if not name.startswith("decoder.")}
    check_loaded(f"the base {base}", loaded | {"missing_keys": needed}, unused=POOLER)
    state = {f"{prefix}{n}": value for n, value in _own_state(model).items() if n not in lost}
    positions = _positions(state)
    turned = [f"{prefix}{n}" for n, module in model.named_modules() if isinstance(module, Conv1D)]
    try:
        state = _merged_state(state, added, adapter.scales, turned)
    except DataError as error:
        raise DataError(f"{adapter.matrices}: {error}") from None
    state = {name.removeprefix(prefix): value for name, value in state.items()}
    if added_positions := _positions(state) - positions:
        model.config.max_position_embeddings += added_positions
    model.save_pretrained(growing, state_dict=state)
    _write_config(growing / "config.json", base / "config.json")


def _write_config(saved: Path, base: Path) -> None:
    """Write the configuration of the base, with the fields of the merged model that differ from it.

    The file is part of the model's digest, and what transformers saves has the number of its version.
    """
    old, new = (json.loads(file.read_text("utf-8")) for file in (base, saved))
    changed = {name: new[name] for name in _CHANGED if name in new}
    old.pop("torch_dtype", None)
    saved.write_text(json.dumps(old | changed, indent=2) + "\n", "utf-8")


def _positions(state: Mapping[str, Tensor]) -> int:
    """Return the rows of the table of positions; 0 without one."""
    return next((len(value) for name, value in state.items() if name.endswith(_POSITIONS)), 0)


def _kind_of(base: Path, added: Mapping[str, Tensor]) -> tuple[Any, str]:
    """Return the class that opens the base, and what the adapter's names have before the names of that class.

    An encoder is opened with its language head if the adapter has the names of such a model. A decoder is
    opened without its head.
    """
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(base, trust_remote_code=False)
        empty = AutoModel.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
    prefix = f"{empty.base_model_prefix}."
    if not any(name.startswith(prefix) for name in added):
        return AutoModel, ""
    if type(config) in AutoModelForMaskedLM._model_mapping:
        return AutoModelForMaskedLM, ""
    return AutoModel, prefix


def _own_state(model: Any) -> dict[str, Tensor]:
    """Return the tensors of a model; a tensor that layers share is there once."""
    named = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    return {name: value for name, value in model.state_dict().items() if name in named}


def _modules(growing: Path, adapter: Adapter, base: Path) -> dict[str, list[Path]]:
    """Return the files of each folder of a module: those of the adapter, else those of its base."""
    listed = listed_modules(growing) if (growing / "modules.json").exists() else []
    paths = [module["path"] for module in listed if module["path"]]
    inherited = {
        path: model_files(base / path, TEXTS | WEIGHTS) for path in paths if (base / path).is_dir()
    }
    return inherited | adapter.modules


def _merged_state(
    state: dict[str, Tensor], added: Mapping[str, Tensor], scales: Scales, turned: Container[str]
) -> dict[str, Tensor]:
    """Return the tensors of a base model with those of an adapter.

    `turned` names the layers whose weights are stored as [in, out] (GPT-2). DataError for tensors of another
    model, and for matrices of another rank than the declared one.
    """
    used = set()
    for name, weight in state.items():
        layer, _, end = name.rpartition(".")
        if name in added:
            given = added[name]
            rows = given.ndim == 2 and len(given) > 0 and name.endswith(_POSITIONS)
            if given.shape != weight.shape and not (rows and given.shape[1:] == weight.shape[1:]):
                shapes = f"{list(given.shape)}, not {list(weight.shape)}"
                raise DataError(f"the tensor {name} has the shape {shapes}; {_FIX}")
            state[name] = given.float()
            used.add(name)
        shift, names = _shift(added, layer, end)
        if shift is not None:
            shift = shift.T if layer in turned and end == "weight" else shift
        if shift is not None and shift.shape == state[name].shape:
            ranks = [len(added[name]) for name in names if name.endswith(("A", "A.weight"))]
            if ranks and ranks != [scales.rank_of(layer)]:
                raise DataError(
                    f"the matrices of {layer} have the rank {ranks[0]}, and {_CONFIG} declares "
                    f"{scales.rank_of(layer)}; {_FIX}"
                )
            state[name] = _sum(state[name], shift, scales.factor(layer))
            used.update(names)
            if scales.dora and ranks:
                found = [f"{layer}.{each}" for each in _MAGNITUDES if f"{layer}.{each}" in added]
                columns = layer in turned or f"{layer}.lora_embedding_A" in names
                state[name] = _with_lengths(state[name], added, found, columns)
                used.update(found)
    if lost := sorted(set(added) - used):
        raise DataError(
            f"{len(lost)} tensors without a counterpart in its base model ({lost[0]}); the adapter belongs "
            "to another model, or is of a kind that lmk does not merge"
        )
    return state
