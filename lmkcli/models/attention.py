"""Packed attention: sequences of different lengths in one row, each attending to itself alone.

Registered with transformers as the attention implementation 'lmk'. No n x n mask is ever built:
on a CPU sequences of equal length are one batched call, and sliding windows are computed by blocks;
on a GPU torch's kernel for sequences of various lengths does both.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface

from lmkcli.models.selfextend import Groups, Seen, grouped_attention

NAME = "lmk"
STEP = 16  # bf16 kernels on CPUs are about twice as fast on whole multiples of this length
STEP_FROM = 33  # shorter sequences would pay more in the linear layers than attention saves
FLOAT_BELOW = (
    768  # up to here the backward pass of bf16 kernels on CPUs is slower than that of fp32
)


class Pack(NamedTuple):
    """The sequences in one row: how many positions are seen of each, and how many it takes there."""

    lengths: tuple[int, ...]
    taken: tuple[int, ...]

    @classmethod
    def of(cls, lengths: list[int], aligned: bool) -> "Pack":
        """Side by side, or each `aligned` to whole steps."""
        if not aligned:
            return cls(tuple(lengths), tuple(lengths))
        taken = tuple(n if n < STEP_FROM else -(-n // STEP) * STEP for n in lengths)
        return cls(tuple(lengths), taken)

    def runs(self) -> Iterator["Run"]:
        """Neighbours that take the same number of positions, as one batch."""
        number = 0
        for length, same in groupby(self.taken):
            count = len(list(same))
            yield Run(count, length, self.lengths[number : number + count])
            number += count


class Run(NamedTuple):
    """`sequences` side by side, each taking `length` positions, of which some are filled."""

    sequences: int
    length: int
    filled: tuple[int, ...]

    @property
    def taken(self) -> int:
        """Positions of the whole run."""
        return self.sequences * self.length

    def of(self, part: torch.Tensor) -> torch.Tensor:
        """[heads, taken, width] -> a view [sequences, heads, length, width]."""
        return part.view(part.shape[0], self.sequences, self.length, part.shape[2]).transpose(0, 1)

    def keys(self, device: torch.device) -> torch.Tensor | None:
        """True where a key is filled, [count, 1, 1, length]; None where all are."""
        if min(self.filled) == self.length:
            return None
        filled = torch.tensor(self.filled, device=device)
        return (torch.arange(self.length, device=device) < filled[:, None])[:, None, None]


class Window(NamedTuple):
    """How far a position sees: `reach` to either side, or to the left alone."""

    reach: int
    causal: bool


def sees_left_alone(module: torch.nn.Module, is_causal: bool | None) -> bool:
    """Whether attention is causal: by what the call says, else by what the module is."""
    return bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)


def packed_attention(  # noqa: PLR0913 (the signature is that of transformers)
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    pack: Pack | None = None,
    groups: Groups | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over [1, heads, tokens, width] within each sequence of the pack.

    Returns [1, tokens, heads, width], as transformers expects. `sliding_window` arrives one larger
    than the inclusive half-window. With `groups`, far positions of long sequences are grouped.
    """
    causal = sees_left_alone(module, is_causal)
    pack = pack or Pack.of([query.shape[2]], aligned=False)
    if sliding_window and groups and sliding_window <= groups.window:
        groups = None  # nothing that is seen is far
    if query.is_cuda and query.dtype != torch.float32 and pack.taken == pack.lengths and not groups:
        reach = sliding_window - 1 if sliding_window else -1
        return _varlen(query, key, value, (pack, Window(reach, causal)), scaling), None
    runs = list(pack.runs())
    # split and cat, whose gradients cost one pass over memory however many runs there are
    sizes = [run.taken for run in runs]
    split: Any = torch.split
    parts = zip(*(split(x[0], sizes, 1) for x in (query, key, value)), strict=True)
    outputs = []
    for run, (query_part, key_part, value_part) in zip(runs, parts, strict=True):
        window = Window(sliding_window - 1 if sliding_window else run.length, causal)
        q, k, v = run.of(query_part), run.of(key_part), run.of(value_part)
        if groups and run.length > groups.trained:
            seen = Seen(window.reach, causal, run.filled)
            output = grouped_attention((q, k, v), groups, seen, scaling)
        elif run.length > block(window.reach) and run.keys(q.device) is None:
            output = _windowed(q, k, v, window, scaling)
        else:
            output = _whole(q, k, v, (run, window), scaling)
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return (torch.cat(outputs) if len(outputs) > 1 else outputs[0])[None], None


