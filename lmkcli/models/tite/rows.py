"""Packed sequences of TITE: windows over them, positions in them, attention within each of them.

A pack is one row of states [tokens, width], sequence after sequence without padding. Pooling changes
the lengths, so that queries and keys of one layer may be of different lengths.
"""

from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import embedding_bag, pad

from lmkcli.models.attention import STEP, STEP_FROM, kernel

Lengths = NDArray[np.int64]


class Windows(NamedTuple):
    """Mean pooling of a pack: which tokens are averaged, and the lengths afterwards."""

    tokens: torch.Tensor  # the tokens of all windows, one window after another
    starts: torch.Tensor  # where each window begins in `tokens`
    lengths: Lengths

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """[tokens, width] -> [windows, width]; the last window of a sequence may be partial."""
        return embedding_bag(self.tokens, states, self.starts, mode="mean")


def windows_over(lengths: Lengths, kernel: int, stride: int, device: torch.device) -> Windows:
    """Windows of `kernel` tokens, beginning every `stride` tokens of each sequence."""
    pooled = np.where(lengths > 0, -(-np.maximum(lengths - kernel, 0) // stride) + 1, 0)
    first = places(pooled) * stride
    size = np.minimum(kernel, np.repeat(lengths, pooled) - first)
    first += np.repeat(np.cumsum(lengths) - lengths, pooled)
    tokens = np.repeat(first, size) + places(size)
    starts = np.cumsum(size) - size
    return Windows(torch.from_numpy(tokens).to(device), torch.from_numpy(starts).to(device), pooled)


def places(lengths: Lengths) -> Lengths:
    """0 … n-1 for each length n, one after another."""
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)


class Spread(NamedTuple):
    """Where the tokens of each sequence stand: at i x step + first."""

    step: float = 1.0
    first: float = 0.0


def turns(lengths: Lengths, spread: Spread, width: int, device: torch.device) -> torch.Tensor:
    """Rotary turns (base 10000) of a pack for heads of `width`: [tokens, 1, width / 2] complex."""
    at = torch.arange(int(lengths.max()), device=device) * spread.step + spread.first
    angles = at[:, None, None] * 10000.0 ** -(torch.arange(0, width, 2, device=device) / width)
    table = torch.polar(torch.ones_like(angles), angles)
    return table.index_select(0, torch.from_numpy(places(lengths)).to(device))


def rotate(states: torch.Tensor, by: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Turn each head [tokens, heads, width]: its pairs of neighbours, or its first half with its second."""
    wide = states if states.dtype == torch.float64 else states.float()
    if interleaved:
        pairs = torch.view_as_complex(wide.view(*wide.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * by).flatten(-2).to(states.dtype)
    one, other = wide.chunk(2, -1)
    turned = one * by.real - other * by.imag, one * by.imag + other * by.real
    return torch.cat(turned, -1).to(states.dtype)


class Distances(NamedTuple):
    """ALiBi: a penalty by distance, for each head its own slope (base of a geometric sequence)."""

    slopes: torch.Tensor  # [1, heads, 1, 1]

    def __call__(self, queries: int, keys: int) -> torch.Tensor:
        """[1, heads, queries, keys]; pooled queries are spread evenly over the keys."""
        device = self.slopes.device
        at = torch.linspace(0, keys - 1, queries, device=device)
        return -self.slopes * (at[:, None] - torch.arange(keys, device=device)).abs()[None]


def alibi(heads: int, device: torch.device) -> Distances:
    """The slopes of ALiBi: 2^(-8/h), 2^(-16/h) …; between powers of two, every second of the next."""
    power = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    slopes += [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * (heads - power), 2)]
    return Distances(torch.tensor(slopes, device=device)[None, :, None, None])


class Lined(NamedTuple):
    """Lengths of a pack as queries and as keys of one layer."""

    queries: Lengths
    keys: Lengths


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lined: Lined,
    distances: Distances | None,
) -> torch.Tensor:
    """Attention within each sequence, [tokens, heads, width] -> [queries, heads, width].

    Neighbours of equal length are one batched call; a sequence of one key has its value as answer.
    GPUs have a kernel for packed sequences, in half precision and without distances.
    """
    half = query.dtype in (torch.float16, torch.bfloat16)
    if query.is_cuda and half and distances is None and query.shape[2] % 8 == 0:
        return _varlen(query, key, value, lined)
    attended, q, k = [], 0, 0
    pairs = zip(lined.queries.tolist(), lined.keys.tolist(), strict=True)
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
            attended.append(_attend(parts, count, distances and distances(queries, keys)))
    return torch.cat(attended) if len(attended) != 1 else attended[0]


def _varlen(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lined: Lined
) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn  # here: it brings all of torch's compiler

    q, k = (
        torch.from_numpy(np.append(0, lengths.cumsum()).astype(np.int32)).to(query.device)
        for lengths in lined
    )
    longest = int(lined.queries.max()), int(lined.keys.max())
    attended: Any = varlen_attn(query, key, value, q, k, *longest)
    return attended  # type: ignore[no-any-return]


def _attend(
    parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor], count: int, bias: torch.Tensor | None
) -> torch.Tensor:
    q, k, v = (part.view(count, -1, *part.shape[1:]) for part in parts)
    mask = None if bias is None else bias.to(q.dtype)
    spare = _spare(k)
    if spare:
        k, v = _longer(k, spare), _longer(v, spare)
        seen = q.new_zeros(1, 1, 1, k.shape[1] - spare) if mask is None else mask
        mask = pad(seen, (0, spare), value=-torch.inf)
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    return kernel(q, k, v, mask).transpose(1, 2).flatten(0, 1)


def _longer(part: torch.Tensor, spare: int) -> torch.Tensor:
    """[count, keys, heads, width] with `spare` zeros after the keys (pad would first fill it all)."""
    count, keys, *rest = part.shape
    padded = part.new_empty(count, keys + spare, *rest)
    padded[:, :keys] = part
    padded[:, keys:] = 0
    return padded


def _spare(keys: torch.Tensor) -> int:
    """Masked keys that fill up a whole step, without which the bf16 kernel of CPUs is half as fast."""
    slow = keys.dtype == torch.bfloat16 and keys.device.type == "cpu"
    return -keys.shape[1] % STEP if slow and keys.shape[1] >= STEP_FROM else 0
