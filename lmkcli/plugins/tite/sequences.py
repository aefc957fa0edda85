"""Operations of TITE on packed sequences: windows, positions, and attention within each sequence.

A pack is one row of states [tokens, width], sequence after sequence without padding. Pooling changes the
lengths, so queries and keys of one layer may have different lengths.
"""

from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import embedding_bag, pad

from lmkcli.models.attention import (
    STEP,
    STEP_FROM,
    QueryKeyLengths,
    kernel,
    kernel_arguments,
)

Lengths = NDArray[np.int64]


class PoolingWindows(NamedTuple):
    """Mean pooling of a pack: the tokens of each window, and the lengths afterwards."""

    tokens: torch.Tensor  # the tokens of all windows, one window after another
    starts: torch.Tensor  # the start of each window in `tokens`
    lengths: Lengths

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """[tokens, width] -> [windows, width]; the last window of a sequence may be partial."""
        return embedding_bag(self.tokens, states, self.starts, mode="mean")


def windows_over(
    lengths: Lengths, kernel: int, stride: int, device: torch.device
) -> PoolingWindows:
    """Return windows of `kernel` tokens that start at every `stride`-th token of each sequence.

    Arrays with one entry per window: `first` is its first token (in its sequence, then in the pack),
    `size` its number of tokens. `tokens` lists first, first + 1, ..., first + size - 1 of all windows.
    """
    pooled = np.where(lengths > 0, -(-np.maximum(lengths - kernel, 0) // stride) + 1, 0)
    first = counted(pooled) * stride
    size = np.minimum(kernel, np.repeat(lengths, pooled) - first)
    first += np.repeat(np.cumsum(lengths) - lengths, pooled)
    tokens = np.repeat(first, size) + counted(size)
    starts = np.cumsum(size) - size
    return PoolingWindows(
        torch.from_numpy(tokens).to(device), torch.from_numpy(starts).to(device), pooled
    )


def counted(lengths: Lengths) -> Lengths:
    """Return 0 … n-1 for each length n, concatenated."""
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)


class Spacing(NamedTuple):
    """Positions of the tokens of each sequence: token i is at i * step + first."""

    step: float = 1.0
    first: float = 0.0


def rotations(lengths: Lengths, spacing: Spacing, width: int, device: torch.device) -> torch.Tensor:
    """Return the rotary rotations (base 10000) of a pack for heads of `width`.

    They are complex numbers of absolute value 1, [tokens, 1, width / 2].
    """
    at = torch.arange(int(lengths.max()), device=device) * spacing.step + spacing.first
    angles = at[:, None, None] * 10000.0 ** -(torch.arange(0, width, 2, device=device) / width)
    table = torch.polar(torch.ones_like(angles), angles)
    return table.index_select(0, torch.from_numpy(counted(lengths)).to(device))


def rotate(states: torch.Tensor, by: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Rotate heads [tokens, heads, width] by `by` [tokens, 1, width / 2].

    A pair is two neighbouring dimensions if `interleaved`, else dimensions i and i + width / 2.
    """
    wide = states if states.dtype == torch.float64 else states.float()
    if interleaved:
        pairs = torch.view_as_complex(wide.view(*wide.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * by).flatten(-2).to(states.dtype)
    one, other = wide.chunk(2, -1)
    rotated = one * by.real - other * by.imag, one * by.imag + other * by.real
    return torch.cat(rotated, -1).to(states.dtype)


class Alibi(NamedTuple):
    """ALiBi: a penalty on the score of two tokens, their distance times the slope of the head."""

    slopes: torch.Tensor  # [1, heads, 1, 1]

    @classmethod
    def of(cls, heads: int, device: torch.device) -> "Alibi":
        """Return the slopes 2^(-8/h), 2^(-16/h) …

        If the number of heads is no power of two, every second slope of the next power of two follows.
        """
        power = 1 << (heads.bit_length() - 1)
        slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
        slopes += [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * (heads - power), 2)]
        return cls(torch.tensor(slopes, device=device)[None, :, None, None])

    def __call__(self, queries: int, keys: int) -> torch.Tensor:
        """[1, heads, queries, keys]; pooled queries are spread evenly over the keys."""
        device = self.slopes.device
        at = torch.linspace(0, keys - 1, queries, device=device)
        return -self.slopes * (at[:, None] - torch.arange(keys, device=device)).abs()[None]


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: QueryKeyLengths,
    alibi: Alibi | None,
) -> torch.Tensor:
    """Attention within each sequence, [tokens, heads, width] -> [queries, heads, width].

    Neighbours of equal lengths are one batch. A sequence with one key has this key's value as its
    result. GPUs have a kernel for packed sequences, in half precision and without ALiBi.
    """
    half = query.dtype in (torch.float16, torch.bfloat16)
    fits = half and alibi is None and query.shape[2] % 8 == 0
    if query.is_cuda and fits and kernel_arguments(query.device):
        return _varlen(query, key, value, lengths)
    attended, q, k = [], 0, 0
    pairs = zip(lengths.queries.tolist(), lengths.keys.tolist(), strict=True)
    for (queries, keys), same in groupby(pairs):
        count = len(list(same))
        parts = (
            query[q : q + count * queries],
            key[k : k + count * keys],
            value[k : k + count * keys],
        )
        q, k = q + count * queries, k + count * keys
        if keys == 1:
            attended.append(parts[2])
        elif keys:
            attended.append(_batch(parts, count, alibi and alibi(queries, keys)))
    return torch.cat(attended) if len(attended) != 1 else attended[0]


def _varlen(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: QueryKeyLengths
) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn  # imported here: it imports torch's compiler

    q, k = (
        torch.from_numpy(np.append(0, counts.cumsum()).astype(np.int32)).to(query.device)
        for counts in lengths
    )
    longest = int(lengths.queries.max()), int(lengths.keys.max())
    attended: Any = varlen_attn(query, key, value, q, k, *longest)
    return attended  # type: ignore[no-any-return]


def _batch(
    parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor], count: int, bias: torch.Tensor | None
) -> torch.Tensor:
    """Attention of `count` sequences of equal lengths; `parts` are [count * length, heads, width] each.

    On CPUs, the bf16 kernel is half as fast if the number of keys is no multiple of STEP. Zero keys with
    a mask fill up the last step.
    """
    q, k, v = (part.view(count, -1, *part.shape[1:]) for part in parts)
    keys = k.shape[1]
    mask = None if bias is None else bias.to(q.dtype)
    slow = k.dtype == torch.bfloat16 and k.device.type == "cpu"
    spare = -keys % STEP if slow and keys >= STEP_FROM else 0
    if spare:
        k, v = _with_zeros(k, spare), _with_zeros(v, spare)
        seen = q.new_zeros(1, 1, 1, keys) if mask is None else mask
        mask = pad(seen, (0, spare), value=-torch.inf)
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    return kernel(q, k, v, mask).transpose(1, 2).flatten(0, 1)


def _with_zeros(part: torch.Tensor, spare: int) -> torch.Tensor:
    """[count, keys, heads, width] -> [count, keys + spare, heads, width].

    `pad` would write the whole tensor twice.
    """
    count, keys, *rest = part.shape
    padded = part.new_empty(count, keys + spare, *rest)
    padded[:, :keys] = part
    padded[:, keys:] = 0
    return padded
