"""Pre-training: an encoder, what predicts from its states, and the gradients of a batch of texts.

Here nothing is contrasted: a loss is a sum over tokens or texts, divided by how many the whole batch has.
So a batch of any size goes through in packs, one after another, and its gradients are those of the whole.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor, distributed, nn

from lmkcli.models.forward import Model, marked
from lmkcli.models.language import LanguageHead
from lmkcli.pooling.segment_mean import pool
from lmkcli.training.gathering import world
from lmkcli.training.gradients import Budget, unsynchronised
from lmkcli.training.masking import MaskedText, Masking
from lmkcli.training.objective import Loss


class Read(NamedTuple):
    """What an encoder made of some texts.

    states: [tokens of all texts, dim], None where the model leaves none; vectors: [texts, dim].
    """

    encoder: Any
    texts: Sequence[MaskedText]
    states: Tensor | None
    vectors: Tensor

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text."""
        return [len(text.shown) for text in self.texts]

    @property
    def ids(self) -> Tensor:
        """[tokens]: the texts as they were before anything was masked."""
        return self.tensor([text.input.ids for text in self.texts])

    @property
    def table(self) -> Tensor:
        """[rows, dim]: the table of tokens."""
        return cast(Tensor, self.encoder.get_input_embeddings().weight)

    def tensor(self, arrays: Sequence[Any]) -> Tensor:
        """Arrays of all texts, one after another."""
        whole = np.concatenate([np.zeros(0, arrays[0].dtype), *arrays])
        tensor = torch.from_numpy(whole).to(self.vectors.device)
        return tensor.long() if tensor.dtype == torch.int32 else tensor


class HeadOptions(NamedTuple):
    """What heads are built by, beside the model.

    raw: queries of RetroMAE's decoder are the vector plus a row of the table of positions; reach: the
    longest text, in tokens; decoder_share: the share of a text that rows of TITE's decoder do not see.
    """

    raw: bool = False
    reach: int = 512
    decoder_share: float = 0.5


class Pretext(Protocol):
    """An objective of pre-training: a module of heads. A row of catalog.PRETEXTS makes it of a model,
    which it does not keep, and HeadOptions. `masking` is how it has texts masked, where nobody chose."""

    masking: ClassVar[Masking]
    weights: ClassVar[Mapping[str, float]]  # of its parts, in the order in which it gives them

    def __call__(self, read: Read) -> Tensor:
        """[parts]: the summed loss of each part."""

    def counts(self, texts: Sequence[MaskedText]) -> list[int]:
        """What each sum is divided by, which is added up over all texts of a batch."""


class Pretraining(nn.Module):
    """An encoder with the heads of an objective. What it has learned is in `encoder` and `heads`."""

    def __init__(self, model: Model, heads: Pretext) -> None:
        super().__init__()
        self.model = model
        self.encoder = model.module
        self.heads = cast(nn.Module, heads)

    def forward(self, texts: Sequence[MaskedText]) -> Tensor:
        """[parts]: the summed losses of some texts."""
        return cast(Tensor, self.heads(self.read(texts)))

    def read(self, texts: Sequence[MaskedText]) -> Read:
        """The states of masked texts, and their vectors."""
        shown = [text.shown for text in texts]
        states = self.model.token_states(shown)
        if states is None:
            return Read(self.encoder, texts, None, self.model.states(shown))
        inputs = [
            text.input._replace(groups=np.full(len(text.input.marks), i, np.int32))
            for i, text in enumerate(texts)
        ]
        marks = marked(inputs, [len(ids) for ids in shown], states.device)
        return Read(self.encoder, texts, states, pool(states, *marks))


def masked_language(read: Read, head: LanguageHead) -> Tensor:
    """The summed cross-entropy of the tokens that are hidden from the encoder."""
    states = cast(Tensor, read.states)
    starts = np.cumsum([0, *read.lengths[:-1]])
    rows = [start + text.hidden for start, text in zip(starts, read.texts, strict=True)]
    hidden = read.tensor(rows)
    return head.surprise(states[hidden], read.ids[hidden], read.table)


class PretrainBatch(NamedTuple):
    """The texts of a step that one process runs."""

    step: int
    examples: list[str]
    texts: list[MaskedText]

    @property
    def tokens(self) -> int:
        """Positions that go through the model."""
        return sum(len(text.shown) for text in self.texts)

    @property
    def longest(self) -> int:
        """Positions of the longest text."""
        return max(len(text.shown) for text in self.texts)


@dataclass
class PretextStep:
    """A step of pre-training: sums over packs, divided by the counts of all processes."""

    heads: Pretext
    budget: Budget

    def __call__(self, model: nn.Module, batch: PretrainBatch) -> Loss:
        """The loss of a batch, its gradients added to the parameters."""
        lengths = [len(text.shown) for text in batch.texts]
        weights = torch.tensor(list(self.heads.weights.values()), dtype=torch.float64)
        counts = _over_processes(torch.tensor(self.heads.counts(batch.texts), dtype=torch.float64))
        scale = (weights / counts.clamp(min=1)).to(self.budget.model.device, torch.float32)

        def run(chosen: list[list[int]]) -> Loss:
            sums = []
            for number, pack in enumerate(chosen):
                last = number == len(chosen) - 1
                with nullcontext() if last else unsynchronised(model):
                    losses = model([batch.texts[i] for i in pack]).float()
                    ((losses * scale).sum() * world()).backward()
                    sums.append(losses.detach())
            means = _over_processes(torch.stack(sums).sum(0).double()) / counts.clamp(min=1)
            parts = dict(zip(self.heads.weights, means, strict=True))
            return Loss((means * weights).sum() * world(), parts)

        return self.budget.within(model, lengths, run)


def _over_processes(values: Tensor) -> Tensor:
    """The sum over all processes, on the CPU."""
    values = values.cpu()
    if world() > 1:
        everyone: list[Any] = [None] * world()
        distributed.all_gather_object(everyone, values)
        values = torch.stack(everyone).sum(0)
    return values
