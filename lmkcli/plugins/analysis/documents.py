"""The documents that an analysis reads from a collection, and their lengths."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import CHUNK_BREAK, Collection, Doc, open_collection
from lmkcli.encoding.token_stream import TextTokenizer, tokenized
from lmkcli.errors import DataError
from lmkcli.progress import Report
from lmkcli.store.token_blocks import TokenRow
from lmkcli.training.data.formats import read_examples

_FIRST = 64  # upper limit of the first bin; each bin is twice as wide as the previous one


def long_enough(
    collection: Collection, tokenize: TextTokenizer, wanted: int, least: int, report: Report
) -> Iterator[TokenRow]:
    """Yield the first `wanted` documents with at least `least` content tokens; DataError if none has."""
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
    """A histogram of lengths in `what` ('tokens', 'words' or 'characters').

    Bin i is from `edges[i]` to below `edges[i + 1]`, and `shares[i]` is its share of the texts.
    per_document: mean and quantiles of the number of texts of a document; empty if each has one.
    """

    what: str
    edges: list[int]
    shares: list[float]
    documents: int  # or chunks, or positives
    mean: float
    quantiles: dict[str, int]
    per_document: dict[str, float]


class MeasuredTexts(NamedTuple):
    """The texts of a collection or of a file of examples: documents, given chunks or positives.

    `total` is their number, if it is known.
    """

    name: str
    texts: Iterable[Doc]
    total: int | None = None


def texts_of(source: str, of: str) -> MeasuredTexts:
    """Return the documents ('doc') or given chunks ('chunk') of a collection, or the positives of a training
    file.

    The id of a chunk or a positive is that of its document or example. A folder with the tables of ConTEB's
    training sets has chunks, too.
    """
    if of == "positive":
        examples = read_examples(source)
        return MeasuredTexts(
            source, (Doc(one.id, each.text) for one in examples for each in one.positives)
        )
    if of == "chunk":
        from lmkcli.training.data import contextual  # it imports torch

        if tables := contextual.conteb_tables(source):
            given, _ = contextual.read_conteb(tables)
            return MeasuredTexts(
                source,
                (Doc(name, each) for name, texts in given.items() for each in texts.values()),
            )
    collection = open_collection(source)
    docs = collection.docs()
    if of == "doc":
        return MeasuredTexts(collection.name, docs, docs.total)
    chunks = (Doc(doc.id, text) for doc in docs for text in doc.content.split(CHUNK_BREAK))
    return MeasuredTexts(collection.name, chunks)


def lengths(
    texts: MeasuredTexts, measured: TextTokenizer | Literal["words", "characters"], report: Report
) -> Lengths:
    """Return the lengths of all texts, in content tokens of a tokenizer, in words or in characters.

    Like Figure 3 (§6.2) and Tables 16 and 17 of arXiv 2601.21525, and Table 3 of arXiv 2505.24782.
    """
    runs: list[int] = []  # the number of texts of each document
    counts = np.fromiter(_counts(texts, measured, runs, report), np.int64)
    if not len(counts):
        raise DataError(f"{texts.name} has no documents")
    edges = _edges(int(counts.min()), int(counts.max()))
    shares = np.histogram(counts, edges)[0] / len(counts)
    quantiles = {name: int(value) for name, value in _quantiles(counts).items()}
    per_document: dict[str, float] = {}
    if len(runs) < len(counts):
        numbers = np.array(runs)
        per_document = {"mean": float(numbers.mean()), **_quantiles(numbers)}
    what = measured if isinstance(measured, str) else "tokens"
    mean = float(counts.mean())
    return Lengths(what, edges, shares.tolist(), len(counts), mean, quantiles, per_document)


def _quantiles(counts: NDArray[np.int64]) -> dict[str, float]:
    points = {"p25": 25, "median": 50, "p75": 75, "p95": 95, "max": 100}
    return {name: float(np.percentile(counts, point)) for name, point in points.items()}


def _edges(least: int, most: int) -> list[int]:
    """Edges of bins for all lengths from `least` to `most`; the first and last bins are not empty."""
    edges = [0, _FIRST]
    while edges[-1] <= most:
        edges.append(2 * edges[-1])
    while edges[1] <= least:
        del edges[0]
    return edges


def _counts(
    texts: MeasuredTexts,
    measured: TextTokenizer | Literal["words", "characters"],
    runs: list[int],
    report: Report,
) -> Iterator[int]:
    """Yield the length of each text; extends `runs` by the number of texts of each document."""
    counts = (
        (_length(doc.content, measured) for doc in _counted(texts.texts, runs))
        if isinstance(measured, str)
        else (
            len(row.ids)
            for batch in tokenized(_counted(texts.texts, runs), measured)
            for row in batch
        )
    )
    for number, count in enumerate(counts, 1):
        yield count
        if number % 1000 == 0:
            report.progress(number, texts.total, "texts")
            report.check_stop()


def _counted(texts: Iterable[Doc], runs: list[int]) -> Iterator[Doc]:
    for _, same in groupby(texts, key=lambda doc: doc.id):
        runs.append(0)
        for doc in same:
            runs[-1] += 1
            yield doc


def _length(text: str, unit: Literal["words", "characters"]) -> int:
    return len(text) if unit == "characters" else len(text.split())
