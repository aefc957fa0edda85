"""Passages: the chunk of a document that answers a query best, and where in the document it is."""

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Doc
from lmkcli.retrieval.index import Passage
from lmkcli.store.vectors import Vectors


def best_passages(
    vectors: Vectors, asked: NDArray[np.floating], ids: list[str]
) -> dict[str, Passage]:
    """For each document the chunk with the largest dot product with a query's vectors, summed."""
    passages = {}
    for name, row, doc in _docs(vectors, ids):
        scores = vectors.at(np.array([row])).vectors.astype(np.float64) @ asked.astype(np.float64).T
        passages[name] = passage(vectors, row, doc, int(scores.sum(1).argmax()))
    return passages


def passages_of(vectors: Vectors, ids: list[str]) -> dict[str, tuple[Doc, Passage]]:
    """The documents and passages behind ids such as `doc#12`."""
    names = {name: name.rpartition("#") for name in ids}
    docs = {doc.id: (row, doc) for _, row, doc in _docs(vectors, [d for d, *_ in names.values()])}
    passages = {}
    for name, (doc_id, _, chunk) in names.items():
        row, doc = docs[doc_id]
        passages[name] = (doc, passage(vectors, row, doc, int(chunk)))
    return passages


def passage(vectors: Vectors, row: int, doc: Doc, chunk: int) -> Passage:
    """One chunk of a document."""
    spans = vectors.spans(row)
    begin, end = map(int, spans[chunk])
    return Passage(chunk, len(spans), begin, end, doc.content[begin:end])


def _docs(vectors: Vectors, ids: list[str]) -> list[tuple[str, int, Doc]]:
    rows = vectors.rows_of(ids)
    docs = vectors.docs(np.array(list(rows.values()), np.int64))
    return [(name, row, doc) for (name, row), doc in zip(rows.items(), docs, strict=True)]
