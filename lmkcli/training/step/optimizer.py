"""Mixed precision: float32 weights that are trained, and rounded copies of them that the model computes with.

A bf16 number has 8 significant bits. Small updates of bf16 weights would be rounded away, and so would the
gradient of one pack in the sum over many packs. So parameters, their gradients and the optimizer are float32.
Only inside `rounded` does the module compute with bf16 copies. Its forward pass is then that of a bf16 model,
without the casts of autocast. Since the copies are made by a differentiable cast, each backward pass adds its
gradients to the float32 parameters.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lmkcli.models.exact_weights import HALF, exact_value, forget

_DTYPE = "pass_dtype"  # an attribute of a float32 parameter: the dtype of its rounded copy


def widen(module: nn.Module) -> None:
    """Give the trained parameters in half precision their float32 values. `rounded` restores their dtype.

    Frozen parameters keep their dtype.
    """
    for parameter in module.parameters():
        if parameter.requires_grad and parameter.dtype in HALF:
            setattr(parameter, _DTYPE, parameter.dtype)
            parameter.data = exact_value(parameter).to(parameter.device, torch.float32)
            forget(parameter)


@contextmanager
def rounded(module: nn.Module) -> Iterator[None]:
    """Let `module` compute with rounded copies of the parameters that `widen` converted.

    Forward and backward passes must both run inside the context, because gradient checkpointing repeats
    forward passes in the backward pass. The copies are made once, also for several passes.
    """
    copies: dict[int, Tensor] = {}
    replaced: list[tuple[dict[str, Any], str, nn.Parameter]] = []
    for owner in module.modules():
        parameters: dict[str, Any] = owner._parameters
        for name, parameter in parameters.items():
            dtype = getattr(parameter, _DTYPE, None)
            if dtype is not None:
                if id(parameter) not in copies:  # layers may share a parameter
                    copies[id(parameter)] = parameter.to(dtype)
                replaced.append((parameters, name, parameter))
    try:
        for parameters, name, parameter in replaced:
            parameters[name] = copies[id(parameter)]
        yield
    finally:
        for parameters, name, parameter in replaced:
            parameters[name] = parameter


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two parameter groups: matrices with weight decay, and biases and norms without.

    Frozen parameters are in neither group.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
