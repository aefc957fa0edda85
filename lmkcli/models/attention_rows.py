"""Attention weights of some positions: what their states are made of, layer by layer.

The weights are computed a second time beside packed attention, which keeps none, for the rows that are
asked for and a block of them at a time. Nothing n x n is ever in memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AttentionInterface

from lmkcli.errors import UsageError
from lmkcli.models import attention
from lmkcli.models.forward import Model
from lmkcli.models.transformer import Transformer
from lmkcli.pooling.placement import Ints

NAME = "lmk-rows"
_BLOCK = 1 << 23  # weights in memory at a time, 32 MB


@dataclass
class _Rows:
    """The positions that are watched, and their mean weights in each layer so far."""

    at: torch.Tensor
    layers: list[NDArray[np.float64]] = field(default_factory=list)


_watched: ContextVar[_Rows] = ContextVar("watched")


def attention_to(model: Model, ids: Ints, rows: Ints) -> NDArray[np.float64]:
    """How much the positions `rows` of an input attend to each of its positions.

    The mean of the rows' weights, [layers, heads, positions]; each of its last axis sums to one.
    UsageError for a model whose attention does not run packed. The model must have been opened with
    `trainable`: fused layers are not watched.
    """
    if not isinstance(model, Transformer) or not model.packed:
        why = model.why_padded or "it has none, or pools in between"
        raise UsageError(f"the attention of this model cannot be watched ({why}); choose another")
    if model.groups:
        raise UsageError("attention cannot be watched with --extend selfextend; use --extend ntk")
    with _watching(model, rows) as watched, torch.inference_mode():
        model.states([ids])
    return np.stack([layer[:, : len(ids)] for layer in watched.layers])


@contextmanager
def _watching(model: Transformer, rows: Ints) -> Iterator[_Rows]:
    watched = _Rows(torch.from_numpy(rows.astype(np.int64)).to(model.device))
    token = _watched.set(watched)
    model.module.set_attn_implementation(NAME)
    try:
        yield watched
    finally:
        model.module.set_attn_implementation(attention.NAME)
        _watched.reset(token)


def watched_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **how: Any,
) -> tuple[torch.Tensor, None]:
    """Packed attention of one input, whose watched rows are added to what is known of them."""
    pack, scaling, sliding = (how.get(name) for name in ("pack", "scaling", "sliding_window"))
    length = query.shape[2] if pack is None else pack.lengths[0]
    watched = _watched.get()
    q = query[0, :, watched.at].float() * (query.shape[3] ** -0.5 if scaling is None else scaling)
    causal = attention.sees_left_alone(module, how.get("is_causal"))
    window = attention.Window(sliding - 1 if sliding else length, causal)
    watched.layers.append(_mean_weights(q, key[0, :, :length].float(), watched.at, window))
    return attention.packed_attention(module, query, key, value, attention_mask, **how)


def _mean_weights(
    query: torch.Tensor, key: torch.Tensor, rows: torch.Tensor, window: attention.Window
) -> NDArray[np.float64]:
    """Mean over `rows` of softmax(query . key), [heads, positions]; `query` has those rows, scaled."""
    heads, length = query.shape[0], key.shape[1]
    key = key.repeat_interleave(heads // key.shape[0], 0).transpose(1, 2)
    total = torch.zeros(heads, length, dtype=torch.float64, device=query.device)
    size = max(1, _BLOCK // (heads * length))
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        weights = query[:, start : start + size] @ key
        if window.causal or window.reach < length - 1:
            weights.masked_fill_(_unseen(part, length, window), -torch.inf)
        total += weights.softmax(-1).sum(1)
    return (total / len(rows)).cpu().numpy()


def _unseen(rows: torch.Tensor, length: int, window: attention.Window) -> torch.Tensor:
    """[rows, length]: which positions each row does not see."""
    apart = rows[:, None] - torch.arange(length, device=rows.device)
    unseen = apart.abs() > window.reach
    return unseen | (apart < 0) if window.causal else unseen


AttentionInterface.register(NAME, watched_attention)
