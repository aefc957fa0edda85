"""The forward pass: states -> token head -> pool -> sentence modules, as one differentiable module.

Encoding runs it in inference mode, training under autograd, and what is exported to sentence-transformers
pools with it. Nothing else turns hidden states into vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lmkcli.pooling.placement import Input, Ints
from lmkcli.pooling.segment_mean import pool


@dataclass(frozen=True)
class ModelOptions:
    """How a model folder is loaded.

    `dtype` is fp32, bf16, fp16 or auto: bf16 where the hardware computes it natively, else fp32.
    `extend` stretches positions, such as 'grouped:4096'. `pad_to_max` pads inputs to the model's length
    where it sees its padding (M2-BERT). A `trainable` model keeps its ordinary layers, whose weights can
    be trained; otherwise layers may be fused for speed.
    """

    dtype: str = "auto"
    device: str = "auto"
    trust_remote_code: bool = False
    extend: str = ""
    pad_to_max: bool = True
    trainable: bool = False


class Model(Protocol):
    """What turns token ids into states; each kind in models/ has a class of this shape."""

    module: nn.Module  # the weights
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

    def states(
        self,
        sequences: list[Ints],
        attended: list[int] | None = None,
        positions: list[Ints] | None = None,
    ) -> torch.Tensor:
        """Rows of all inputs, one after another [rows, dim], with gradients where they are enabled.

        Where `attended` is given, no position sees more than so many of its sequence; `positions` are
        the positions that each sequence has, 0, 1, 2 … where nothing is said.
        """

    def token_states(self, sequences: list[Ints]) -> torch.Tensor | None:
        """A row for each position of all inputs [positions, dim]; None where a model leaves none."""


class Marks(NamedTuple):
    """The marked rows of a batch's states, the vector that each belongs to, and how many there are."""

    rows: torch.Tensor  # [m]
    groups: torch.Tensor  # [m], non-decreasing
    vectors: int


class Pooling(nn.Module):
    """Token head -> segment mean -> sentence modules."""

    def __init__(self, token_head: nn.Module, sentence_modules: nn.Module) -> None:
        super().__init__()
        self.token_head, self.sentence_modules = token_head, sentence_modules

    def forward(self, states: torch.Tensor, marks: Marks) -> torch.Tensor:
        """[rows, dim] -> [marks.vectors, width], in float32 or wider."""
        pooled = pool(self.token_head(states), *marks)
        vectors: torch.Tensor = self.sentence_modules(pooled)
        return vectors


class ForwardPass(nn.Module):
    """Placed inputs to their vectors. What it has learned is in `encoder` and `pooling`."""

    def __init__(self, model: Model, pooling: Pooling) -> None:
        super().__init__()
        self.model = model
        self.encoder = model.module
        self.pooling = pooling

    @property
    def width(self) -> int:
        """Dimensions of a vector."""
        with torch.inference_mode():
            one = torch.zeros(1, self.model.dim, device=self.model.device)
            return int(self.pooling.sentence_modules(self.pooling.token_head(one)).shape[-1])

    def forward(self, inputs: Sequence[Input]) -> torch.Tensor:
        """The vectors of all inputs [vectors, width], in the order of `numbers`."""
        lengths = [len(one.ids) for one in inputs]
        seen = [one.attended for one in inputs]
        skipping = any(one.positions is not None for one in inputs)
        states = self.model.states(
            [one.ids for one in inputs],
            seen if seen != lengths else None,
            [_positions(one) for one in inputs] if skipping else None,
        )
        rows = [1] * len(inputs) if self.model.one_vector else lengths
        vectors: torch.Tensor = self.pooling(states, marked(inputs, rows, states.device))
        return vectors


def numbers(inputs: Sequence[Input]) -> NDArray[np.int64]:
    """The vectors that some inputs make, by the numbers that their marks bear, in reading order."""
    owners = np.concatenate([one.groups for one in inputs])
    return owners[_changes(owners)].astype(np.int64)


def marked(inputs: Sequence[Input], rows: list[int], device: torch.device) -> Marks:
    """The marks of a batch whose inputs have so many rows of states each."""
    starts = np.cumsum([0, *rows[:-1]])
    marked = [one.marks + start for one, start in zip(inputs, starts, strict=True)]
    owners = np.concatenate([one.groups for one in inputs])
    changes = _changes(owners)
    groups = np.repeat(np.arange(len(changes)), np.diff(changes, append=len(owners)))
    return Marks(
        torch.from_numpy(np.concatenate(marked).astype(np.int64)).to(device),
        torch.from_numpy(groups).to(device),
        len(changes),
    )


def _positions(one: Input) -> Ints:
    return np.arange(len(one.ids), dtype=np.int32) if one.positions is None else one.positions


def _changes(owners: NDArray[np.int64]) -> NDArray[np.intp]:
    """Where a new vector begins."""
    return np.flatnonzero(np.diff(owners, prepend=-1))


class Finish(NamedTuple):
    """What is done to vectors at last: windows averaged, cut to `dim` (0: not at all), normalised."""

    average: bool
    dim: int
    normalize: bool

    def __call__(self, vectors: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """[vectors, width] of texts that made `counts` [texts] of them -> [texts or vectors, dim]."""
        if self.average and len(vectors) != len(counts):
            texts = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
            every = torch.arange(len(vectors), device=vectors.device)
            vectors = pool(vectors, every, texts.to(vectors.device), len(counts))
        vectors = vectors[:, : self.dim] if self.dim else vectors
        return nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors
