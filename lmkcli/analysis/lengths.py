"""How long the documents of a collection are (arXiv 2601.21525 §6.2, Figure 3)."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lmkcli.data.collection import Collection
from lmkcli.errors import DataError
from lmkcli.progress import Report
from lmkcli.store.tokens import Tokenize, tokenized

_FIRST = 64  # the upper end of the first bin; each is twice as wide as the one before


class Lengths(NamedTuple):
    """Lengths in `what`: the share of documents in each bin from `edges[i]` to below `edges[i + 1]`."""

    what: str
    edges: list[int]
    shares: list[float]
    documents: int
    mean: float
    quantiles: dict[str, int]


def lengths(collection: Collection, tokenize: Tokenize | None, report: Report) -> Lengths:
    """The lengths of all documents, in content tokens, or in words where there is no tokenizer."""
    counts = np.fromiter(_counts(collection, tokenize, report), np.int64)
    if not len(counts):
        raise DataError(f"{collection.name} has no documents")
    edges = _edges(int(counts.min()), int(counts.max()))
    shares = np.histogram(counts, edges)[0] / len(counts)
    points = {"p25": 25, "median": 50, "p75": 75, "p95": 95, "max": 100}
    quantiles = {name: int(np.percentile(counts, point)) for name, point in points.items()}
    what = "words" if tokenize is None else "tokens"
    return Lengths(what, edges, shares.tolist(), len(counts), float(counts.mean()), quantiles)


def _edges(least: int, most: int) -> list[int]:
    """Bounds of bins that hold all lengths, none of the outer ones empty."""
    edges = [0, _FIRST]
    while edges[-1] <= most:
        edges.append(2 * edges[-1])
    while edges[1] <= least:
        del edges[0]
    return edges


def _counts(collection: Collection, tokenize: Tokenize | None, report: Report) -> Iterator[int]:
    docs = collection.docs()
    counts = (
        (len(doc.content.split()) for doc in docs)
        if tokenize is None
        else (len(row.ids) for batch in tokenized(docs, tokenize) for row in batch)
    )
    for number, count in enumerate(counts, 1):
        yield count
        if number % 1000 == 0:
            report.progress(number, None, "documents")
            report.check_stop()
