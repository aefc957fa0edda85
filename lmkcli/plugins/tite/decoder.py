"""Pre-training of TITE: a decoder that sees half of a text, and heads that predict tokens.

Schlatt et al. 2025, §3.3. The decoder is one layer with the width, heads and activation of the encoder's
last layer.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from lmkcli.models.attention import QueryKeyLengths
from lmkcli.models.prediction_head import LanguageHead
from lmkcli.plugins.pretrain.enhanced_decoder import RowMask, masked_attention
from lmkcli.plugins.tite.config import TiteConfig
from lmkcli.plugins.tite.model import Residual, TiteMLP, TiteModel, make_norm
from lmkcli.plugins.tite.sequences import Lengths, Spacing, counted, rotate, rotations


class Texts(NamedTuple):
    """The tokens of some texts, one text after another, and the number of tokens of each."""

    ids: Tensor
    lengths: Sequence[int]


def last_layer(config: TiteConfig) -> TiteConfig:
    """Return a configuration of one layer that equals the last one, without pooling."""
    kept = ("hidden_sizes", "num_attention_heads", "intermediate_sizes")
    sizes: dict[str, Any] = {name: config.layer_sizes(name)[-1] for name in kept}
    shared = {
        name: getattr(config, name)
        for name in (
            *("vocab_size", "dropout_prob", "layer_norm_eps", "hidden_act", "norm_location"),
            *("norm_type", "rotary_interleaved", "relative_positional_embedding_type"),
        )
    }
    return TiteConfig(num_hidden_layers=1, kernel_sizes=None, strides=None, **sizes, **shared)


def tite_head(config: TiteConfig) -> LanguageHead:
    """Create a head that predicts tokens from states with the width of the last layer."""
    activation = "silu" if config.hidden_act == "swiglu" else config.hidden_act
    norm = make_norm(config, config.hidden_size)
    return LanguageHead(config.hidden_size, config.vocab_size, activation, norm)


class TiteDecoder(nn.Module):
    """Predict the tokens of a text from its vector and, for each token, a part of the other tokens."""

    def __init__(self, config: TiteConfig) -> None:
        super().__init__()
        one, width = last_layer(config), config.hidden_size
        self.config = one
        self.heads = one.layer_sizes("num_attention_heads")[0]
        self.embedding_norm = make_norm(config, width) if config.widths[0] != width else None
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.norm = make_norm(one, width)
        self.dense = Residual(width, width, config.dropout_prob)
        self.mlp = TiteMLP(one, 0)
        self.last_norm = nn.Identity() if one.norm_location == "post" else make_norm(one, width)
        self.dropout = nn.Dropout(config.dropout_prob)

    def forward(self, encoder: TiteModel, vectors: Tensor, texts: Texts, mask: RowMask) -> Tensor:
        """Map vectors [texts, width] and the tokens of the texts to states [tokens, width].

        Queries are the vector of the text at every position. The keys of a text are its vector, then its
        n tokens, so that `mask` has n rows and n + 1 keys per text.
        """
        lengths = np.array(texts.lengths, np.int64)
        positions = torch.from_numpy(counted(lengths)).to(vectors.device)
        counts = torch.from_numpy(lengths).to(vectors.device)
        norm = self.embedding_norm or encoder.embeddings.norm
        table = encoder.embeddings.position_embeddings
        tokens = encoder.embeddings.word_embeddings(texts.ids)
        tokens = norm(tokens if table is None else tokens + table(positions))
        queries = vectors.repeat_interleave(counts, 0, output_size=len(positions))
        if table is not None:
            queries = norm(queries + table(positions))
        context = _prepended(vectors, self.dropout(tokens), texts.lengths)
        if self.config.norm_location == "pre":
            queries, context = self.norm(queries), self.norm(context)
        states = self.dense(self._attended(queries, context, lengths, mask), queries)
        states = self.norm(states) if self.config.norm_location == "post" else states
        return cast(Tensor, self.last_norm(self.mlp(states)))

    def _attended(
        self, queries: Tensor, context: Tensor, lengths: Lengths, mask: RowMask
    ) -> Tensor:
        q, k, v = (
            part.view(len(part), self.heads, -1)
            for part in (
                self._projected(self.query, queries),
                self._projected(self.key, context),
                self._projected(self.value, context),
            )
        )
        if self.config.relative_positional_embedding_type == "rotary":
            by = rotations(lengths, Spacing(), q.shape[2], q.device)
            # the vector, the first key of each text, is not rotated
            unrotated = torch.ones_like(by[:1]).expand(len(lengths), *by.shape[1:])
            q = rotate(q, by, self.config.rotary_interleaved)
            by = _prepended(unrotated, by, lengths.tolist())
            k = rotate(k, by, self.config.rotary_interleaved)
        counts = QueryKeyLengths(lengths, lengths + 1)
        return masked_attention(q, (k, v), counts, mask).flatten(1)

    def _projected(self, projection: nn.Module, states: Tensor) -> Tensor:
        projected = projection(states)
        return cast(
            Tensor, self.norm(projected) if self.config.norm_location == "qkv" else projected
        )


def _prepended(first: Tensor, tokens: Tensor, lengths: Sequence[int]) -> Tensor:
    """[texts, ...] and [tokens, ...] -> for each text, its row of `first` and then its tokens."""
    parts = zip(first.to(tokens.dtype)[:, None], tokens.split(list(lengths)), strict=True)  # type: ignore[no-untyped-call]
    return torch.cat([row for part in parts for row in part])
