"""Where in a text its pooling tokens look (arXiv 2601.21525 §3.1, Figure 2)."""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.encoding.encoder import make_placer, open_forward
from lmkcli.encoding.resolving import Resolved
from lmkcli.errors import UsageError
from lmkcli.evaluation.compare import mean_interval
from lmkcli.evaluation.points import Point
from lmkcli.models.attention_rows import attention_to
from lmkcli.models.forward import Model, ModelOptions
from lmkcli.models.tokenizer import Tokenizer, open_tokenizer
from lmkcli.pooling.placement import Input, Placer
from lmkcli.store.tokens import TokenRow

Layers = Literal["last", "mean", "each"]


class Profile(NamedTuple):
    """How attention is spread over the content of documents, from their beginning to their end.

    A point stands in the middle of a stretch of relative positions; its y is the stretch's share of the
    attention that content gets, divided by its share of the content: 1 everywhere is an even spread.
    Intervals are over documents.
    """

    layer: str
    points: list[Point]
    special: float
    """The share of all attention that goes to special tokens, landmarks among them."""
    documents: int
    tokens: int


class Watcher(NamedTuple):
    """What places texts of one recipe and tells the attention of their marked positions."""

    tokenizer: Tokenizer
    placer: Placer
    model: Model


def open_watcher(resolved: Resolved, dtype: str, device: str) -> Watcher:
    """The documents' side of a recipe; UsageError for poolers that mark no position."""
    side, folder = resolved.recipe.doc, resolved.folder
    if side.pool == "model":
        raise UsageError(f"{folder.name} pools inside; its attention has no pooling tokens")
    tokenizer = open_tokenizer(folder, side)
    options = ModelOptions(
        dtype, device, side.trust_remote_code, side.extend, side.pad_to_max, trainable=True
    )
    forward = open_forward(side, folder, options)
    return Watcher(tokenizer, make_placer(side, tokenizer.special), forward.model)


def profiles(
    watcher: Watcher, rows: Iterable[TokenRow], layers: Layers, bins: int
) -> list[Profile]:
    """The profile of the last layer, of the mean of all layers, or of each; heads are averaged."""
    spread, special = [], []
    tokens = 0
    for row in rows:
        content = watcher.placer.content(row.ids, row.prompt, row.ends)
        one = watcher.placer.place(content).inputs[0]
        weights = attention_to(watcher.model, one.ids, one.marks).mean(1)
        chosen = {"last": weights[-1:], "mean": weights.mean(0, keepdims=True), "each": weights}
        inside = np.flatnonzero(_is_content(one, watcher))
        tokens += len(inside)
        spread.append(_relative(chosen[layers][:, inside], bins))
        special.append(1 - chosen[layers][:, inside].sum(1))
    names = {"last": ["last layer"], "mean": ["all layers"]}.get(layers) or [
        f"layer {number + 1}" for number in range(len(special[0]))
    ]
    return [
        Profile(name, _points(values), float(shares.mean()), len(spread), tokens)
        for name, values, shares in zip(
            names, np.stack(spread, 1), np.stack(special, 1), strict=True
        )
    ]


def _is_content(one: Input, watcher: Watcher) -> NDArray[np.bool_]:
    known = watcher.placer.special
    special = {*known.prefix, *known.suffix, known.cls, known.landmark, known.separator} - {None}
    marked = np.isin(one.ids, np.array(sorted(each or 0 for each in special), np.int32))
    return ~marked


def _relative(weights: NDArray[np.float64], bins: int) -> NDArray[np.float64]:
    """[layers, content] -> [layers, bins], each bin's share against an even one."""
    count = weights.shape[1]
    if count < bins:
        raise UsageError(
            f"a document has {count} tokens and --bins {bins} wants more; lower --bins"
        )
    starts = np.arange(bins) * count // bins
    even = np.diff(starts, append=count) / count
    shares = np.add.reduceat(weights, starts, axis=1) / weights.sum(1, keepdims=True)
    return np.asarray(shares / even)


def _points(values: NDArray[np.float64]) -> list[Point]:
    """[documents, bins] -> the means with their intervals."""
    bins = values.shape[1]
    return [_point((number + 0.5) / bins, values[:, number]) for number in range(bins)]


def _point(x: float, values: Sequence[float] | NDArray[np.float64]) -> Point:
    if len(values) < 2:
        return Point(x, float(values[0]))
    by_document = {str(number): float(value) for number, value in enumerate(values)}
    return Point(x, float(np.mean(values)), *mean_interval(by_document))
