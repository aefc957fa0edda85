"""Selecting: a collection cut down to the documents that a run names."""

from collections.abc import Iterator
from pathlib import Path

from lmkcli.data.collection import WHOLE, Collection, Doc, DocStream, Qrel, Query, Shard
from lmkcli.data.run import read_run
from lmkcli.manifest import digest


class Selected(Collection):
    """The documents of `whole` that any query of the run in `path` names, in source order.

    `ids` are all that the run names, whether the collection has them or not, and `digest` stands
    for them. DataError when the run cannot be read.
    """

    def __init__(self, whole: Collection, path: Path) -> None:
        self._whole = whole
        self.name, self.settings = whole.name, whole.settings
        rankings = read_run(path).rankings.values()
        self.ids = frozenset(name for ranking in rankings for name in ranking.doc_ids)
        self.digest = digest(sorted(self.ids))

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        """The named documents among those of the shard."""
        return _Named(self._whole.docs(shard), self.ids)

    def queries(self) -> Iterator[Query]:
        """As the whole collection."""
        return self._whole.queries()

    def qrels(self) -> Iterator[Qrel]:
        """As the whole collection."""
        return self._whole.qrels()

    def stamp(self) -> dict[str, list[int]]:
        """As the whole collection."""
        return self._whole.stamp()

    def left_out(self) -> dict[str, str]:
        """As the whole collection."""
        return self._whole.left_out()

    def has_qrels(self) -> bool:
        """As the whole collection."""
        return self._whole.has_qrels()


class _Named(DocStream):
    def __init__(self, docs: DocStream, ids: frozenset[str]) -> None:
        self._docs, self._ids = docs, ids

    def __iter__(self) -> Iterator[Doc]:
        return (doc for doc in self._docs if doc.id in self._ids)

    @property
    def fraction(self) -> float | None:
        return self._docs.fraction
