"""Parts: select the trained weights of a model, or train low-rank adapters instead (LoRA)."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lmkcli.errors import MissingExtra, UsageError
from lmkcli.models import lora
from lmkcli.models.extension import position_table
from lmkcli.models.forward import ForwardPass
from lmkcli.models.model_files import MATRICES

NAMES = "embeddings, positions, layers, layers.4, layers.4-5, norms, biases, modules"
HEAD = "pooling.token_head.masked."  # the names of a language head's weights
ALPHA = 2  # the factor on the output of adapters (peft's lora_alpha / r)
_LAYER = re.compile(r"\.(?:layers?|h|blocks?)\.(\d+)\.")
_LAYERS = re.compile(r"layers(?:\.([0-9]{1,9})(?:-([0-9]{1,9}))?)?")


def select_trained(forward: ForwardPass, only: str, frozen: str, rank: int = 0) -> None:
    """Freeze all weights that are not selected for training.

    `only` and `frozen` are names from NAMES, separated by commas. All weights in `frozen` are frozen. If
    `only` is not empty, all weights outside of `only` are frozen too. With a `rank`, the training updates
    adapters of this rank and the weights in `only`. Raises UsageError if the model has no part with a name.
    """
    if only or rank:
        parameters = _parameters(forward, only)
        forward.requires_grad_(False)
        for parameter in parameters:
            parameter.requires_grad_()
    if rank:
        _adapt(forward, rank)
    for parameter in _parameters(forward, frozen):
        parameter.requires_grad_(False)


def freeze_unused(module: nn.Module, output: Tensor) -> None:
    """Freeze the weights that have no influence on `output`, such as an unused pooler in the checkpoint.

    Otherwise processes would wait for the gradients of these weights.
    """
    torch.autograd.backward(output.sum())
    for parameter in module.parameters():
        parameter.requires_grad_(parameter.requires_grad and parameter.grad is not None)
        parameter.grad = None


def _parameters(forward: ForwardPass, parts: str) -> list[nn.Parameter]:
    """Return the parameters of the parts in a comma-separated list."""
    named = list(forward.named_parameters())
    chosen = []
    for part in filter(None, parts.split(",")):
        parameters = [p for name, p in named if _belongs(forward, name, p, part)]
        if not parameters:
            raise UsageError(f"'{part}' is no part of this model; use names from: {NAMES}")
        chosen += parameters
    return chosen


def _belongs(forward: ForwardPass, name: str, parameter: nn.Parameter, part: str) -> bool:
    layer = _LAYER.search(name)
    if match := _LAYERS.fullmatch(part):
        first, last = int(match[1] or 0), int(match[2] or match[1] or 1 << 30)
        return layer is not None and first <= int(layer[1]) <= last
    table = position_table(forward.encoder)
    return {
        "embeddings": name.startswith("encoder.") and "embed" in name and layer is None,
        "positions": table is not None and parameter is table.weight,
        "norms": "norm" in name.lower(),
        "biases": name.endswith(".bias"),
        "modules": name.startswith("pooling."),
    }.get(part, False)


def _adapt(forward: ForwardPass, rank: int) -> None:
    """Add an adapter of `rank` to every linear layer of the encoder.

    For a weight matrix [out, in], the adapter is A [rank, in] and B [out, rank]; the layer then computes
    W x + ALPHA * B A x.
    """
    if find_spec("peft") is None:
        raise MissingExtra("peft", "train", "--lora")
    from peft import LoraConfig, inject_adapter_in_model

    encoder: Any = forward.encoder
    linear = [name for name, module in encoder.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise UsageError(f"--lora: {type(encoder).__name__} has no linear layers; drop it")
    widths = {name: min(encoder.get_submodule(name).weight.shape) for name in linear}
    narrow = min(linear, key=lambda name: widths[name])
    if rank > widths[narrow]:
        raise UsageError(
            f"--lora {rank}: the layer {narrow} has rank {widths[narrow]}; write at most {widths[narrow]}"
        )
    trained = [p for p in forward.parameters() if p.requires_grad]
    config = LoraConfig(r=rank, lora_alpha=ALPHA * rank, target_modules=linear)
    inject_adapter_in_model(config, encoder)
    for parameter in trained:  # peft freezes all weights except its adapters
        parameter.requires_grad_()


def masked_part(module: Any) -> Any:
    """Return the masked language model of a language head, which lacks its encoder; else None."""
    pooling = getattr(module, "pooling", None)
    return None if pooling is None else pooling.masked


def write_adapter(folder: Path, base: str, module: Any, learned: Mapping[str, Tensor]) -> bool:
    """Write the trained adapters in peft's layout and in half precision. Return False without adapters.

    `base` is the name of the base model, `learned` the unmerged tensors of `module`. Weights that were
    trained without adapters are saved completely.
    """
    parts = {"encoder.": ""}  # the names in the module, and in the base model
    if masked := masked_part(module):
        parts = {"encoder.": f"{masked.base_model_prefix}.", HEAD: ""}

    def renamed(name: str) -> str:
        part = next((part for part in parts if name.startswith(part)), None)
        return "" if part is None else parts[part] + name.removeprefix(part)

    matrices = lora.low_rank({renamed(name): v for name, v in learned.items() if renamed(name)})
    if not matrices:
        return False
    from peft import LoraConfig

    trained = [name for name, p in module.named_parameters() if p.requires_grad]
    full_weights = {
        lora.PREFIX + renamed(name): learned[name]
        for name in trained
        if renamed(name) and ".lora_" not in name
    }
    full = [name.removeprefix(lora.PREFIX) for name in full_weights]
    names = sorted({name.removeprefix(lora.PREFIX).partition(".lora_")[0] for name in matrices})
    rank = min(min(matrix.shape) for matrix in matrices.values())
    folder.mkdir()
    LoraConfig(
        r=rank,
        lora_alpha=ALPHA * rank,
        target_modules=names,
        modules_to_save=sorted({name.rpartition(".")[0] for name in full}) or None,
        base_model_name_or_path=base,
    ).save_pretrained(str(folder))
    saved = {name: value.half().contiguous() for name, value in (matrices | full_weights).items()}
    save_file(saved, folder / MATRICES)
    return True
