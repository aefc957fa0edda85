"""Packed attention: sequences of different lengths in one row, without padding.

A pack is one row of tokens: [1, heads, tokens, width] holds sequence after sequence, and each token attends
only to its own sequence. transformers calls `packed_attention` as the attention implementation 'lmk'.

No mask of size tokens x tokens is ever built:

- On a GPU in half precision, torch's kernel for sequences of various lengths computes the whole row.
- Otherwise, neighbours of equal length become one batch, [sequences, heads, length, width], which is a view
  of the row. Each batch is one call of torch's kernel.
- With a sliding window, each block of queries attends only to the keys near it, so the cost grows linearly
  with the length.
"""

from collections.abc import Iterator
from functools import lru_cache
from inspect import signature
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface

from lmkcli.models.devices import to_device
from lmkcli.models.extension import Groups, VisibleRange, grouped_attention

NAME = "lmk"
STEP = 16  # bf16 kernels on CPUs are about twice as fast on whole multiples of this length
# Padding shorter sequences to whole steps would cost more in the linear layers than attention saves.
STEP_FROM = 33
FLOAT_BELOW = 768  # keys; below it, the backward pass on CPUs is slower in bf16 than in fp32
WIDEST_HEAD = 256  # of flash attention


# Arguments of transformers that do not change the states of a pack
_WITHOUT_EFFECT = {
    *("dropout", "position_ids", "use_cache", "cache_position", "past_key_values", "return_dict"),
    *("output_attentions", "output_hidden_states", "deterministic", "num_items_in_batch"),
}


