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

from lmkcli.errors import DataError
from lmkcli.models.forward import ForwardPass, numbers
from lmkcli.models.packing import packs
from lmkcli.pooling.placement import Input
from lmkcli.progress import Note, mute
from lmkcli.training.objective import Loss

LossOf = Callable[[Tensor], Loss]  # of the vectors of a batch, in their order


@dataclass
class Gradients:
    """Adds the gradients of a loss to the parameters; `batch_tokens` positions go through at once.

    `wrapped` is the module that synchronises processes, or the forward pass itself.
    """

    forward: ForwardPass
    wrapped: nn.Module
    batch_tokens: int
    note: Note = mute

    def __call__(self, inputs: list[Input], loss_of: LossOf) -> Loss:
        """The loss of the inputs' vectors. Where memory runs out, packs become half as large."""
        while True:
            chosen = self._packs(inputs)
            try:
                if len(chosen) == 1:
                    return self._whole(inputs, loss_of)
                return self._cached(inputs, chosen, loss_of)
            except torch.OutOfMemoryError:
                self.wrapped.zero_grad()
                self._halve(inputs, chosen)

    def _packs(self, inputs: list[Input]) -> list[list[int]]:
        model = self.forward.model
        lengths = [max(len(one.ids), model.pad_to) for one in inputs]
        return packs(lengths, self.batch_tokens, len(inputs), not model.packed)

    def _whole(self, inputs: list[Input], loss_of: LossOf) -> Loss:
        order = sorted(range(len(inputs)), key=lambda i: -len(inputs[i].ids))
        chosen = [inputs[i] for i in order]
        rows = torch.from_numpy(numbers(chosen)).to(self.forward.model.device)
        vectors = self.wrapped(chosen)
        loss = loss_of(torch.empty_like(vectors).index_copy(0, rows, vectors))
        loss.total.backward()  # type: ignore[no-untyped-call]
        return loss

    def _cached(self, inputs: list[Input], chosen: list[list[int]], loss_of: LossOf) -> Loss:
        states = []
        made: list[tuple[Tensor, Tensor]] = []
        device = self.forward.model.device
        with torch.no_grad():
            for pack in chosen:
                states.append(_Chance(device))
                some = [inputs[i] for i in pack]
                made.append((torch.from_numpy(numbers(some)).to(device), self.forward(some)))
        rows = torch.cat([rows for rows, _ in made])
        vectors = torch.cat([vectors for _, vectors in made])
        leaf = torch.empty_like(vectors).index_copy(0, rows, vectors).requires_grad_()
        loss = loss_of(leaf)
        loss.total.backward()  # type: ignore[no-untyped-call]
        for number, (pack, state) in enumerate(zip(chosen, states, strict=True)):
            last = number == len(chosen) - 1
            with nullcontext() if last else self._unsynchronised(), state.again():
                again = self.wrapped([inputs[i] for i in pack])
                again.backward(leaf.grad[made[number][0]])  # type: ignore[index]
        return loss

    def _unsynchronised(self) -> AbstractContextManager[Any]:
        """Gradients stay with the process until the last pack."""
        skip: Any = getattr(self.wrapped, "no_sync", nullcontext)
        found: AbstractContextManager[Any] = skip()
        return found

    def _halve(self, inputs: list[Input], chosen: list[list[int]]) -> None:
        if all(len(pack) == 1 for pack in chosen):
            longest = max(len(one.ids) for one in inputs)
            raise DataError(
                f"a text of {longest} positions does not fit into the memory of "
                f"{self.forward.model.device} in training; lower --max-length or --window"
            )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.batch_tokens = max(sum(len(inputs[i].ids) for i in pack) for pack in chosen) // 2
        self.note(
            f"out of memory: going on with {self.batch_tokens} positions at once "
            f"(--batch-tokens {self.batch_tokens} says so from the start)"
        )


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
