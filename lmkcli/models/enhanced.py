"""Enhanced decoding: one layer whose rows each see another part of the text (RetroMAE, §2.3).

Masks are made where they are used, for a block of rows at a time, and made again in the backward pass:
what stays in memory does not grow with the square of the length.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from lmkcli.models.attention import kernel
from lmkcli.models.language import again, epsilon, initialiser

BLOCK = 1 << 23  # entries of a mask that exist at once
# Of a text, and of some of its rows: what these see, [rows, keys].
Sight = Callable[[int, slice], Tensor]


class Shape(NamedTuple):
    """A decoding layer: widths, heads, and how far apart positions are told apart (0: not at all)."""

    width: int
    heads: int
    inner: int
    reach: int = 0


class EnhancedDecoder(nn.Module):
    """A layer as BERT's, with one stream of queries and another of keys and values.

    With a `reach` it learns relative positions for queries and keys (Huang et al. 2020, method 4), for
    encoders without a table of positions.
    """

    def __init__(self, config: Any, shape: Shape) -> None:
        super().__init__()
        width, eps = shape.width, epsilon(config)
        self.heads = shape.heads
        self.query, self.key, self.value, self.dense = (nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width, eps=eps)
        self.intermediate = nn.Linear(width, shape.inner)
        self.act: nn.Module = ACT2FN["gelu"]
        self.output = nn.Linear(shape.inner, width)
        self.output_norm = nn.LayerNorm(width, eps=eps)
        self.dropout = nn.Dropout(float(getattr(config, "hidden_dropout_prob", 0.0)))
        self.relative = (
            nn.Embedding(2 * shape.reach - 1, width // shape.heads) if shape.reach else None
        )
        self.apply(initialiser(config))

    def forward(
        self, queries: Tensor, context: Tensor, lengths: Sequence[int], sight: Sight
    ) -> Tensor:
        """[tokens, width] of some texts, as queries and as keys -> [tokens, width]."""
        q, k, v = (
            part.view(len(part), self.heads, -1)
            for part in (self.query(queries), self.key(context), self.value(context))
        )
        bias = None if self.relative is None else self._distances
        attended = sighted(q, (k, v), Lined(lengths, lengths), sight, bias).flatten(1)
        states = self.norm(self.dropout(self.dense(attended)) + queries)
        inner = self.output(self.act(self.intermediate(states)))
        return cast(Tensor, self.output_norm(self.dropout(inner) + states))

    def _distances(self, q: Tensor, k: Tensor, rows: slice) -> Tensor:
        """[texts, heads, rows, keys] beside q @ k: each with what stands for the distance i - j."""
        table: Tensor = cast(nn.Embedding, self.relative).weight
        zero, keys, count = len(table) // 2, k.shape[2], q.shape[2]
        first, last = rows.start - keys + 1, rows.stop - 1  # of i - j
        near = table[zero + first : zero + last + 1]
        # windows[i] are the distances of row i to the keys, the farthest to the right first
        asked = near.unfold(0, keys, 1).flip(2)  # [rows, width, keys]
        answered = near.unfold(0, count, 1).flip(0)  # [keys, width, rows]
        one = torch.einsum("thrw,rwk->thrk", q, asked)
        return one + torch.einsum("thkw,kwr->thrk", k, answered)


class Lined(NamedTuple):
    """Rows of each text as queries and as keys."""

    queries: Sequence[int]
    keys: Sequence[int]


Bias = Callable[[Tensor, Tensor, slice], Tensor]


def sighted(
    query: Tensor,
    context: tuple[Tensor, Tensor],
    lined: Lined,
    sight: Sight,
    bias: Bias | None = None,
) -> Tensor:
    """Attention within each text over what its rows see: [queries, heads, width].

    `context` are keys and values [keys, heads, width] of all texts, one after another. `bias` is added
    to the products of queries [texts, heads, rows, width] and keys. No row may see nothing.
    """
    attended, q, k = [], 0, 0
    for texts in _runs(lined, query.shape[1] if bias else 1):
        rows, keys, count = lined.queries[texts.start], lined.keys[texts.start], len(texts)
        part = query[q : q + count * rows].view(count, rows, *query.shape[1:]).transpose(1, 2)
        seen = [
            one[k : k + count * keys].view(count, keys, *one.shape[1:]).transpose(1, 2)
            for one in context
        ]
        q, k = q + count * rows, k + count * keys
        step = max(1, BLOCK // (count * keys))
        blocks = [
            _block(part, (seen[0], seen[1]), (texts, slice(i, min(i + step, rows))), sight, bias)
            for i in range(0, rows, step)
        ]
        attended.append(torch.cat(blocks, 2).transpose(1, 2).flatten(0, 1))
    return torch.cat(attended)


def _runs(lined: Lined, copies: int) -> Iterator[range]:
    """Neighbours of equal lengths, as many as have room for their masks."""
    start, count = 0, len(lined.queries)
    while start < count:
        rows, keys = lined.queries[start], lined.keys[start]
        most = max(1, BLOCK // max(1, rows * keys * copies))
        stop = start + 1
        while stop < min(count, start + most) and (lined.queries[stop], lined.keys[stop]) == (
            rows,
            keys,
        ):
            stop += 1
        yield range(start, stop)
        start = stop


def _block(
    query: Tensor,
    context: tuple[Tensor, Tensor],
    where: tuple[range, slice],
    sight: Sight,
    bias: Bias | None,
) -> Tensor:
    """Some rows of some texts [texts, heads, rows, width]."""
    texts, rows = where

    def block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = torch.stack([sight(text, rows) for text in texts])[:, None].to(q.device)
        if bias is None:
            return kernel(q, k, v, seen)
        added = bias(q, k, rows) / q.shape[3] ** 0.5
        return kernel(q, k, v, added.masked_fill(~seen, -torch.inf))

    return again(block, query[:, :, rows], *context)
