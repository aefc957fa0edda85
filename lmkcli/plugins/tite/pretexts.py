"""TITE's objectives (Schlatt et al. 2025, §3.3).

`mae` decodes a text from its vector and some of its tokens. `bow` predicts the words of the text as a bag.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lmkcli.models.forward import Model
from lmkcli.models.prediction_head import LanguageHead, initialiser
from lmkcli.plugins.pretrain.masking import MaskedText, Masking
from lmkcli.plugins.pretrain.pretext import EncodedTexts, HeadOptions
from lmkcli.plugins.tite.config import TiteConfig
from lmkcli.plugins.tite.decoder import Texts, TiteDecoder, tite_head


class TitePretraining(nn.Module):
    """The sum of both losses. The two heads share the bias over the vocabulary.

    The bag-of-words loss is binary cross-entropy over the vocabulary, without the padding token.
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

    def forward(self, encoded: EncodedTexts) -> Tensor:
        """Return the summed losses: over tokens, and over texts and vocabulary entries, [parts]."""
        parts = {"mae": self.decoded, "bow": self.bags}
        return torch.stack([parts[name](encoded) for name in self.weights])

    def counts(self, texts: Sequence[MaskedText]) -> list[int]:
        """Return the number of decoded tokens and the number of bag entries (texts x vocabulary)."""
        entries = len(texts) * (self.bow_head.bias.shape[0] - 1) if "bow" in self.weights else 0
        counts = {"mae": sum(int(text.ordinary.sum()) for text in texts), "bow": entries}
        return [counts[name] for name in self.weights]

    def decoded(self, encoded: EncodedTexts) -> Tensor:
        """Return the summed loss of the ordinary tokens."""
        states = self.states(
            encoded, lambda text, rows: self._attention_mask(encoded.texts[text], rows)
        )
        rows = encoded.rows([text.ordinary for text in encoded.texts])
        return self.decoder_head.summed_loss(states[rows], encoded.ids[rows], encoded.table)

    def states(self, encoded: EncodedTexts, mask: Any) -> Tensor:
        """Return the decoder's states of all tokens, [tokens, dim]."""
        vectors = encoded.vectors.to(encoded.table.dtype)
        return cast(
            Tensor,
            self.decoder(encoded.encoder, vectors, Texts(encoded.ids, encoded.lengths), mask),
        )

    def bags(self, encoded: EncodedTexts) -> Tensor:
        """Return the loss summed over texts and vocabulary entries."""
        return bag_loss(encoded, self.bow_head, self.padding)

    def _attention_mask(self, text: MaskedText, rows: slice) -> Tensor:
        """Return the attention mask of some rows, [rows, 1 + tokens] bool; column 0 is the text's vector.

        The random mask depends only on the text's seed and the rows, so repeated calls return the same.
        """
        rng = np.random.Generator(np.random.PCG64((text.seed, rows.start)))
        kept = rng.random((rows.stop - rows.start, 1 + len(text.shown)), np.float32)
        return attention_mask(torch.from_numpy(kept), self.share, rows)


class TiteMae(TitePretraining):
    """TITE's decoding loss only."""

    weights: ClassVar[Mapping[str, float]] = {"mae": 1.0}


class TiteBow(TitePretraining):
    """TITE's bag-of-words loss only."""

    weights: ClassVar[Mapping[str, float]] = {"bow": 1.0}


def attention_mask(kept: Tensor, share: float, rows: slice) -> Tensor:
    """Return an attention mask from uniform numbers of [0, 1), [rows, 1 + tokens].

    A row sees the tokens with a number of at least `share`. It always sees the vector (column 0), and
    never its own token.
    """
    seen = kept >= share
    numbers = torch.arange(rows.start, rows.stop)
    seen[numbers - rows.start, numbers + 1] = False
    seen[:, 0] = True
    return seen


def bag_loss(encoded: EncodedTexts, head: LanguageHead, padding: int | None) -> Tensor:
    """Return the summed binary cross-entropy of logits [texts, vocabulary] and the words of each text."""
    logits = head(encoded.vectors.to(encoded.table.dtype), encoded.table)
    words = [np.unique(text.input.ids[text.ordinary]) for text in encoded.texts]
    texts = np.repeat(np.arange(len(words)), [len(each) for each in words])
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    one = wide.new_ones(())
    targets = torch.zeros_like(wide).index_put(
        (encoded.tensor([texts]), encoded.tensor(words)), one
    )
    entries = np.arange(wide.shape[1])
    kept = encoded.tensor([entries[entries != padding]])
    return functional.binary_cross_entropy_with_logits(
        wide.index_select(1, kept), targets.index_select(1, kept), reduction="sum"
    )
