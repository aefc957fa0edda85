"""The weights that transformers has loaded: all tensors of the architecture, in its shapes and finite.

transformers draws missing tensors at random and warns. lmk refuses them: their vectors would be random.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from lmkcli.errors import DataError

_FIX = "give a folder with weights for its config.json"
# Arguments of from_pretrained: it returns what it found, and does not fail at a tensor of another shape
REPORTED = {"output_loading_info": True, "ignore_mismatched_sizes": True}

POOLER = "pooler"  # of encoders; lmk does not use it, so its weights may be missing


def check_loaded(name: str, loaded: Mapping[str, Any], unused: str = "") -> None:
    """Raise DataError for tensors that the files lack or have in another shape.

    `loaded` is the second result of `from_pretrained` with the arguments REPORTED. Tensors with `unused` in
    their names may be missing.
    """
    if wrong := sorted(loaded["mismatched_keys"]):
        tensor, found, expected = wrong[0]
        more = f", and {len(wrong) - 1} other tensors too" if len(wrong) > 1 else ""
        raise DataError(
            f"the weights of {name} do not fit its config.json: the tensor {tensor} has the shape "
            f"{list(found)} instead of {list(expected)}{more}; {_FIX}"
        )
    lost = sorted(each for each in loaded["missing_keys"] if not unused or unused not in each)
    if not lost:
        return
    if prefix := _prefix(lost, loaded["unexpected_keys"]):
        raise DataError(
            f"the names of the weights of {name} start with '{prefix}', as in {prefix}{lost[0]}; a wrapper "
            "such as DataParallel writes such names; save the model inside the wrapper with "
            "save_pretrained, or remove this start from the names"
        )
    raise DataError(
        f"the weights of {name} lack {len(lost)} tensors of its architecture ({lost[0]} …); {_FIX}"
    )


def _prefix(lost: list[str], unknown: Iterable[str]) -> str:
    """Return what the names of the lost tensors have before them in the files; '' if they are not there."""
    names = set(unknown)
    starts = (each.removesuffix(lost[0]) for each in names if each.endswith(f".{lost[0]}"))
    # tied tensors are in the files under one of their names
    most = len(lost) // 2
    return next(
        (start for start in starts if sum(start + each in names for each in lost) > most), ""
    )


def not_finite(module: nn.Module) -> str:
    """Return the name of the first tensor with values that are not finite; '' if all are finite."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    return next((name for name, each in tensors if not torch.isfinite(each).all()), "")


def check_states(model: nn.Module, states: torch.Tensor, name: str) -> None:
    """Raise DataError if states or scores that a model computed are not finite."""
    if torch.isfinite(states).all():
        return
    if tensor := not_finite(model):
        raise DataError(
            f"the weights of {name} are damaged: the tensor {tensor} has values that are not finite (NaN or "
            "infinite); download the model again, or give an earlier checkpoint"
        )
    exact = next(model.parameters()).dtype == torch.float32
    advice = "give another model" if exact else "use --dtype fp32"
    raise DataError(f"{name} computes values that are not finite; {advice}")
