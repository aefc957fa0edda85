"""Passages: the chunk of a document that answers a query best, and where in the document it is."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Doc
from lmkcli.store.vectors import Vectors


class Passage(NamedTuple):
    """Chunk number `chunk` (from zero) of `chunks`: characters begin to end of the document's content.

    `text` is empty where no text is stored.
    """

    chunk: int
    chunks: int
    begin: int
    end: int
    text: str


def best_passages(
    vectors: Vectors, asked: NDArray[np.floating], ids: list[str]
) -> dict[str, Passage]:
    """For each document the chunk with the largest dot product with a query's vectors, summed."""
    found = {}
    for name, row, doc in _docs(vectors, ids):
        scores = vectors.at(np.array([row])).vectors.astype(np.float64) @ asked.astype(np.float64).T
        found[name] = passage(vectors, row, doc, int(scores.sum(1).argmax()))
    return found


def passages_of(vectors: Vectors, ids: list[str]) -> dict[str, tuple[Doc, Passage]]:
    """The documents and passages behind ids such as `doc#12`."""
    names = {name: name.rpartition("#") for name in ids}
    found = {doc.id: (row, doc) for _, row, doc in _docs(vectors, [d for d, *_ in names.values()])}
    made = {}
    for name, (doc_id, _, chunk) in names.items():
        row, doc = found[doc_id]
        made[name] = (doc, passage(vectors, row, doc, int(chunk)))
    return made


def passage(vectors: Vectors, row: int, doc: Doc, chunk: int) -> Passage:
    """One chunk of a document."""
    spans = vectors.spans(row)
    begin, end = map(int, spans[chunk])
    return Passage(chunk, len(spans), begin, end, doc.content[begin:end])


def _docs(vectors: Vectors, ids: list[str]) -> list[tuple[str, int, Doc]]:
    rows = vectors.rows_of(ids)
    docs = vectors.docs(np.array(list(rows.values()), np.int64))
    return [(name, row, doc) for (name, row), doc in zip(rows.items(), docs, strict=True)]
