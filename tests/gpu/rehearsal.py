"""Run models on CUDA devices that do not exist: fake tensors have shapes, dtypes and devices, but no values.

`FakeTensorMode` replaces each kernel by its shape function. Operations that mix devices raise an error, and
so do operations whose result depends on values of the GPU (they would wait for it). `Rehearsal` also counts
copies from the GPU to the CPU. It needs PyTorch's CUDA build, but neither a GPU nor a driver.

The autograd engine starts a thread per GPU, which needs a driver. So `backward` here follows the recorded
graph itself, and calls the same backward function of each operation.
"""

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from lmkcli.models.forward import ForwardPass

CUDA = torch.device("cuda", 0)


class Synchronised(AssertionError):
    """A value was copied from the GPU to the CPU inside a forward pass."""


class _Watch(TorchDispatchMode):
    """Raises Synchronised if more values are copied from a GPU to the CPU than are allowed."""

    def __init__(self, allowed: int) -> None:
        super().__init__()
        self._allowed = allowed

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        source = next((each for each in args if isinstance(each, torch.Tensor)), None)
        copied = isinstance(result, torch.Tensor) and result.device.type == "cpu"
        if copied and source is not None and source.device.type == "cuda":
            self._allowed -= 1
            if self._allowed < 0:
                raise Synchronised(f"{func} copies from the GPU")
        return result


@contextmanager
def rehearsed(module: nn.Module, device: torch.device = CUDA, *, copies: int = 0) -> Iterator[None]:
    """Let `module` compute on a CUDA device without values, forwards and backwards.

    More than `copies` copies to the CPU raise Synchronised. Gradients of the module's parameters stay until
    the end of the context.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    no_state = torch.empty(0, dtype=torch.uint8)
    kept = []
    with ExitStack() as stack:
        for owner, name, stand_in in (
            (torch.Tensor, "pin_memory", lambda self, *_: self),
            (torch.Tensor, "backward", backward),
            (torch.cuda, "get_rng_state", lambda *_: no_state),
            (torch.cuda, "set_rng_state", lambda *_: None),
            (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
        ):
            stack.enter_context(mock.patch.object(owner, name, stand_in))
        try:
            with mode:
                fakes: dict[int, Tensor] = {}  # parts of a module may share a tensor
                for owner in module.modules():
                    for tensors in (owner._parameters, owner._buffers):
                        kept.append((tensors, dict(tensors)))
                        for name, tensor in tensors.items():
                            if tensor is not None:
                                if id(tensor) not in fakes:
                                    fakes[id(tensor)] = _moved(mode, tensor, device)
                                tensors[name] = fakes[id(tensor)]
                with _Watch(copies):
                    yield
        finally:
            for tensors, before in kept:
                tensors.update(before)


def _moved(mode: FakeTensorMode, tensor: Tensor, device: torch.device) -> Tensor:
    """Return a fake of the tensor on the device, with the attributes that a parameter has."""
    fake: Tensor = mode.from_tensor(tensor.detach()).to(device)
    if isinstance(tensor, nn.Parameter):
        fake = nn.Parameter(fake, tensor.requires_grad)
        vars(fake).update(vars(tensor))
    return fake


def backward(root: Tensor, gradient: Tensor | None = None) -> None:
    """Add the gradients of `root` to its leaves. Stands in for `Tensor.backward`."""
    first: Any = root.grad_fn
    edges: Counter[Any] = Counter()  # of each node that have not brought a gradient yet
    stack, seen = [first], {first}
    while stack:
        for node, _ in stack.pop().next_functions:
            if node is not None:
                edges[node] += 1
                if node not in seen:
                    seen.add(node)
                    stack.append(node)
    incoming: dict[Any, dict[int, Tensor]] = {
        first: {root.output_nr: torch.ones_like(root) if gradient is None else gradient}
    }
    ready = [first]
    while ready:
        node = ready.pop()
        found = _called(node, incoming.pop(node, {}))
        for (target, number), value in zip(node.next_functions, found, strict=True):
            if target is None:
                continue
            if value is not None:
                sums = incoming.setdefault(target, {})
                value = _fitted(value, target._input_metadata[number], node.name())
                sums[number] = sums[number] + value if number in sums else value
            edges[target] -= 1
            if not edges[target]:
                ready.append(target)


def _fitted(gradient: Tensor, expected: Any, name: str) -> Tensor:
    """Return the gradient as the engine does: summed where the value was broadcast, in the value's dtype."""
    assert gradient.device == expected.device, name
    return gradient.sum_to_size(tuple(expected.shape)).to(expected.dtype)


def _called(node: Any, gradients: dict[int, Tensor]) -> tuple[Tensor | None, ...]:
    """Return the gradients of a node's inputs; None for each without one."""
    if not gradients:
        return (None,) * len(node.next_functions)
    given = [gradients.get(number) for number in range(len(node._input_metadata))]
    custom = isinstance(node, torch.autograd.function.BackwardCFunction)
    with torch.no_grad():
        found = node.apply(*given) if custom else node(*given)
    values: tuple[Tensor | None, ...] = found if isinstance(found, tuple) else (found,)
    if not custom:
        return values
    # `values` has one for each argument, `next_functions` a place for each tensor.
    needed = itertools.compress(values, node.needs_input_grad)
    return tuple(None if target is None else next(needed) for target, _ in node.next_functions)


@contextmanager
def rehearsed_forward(
    forward: ForwardPass, device: torch.device = CUDA, *, copies: int = 0
) -> Iterator[ForwardPass]:
    """Yield the forward pass of a model that was loaded for the CPU, on a CUDA device."""
    before = forward.model.device
    forward.model.device = device
    try:
        with rehearsed(forward, device, copies=copies):
            yield forward
    finally:
        forward.model.device = before
