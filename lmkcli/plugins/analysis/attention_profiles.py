"""Attention of pooling tokens over relative positions in a text (arXiv 2601.21525 §3.1, Figure 2)."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.encoding.encoder import make_placer, open_forward
from lmkcli.encoding.resolution import ResolvedRecipe
from lmkcli.errors import UsageError
from lmkcli.evaluation.compare import mean_interval
from lmkcli.evaluation.score_plots import Point
from lmkcli.models.attention_weights import mean_attention
from lmkcli.models.forward import Model, ModelOptions
from lmkcli.models.tokenizer import Tokenizer
from lmkcli.models.tokenizer_folder import open_tokenizer
from lmkcli.pooling.placement import Placer
from lmkcli.store.token_blocks import TokenRow

Layers = Literal["last", "mean", "each"]


class Profile(NamedTuple):
    """Attention to the content of documents, from their start to their end.

    The content is divided into bins of equal width, and a point is the centre of a bin. Its y is the
    bin's share of the attention to content, divided by the bin's share of the content: uniform attention
    is 1 everywhere. Intervals are over documents.
    """

    layer: str
    points: list[Point]
    special: float
    """The share of all attention on special tokens, including landmarks."""
    documents: int
    tokens: int


class AttentionModel(NamedTuple):
    """A model with the tokenizer and the placer of a recipe for documents."""

    tokenizer: Tokenizer
    placer: Placer
    model: Model


def open_attention_model(resolved: ResolvedRecipe, dtype: str, device: str) -> AttentionModel:
    """Open the model of a recipe for documents; UsageError for poolers that mark no position."""
    side, folder = resolved.recipe.doc, resolved.folder
    if side.pool == "model":
        raise UsageError(f"{folder.name} pools inside the model, so it has no pooling tokens")
    tokenizer = open_tokenizer(folder, side)
    options = ModelOptions(
        dtype, device, side.trust_remote_code, side.extend, side.pad_to_max, trainable=True
    )
    forward = open_forward(side, folder, options)
    return AttentionModel(tokenizer, make_placer(side, tokenizer.special), forward.model)


def profiles(
    opened: AttentionModel, rows: Iterable[TokenRow], layers: Layers, bins: int
) -> list[Profile]:
    """Return the profile of the last layer, of the mean of all layers, or of each layer.

    Heads are averaged, and so are the marked positions of a document.
    """
    known = opened.placer.special
    single = (known.cls, known.landmark, known.separator)
    special_ids = [*known.prefix, *known.suffix, *(each for each in single if each is not None)]
    shares, special = [], []
    tokens = 0
    for row in rows:
        placed = opened.placer.place_text(row.ids, row.prompt, row.ends).inputs[0]
        # [layers, heads, positions] -> [layers, positions]
        weights = mean_attention(opened.model, placed.ids, placed.marks).mean(1)
        chosen = {"last": weights[-1:], "mean": weights.mean(0, keepdims=True), "each": weights}
        inside = np.flatnonzero(~np.isin(placed.ids, special_ids))
        tokens += len(inside)
        shares.append(_relative(chosen[layers][:, inside], bins))
        special.append(1 - chosen[layers][:, inside].sum(1))
    names = {"last": ["last layer"], "mean": ["all layers"]}.get(layers) or [
        f"layer {number + 1}" for number in range(len(special[0]))
    ]
    return [
        Profile(name, _points(values), float(of_special.mean()), len(shares), tokens)
        for name, values, of_special in zip(
            names, np.stack(shares, 1), np.stack(special, 1), strict=True
        )
    ]


def _relative(weights: NDArray[np.float64], bins: int) -> NDArray[np.float64]:
    """[layers, content] -> [layers, bins]: the attention of each bin divided by uniform attention."""
    count = weights.shape[1]
    if count < bins:
        raise UsageError(f"a document has {count} tokens, fewer than --bins {bins}; lower --bins")
    starts = np.arange(bins) * count // bins
    uniform = np.diff(starts, append=count) / count
    shares = np.add.reduceat(weights, starts, axis=1) / weights.sum(1, keepdims=True)
    return np.asarray(shares / uniform)


def _points(values: NDArray[np.float64]) -> list[Point]:
    """[documents, bins] -> the mean of each bin with its interval, if there are several documents."""
    documents, bins = values.shape
    points = []
    for number in range(bins):
        x = (number + 0.5) / bins
        by_document = {str(n): float(value) for n, value in enumerate(values[:, number])}
        interval = mean_interval(by_document) if documents > 1 else (None, None)
        points.append(Point(x, float(np.mean(values[:, number])), *interval))
    return points
