"""Buffers that a model computes when it is created, such as rotary frequencies, and that no file contains.

transformers creates a model without memory and fills it from the files. The classes of transformers compute
such buffers again; the classes of other code usually do not, and their buffers would be random numbers.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lmkcli.errors import DataError

_OWN = "transformers."  # the package of classes that compute their buffers again


def compute_buffers(model: Any, dtype: torch.dtype) -> None:
    """Set the buffers without files of a model with code of its own, to what its constructor computes.

    DataError if they are drawn at random, because no file contains them.
    """
    if type(model).__module__.startswith(_OWN) or not any(_computed(model)):
        return
    first, second = (_created(model, dtype, seed) for seed in (0, 1))
    for owner, name in _computed(model):
        value, other = (getattr(each.get_submodule(owner), name) for each in (first, second))
        if not torch.equal(value, other):
            raise DataError(
                f"the code of this model draws {owner + '.' if owner else ''}{name} at random, and no file "
                "contains it, so its vectors could not be compared; give another model"
            )
        module = model.get_submodule(owner)
        now = getattr(module, name)
        device = "cpu" if now.is_meta else now.device
        setattr(module, name, value.to(device, now.dtype))


def _computed(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each tensor that is neither a parameter nor in the state."""
    for owner, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer is not None and name in module._non_persistent_buffers_set:
                yield owner, name
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.is_meta:
                yield owner, name


def _created(model: Any, dtype: torch.dtype, seed: int) -> nn.Module:
    """Return a new model of the same class and configuration.

    Its parameters have no memory, unless its constructor reads them.
    """
    usual = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_default_dtype(dtype)
        try:
            with _without_parameters():
                created: nn.Module = type(model)(copy.deepcopy(model.config))
        except (NotImplementedError, RuntimeError):
            created = type(model)(copy.deepcopy(model.config))
        finally:
            torch.set_default_dtype(usual)
    return created


@contextmanager
def _without_parameters() -> Iterator[None]:
    """Give new parameters no memory. Buffers have memory."""
    register = nn.Module.register_parameter

    def without_memory(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = without_memory  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