def _varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seen: tuple[Pack, Window],
    scaling: float | None,
) -> torch.Tensor:
    """torch's own kernel for packed sequences (flash attention), which exists for half precision on GPUs."""
    from torch.nn.attention.varlen import varlen_attn  # here: it brings all of torch's compiler

    pack, window = seen
    bounds = _bounds(pack.taken, query.device)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    attended: Any = varlen_attn(
        q, k, v, bounds, bounds, max(pack.taken), max(pack.taken), scale=scaling,
        window_size=(window.reach, 0 if window.causal else window.reach),
        enable_gqa=k.shape[1] != q.shape[1],
    )  # fmt: skip
    return attended[None]  # type: ignore[no-any-return]


@lru_cache(maxsize=4)
def _bounds(lengths: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Where sequences begin, and where the last ends; every layer of a pass asks for the same."""
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


def block(reach: int) -> int:
    """Block-local work pays beyond about eight windows; below it one masked call is quicker."""
    return max(8 * reach, 512)


def _whole(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seen: tuple[Run, Window],
    scaling: float | None,
) -> torch.Tensor:
    """Every query sees all filled keys of its sequence that lie in the window."""
    run, window = seen
    mask = run.keys(query.device)
    if window.reach < run.length - 1:
        near = _near(run.length, window, query.device)
        mask = near if mask is None else mask & near
    alone = window.causal and mask is None  # the kernel's own causal mask
    if window.causal and mask is not None:
        mask = mask & _near(run.length, window, query.device)
    gqa = key.shape[1] != query.shape[1]
    return kernel(query, key, value, mask, is_causal=alone, scale=scaling, enable_gqa=gqa)


def kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    **how: Any,
) -> torch.Tensor:
    """torch's kernel; on a CPU in float32 where gradients of bf16 and few keys follow."""
    dtype = query.dtype
    slow = dtype == torch.bfloat16 and query.device.type == "cpu" and key.shape[2] < FLOAT_BELOW
    if slow and query.requires_grad:
        query, key, value = query.float(), key.float(), value.float()
        mask = mask if mask is None or mask.dtype == torch.bool else mask.float()
    return scaled_dot_product_attention(query, key, value, mask, **how).to(dtype)


def _near(length: int, window: Window, device: torch.device) -> torch.Tensor:
    """True where |i - j| <= reach (and j <= i when causal), [length, length]; for short inputs."""
    apart = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
    near = apart.abs() <= window.reach
    return near & (apart >= 0) if window.causal else near


def _windowed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    window: Window,
    scaling: float | None,
) -> torch.Tensor:
    """Sliding-window attention by blocks of 2 x reach queries, each seeing 4 x reach keys."""
    reach, size = window.reach, max(2 * window.reach, 64)
    count, heads, length = query.shape[:3]
    blocks = -(-length // size)
    spare = blocks * size - length
    q = pad(query, (0, 0, 0, spare)).view(count, heads, blocks, size, -1)
    k, v = (
        pad(x, (0, 0, reach, spare + reach)).unfold(2, size + 2 * reach, size).transpose(-1, -2)
        for x in (key, value)
    )
    if k.shape[1] != heads:
        k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    # blocks become the batch: the kernels take a mask for each of a batch, not of a head
    q, k, v = (x.flatten(0, 1).transpose(0, 1) for x in (q, k, v))
    mask = _block_mask(blocks, size, window, length, query.device)[:, None]
    attended = kernel(q, k, v, mask, scale=scaling)
    return attended.transpose(0, 1).reshape(count, heads, blocks * size, -1)[:, :, :length]


def _block_mask(
    blocks: int, size: int, window: Window, length: int, device: torch.device
) -> torch.Tensor:
    """[blocks, size, size + 2 x reach]: in the window and inside the sequence.

    Rows beyond the sequence see everything, so that their softmax is finite; they are cut afterwards.
    """
    rows = torch.arange(blocks * size, device=device).view(blocks, size, 1)
    columns = torch.arange(blocks, device=device).view(blocks, 1, 1) * size - window.reach
    columns = columns + torch.arange(size + 2 * window.reach, device=device)
    mask = ((rows - columns).abs() <= window.reach) & (columns >= 0) & (columns < length)
    if window.causal:
        mask &= rows >= columns
    return mask | (rows >= length)


AttentionInterface.register(NAME, packed_attention)
