"""The texts and passages behind a run, from the index that it was searched in or from a collection."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from lmkcli.data.collection import Collection, Doc, Query
from lmkcli.progress import Progress, silent
from lmkcli.retrieval.index import FindsChunks, Index, Passage

_AT_ONCE = 10_000  # documents that are read from an index at once
_EVERY = 10_000  # documents between two reports of progress

Passages = Mapping[tuple[str, str], Passage]  # (query id, document id) -> its best chunk


def passages_of(
    index: Index,
    queries: Sequence[Query],
    ids: Mapping[str, list[str]],
    progress: Progress = silent,
) -> dict[tuple[str, str], Passage]:
    """(query id, document id) -> the best chunk, for the documents `ids` of each query.

    Empty if the index has no chunks. Vectors need the model of the queries, and load it.
    """
    asked = [query for query in queries if ids.get(query.id)]
    if isinstance(index, FindsChunks):
        return index.best_chunks(asked, ids, progress)
    found = {}
    for number, query in enumerate(asked, 1):
        for name, passage in index.passages(query, ids[query.id]).items():
            found[query.id, name] = passage
        if number == 1 and not found:
            return {}  # no chunks
        progress(number, len(asked), "queries")
    return found


class StoredIndex(NamedTuple):
    """An open index of a run, and the documents that the run ranks."""

    opened: Index
    ranked: Set[str]


def texts_of(
    wanted: Iterable[str],
    indexes: Sequence[StoredIndex],
    collection: Collection | None,
    progress: Progress = silent,
) -> Iterator[Doc]:
    """Yield the documents with these ids, each once, and only those with a text.

    The texts that are stored with the indexes come first. The collection provides the others, and it is read
    from its start until all are found.
    """
    missing = dict.fromkeys(wanted)
    for index, ranked in indexes:
        by_chunk = index.info.search.get("level") == "chunk"
        # An index of chunks has only texts of chunks that exist, which a judged id need not be.
        ids = [name for name in missing if not by_chunk or name in ranked]
        for first in range(0, len(ids), _AT_ONCE):
            for doc in index.texts(ids[first : first + _AT_ONCE]).values():
                if doc.text and doc.id in missing:
                    del missing[doc.id]
                    yield doc
    if collection is None or not missing:
        return
    docs = collection.docs()
    for number, doc in enumerate(docs, 1):
        if doc.id in missing:
            del missing[doc.id]
            yield doc
            if not missing:
                return
        if number % _EVERY == 0:
            progress(number, docs.total, "documents")
