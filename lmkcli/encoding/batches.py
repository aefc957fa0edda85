"""Batches: model inputs through the forward pass, in packs that fit into memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lmkcli.errors import DataError
from lmkcli.models.devices import ran_out
from lmkcli.models.forward import ForwardPass, Model, numbers
from lmkcli.models.packing import packs
from lmkcli.pooling.placement import Input
from lmkcli.progress import Note
from lmkcli.settings import EncodeSettings

# Numbers in a pack's states: 4,096 positions 384 wide, or 2,048 positions 768 wide.
CPU_STATES = 1_572_864
GPU_POSITIONS = 65_536


class Batch(NamedTuple):
    """Which inputs went through together, the vectors they belong to, and these [n, width]."""

    inputs: list[int]
    numbers: NDArray[np.int64]
    vectors: NDArray[np.float32]


@dataclass
class BatchRunner:
    """Runs the forward pass in inference mode, over packs of inputs of like length."""

    forward: ForwardPass
    settings: EncodeSettings

    def __post_init__(self) -> None:
        if not self.settings.batch_tokens:
            self.settings = replace(self.settings, batch_tokens=_pack_size(self.model))

    @property
    def model(self) -> Model:
        """What makes the states."""
        return self.forward.model

    def __call__(
        self, inputs: list[Input], name: Callable[[int], str], note: Note
    ) -> Iterator[Batch]:
        """All inputs with their vectors; where memory runs out, the rest goes in packs half as large.

        `name` says what an input belongs to, for the message when it does not fit even alone.
        """
        left = self._packs(inputs, list(range(len(inputs))))
        while left:
            pack, *rest = left
            batch = self._tried(pack, [inputs[i] for i in pack])
            if batch is None:
                self._halve([self._length(inputs[i]) for i in pack], name(pack[0]), note)
                left = self._packs(inputs, sorted(i for p in left for i in p))
            else:
                yield batch
                left = rest

    def _length(self, one: Input) -> int:
        return max(len(one.ids), self.model.pad_to)

    def _packs(self, inputs: list[Input], numbers: list[int]) -> list[list[int]]:
        lengths = [self._length(inputs[i]) for i in numbers]
        tokens, size = self.settings.batch_tokens, self.settings.batch_size
        places = packs(lengths, tokens, size, not self.model.packed)
        return [[numbers[i] for i in pack] for pack in places]

    def _tried(self, pack: list[int], inputs: list[Input]) -> Batch | None:
        try:
            with torch.inference_mode():
                vectors = self.forward(inputs).float().cpu().numpy()
            return Batch(pack, numbers(inputs), vectors)
        except RuntimeError as error:
            if not ran_out(error):
                raise
            return None  # what the traceback held is free by the time that it is tried again

    def _halve(self, lengths: list[int], longest: str, note: Note) -> None:
        if len(lengths) == 1:
            raise DataError(
                f"{longest} alone, with {lengths[0]} positions, does not fit into the memory of "
                f"{self.model.device}; lower --max-length or --window, or use --dtype bf16 or "
                "another device"
            )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        taken = sum(lengths) if self.model.packed else max(lengths) * len(lengths)
        budget = max(1, min(taken, self.settings.batch_tokens) // 2)
        note(
            f"out of memory on {self.model.device}: going on with {budget} positions a pass "
            f"(--batch-tokens {budget} says so from the start)"
        )
        self.settings = replace(self.settings, batch_tokens=budget)


def _pack_size(model: Model) -> int:
    """Positions per forward pass: on a CPU what caches and the allocator bear, on a GPU what fills it."""
    if model.device.type == "cuda":
        return GPU_POSITIONS
    shrinking = 2 if model.one_vector and model.packed else 1  # TITE's states soon are half as many
    return shrinking * max(512, CPU_STATES // model.dim)
