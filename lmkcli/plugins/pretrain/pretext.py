"""Pre-training: an encoder, the heads of an objective, and the gradients of a batch of texts.

Unlike a contrastive loss, a pre-training loss is a sum over tokens or texts, divided by a count of the whole
batch. The counts are known before the forward pass. So each pack can run its forward and backward pass
independently, and the sum of the gradients is the gradient of the whole batch. This needs no gradient
caching.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor, distributed, nn

from lmkcli.models.forward import Model, batch_marks
from lmkcli.models.prediction_head import LanguageHead
from lmkcli.plugins.pretrain.masking import MaskedText, Masking
from lmkcli.pooling.reductions import pool
from lmkcli.training.objectives.objective import Loss
from lmkcli.training.step.distributed import world_size
from lmkcli.training.step.gradients import Budget, without_sync


class EncodedTexts(NamedTuple):
    """The output of an encoder for some texts.

    states: [tokens of all texts, dim]; None if the model has no token states (TITE).
    vectors: [texts, dim].
    """

    encoder: Any
    texts: Sequence[MaskedText]
    states: Tensor | None
    vectors: Tensor

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each text."""
        return [len(text.shown) for text in self.texts]

    @property
    def ids(self) -> Tensor:
        """The original ids of all texts, before masking, [tokens]."""
        return self.tensor([text.input.ids for text in self.texts])

    @property
    def table(self) -> Tensor:
        """The token embedding table, [vocabulary, dim]."""
        return cast(Tensor, self.encoder.get_input_embeddings().weight)

    def tensor(self, arrays: Sequence[Any]) -> Tensor:
        """Concatenate the arrays of all texts into a tensor on the model's device."""
        whole = np.concatenate([np.zeros(0, arrays[0].dtype), *arrays])
        tensor = torch.from_numpy(whole).to(self.vectors.device)
        return tensor.long() if tensor.dtype == torch.int32 else tensor

    def rows(self, masks: Sequence[Any]) -> Tensor:
        """Return the numbers of the tokens that the masks of all texts select.

        Selecting by a mask would wait for the GPU, because the number of rows is unknown.
        """
        return self.tensor([np.flatnonzero(np.concatenate([np.zeros(0, bool), *masks]))])


class HeadOptions(NamedTuple):
    """Options for building heads.

    raw: the queries of RetroMAE's decoder are the vector plus a position embedding.
    reach: the maximum text length in tokens.
    decoder_share: the share of a text that is hidden from each row of TITE's decoder.
    """

    raw: bool = False
    reach: int = 512
    decoder_share: float = 0.5


class Pretext(Protocol):
    """The interface of pre-training objectives: a module of heads.

    A row of catalog.PRETEXTS builds it from a model and HeadOptions; the heads do not keep the model.
    `masking` is the default masking of texts.
    """

    masking: ClassVar[Masking]
    # weights of its parts, in the order of the results; a part of weight 0 is only logged
    weights: ClassVar[Mapping[str, float]]

    def __call__(self, encoded: EncodedTexts) -> Tensor:
        """Return the summed loss of each part, [parts]."""

    def counts(self, texts: Sequence[MaskedText]) -> list[int]:
        """Return the divisors of the parts for these texts. The counts of a batch are their sums."""


class Pretraining(nn.Module):
    """An encoder with the heads of an objective. The trained weights are in `encoder` and `heads`."""

    def __init__(self, model: Model, heads: Pretext) -> None:
        super().__init__()
        self.model = model
        self.encoder = model.module
        self.heads = cast(nn.Module, heads)

    def forward(self, texts: Sequence[MaskedText]) -> Tensor:
        """Return the summed losses of some texts, [parts]."""
        return cast(Tensor, self.heads(self.encode(texts)))

    def encode(self, texts: Sequence[MaskedText]) -> EncodedTexts:
        """Encode masked texts into token states and vectors."""
        shown = [text.shown for text in texts]
        states = self.model.token_states(shown)
        if states is None:
            return EncodedTexts(self.encoder, texts, None, self.model.states(shown))
        inputs = [
            text.input._replace(groups=np.full(len(text.input.marks), i, np.int32))
            for i, text in enumerate(texts)
        ]
        marks = batch_marks(inputs, [len(ids) for ids in shown], states.device)
        pooled = pool(states, marks)
        return EncodedTexts(self.encoder, texts, states, pooled)


def masked_language(encoded: EncodedTexts, head: LanguageHead) -> Tensor:
    """Return the summed cross-entropy of the hidden tokens, and how many of them have the largest logit, [2].

    Only the states of hidden tokens, [hidden, dim], enter the head.
    """
    states = cast(Tensor, encoded.states)
    starts = np.cumsum([0, *encoded.lengths[:-1]])
    rows = [start + text.hidden for start, text in zip(starts, encoded.texts, strict=True)]
    hidden = encoded.tensor(rows)
    return head.loss_and_hits(states[hidden], encoded.ids[hidden], encoded.table)


class PretrainBatch(NamedTuple):
    """The texts of one training step that one process runs."""

    step: int
    examples: list[str]
    texts: list[MaskedText]

    @property
    def tokens(self) -> int:
        """The number of positions that the model processes."""
        return sum(len(text.shown) for text in self.texts)

    @property
    def cut(self) -> dict[str, int]:
        """Empty: the texts that are cut are counted when the corpus is read."""
        return {}

    @property
    def longest(self) -> int:
        """The number of positions of the longest text."""
        return max(len(text.shown) for text in self.texts)


@dataclass
class PretextStep:
    """A step of pre-training: the loss sums of all packs, divided by the counts of all processes."""

    heads: Pretext
    budget: Budget

    def check(self, parts: Mapping[str, float], step: int) -> None:
        """Every loss can be trained on."""

    def __call__(self, model: nn.Module, batch: PretrainBatch) -> Loss:
        """Add the gradients of a batch to the parameters and return its loss.

        `weights`, `counts` and `scale` are [parts]. The loss is the sum over parts of weight * sum / count.
        It is multiplied by the number of processes, because DDP averages gradients over processes. Gradients
        are synchronised once, in the last pack.
        """
        lengths = [len(text.shown) for text in batch.texts]
        weights = torch.tensor(list(self.heads.weights.values()), dtype=torch.float64)
        counts = _over_processes(torch.tensor(self.heads.counts(batch.texts), dtype=torch.float64))
        scale = (weights / counts.clamp(min=1)).to(self.budget.model.device, torch.float32)

        def run(chosen: list[list[int]]) -> Loss:
            sums = []
            for number, pack in enumerate(chosen):
                last = number == len(chosen) - 1
                with nullcontext() if last else without_sync(model):
                    losses = model([batch.texts[i] for i in pack]).float()
                    ((losses * scale).sum() * world_size()).backward()
                    sums.append(losses.detach())
            means = _over_processes(torch.stack(sums).sum(0).double()) / counts.clamp(min=1)
            parts = dict(zip(self.heads.weights, means, strict=True))
            return Loss((means * weights).sum() * world_size(), parts)

        return self.budget.within(model, lengths, run)


def _over_processes(values: Tensor) -> Tensor:
    """Return the sum over all processes, on the CPU."""
    values = values.cpu()
    if world_size() > 1:
        everyone: list[Any] = [None] * world_size()
        distributed.all_gather_object(everyone, values)
        values = torch.stack(everyone).sum(0)
    return values
