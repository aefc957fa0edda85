"""Gradients: a batch of any size through the forward pass, in packs that fit into memory.

A batch that is one pack runs as it is. A larger one is cached (Gao et al. 2021, GradCache): all vectors
without gradients, the loss and its gradient with respect to them, then pack after pack again with
gradients. What the model learns is the same; memory is that of one pack.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmkcli.errors import DataError, UsageError
from lmkcli.models.devices import ran_out
from lmkcli.models.forward import ForwardPass, Model, numbers
from lmkcli.models.packing import packs
from lmkcli.pooling.placement import Input
from lmkcli.progress import Note, mute
from lmkcli.training.objective import Loss

LossOf = Callable[[Tensor], Loss]  # of the vectors of a batch, in their order


@dataclass
class Budget:
    """How many positions go through a model at once; fewer after memory has run out."""

    model: Model
    tokens: int
    note: Note = mute

    def within(
        self, wrapped: nn.Module, lengths: list[int], run: Callable[[list[list[int]]], Loss]
    ) -> Loss:
        """What `run` makes of inputs of these lengths, in packs; in smaller ones if they do not fit.

        DataError when an input does not fit by itself. Gradients of what did not fit are forgotten.
        """
        while True:
            chosen = self._packs(lengths)
            try:
                return run(chosen)
            except RuntimeError as error:
                if not ran_out(error):
                    raise
                wrapped.zero_grad()
                self._halve(lengths, chosen)

    def _packs(self, lengths: list[int]) -> list[list[int]]:
        taken = [max(length, self.model.pad_to) for length in lengths]
        return packs(taken, self.tokens, len(lengths), not self.model.packed)

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
            f"out of memory: going on with {self.tokens} positions at once "
            f"(--batch-tokens {self.tokens} says so from the start)"
        )


@dataclass
class Gradients:
    """Adds the gradients of a loss over vectors to the parameters."""

    forward: ForwardPass
    budget: Budget

    def __call__(self, wrapped: nn.Module, inputs: list[Input], loss_of: LossOf) -> Loss:
        """The loss of the inputs' vectors.

        `wrapped` is the module that synchronises processes, or the forward pass itself.
        """
        lengths = [len(one.ids) for one in inputs]

        def run(chosen: list[list[int]]) -> Loss:
            if len(chosen) == 1:
                return self._whole(wrapped, inputs, loss_of)
            return self._cached(wrapped, [[inputs[i] for i in pack] for pack in chosen], loss_of)

        return self.budget.within(wrapped, lengths, run)

    def _whole(self, wrapped: nn.Module, inputs: list[Input], loss_of: LossOf) -> Loss:
        order = sorted(range(len(inputs)), key=lambda i: -len(inputs[i].ids))
        chosen = [inputs[i] for i in order]
        rows = torch.from_numpy(numbers(chosen)).to(self.forward.model.device)
        vectors = wrapped(chosen)
        loss = loss_of(torch.empty_like(vectors).index_copy(0, rows, vectors))
        loss.total.backward()  # type: ignore[no-untyped-call]
        return loss

    def _cached(self, wrapped: nn.Module, chosen: list[list[Input]], loss_of: LossOf) -> Loss:
        states = []
        pooled: list[tuple[Tensor, Tensor]] = []
        device = self.forward.model.device
        with torch.no_grad():
            for pack in chosen:
                states.append(_Chance(device))
                pooled.append((torch.from_numpy(numbers(pack)).to(device), self.forward(pack)))
        rows = torch.cat([rows for rows, _ in pooled])
        vectors = torch.cat([vectors for _, vectors in pooled])
        leaf = torch.empty_like(vectors).index_copy(0, rows, vectors).requires_grad_()
        loss = loss_of(leaf)
        loss.total.backward()  # type: ignore[no-untyped-call]
        for number, (pack, state) in enumerate(zip(chosen, states, strict=True)):
            last = number == len(chosen) - 1
            with nullcontext() if last else unsynchronised(wrapped), state.again():
                again = wrapped(pack)
                again.backward(leaf.grad[pooled[number][0]])  # type: ignore[index]
        return loss


def unsynchronised(wrapped: nn.Module) -> AbstractContextManager[Any]:
    """Gradients stay with the process, until a pass outside of it."""
    skip: Any = getattr(wrapped, "no_sync", nullcontext)
    context: AbstractContextManager[Any] = skip()
    return context


class _Chance:
    """The random state before a pack, so that its second pass drops the same units."""

    def __init__(self, device: torch.device) -> None:
        self._cpu = torch.get_rng_state()
        self._device = device
        self._cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draws as they were drawn then; afterwards goes on where it was."""
        devices = [self._device] if self._cuda is not None else []
        with torch.random.fork_rng(devices):
            torch.set_rng_state(self._cpu)
            if self._cuda is not None:
                torch.cuda.set_rng_state(self._cuda, self._device)
            yield


def recompute_states(module: Any) -> None:
    """States are computed again in the backward pass, for less memory; UsageError where they cannot be.

    transformers has renamed the method.
    """
    if not getattr(module, "supports_gradient_checkpointing", False):
        raise UsageError(
            f"--gradient-checkpointing: {type(module).__name__} cannot do it; drop it, and use "
            "--batch-tokens for less memory"
        )
    named = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
    next(getattr(module, name) for name in named if hasattr(module, name))()
