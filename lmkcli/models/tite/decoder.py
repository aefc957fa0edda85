"""What TITE is pre-trained with: a decoder that sees half of a text, and heads that predict tokens.

Schlatt et al. 2025, §3.3. The layer has the width, heads and activation of the encoder's last one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from lmkcli.models.enhanced import Lined, Sight, sighted
from lmkcli.models.language import LanguageHead
from lmkcli.models.tite.config import TiteConfig
from lmkcli.models.tite.layers import Residual, TiteMLP, make_norm
from lmkcli.models.tite.model import TiteModel
from lmkcli.models.tite.rows import Lengths, Spread, places, rotate, turns


class Texts(NamedTuple):
    """Tokens of some texts, one text after another, and how many each has."""

    ids: Tensor
    lengths: Sequence[int]


def last_layer(config: TiteConfig) -> TiteConfig:
    """A configuration of one layer, which is as the last one and does not pool."""
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
    """A head that predicts tokens from states of the last width."""
    activation = "silu" if config.hidden_act == "swiglu" else config.hidden_act
    norm = make_norm(config, config.hidden_size)
    return LanguageHead(config.hidden_size, config.vocab_size, activation, norm)


class TiteDecoder(nn.Module):
    """Tokens from a sequence's vector and, for each of them, a part of the others."""

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

    def forward(self, encoder: TiteModel, vectors: Tensor, texts: "Texts", sight: Sight) -> Tensor:
        """Vectors [texts, width] and the tokens of the texts -> states [tokens, width] of these.

        Rows of `sight` see the vector as their first key, then the tokens.
        """
        lengths = np.array(texts.lengths, np.int64)
        positions = torch.from_numpy(places(lengths)).to(vectors.device)
        counts = torch.from_numpy(lengths).to(vectors.device)
        norm = self.embedding_norm or encoder.embeddings.norm
        tokens = norm(_placed(encoder, encoder.embeddings.word_embeddings(texts.ids), positions))
        queries = vectors.repeat_interleave(counts, 0)
        if encoder.embeddings.position_embeddings is not None:
            queries = norm(_placed(encoder, queries, positions))
        context = _prepended(vectors, self.dropout(tokens), texts.lengths)
        if self.config.norm_location == "pre":
            queries, context = self.norm(queries), self.norm(context)
        states = self.dense(self._attended(queries, context, lengths, sight), queries)
        states = self.norm(states) if self.config.norm_location == "post" else states
        return cast(Tensor, self.last_norm(self.mlp(states)))

    def _attended(self, queries: Tensor, context: Tensor, lengths: Lengths, sight: Sight) -> Tensor:
        q, k, v = (
            part.view(len(part), self.heads, -1)
            for part in (
                self._projected(self.query, queries),
                self._projected(self.key, context),
                self._projected(self.value, context),
            )
        )
        if self.config.relative_positional_embedding_type == "rotary":
            by = turns(lengths, Spread(), q.shape[2], q.device)
            q = rotate(q, by, self.config.rotary_interleaved)
            k = rotate(k, _still_first(by, lengths), self.config.rotary_interleaved)
        lined = Lined(lengths.tolist(), (lengths + 1).tolist())
        return sighted(q, (k, v), lined, sight).flatten(1)

    def _projected(self, projection: nn.Module, states: Tensor) -> Tensor:
        projected = projection(states)
        return cast(
            Tensor, self.norm(projected) if self.config.norm_location == "qkv" else projected
        )


def _placed(encoder: TiteModel, states: Tensor, positions: Tensor) -> Tensor:
    table = encoder.embeddings.position_embeddings
    return states if table is None else states + table(positions)


def _prepended(first: Tensor, tokens: Tensor, lengths: Sequence[int]) -> Tensor:
    """[texts, width] and [tokens, width] -> for each text its first row and its tokens."""
    parts = zip(first.to(tokens.dtype)[:, None], tokens.split(list(lengths)), strict=True)  # type: ignore[no-untyped-call]
    return torch.cat([row for part in parts for row in part])


def _still_first(by: Tensor, lengths: Lengths) -> Tensor:
    """Rotary turns of keys of which each text's first is not turned."""
    still = torch.ones_like(by[:1])
    parts = by.split(lengths.tolist())  # type: ignore[no-untyped-call]
    return torch.cat([one for part in parts for one in (still, part)])
