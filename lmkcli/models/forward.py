"""The forward pass, from placed inputs to vectors, as one differentiable module.

    token ids -> hidden states -> token head -> mean of marked states -> sentence modules

Encoding runs it in inference mode, training runs it under autograd, and models that were exported to
sentence-transformers pool with it. No other code turns hidden states into vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lmkcli.errors import DataError
from lmkcli.models.devices import to_device
from lmkcli.models.heads import DenseLayer
from lmkcli.models.model_folder import ModelFolder
from lmkcli.pooling.placement import Input
from lmkcli.pooling.reductions import Marks, pool
from lmkcli.pooling.table import MEAN_ONLY, StateReduction, WindowReduction
from lmkcli.store.token_blocks import Ints


@dataclass(frozen=True)
class ModelOptions:
    """Options for loading a model folder.

    `dtype` is fp32, bf16, fp16 or auto (bf16 if the hardware computes it natively, else fp32). `extend`
    lengthens the positions, such as 'grouped:4096'. `pad_to_max` pads inputs to the model's length if
    padding changes the vectors (M2-BERT). A `trainable` model keeps its ordinary layers; otherwise,
    layers may be fused for speed.
    """

    dtype: str = "auto"
    device: str = "auto"
    trust_remote_code: bool = False
    extend: str = ""
    pad_to_max: bool = True
    trainable: bool = False


class Model(Protocol):
    """A loaded model: token ids to states. Each model kind has a class with this interface."""

    # the weights, with the method `get_input_embeddings` of transformers' models: lmk checks that each token
    # id has a row there before it runs the model
    module: nn.Module
    device: torch.device
    dtype: str
    dim: int
    limit: int  # the maximum number of positions in an input
    packed: bool  # whether inputs of different lengths run in one row, without padding
    why_padded: str  # the reason, if packing was tried and gave other results; else empty
    one_vector: bool  # whether the model returns one row per input instead of one per position
    pad_to: int  # inputs are padded to this length; 0 if padding does not change the states

    @property
    def weight_bytes(self) -> int:
        """The size of the weights in bytes."""

    def states(
        self,
        sequences: list[Ints],
        attended: list[int] | None = None,
        positions: list[Ints] | None = None,
    ) -> torch.Tensor:
        """Return the last hidden states of all sequences, concatenated: [total rows, dim].

        With `attended`, only the first `attended[i]` positions of sequence i are attended to.
        `positions` are the position ids of each sequence; the default is 0, 1, 2, and so on.
        """

    def token_states(self, sequences: list[Ints]) -> torch.Tensor | None:
        """Return the states of all tokens, [tokens, dim]; None if the model pools between its layers."""


class ModelOpener(Protocol):
    """The type of the rows in the catalog of models."""

    def __call__(self, folder: ModelFolder, options: ModelOptions) -> Model:
        """Return the model of a folder on a device, ready to run. Raises DataError if it cannot be loaded."""


class Pooling(nn.Module):
    """Token head -> reduction of the marked states -> sentence modules.

    token_weights: [vocabulary], factors of the states of each token (WordWeights of sentence-transformers).
    """

    def __init__(
        self,
        token_head: nn.Module,
        sentence_modules: nn.Module,
        reductions: Sequence[StateReduction] = MEAN_ONLY,
        token_weights: NDArray[np.float32] | None = None,
    ) -> None:
        super().__init__()
        self.token_head, self.sentence_modules = token_head, sentence_modules
        self.reductions, self.token_weights = tuple(reductions), token_weights

    @property
    def plain(self) -> bool:
        """Whether a vector starts from the mean of the marked states."""
        return self.reductions == MEAN_ONLY and self.token_weights is None

    @property
    def masked(self) -> Any:
        """The masked language model of a language head (`VocabularyHead`); None for another token head."""
        return getattr(self.token_head, "masked", None)

    @property
    def linear(self) -> bool:
        """Whether the vector of a mean is the mean of the vectors: no activation or norm follows the mean."""
        kinds = (nn.Sequential, nn.Linear, nn.Identity, DenseLayer)
        modules = self.sentence_modules.modules()
        return self.plain and all(isinstance(module, kinds) for module in modules)

    def width(self, one: torch.Tensor) -> int:
        """Return the number of dimensions of a vector, from one state [1, dim]."""
        pooled = self.token_head(one).repeat(1, len(self.reductions))
        return int(self.sentence_modules(pooled).shape[-1])

    def forward(self, states: torch.Tensor, marks: Marks) -> torch.Tensor:
        """[rows, dim] -> [marks.vectors, width], in float32 or wider."""
        pooled = pool(self.token_head(states), marks, self.reductions)
        vectors: torch.Tensor = self.sentence_modules(pooled)
        return vectors


class ForwardPass(nn.Module):
    """Placed inputs to vectors. The trainable weights are in `encoder` and `pooling`."""

    def __init__(self, model: Model, pooling: Pooling) -> None:
        super().__init__()
        self.model = model
        self.encoder = model.module
        self.pooling = pooling

    @property
    def width(self) -> int:
        """The number of dimensions of a vector."""
        with torch.inference_mode():
            one = torch.zeros(1, self.model.dim, device=self.model.device)
            return self.pooling.width(one)

    def forward(self, inputs: Sequence[Input]) -> torch.Tensor:
        """Return the vectors of all inputs, [vectors, width], in the order of `vector_numbers`."""
        lengths = [len(one.ids) for one in inputs]
        attended = [one.attended for one in inputs]
        positions: list[Ints] | None = None
        if any(one.positions is not None for one in inputs):
            positions = [
                np.arange(len(one.ids), dtype=np.int32) if one.positions is None else one.positions
                for one in inputs
            ]
        sequences = [one.ids for one in inputs]
        self._check_ids(sequences)
        states = self.model.states(sequences, attended if attended != lengths else None, positions)
        rows = [1] * len(inputs) if self.model.one_vector else lengths
        marks = batch_marks(inputs, rows, states.device)
        if "weighted" in self.pooling.reductions:
            places = np.concatenate([one.marks for one in inputs]) + 1
            marks = marks._replace(places=to_device(torch.from_numpy(places), states.device))
        if self.pooling.token_weights is not None:
            marked = np.concatenate([one.ids[one.marks] for one in inputs])
            weights = torch.from_numpy(self.pooling.token_weights[marked])
            marks = marks._replace(weights=to_device(weights, states.device))
        vectors: torch.Tensor = self.pooling(states, marks)
        return vectors

    def _check_ids(self, sequences: list[Ints]) -> None:
        """Raise DataError for ids without an embedding, after which no program can use the GPU."""
        ids = np.concatenate(sequences)
        encoder: Any = self.encoder
        rows = len(encoder.get_input_embeddings().weight)
        if self.pooling.token_weights is not None:
            rows = min(rows, len(self.pooling.token_weights))
        if ids.min(initial=0) < 0 or ids.max(initial=0) >= rows:
            raise DataError(
                "the model has no embedding for a token of the texts; its tokenizer, or the tokens, are of "
                "another model"
            )


def packs(lengths: Sequence[int], tokens: int, size: int, padded: bool) -> list[list[int]]:
    """Group sequences into packs: lists of sequence numbers, each list for one pass of the model.

    A pack has at most `size` sequences and `tokens` positions, counted with padding if `padded`. A sequence
    that is longer than `tokens` is a pack of its own. Sequences are sorted by length, so that a pack contains
    sequences of similar lengths. The longest come first: if they do not fit into memory, the error appears at
    the start.
    """
    order = np.argsort(-np.array(lengths, np.int64), kind="stable").tolist()
    packed: list[list[int]] = []
    room = left = longest = 0  # of the last pack: how many more sequences and positions it can take
    for number in order:
        length = lengths[number]
        cost = longest if padded else length
        if cost > left or not room:
            pack: list[int] = []
            packed.append(pack)
            room, left, longest = size, tokens, length
            cost = length
        pack.append(number)
        room -= 1
        left -= cost
    return packed


def vector_numbers(inputs: Sequence[Input]) -> NDArray[np.int64]:
    """Return the numbers of the vectors that these inputs produce, in the order of their marks."""
    owners = np.concatenate([one.groups for one in inputs])
    return owners[_changes(owners)].astype(np.int64)


def batch_marks(inputs: Sequence[Input], rows: list[int], device: torch.device) -> Marks:
    """Return the marks of a batch in which input i has `rows[i]` rows of states.

    The marks of an input count from its own first row; they move by the rows of the inputs before it. The
    vector numbers of the inputs become 0, 1, 2, and so on.
    """
    starts = np.cumsum([0, *rows[:-1]])
    marks = np.concatenate([one.marks for one in inputs]).astype(np.int64)
    marks += np.repeat(starts, [len(one.marks) for one in inputs])
    owners = np.concatenate([one.groups for one in inputs])
    changes = _changes(owners)
    counts = np.diff(changes, append=len(owners)).astype(np.int64)
    groups = np.repeat(np.arange(len(changes)), counts)
    return Marks(
        to_device(torch.from_numpy(marks), device),
        to_device(torch.from_numpy(groups), device),
        counts,
    )


def _changes(owners: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the indexes at which the owner differs from the one before."""
    return np.flatnonzero(np.diff(owners, prepend=-1))


class Finish(NamedTuple):
    """The last steps: make one vector of the windows of a text, cut to `dim` (0 keeps all), normalise.

    `windows` is their mean, maximum or sum, in each dimension.
    """

    average: bool
    dim: int
    normalize: bool
    windows: WindowReduction = "mean"

    def __call__(self, vectors: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Map [vectors, width] to [texts, dim], or to [vectors, dim] if `average` is false.

        Text i owns the next `counts[i]` of the vectors; `counts` is [texts].
        """
        if self.average and len(vectors) != len(counts):
            every = torch.arange(len(counts), device=counts.device)
            texts = every.repeat_interleave(counts, output_size=len(vectors)).to(vectors.device)
            if self.windows == "mean":
                rows = torch.arange(len(vectors), device=vectors.device)
                vectors = pool(vectors, Marks(rows, texts, counts.numpy()))
            else:
                empty = vectors.new_zeros(len(counts), vectors.shape[1])
                owners = texts[:, None].expand_as(vectors)
                how = "amax" if self.windows == "max" else "sum"
                vectors = empty.scatter_reduce(0, owners, vectors, how)
        vectors = vectors[:, : self.dim] if self.dim else vectors
        return nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors
