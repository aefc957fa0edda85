"""Passes: model inputs through model, heads and pool, in packs that fit into memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from lmkcli.errors import DataError
from lmkcli.models.packing import packs
from lmkcli.pooling.placement import Input, Ints
from lmkcli.pooling.segment_mean import pool
from lmkcli.progress import Note
from lmkcli.settings import EncodeSettings

CPU_STATES = (
    1_572_864  # numbers in a pack's states: 4,096 positions 384 wide, 2,048 positions 768 wide
)
GPU_POSITIONS = 65_536


class Model(Protocol):
    """What turns token ids into states; the classes of models/ are such."""

    device: torch.device
    dtype: str
    dim: int
    limit: int  # positions of an input, at most
    packed: bool  # whether inputs of different lengths go side by side, without padding
    why_padded: str  # why not; empty where padding is as it should be
    one_vector: bool  # whether an input comes out as one row instead of one for each position
    pad_to: int  # inputs are padded to this length; 0 where padding is not seen

    @property
    def weight_bytes(self) -> int:
        """What the weights take in memory."""

    def states(self, sequences: list[Ints], attended: list[int] | None = None) -> torch.Tensor:
        """Rows of all inputs, one after another; only the first `attended` positions are seen."""


class Pass(NamedTuple):
    """Which inputs went through together, the vectors they belong to, and these [n, width]."""

    inputs: list[int]
    numbers: NDArray[np.int64]
    vectors: NDArray[np.float32]


@dataclass
class Passes:
    """states -> token head -> pool -> sentence modules, in this order."""

    model: Model
    token_head: torch.nn.Module
    heads: torch.nn.Module
    settings: EncodeSettings

    def __post_init__(self) -> None:
        if not self.settings.batch_tokens:
            self.settings = replace(self.settings, batch_tokens=_pack_size(self.model))

    @property
    def width(self) -> int:
        """Components of a vector."""
        with torch.inference_mode():
            one = torch.zeros(1, self.model.dim, device=self.model.device)
            return int(self.heads(self.token_head(one)).shape[-1])

    def __call__(
        self, inputs: list[Input], name: Callable[[int], str], note: Note
    ) -> Iterator[Pass]:
        """All inputs with their vectors; where memory runs out, the rest goes in packs half as large.

        `name` says what an input belongs to, for the message when it does not fit even alone.
        """
        left = self._packs(inputs, list(range(len(inputs))))
        while left:
            pack, *rest = left
            made = self._tried(pack, [inputs[i] for i in pack])
            if made is None:
                self._halve([self._length(inputs[i]) for i in pack], name(pack[0]), note)
                left = self._packs(inputs, sorted(i for p in left for i in p))
            else:
                yield made
                left = rest

    def _length(self, one: Input) -> int:
        return max(len(one.ids), self.model.pad_to)

    def _packs(self, inputs: list[Input], numbers: list[int]) -> list[list[int]]:
        lengths = [self._length(inputs[i]) for i in numbers]
        tokens, size = self.settings.batch_tokens, self.settings.batch_size
        made = packs(lengths, tokens, size, not self.model.packed)
        return [[numbers[i] for i in pack] for pack in made]

    def _tried(self, pack: list[int], inputs: list[Input]) -> Pass | None:
        try:
            return Pass(pack, *self._vectors(inputs))
        except torch.OutOfMemoryError:
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

    def _vectors(self, inputs: list[Input]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        lengths = [len(one.ids) for one in inputs]
        seen = [one.attended for one in inputs]
        states = self.model.states([one.ids for one in inputs], seen if seen != lengths else None)
        rows = [1] * len(inputs) if self.model.one_vector else lengths
        starts = np.cumsum([0, *rows[:-1]])
        marks = [one.marks + start for one, start in zip(inputs, starts, strict=True)]
        owners = np.concatenate([one.groups for one in inputs])
        changes = np.flatnonzero(np.diff(owners, prepend=-1))
        groups = np.repeat(np.arange(len(changes)), np.diff(changes, append=len(owners)))
        with torch.inference_mode():
            where = torch.from_numpy(np.concatenate(marks).astype(np.int64)).to(states.device)
            of = torch.from_numpy(groups).to(states.device)
            vectors = self.heads(pool(self.token_head(states), where, of, len(changes)))
        return owners[changes], vectors.float().cpu().numpy()


def _pack_size(model: Model) -> int:
    """Positions per forward pass: on a CPU what caches and the allocator bear, on a GPU what fills it."""
    if model.device.type == "cuda":
        return GPU_POSITIONS
    shrinking = 2 if model.one_vector and model.packed else 1  # TITE's states soon are half as many
    return shrinking * max(512, CPU_STATES // model.dim)
