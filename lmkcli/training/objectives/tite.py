"""TITE's objectives: a text from its vector alone, and its words as a bag (Schlatt et al. 2025, §3.3)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lmkcli.models.forward import Model
from lmkcli.models.language import LanguageHead, initialiser
from lmkcli.models.tite import TiteConfig
from lmkcli.models.tite.decoder import Texts, TiteDecoder, tite_head
from lmkcli.training.masking import MaskedText, Masking
from lmkcli.training.pretraining import HeadOptions, Read


class Tite(nn.Module):
    """Both, added up; the biases over the table of tokens are one parameter of both heads.

    The bag is compared by binary cross-entropy over the vocabulary, without the padding's entry.
    """

    masking: ClassVar[Masking] = Masking(share=0.0, whole_words=False, always=True)
    weights: ClassVar[Mapping[str, float]] = {"mae": 1.0, "bow": 1.0}

    def __init__(self, model: Model, options: HeadOptions) -> None:
        super().__init__()
        encoder: Any = model.module
        config: TiteConfig = encoder.config
        if "mae" in self.weights:
            self.decoder = TiteDecoder(config)
            self.decoder_head = tite_head(config)
        if "bow" in self.weights:
            self.bow_head = tite_head(config)
        self.apply(initialiser(config))
        if len(self.weights) == 2:
            self.decoder_head.bias = self.bow_head.bias
        self.share = options.decoder_share
        self.padding: int | None = config.pad_token_id

    def forward(self, read: Read) -> Tensor:
        """[parts]: the sums over tokens, and over texts and entries of the vocabulary."""
        parts = {"mae": self.decoded, "bow": self.bags}
        return torch.stack([parts[name](read) for name in self.weights])

    def counts(self, texts: Sequence[MaskedText]) -> list[int]:
        """How many tokens are decoded; how many entries of bags there are."""
        entries = len(texts) * (self.bow_head.bias.shape[0] - 1) if "bow" in self.weights else 0
        counts = {"mae": sum(int(text.ordinary.sum()) for text in texts), "bow": entries}
        return [counts[name] for name in self.weights]

    def decoded(self, read: Read) -> Tensor:
        """The sum over ordinary tokens."""
        states = self.states(read, lambda text, rows: self._sight(read.texts[text], rows))
        rows = read.tensor([text.ordinary for text in read.texts])
        return self.decoder_head.surprise(states[rows], read.ids[rows], read.table)

    def states(self, read: Read, sight: Any) -> Tensor:
        """What the decoder makes of all tokens, [tokens, dim]."""
        vectors = read.vectors.to(read.table.dtype)
        return cast(
            Tensor, self.decoder(read.encoder, vectors, Texts(read.ids, read.lengths), sight)
        )

    def bags(self, read: Read) -> Tensor:
        """The sum over texts and entries of the vocabulary."""
        return bag_surprise(read, self.bow_head, self.padding)

    def _sight(self, text: MaskedText, rows: slice) -> Tensor:
        """[rows, 1 + tokens]: the vector, and others by chance; the same whenever it is asked for."""
        chance = np.random.Generator(np.random.PCG64((text.seed, rows.start)))
        kept = chance.random((rows.stop - rows.start, 1 + len(text.shown)), np.float32)
        return seen_by(torch.from_numpy(kept), self.share, rows)


class TiteMae(Tite):
    """The text alone."""

    weights: ClassVar[Mapping[str, float]] = {"mae": 1.0}


class TiteBow(Tite):
    """The bag of words alone."""

    weights: ClassVar[Mapping[str, float]] = {"bow": 1.0}


def seen_by(kept: Tensor, share: float, rows: slice) -> Tensor:
    """What rows see where numbers of [0, 1) reach `share`: the vector always, themselves never."""
    seen = kept >= share
    numbers = torch.arange(rows.start, rows.stop)
    seen[numbers - rows.start, numbers + 1] = False
    seen[:, 0] = True
    return seen


def bag_surprise(read: Read, head: LanguageHead, padding: int | None) -> Tensor:
    """The summed binary cross-entropy of the vectors' logits and the words of each text."""
    logits = head(read.vectors.to(read.table.dtype), read.table)
    wanted = torch.zeros_like(logits)
    for row, text in enumerate(read.texts):
        wanted[row, torch.from_numpy(np.unique(text.input.ids[text.ordinary])).long()] = 1
    kept = torch.arange(logits.shape[1], device=logits.device) != (
        -1 if padding is None else padding
    )
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.binary_cross_entropy_with_logits(
        wide[:, kept], wanted[:, kept].to(wide.dtype), reduction="sum"
    )
