"""Gradients: run a batch of any size through the model in packs that fit into memory.

A batch that fits into one pack runs in one forward and one backward pass. A larger batch uses gradient
caching (Gao et al. 2021, GradCache) over its V vectors:

1. Encode every pack without gradients and concatenate the vectors, [V, dim].
2. Compute the loss L of all vectors, and its gradient G = dL/d(vectors), [V, dim].
3. Encode every pack again, now with gradients, and back-propagate its rows of G.

By the chain rule, the sum over packs is the gradient of the whole batch. Only one pack needs its
activations in memory at a time; the price is a second forward pass. The sum is float32, also if the model
computes in bf16 (see `optimizer.rounded`).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmkcli.errors import DataError, UsageError
from lmkcli.models.devices import is_out_of_memory, to_device
from lmkcli.models.forward import ForwardPass, Model, packs, vector_numbers
from lmkcli.pooling.placement import Input
from lmkcli.progress import Note, mute
from lmkcli.training.objectives.objective import Loss
from lmkcli.training.step.optimizer import rounded

LossOf = Callable[[Tensor], Loss]  # maps the vectors of a batch, [V, dim], to its loss


@dataclass
class Budget:
    """The number of positions in one pass of a model. Running out of memory lowers it."""

    model: Model
    tokens: int
    note: Note = mute

    def within(
        self, wrapped: nn.Module, lengths: list[int], run: Callable[[list[list[int]]], Loss]
    ) -> Loss:
        """Return the result of `run`, called with packs of the inputs that have these `lengths`.

        If memory runs out, clear the gradients, halve the budget and run all packs again. Raises DataError
        if one input alone does not fit.
        """
        while True:
            chosen = self._packs(lengths)
            try:
                with rounded(wrapped):
                    return run(chosen)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                wrapped.zero_grad()
                self._halve(lengths, chosen)

    def _packs(self, lengths: list[int]) -> list[list[int]]:
        padded = [max(length, self.model.pad_to) for length in lengths]
        return packs(padded, self.tokens, len(lengths), not self.model.packed)

    def _halve(self, lengths: list[int], chosen: list[list[int]]) -> None:
        if all(len(pack) == 1 for pack in chosen):
            raise DataError(
                f"a text of {max(lengths)} positions does not fit into the memory of "
                f"{self.model.device} in training; lower --max-length or --window"
            )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.tokens = max(sum(lengths[i] for i in pack) for pack in chosen) // 2
        self.note(
            f"out of memory: continuing with {self.tokens} positions per pass "
            f"(set --batch-tokens {self.tokens} to start with this number)"
        )


@dataclass
class Gradients:
    """Computes a loss over vectors and adds its gradients to the parameters."""

    forward: ForwardPass
    budget: Budget

    def __call__(self, wrapped: nn.Module, inputs: list[Input], loss_of: LossOf) -> Loss:
        """Return the loss of the inputs' vectors.

        `wrapped` is the module that synchronises processes (DDP), or the forward pass itself. `loss_of`
        receives the vectors in the order of their numbers, independent of the order of the inputs in the
        packs.
        """
        lengths = [len(one.ids) for one in inputs]

        def run(chosen: list[list[int]]) -> Loss:
            if len(chosen) == 1:
                return self._whole(wrapped, inputs, loss_of)
            return self._cached(wrapped, [[inputs[i] for i in pack] for pack in chosen], loss_of)

        return self.budget.within(wrapped, lengths, run)

    def _whole(self, wrapped: nn.Module, inputs: list[Input], loss_of: LossOf) -> Loss:
        """Run a batch that is one pack: one forward and one backward pass."""
        order = sorted(range(len(inputs)), key=lambda i: -len(inputs[i].ids))
        chosen = [inputs[i] for i in order]
        rows = to_device(torch.from_numpy(vector_numbers(chosen)), self.forward.model.device)
        vectors = wrapped(chosen)
        loss = loss_of(torch.empty_like(vectors).index_copy(0, rows, vectors))
        loss.total.backward()  # type: ignore[no-untyped-call]
        return loss

    def _cached(self, wrapped: nn.Module, chosen: list[list[Input]], loss_of: LossOf) -> Loss:
        """Run a batch of several packs with gradient caching (see the module's docstring).

        `rows` [V] are the numbers of the vectors in pack order. `leaf` [V, dim] holds the vectors in the
        order of their numbers, and `leaf.grad` is G. Processes synchronise parameter gradients once, in the
        backward pass of the last pack.
        """
        states = []
        pooled: list[tuple[Tensor, Tensor]] = []
        device = self.forward.model.device
        with torch.no_grad():
            for pack in chosen:
                states.append(_RandomState(device))
                pooled.append(
                    (to_device(torch.from_numpy(vector_numbers(pack)), device), self.forward(pack))
                )
        rows = torch.cat([rows for rows, _ in pooled])
        vectors = torch.cat([vectors for _, vectors in pooled])
        leaf = torch.empty_like(vectors).index_copy(0, rows, vectors).requires_grad_()
        loss = loss_of(leaf)
        loss.total.backward()  # type: ignore[no-untyped-call]
        for number, (pack, state) in enumerate(zip(chosen, states, strict=True)):
            last = number == len(chosen) - 1
            with nullcontext() if last else without_sync(wrapped), state.restored():
                vectors = wrapped(pack)
                vectors.backward(leaf.grad[pooled[number][0]])  # type: ignore[index]
        return loss


def without_sync(wrapped: nn.Module) -> AbstractContextManager[Any]:
    """Return a context in which backward passes do not synchronise gradients between processes.

    The next backward pass outside of the context synchronises the accumulated gradients.
    """
    skip: Any = getattr(wrapped, "no_sync", nullcontext)
    context: AbstractContextManager[Any] = skip()
    return context


class _RandomState:
    """The random state before the first pass of a pack.

    The second pass restores it, so dropout zeroes the same units in both passes.
    """

    def __init__(self, device: torch.device) -> None:
        self._cpu = torch.get_rng_state()
        self._device = device
        self._cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the recorded state inside the context, and the current state afterwards."""
        devices = [self._device] if self._cuda is not None else []
        with torch.random.fork_rng(devices):
            torch.set_rng_state(self._cpu)
            if self._cuda is not None:
                torch.cuda.set_rng_state(self._cuda, self._device)
            yield


def enable_gradient_checkpointing(module: Any) -> None:
    """Recompute hidden states in the backward pass (gradient checkpointing), which saves memory.

    Raises UsageError if the model does not support it. Versions of transformers use different names for
    the method.
    """
    if not getattr(module, "supports_gradient_checkpointing", False):
        raise UsageError(
            f"--gradient-checkpointing: {type(module).__name__} does not support it; drop it, and set "
            "--batch-tokens to use less memory"
        )
    names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
    next(getattr(module, name) for name in names if hasattr(module, name))()
