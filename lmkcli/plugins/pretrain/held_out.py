"""Held-out texts: the accuracy of masked tokens, measured during a pre-training."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from lmkcli.models.forward import packs
from lmkcli.plugins.pretrain.masked_batches import MaskedBatches
from lmkcli.plugins.pretrain.pretext import Pretraining
from lmkcli.training.data.sampling import ExampleBatch
from lmkcli.training.loop.development import DevScores
from lmkcli.training.loop.training_run import CPU_STATES

ACCURACY = "accuracy"
_TEXTS = 256  # texts that are masked at once


@dataclass(frozen=True)
class MaskedAccuracy:
    """Scores the weights of a pre-training: the share of masked tokens that are predicted exactly.

    `texts` are the held-out texts by the name of their collection. A text has the same masks in every
    evaluation. A pass has at most `positions` positions; 0 selects a number for the width of the model.
    """

    texts: Mapping[str, MaskedBatches]
    positions: int = 0

    @property
    def measure(self) -> str:
        """The name of the measure; higher is better."""
        return ACCURACY

    @property
    def identity(self) -> dict[str, Any]:
        """The measure, the share of masked tokens, and the digests of the texts."""
        shares = {place.masking.share for place in self.texts.values()}
        digests = {name: place.corpus.digest for name, place in self.texts.items()}
        return {"measure": self.measure, "mask": shares.pop(), "collections": digests}

    def __call__(self, module: nn.Module) -> DevScores:
        """Score the weights on each collection."""
        pretraining = cast(Pretraining, module)
        return DevScores({name: self._of(pretraining, one) for name, one in self.texts.items()})

    @torch.no_grad()
    def _of(self, pretraining: Pretraining, place: MaskedBatches) -> float:
        heads: Any = pretraining.heads
        part = [*heads.weights].index(ACCURACY)
        hits = hidden = 0
        for step, first in enumerate(range(0, len(place.corpus), _TEXTS)):
            rows = np.arange(first, min(first + _TEXTS, len(place.corpus)), dtype=np.int64)
            texts = place(ExampleBatch(step, rows, np.zeros_like(rows))).texts
            hidden += heads.counts(texts)[part]
            for pack in self._packs(pretraining, [len(text.shown) for text in texts]):
                hits += int(pretraining([texts[i] for i in pack])[part])
        return hits / max(1, hidden)

    def _packs(self, pretraining: Pretraining, lengths: list[int]) -> list[list[int]]:
        model = pretraining.model
        positions = self.positions or max(512, CPU_STATES // model.dim)
        padded = [max(length, model.pad_to) for length in lengths]
        return packs(padded, positions, len(lengths), not model.packed)
