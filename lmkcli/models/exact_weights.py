"""The exact values of weights that a model holds in half precision.

A training in bf16 computes with rounded weights, which have lost 16 bits. It must start from the weights in
the model's files, and must save frozen weights with the values in these files.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

HALF = (torch.bfloat16, torch.float16)
_HALF_NAMES = ("bfloat16", "float16")  # in config.json
_EXACT = "exact"  # an attribute of a parameter in half precision: its float32 value, on the CPU


def keep_exact(
    model: nn.Module, load: Callable[[], nn.Module], stored: torch.dtype | str | None
) -> None:
    """Remember the float32 value of each weight in half precision.

    `load` returns the same model in float32. It is not called if its files have half precision too, which
    is `stored`, the dtype in its configuration.
    """
    halved = {name: p for name, p in model.named_parameters() if p.dtype in HALF}
    if not halved or str(stored).removeprefix("torch.") in _HALF_NAMES:
        return
    with torch.random.fork_rng(devices=[]):  # a model may draw weights that its files lack
        exact = dict(load().named_parameters())
    for name, parameter in halved.items():
        remember(parameter, exact[name].detach())


def remember(parameter: Tensor, value: Tensor) -> None:
    """Remember the float32 value of a parameter, unless the parameter is not its rounded copy."""
    if value.shape == parameter.shape and torch.equal(value.to(parameter.dtype), parameter.cpu()):
        setattr(parameter, _EXACT, value.cpu())


def exact_value(parameter: Tensor) -> Tensor:
    """Return the value that a parameter was rounded from, on the CPU; else its own."""
    value: Tensor = getattr(parameter, _EXACT, parameter.detach())
    return value


def forget(parameter: Tensor) -> None:
    """Forget the value that a parameter was rounded from."""
    if hasattr(parameter, _EXACT):
        delattr(parameter, _EXACT)
