"""Self-extension of rotary models: near positions as they are, far ones in groups.

Jin et al., "LLM Maybe LongLM" (arXiv 2401.01325), for encoders too as LongEmbed has it (arXiv
2404.12096): keys nearer than `window` are seen at their own distance, others at the distance of the
groups that they are in, moved so that it goes on where the window ends. Both share one softmax.
"""

from typing import NamedTuple

import torch
from torch.nn.functional import softmax

BLOCK = 128  # queries at a time: what is held is BLOCK x length, never length x length


class Groups(NamedTuple):
    """How far positions are grouped in inputs of more than `trained` positions."""

    trained: int
    size: int  # positions in a group
    window: int  # distances below it are exact
    frequencies: torch.Tensor  # [rotated dimensions / 2], of the model's own rotation

    @classmethod
    def of(cls, trained: int, length: int, frequencies: torch.Tensor) -> "Groups":
        """A window of trained / s for inputs s times as long, and the least groups that then suffice.

        For s = 2, 4, 8 and 16 groups are of 3, 5, 9 and 17, as in LongEmbed's scripts.
        """
        window = max(1, trained * trained // length)
        return cls(trained, -(-(length - window) // (trained - window)), window, frequencies)

    @property
    def shift(self) -> int:
        """How much farther apart groups are than their numbers, so that distances go on growing."""
        return self.window - self.window // self.size


class Seen(NamedTuple):
    """What a position sees: `reach` to either side, or to the left alone, of `filled` positions."""

    reach: int
    causal: bool
    filled: tuple[int, ...]


class _Part(NamedTuple):
    """Queries and keys that are turned alike, and which of the keys a block of queries may see."""

    queries: torch.Tensor
    keys: torch.Tensor
    begin: int
    end: int

    def scores(self, rows: slice) -> torch.Tensor:
        """[sequences, heads, rows, keys]"""
        keys = self.keys[:, :, self.begin : self.end]
        return (self.queries[:, :, rows] @ keys.transpose(-1, -2)).float()


def grouped_attention(
    states: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    groups: Groups,
    seen: Seen,
    scaling: float | None,
) -> torch.Tensor:
    """Attention of queries, keys and values [sequences, heads, length, width] that are turned to
    positions 0, 1, 2 …; by blocks of queries. Returns [sequences, heads, length, width].
    """
    query, key, value = states
    heads, length, width = query.shape[1:]
    if key.shape[1] != heads:
        key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in (key, value))
    query = query * (width**-0.5 if scaling is None else scaling)
    at = torch.arange(length, device=query.device)
    turns = at // groups.size - at
    far = turned(key, turns, groups.frequencies)
    before = turned(query, turns + groups.shift, groups.frequencies)
    after = turned(query, turns - groups.shift, groups.frequencies)
    blocks = []
    for begin in range(0, length, BLOCK):
        rows = slice(begin, min(begin + BLOCK, length))
        near = max(0, begin - groups.window + 1), min(length, rows.stop + groups.window - 1)
        parts = [
            _Part(before, far, 0, max(0, rows.stop - groups.window)),
            _Part(query, key, *near),
            _Part(after, far, min(length, begin + groups.window), length),
        ]
        blocks.append(_block(parts, value, rows, (groups, seen)))
    return torch.cat(blocks, 2)


def _block(
    parts: list[_Part], value: torch.Tensor, rows: slice, how: tuple[Groups, Seen]
) -> torch.Tensor:
    """The outputs of a block of queries: one softmax over the keys of all parts."""
    scores = torch.cat([part.scores(rows) for part in parts], -1)
    masks = [_mask(part, number - 1, rows, how) for number, part in enumerate(parts)]
    mask = torch.cat([each.to(scores.device) for each in masks], -1)
    weights = softmax(scores.masked_fill(~mask, -torch.inf), -1).to(value.dtype)
    values = torch.cat([value[:, :, part.begin : part.end] for part in parts], 2)
    return weights @ values


def _mask(part: _Part, side: int, rows: slice, how: tuple[Groups, Seen]) -> torch.Tensor:
    """[sequences, 1, rows, keys]: keys before the window (side -1), in it (0), or after it (1).

    Rows that are not filled see all of the window, so that their softmax is finite.
    """
    groups, seen = how
    queries = torch.arange(rows.start, rows.stop)[:, None]
    keys = torch.arange(part.begin, part.end)[None]
    apart = queries - keys
    mine = apart.abs() < groups.window if side == 0 else -side * apart >= groups.window
    mask = mine & (apart.abs() <= seen.reach)
    mask &= (apart >= 0) if seen.causal else torch.ones_like(mask)
    filled = torch.tensor(seen.filled)[:, None, None]
    return ((mask & (keys < filled)) | (mine & (queries >= filled) & (side == 0)))[:, None]


def turned(x: torch.Tensor, by: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """[…, length, width] turned on by so many positions each; halves of the rotated dimensions pair."""
    angles = by[:, None] * frequencies.to(by.device, torch.float64)
    cos, sin = angles.cos().float(), angles.sin().float()
    half = len(frequencies)
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    pairs = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat([*(each.to(x.dtype) for each in pairs), x[..., 2 * half :]], -1)
