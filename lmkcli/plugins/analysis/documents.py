"""The documents that an analysis reads from a collection, and their lengths."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lmkcli.data.collection import Collection
from lmkcli.errors import DataError
from lmkcli.progress import Report
from lmkcli.store.tokens import TextTokenizer, TokenRow, tokenized

_FIRST = 64  # upper limit of the first bin; each bin is twice as wide as the previous one


def long_enough(
    collection: Collection, tokenize: TextTokenizer, wanted: int, least: int, report: Report
) -> Iterator[TokenRow]:
    """The first `wanted` documents with at least `least` content tokens; DataError if none has."""
    found = 0
    for batch in tokenized(collection.docs(), tokenize):
        for row in batch:
            if len(row.ids) >= least:
                yield row
                found += 1
                report.progress(found, wanted, "documents")
                report.check_stop()
            if found == wanted:
                return
    if not found:
        raise DataError(f"no document of {collection.name} has {least} tokens; lower --min-tokens")


class Lengths(NamedTuple):
    """A histogram of lengths in `what` ('tokens' or 'words').

    Bin i is from `edges[i]` to below `edges[i + 1]`, and `shares[i]` is its share of the documents.
    """

    what: str
    edges: list[int]
    shares: list[float]
    documents: int
    mean: float
    quantiles: dict[str, int]


def lengths(collection: Collection, tokenize: TextTokenizer | None, report: Report) -> Lengths:
    """The lengths of all documents, in content tokens, or in words without a tokenizer.

    Like Figure 3 of arXiv 2601.21525 (§6.2).
    """
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
    """Edges of bins for all lengths from `least` to `most`; the first and last bins are not empty."""
    edges = [0, _FIRST]
    while edges[-1] <= most:
        edges.append(2 * edges[-1])
    while edges[1] <= least:
        del edges[0]
    return edges


def _counts(
    collection: Collection, tokenize: TextTokenizer | None, report: Report
) -> Iterator[int]:
    """The length of each document."""
    docs = collection.docs()
    counts = (
        (len(doc.content.split()) for doc in docs)
        if tokenize is None
        else (len(row.ids) for batch in tokenized(docs, tokenize) for row in batch)
    )
    for number, count in enumerate(counts, 1):
        yield count
        if number % 1000 == 0:
            report.progress(number, docs.total, "documents")
            report.check_stop()
