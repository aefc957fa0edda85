"""Packed attention: sequences of different lengths in one row, each attending to itself alone.

Registered with transformers as the attention implementation 'lmk'. No n x n mask is ever built:
sequences of equal length are one batched call, and sliding windows are computed by blocks.
"""

from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "lmk"


def packed_attention(  # noqa: PLR0913 (the signature is that of transformers)
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    lengths: tuple[int, ...] = (),
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over [1, heads, tokens, width]; `lengths` are the packed sequences' in order.

    Returns [1, tokens, heads, width], as transformers expects. `sliding_window` arrives one larger
    than the inclusive half-window.
    """
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    groups = key.shape[1] != query.shape[1]
    output = torch.empty_like(query.transpose(1, 2))
    start = 0
    for length, run in groupby(lengths or (query.shape[2],)):
        count = len(list(run))
        stop = start + count * length
        q, k, v = (_batched(x, start, count, length) for x in (query, key, value))
        reach = sliding_window - 1 if sliding_window else length
        if length > _block(reach):
            made = _windowed(q, k, v, Window(reach, causal), scaling)
        else:
            mask = _near(length, reach, causal, q.device) if reach < length - 1 else None
            made = scaled_dot_product_attention(
                q, k, v, mask, is_causal=causal and mask is None, scale=scaling, enable_gqa=groups
            )
        output[0, start:stop].view(count, length, *output.shape[2:]).copy_(made.transpose(1, 2))
        start = stop
    return output, None


def _batched(x: torch.Tensor, start: int, count: int, length: int) -> torch.Tensor:
    """[1, heads, tokens, width] -> a view [count, heads, length, width] of equal-length sequences."""
    part = x[0, :, start : start + count * length]
    return part.view(part.shape[0], count, length, part.shape[2]).transpose(0, 1)


def _near(length: int, reach: int, causal: bool, device: torch.device) -> torch.Tensor:
    """True where |i - j| <= reach (and j <= i when causal), [length, length]; for short inputs."""
    apart = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
    near = apart.abs() <= reach
    return near & (apart >= 0) if causal else near


def _block(reach: int) -> int:
    """Block-local work pays beyond about four windows; below it one masked call is quicker."""
    return max(4 * reach, 512)


class Window(NamedTuple):
    """How far a position sees: `reach` to either side, or to the left alone."""

    reach: int
    causal: bool


def _windowed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    window: Window,
    scaling: float | None,
) -> torch.Tensor:
    """Sliding-window attention by blocks of `size` queries, each seeing size + 2 x reach keys."""
    reach = window.reach
    count, heads, length = query.shape[:3]
    size = max(reach, 64)
    blocks = -(-length // size)
    spare = blocks * size - length
    q = pad(query, (0, 0, 0, spare)).view(count, heads, blocks, size, -1)
    k, v = (
        pad(x, (0, 0, reach, spare + reach)).unfold(2, size + 2 * reach, size).transpose(-1, -2)
        for x in (key, value)
    )
    mask = _block_mask(blocks, size, window, length, query.device)
    if k.shape[1] != heads:
        k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    made = scaled_dot_product_attention(
        q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), mask, scale=scaling
    )
    return made.view(count, heads, blocks * size, -1)[:, :, :length]


def _block_mask(
    blocks: int, size: int, window: Window, length: int, device: torch.device
) -> torch.Tensor:
    """[blocks, size, size + 2 x reach]: in the window and inside the sequence.

    Rows beyond the sequence see everything, so that their softmax is finite; they are cut afterwards.
    """
    reach = window.reach
    rows = torch.arange(blocks * size, device=device).view(blocks, size, 1)
    columns = torch.arange(blocks, device=device).view(blocks, 1, 1) * size - reach
    columns = columns + torch.arange(size + 2 * reach, device=device)
    mask = ((rows - columns).abs() <= reach) & (columns >= 0) & (columns < length)
    if window.causal:
        mask &= rows >= columns
    return mask | (rows >= length)


AttentionInterface.register(NAME, packed_attention)