class Pack(NamedTuple):
    """The sequences of a row: their lengths, and the number of positions that each takes in the row."""

    lengths: tuple[int, ...]
    taken: tuple[int, ...]

    @classmethod
    def of(cls, lengths: list[int], aligned: bool) -> "Pack":
        """Place sequences next to each other. If `aligned`, round their places up to whole steps."""
        if not aligned:
            return cls(tuple(lengths), tuple(lengths))
        taken = tuple(n if n < STEP_FROM else -(-n // STEP) * STEP for n in lengths)
        return cls(tuple(lengths), taken)

    def batches(self) -> Iterator["EqualBatch"]:
        """Yield neighbours that take the same number of positions, as one batch."""
        number = 0
        for length, same in groupby(self.taken):
            count = len(list(same))
            yield EqualBatch(count, length, self.lengths[number : number + count])
            number += count


class EqualBatch(NamedTuple):
    """Sequences next to each other that take `length` positions each; `filled[i]` of them are tokens."""

    sequences: int
    length: int
    filled: tuple[int, ...]

    @property
    def taken(self) -> int:
        """The number of positions of all sequences together."""
        return self.sequences * self.length

    def view(self, part: torch.Tensor) -> torch.Tensor:
        """[heads, taken, width] -> a view [sequences, heads, length, width]."""
        return part.view(part.shape[0], self.sequences, self.length, part.shape[2]).transpose(0, 1)

    def key_mask(self, device: torch.device) -> torch.Tensor | None:
        """Return True for keys that are tokens, [sequences, 1, 1, length]; None if all keys are."""
        if min(self.filled) == self.length:
            return None
        filled = torch.tensor(self.filled, device=device)
        return (torch.arange(self.length, device=device) < filled[:, None])[:, None, None]


class QueryKeyLengths(NamedTuple):
    """The number of queries and the number of keys of each sequence, if they differ."""

    queries: NDArray[np.int64]
    keys: NDArray[np.int64]


class SlidingWindow(NamedTuple):
    """A position sees `reach` positions to its left, and as many to its right unless `causal`."""

    reach: int
    causal: bool


def is_causal_call(module: torch.nn.Module, is_causal: bool | None) -> bool:
    """Return whether attention is causal. Without the argument, the module's attribute determines it."""
    return bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)


def packed_attention(  # noqa: PLR0913 (transformers defines the signature)
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
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over [1, heads, tokens, width] within each sequence of the pack.

    Returns [1, tokens, heads, width], as transformers expects. `sliding_window` is the half-window plus one.
    With `groups`, distant positions of long sequences are grouped (SelfExtend). TypeError for an argument
    that it does not compute, such as `softcap` (Gemma 2) or `s_aux` (attention sinks).
    """
    if unknown := {name for name, value in others.items() if value is not None} - _WITHOUT_EFFECT:
        raise TypeError(f"packed attention does not compute {min(unknown)}")
    causal = is_causal_call(module, is_causal)
    pack = pack or Pack.of([query.shape[2]], aligned=False)
    if sliding_window and groups and sliding_window <= groups.window:
        groups = None  # the window contains no distant position
    if pack.taken == pack.lengths and not groups and _has_kernel(query, key):
        window = SlidingWindow(sliding_window - 1 if sliding_window else -1, causal)
        return _varlen(query, key, value, (pack, window), scaling), None
    batches = list(pack.batches())
    # Slices would give one full-size gradient per batch. split and cat need only one pass over memory in
    # total.
    sizes = [batch.taken for batch in batches]
    split: Any = torch.split
    parts = zip(*(split(x[0], sizes, 1) for x in (query, key, value)), strict=True)
    outputs = []
    for batch, (query_part, key_part, value_part) in zip(batches, parts, strict=True):
        window = SlidingWindow(sliding_window - 1 if sliding_window else batch.length, causal)
        q, k, v = batch.view(query_part), batch.view(key_part), batch.view(value_part)
        if groups and batch.length > groups.trained:
            visible = VisibleRange(window.reach, causal, batch.filled)
            output = grouped_attention((q, k, v), groups, visible, scaling)
        elif batch.length > block_from(window.reach) and batch.key_mask(q.device) is None:
            output = _windowed(q, k, v, window, scaling)
        else:
            output = _dense(q, k, v, (batch, window), scaling)
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return (torch.cat(outputs) if len(outputs) > 1 else outputs[0])[None], None


def _has_kernel(query: torch.Tensor, key: torch.Tensor) -> bool:
    """Return whether torch's kernel for packed sequences can compute this; older releases know less."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    width = query.shape[3]
    if not (query.is_cuda and half and width % 8 == 0 and width <= WIDEST_HEAD):
        return False
    needed = {"scale", "window_size"} | (
        {"enable_gqa"} if query.shape[1] != key.shape[1] else set()
    )
    return needed <= kernel_arguments(query.device)


@lru_cache(maxsize=8)
def kernel_arguments(device: torch.device) -> frozenset[str]:
    """Return the arguments of torch's kernel for packed sequences; none if torch or the GPU has no kernel.

    It needs torch 2.10 and Ampere.
    """
    if torch.cuda.get_device_capability(device) < (8, 0):
        return frozenset()
    try:  # imported here: it imports torch's compiler
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(signature(varlen_attn).parameters)


def _varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: tuple[Pack, SlidingWindow],
    scaling: float | None,
) -> torch.Tensor:
    """Call torch's kernel for packed sequences (flash attention). It needs a GPU and half precision."""
    from torch.nn.attention.varlen import varlen_attn  # imported here: it imports torch's compiler

    pack, window = visible
    bounds = _bounds(pack.taken, query.device)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    grouped: dict[str, Any] = {"enable_gqa": True} if k.shape[1] != q.shape[1] else {}
    attended: Any = varlen_attn(
        q, k, v, bounds, bounds, max(pack.taken), max(pack.taken), scale=scaling,
        window_size=(window.reach, 0 if window.causal else window.reach), **grouped,
    )  # fmt: skip
    return attended[None]  # type: ignore[no-any-return]


@lru_cache(maxsize=4)
def _bounds(lengths: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return the starts of all sequences and the end of the last; cached, as each layer needs them."""
    return to_device(torch.tensor([0, *accumulate(lengths)], dtype=torch.int32), device)


def block_from(reach: int) -> int:
    """Return the length above which `_windowed` is faster than one masked call: about eight windows."""
    return max(8 * reach, 512)


def _dense(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: tuple[EqualBatch, SlidingWindow],
    scaling: float | None,
) -> torch.Tensor:
    """Attention of a batch by one kernel call, with a mask only if some keys are hidden."""
    batch, window = visible
    mask = batch.key_mask(query.device)
    if window.reach < batch.length - 1:
        near = _near(batch.length, window, query.device)
        mask = near if mask is None else mask & near
    kernel_masks = window.causal and mask is None  # the kernel applies its own causal mask
    if window.causal and mask is not None:
        mask = mask & _near(batch.length, window, query.device)
    gqa = key.shape[1] != query.shape[1]
    return kernel(query, key, value, mask, is_causal=kernel_masks, scale=scaling, enable_gqa=gqa)


def kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    **options: Any,
) -> torch.Tensor:
    """Call torch's attention kernel.

    On a CPU, inputs in bf16 with few keys are computed in float32 if they need gradients, because this is
    faster.
    """
    dtype = query.dtype
    slow = dtype == torch.bfloat16 and query.device.type == "cpu" and key.shape[2] < FLOAT_BELOW
    if slow and query.requires_grad:
        query, key, value = query.float(), key.float(), value.float()
        mask = mask if mask is None or mask.dtype == torch.bool else mask.float()
    return scaled_dot_product_attention(query, key, value, mask, **options).to(dtype)


def _near(length: int, window: SlidingWindow, device: torch.device) -> torch.Tensor:
    """True where |i - j| <= reach (and j <= i if causal), [length, length]. For short inputs only."""
    distance = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
    near = distance.abs() <= window.reach
    return near & (distance >= 0) if window.causal else near


def _windowed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    window: SlidingWindow,
    scaling: float | None,
) -> torch.Tensor:
    """Sliding-window attention by blocks.

    The length is cut into blocks of 2 x reach queries. A block needs its own keys and `reach` keys on
    each side, 4 x reach in total. `unfold` gives these overlapping key blocks as a view, without copies.
    The cost is length x 4 x reach instead of length x length.
    """
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
    # [count * heads, blocks, ...] -> [blocks, count * heads, ...]: kernels accept one mask per batch entry,
    # and the mask depends on the block, not on the head
    q, k, v = (x.flatten(0, 1).transpose(0, 1) for x in (q, k, v))
    # A key counts if it is in the window and inside the sequence: [blocks, size, size + 2 * reach]. Queries
    # beyond the sequence see all keys, so that their softmax is finite; their rows are cut off below.
    device = query.device
    rows = torch.arange(blocks * size, device=device).view(blocks, size, 1)
    columns = torch.arange(blocks, device=device).view(blocks, 1, 1) * size - reach
    columns = columns + torch.arange(size + 2 * reach, device=device)
    mask = ((rows - columns).abs() <= reach) & (columns >= 0) & (columns < length)
    if window.causal:
        mask &= rows >= columns
    mask = (mask | (rows >= length))[:, None]
    attended = kernel(q, k, v, mask, scale=scaling)
    return attended.transpose(0, 1).reshape(count, heads, blocks * size, -1)[:, :, :length]


AttentionInterface.register(NAME, packed_attention)
