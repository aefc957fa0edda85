"""Run models on CUDA devices that do not exist: fake tensors have shapes, dtypes and devices, but no values.

`FakeTensorMode` replaces each kernel by its shape function. Operations that mix devices raise an error, and
so do operations whose result depends on values of the GPU (they would wait for it). `Rehearsal` also counts
copies from the GPU to the CPU. It needs PyTorch's CUDA build, but neither a GPU nor a driver.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from lmkcli.models.forward import ForwardPass

CUDA = torch.device("cuda", 0)


class Synchronised(AssertionError):
    """A value was copied from the GPU to the CPU inside a forward pass."""


class _Watch(TorchDispatchMode):
    """Raises Synchronised for copies from a GPU to the CPU."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        source = next((each for each in args if isinstance(each, torch.Tensor)), None)
        copied = isinstance(result, torch.Tensor) and result.device.type == "cpu"
        if copied and source is not None and source.device.type == "cuda":
            raise Synchronised(f"{func} copies from the GPU")
        return result


@contextmanager
def rehearsed(module: nn.Module, device: torch.device = CUDA) -> Iterator[None]:
    """Let `module` compute on a CUDA device without values. Copies to the CPU raise Synchronised."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    pin = torch.Tensor.pin_memory
    torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[assignment, method-assign]
    kept = []
    try:
        with mode:
            for owner in module.modules():
                for tensors in (owner._parameters, owner._buffers):
                    kept.append((tensors, dict(tensors)))
                    for name, tensor in tensors.items():
                        if tensor is not None:
                            moved: Any = mode.from_tensor(tensor.detach()).to(device)
                            is_parameter = isinstance(tensor, nn.Parameter)
                            tensors[name] = nn.Parameter(moved, False) if is_parameter else moved
            with _Watch():
                yield
    finally:
        torch.Tensor.pin_memory = pin  # type: ignore[method-assign]
        for tensors, before in kept:
            tensors.update(before)  # type: ignore[arg-type]


@contextmanager
def rehearsed_forward(forward: ForwardPass, device: torch.device = CUDA) -> Iterator[ForwardPass]:
    """Yield the forward pass of a model that was loaded for the CPU, on a CUDA device."""
    before = forward.model.device
    forward.model.device = device
    try:
        with rehearsed(forward, device):
            yield forward
    finally:
        forward.model.device = before
