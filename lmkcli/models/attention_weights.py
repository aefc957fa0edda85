"""Attention weights of selected positions, layer by layer.

Packed attention does not keep its weights. This module computes them again for the selected rows only, one
block of rows at a time, so no matrix of size positions x positions is in memory.
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
from lmkcli.store.token_blocks import Ints

NAME = "lmk-weights"
BLOCK = 1 << 23  # weights in memory at a time: 32 MB


@dataclass
class _Rows:
    """The selected positions, and their mean weights in each layer so far.

    `block` is the number of weights in memory at a time.
    """

    at: torch.Tensor
    block: int
    layers: list[NDArray[np.float64]] = field(default_factory=list)


_selected: ContextVar[_Rows] = ContextVar("selected")


def mean_attention(model: Model, ids: Ints, rows: Ints, block: int = BLOCK) -> NDArray[np.float64]:
    """Return how strongly the positions `rows` of an input attend to each of its positions.

    The result is the mean of the rows' weights, [layers, heads, positions]; its last axis sums to one.
    At most `block` weights are in memory at a time, or those of one row.
    Open the model with `trainable`, because fused layers do not call the attention function that records
    weights. UsageError if the model does not use packed attention.
    """
    if not isinstance(model, Transformer) or not model.packed:
        why = model.why_padded or "it has no attention, or pools between its layers"
        raise UsageError(
            f"the attention weights of this model are not available ({why}); use another model"
        )
    if model.groups:
        raise UsageError(
            "attention weights are not available with --extend selfextend; use --extend ntk"
        )
    with _recording(model, rows, block) as selected, torch.inference_mode():
        model.states([ids])
    return np.stack([layer[:, : len(ids)] for layer in selected.layers])


@contextmanager
def _recording(model: Transformer, rows: Ints, block: int) -> Iterator[_Rows]:
    selected = _Rows(torch.from_numpy(rows.astype(np.int64)).to(model.device), block)
    token = _selected.set(selected)
    model.module.set_attn_implementation(NAME)
    try:
        yield selected
    finally:
        model.module.set_attn_implementation(attention.NAME)
        _selected.reset(token)


def recording_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Packed attention of one input that also records the mean weights of the selected rows."""
    pack, scaling, sliding = (options.get(name) for name in ("pack", "scaling", "sliding_window"))
    length = query.shape[2] if pack is None else pack.lengths[0]
    selected = _selected.get()
    q = query[0, :, selected.at].float() * (query.shape[3] ** -0.5 if scaling is None else scaling)
    causal = attention.is_causal_call(module, options.get("is_causal"))
    window = attention.SlidingWindow(sliding - 1 if sliding else length, causal)
    weights = _mean_weights(q, key[0, :, :length].float(), selected.at, window, selected.block)
    selected.layers.append(weights)
    return attention.packed_attention(module, query, key, value, attention_mask, **options)


def _mean_weights(
    query: torch.Tensor,
    key: torch.Tensor,
    rows: torch.Tensor,
    window: attention.SlidingWindow,
    block: int = BLOCK,
) -> NDArray[np.float64]:
    """Return the mean over `rows` of softmax(query @ key.T), [heads, positions].

    query is [heads, rows, width], already scaled; key is [key heads, positions, width].
    """
    heads, length = query.shape[0], key.shape[1]
    key = key.repeat_interleave(heads // key.shape[0], 0).transpose(1, 2)
    total = torch.zeros(heads, length, dtype=torch.float64, device=query.device)
    size = max(1, block // (heads * length))
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        weights = query[:, start : start + size] @ key
        if window.causal or window.reach < length - 1:
            distance = part[:, None] - torch.arange(length, device=part.device)
            hidden = distance.abs() > window.reach
            hidden = hidden | (distance < 0) if window.causal else hidden
            weights.masked_fill_(hidden, -torch.inf)
        total += weights.softmax(-1).sum(1)
    return (total / len(rows)).cpu().numpy()


AttentionInterface.register(NAME, recording_attention)
