"""RetroMAE's enhanced decoder: each row of a text attends to its own part of the text.

It needs little memory. Attention masks [rows, keys] exist for one block of rows at a time, and the backward
pass computes the block again instead of storing it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from lmkcli.models.attention import QueryKeyLengths, kernel
from lmkcli.models.prediction_head import initialiser, norm_epsilon, recomputed

MASK_BLOCK = 1 << 23  # entries of a mask in memory at a time
# RowMask(text, rows): which keys some rows of a text see, [rows, keys] bool.
RowMask = Callable[[int, slice], Tensor]
# Bias(q, k, rows): what is added to q @ k.T, [texts, heads, rows, keys].
Bias = Callable[[Tensor, Tensor, slice], Tensor]


class DecoderShape(NamedTuple):
    """The sizes of a decoding layer. Relative positions cover distances below `reach`; 0 means none."""

    width: int
    heads: int
    inner: int
    reach: int = 0


class EnhancedDecoder(nn.Module):
    """A layer of BERT in which each row attends to its own part of the text (RetroMAE, §2.3).

    Queries come from one stream, keys and values from another. With a `reach`, the layer learns relative
    positions for queries and keys (Huang et al. 2020, method 4), for encoders without a table of
    positions.
    """

    def __init__(self, config: Any, shape: DecoderShape) -> None:
        super().__init__()
        width, eps = shape.width, norm_epsilon(config)
        self.heads = shape.heads
        self.query, self.key, self.value, self.dense = (nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width, eps=eps)
        self.intermediate = nn.Linear(width, shape.inner)
        self.act: nn.Module = nn.GELU()
        self.output = nn.Linear(shape.inner, width)
        self.output_norm = nn.LayerNorm(width, eps=eps)
        self.dropout = nn.Dropout(float(getattr(config, "hidden_dropout_prob", 0.0)))
        self.relative = (
            nn.Embedding(2 * shape.reach - 1, width // shape.heads) if shape.reach else None
        )
        self.apply(initialiser(config))

    def forward(
        self, queries: Tensor, context: Tensor, lengths: Sequence[int], mask: RowMask
    ) -> Tensor:
        """[tokens, width] of all texts as queries and as keys -> [tokens, width]."""
        q, k, v = (
            part.view(len(part), self.heads, -1)
            for part in (self.query(queries), self.key(context), self.value(context))
        )
        bias = None if self.relative is None else self._relative_bias
        counts = np.asarray(lengths, np.int64)
        attended = masked_attention(q, (k, v), QueryKeyLengths(counts, counts), mask, bias).flatten(
            1
        )
        states = self.norm(self.dropout(self.dense(attended)) + queries)
        inner = self.output(self.act(self.intermediate(states)))
        return cast(Tensor, self.output_norm(self.dropout(inner) + states))

    def _relative_bias(self, q: Tensor, k: Tensor, rows: slice) -> Tensor:
        """Return the products of queries and keys with the embeddings a of their distance i - j.

        The entry of row i and key j is q_i . a(i - j) + k_j . a(i - j): [texts, heads, rows, keys].
        `unfold` gives the embeddings of all pairs as views of the table, without copies.
        """
        table: Tensor = cast(nn.Embedding, self.relative).weight
        zero, keys, count = len(table) // 2, k.shape[2], q.shape[2]
        first, last = rows.start - keys + 1, rows.stop - 1  # the distances i - j of these rows
        near = table[zero + first : zero + last + 1]
        by_row = near.unfold(0, keys, 1).flip(2)  # [rows, width, keys]: a(i - j) for each row i
        by_key = near.unfold(0, count, 1).flip(0)  # [keys, width, rows]: a(i - j) for each key j
        of_queries = torch.einsum("thrw,rwk->thrk", q, by_row)
        return of_queries + torch.einsum("thkw,kwr->thrk", k, by_key)


def masked_attention(
    query: Tensor,
    context: tuple[Tensor, Tensor],
    lengths: QueryKeyLengths,
    mask: RowMask,
    bias: Bias | None = None,
) -> Tensor:
    """Attention within each text over the keys that each row sees: [queries, heads, width].

    `context` are the keys and values [keys, heads, width] of all texts, one text after another. `bias`
    is added to the products of queries [texts, heads, rows, width] and keys. Each row must see at least
    one key. Neighbours of equal lengths are one batch, which is computed by blocks of rows.
    """
    attended, q, k = [], 0, 0
    for texts in _equal_texts(lengths, query.shape[1] if bias else 1):
        count = len(texts)
        rows, keys = int(lengths.queries[texts.start]), int(lengths.keys[texts.start])
        part = query[q : q + count * rows].view(count, rows, *query.shape[1:]).transpose(1, 2)
        own_keys, own_values = (
            one[k : k + count * keys].view(count, keys, *one.shape[1:]).transpose(1, 2)
            for one in context
        )
        q, k = q + count * rows, k + count * keys
        step = max(1, MASK_BLOCK // (count * keys))
        blocks = [
            _row_block(
                part, (own_keys, own_values), (texts, slice(i, min(i + step, rows))), mask, bias
            )
            for i in range(0, rows, step)
        ]
        attended.append(torch.cat(blocks, 2).transpose(1, 2).flatten(0, 1))
    return torch.cat(attended)


def _equal_texts(lengths: QueryKeyLengths, copies: int) -> Iterator[range]:
    """Yield neighbours of equal lengths, as many as have masks within MASK_BLOCK."""
    pairs = list(zip(lengths.queries.tolist(), lengths.keys.tolist(), strict=True))
    start = 0
    while start < len(pairs):
        rows, keys = pairs[start]
        most = max(1, MASK_BLOCK // max(1, rows * keys * copies))
        stop = start + 1
        while stop < min(len(pairs), start + most) and pairs[stop] == pairs[start]:
            stop += 1
        yield range(start, stop)
        start = stop


def _row_block(
    query: Tensor,
    context: tuple[Tensor, Tensor],
    block: tuple[range, slice],
    mask: RowMask,
    bias: Bias | None,
) -> Tensor:
    """Return the attention of some rows of some texts, [texts, heads, rows, width]."""
    texts, rows = block

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = torch.stack([mask(text, rows) for text in texts])[:, None].to(q.device)
        if bias is None:
            return kernel(q, k, v, seen)
        added = bias(q, k, rows) / q.shape[3] ** 0.5
        return kernel(q, k, v, added.masked_fill(~seen, -torch.inf))

    return recomputed(attend, query[:, :, rows], *context)
