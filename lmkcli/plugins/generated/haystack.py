"""Haystacks from any collection: a relevant passage among random other passages, as one long document.

This is LoCo's distractor test (Table 17 of the M2-BERT paper). It measures the scores for evidence at each
position of a long document.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from lmkcli.data.collection import (
    WHOLE,
    Collection,
    CountedDocs,
    Doc,
    DocStream,
    Qrel,
    Query,
    Shard,
    join_chunks,
    open_collection,
    spell,
    whole_number,
)
from lmkcli.errors import DataError, UsageError
from lmkcli.plugins.generated.rng import KeyedRng

DISTRACTORS = 39
OPTIONS = ("from", "distractors", "position", "docs", "seed")


def open_haystack(name: str, options: dict[str, str]) -> "HaystackCollection":
    """Open 'haystack,from=COLLECTION' with the options `distractors` (39), `position`, `docs`, `seed` (0).

    `position` is the number of passages before the evidence; by default it is random for each document.
    `docs` is the number of relevant passages to use (default: all). Other options are passed to COLLECTION.
    """
    own = {key: value for key, value in options.items() if key in OPTIONS}
    if not own.get("from"):
        raise UsageError(
            f"'{spell(name, options)}': name the collection of the passages, for instance "
            "haystack,from=beir/scifact/test"
        )
    others = {key: value for key, value in options.items() if key not in OPTIONS}
    inner = open_collection(spell(own.pop("from"), others))
    distractors = whole_number(name, own, "distractors", DISTRACTORS)
    position = whole_number(name, own, "position", 0) if "position" in own else None
    if position is not None and position > distractors:
        raise UsageError(
            f"position={position}: with {distractors} distractors the positions are 0 to {distractors}"
        )
    docs = whole_number(name, own, "docs", 0, least=1)
    haystack = Haystack(distractors, position, docs, whole_number(name, own, "seed", 0))
    return HaystackCollection(spell(name, {**own, "from": inner.name}), inner, haystack)


class Haystack(NamedTuple):
    """The settings of a haystack."""

    distractors: int
    position: int | None
    """None: random for each document."""
    docs: int
    """0: all relevant passages."""
    seed: int


class RowPlan(NamedTuple):
    """The use of the rows of the inner collection."""

    evidence: list[tuple[int, str]]
    """Row and id of the relevant passages; each becomes one document."""
    excluded: set[int]
    """Rows that are relevant to a query. They cannot be distractors."""
    total: int
    """The number of rows."""
    qrels: list[Qrel]


class HaystackCollection(Collection):
    """One long document for each relevant passage of `inner`, with the id of that passage.

    Distractors are passages that are not relevant to any of the queries. The passages of a document are
    its chunks (`--gran given`).
    """

    def __init__(self, name: str, inner: Collection, haystack: Haystack) -> None:
        self.name = name
        self.settings = inner.settings | {
            key: "" if value is None else str(value) for key, value in haystack._asdict().items()
        }
        self._inner = inner
        self._haystack = haystack

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        mine = shard.rows(len(self._plan.evidence))
        evidence = self._plan.evidence[mine.start : mine.stop]
        return CountedDocs(lambda: self._docs(evidence), len(evidence))

    def queries(self) -> Iterator[Query]:
        used = {qrel.query_id for qrel in self._plan.qrels}
        return (query for query in self._inner.queries() if query.id in used)

    def qrels(self) -> Iterator[Qrel]:
        return iter(self._plan.qrels)

    def query_metadata(self, name: str) -> dict[str, str | float]:
        """'position': the number of passages before the evidence (the earliest of several).

        Other names are looked up in the inner collection.
        """
        if name != "position":
            return self._inner.query_metadata(name)
        positions: dict[str, str | float] = {}
        for qrel in self._plan.qrels:
            position = self._position(qrel.doc_id)
            positions[qrel.query_id] = min(position, positions.get(qrel.query_id, position))
        return positions

    def file_stats(self) -> dict[str, list[int]]:
        return self._inner.file_stats()

    def fetch(self) -> None:
        self._inner.fetch()

    def has_qrels(self) -> bool:
        return True

    @cached_property
    def _plan(self) -> RowPlan:
        """The judgements and the rows of the relevant passages, read once."""
        query_ids = {query.id for query in self._inner.queries()}
        qrels = [q for q in self._inner.qrels() if q.grade > 0 and q.query_id in query_ids]
        relevant = {qrel.doc_id for qrel in qrels}
        rows, total = {}, 0
        for total, doc in enumerate(self._inner.docs(), 1):
            if doc.id in relevant:
                rows[doc.id] = total - 1
        count = min(self._haystack.docs or len(rows), len(rows))
        used = set(KeyedRng("haystack", self._haystack.seed).sample(list(rows), count))
        if not used:
            raise DataError(f"{self.name}: no document is judged relevant to a query")
        queries = {qrel.query_id for qrel in qrels if qrel.doc_id in used}
        excluded = {rows[q.doc_id] for q in qrels if q.query_id in queries and q.doc_id in rows}
        free = total - len(excluded)
        if free < self._haystack.distractors:
            raise DataError(
                f"{self.name}: {self._haystack.distractors} distractors are requested, but only {free} "
                "documents are not relevant to any of the queries; lower distractors=, or create "
                "fewer documents with docs="
            )
        evidence = [(row, name) for name, row in rows.items() if name in used]
        return RowPlan(evidence, excluded, total, [q for q in qrels if q.doc_id in used])

    def _docs(self, evidence: list[tuple[int, str]]) -> Iterator[Doc]:
        """Yield the documents. All of their passages are in memory, each once."""
        rows = [self._rows(row, name) for row, name in evidence]
        wanted = set().union(*rows)
        texts = {row: doc.content for row, doc in enumerate(self._inner.docs()) if row in wanted}
        for (_, name), passages in zip(evidence, rows, strict=True):
            yield Doc(name, join_chunks(texts[row] for row in passages))

    def _rows(self, row: int, name: str) -> list[int]:
        """Return the rows of the passages of one document, with the evidence at its position."""
        rng = KeyedRng("distractors", self._haystack.seed, name)
        distractors: dict[int, None] = {}  # a set in the order of insertion
        while len(distractors) < self._haystack.distractors:
            drawn = rng.below(self._plan.total)
            if drawn not in self._plan.excluded:
                distractors[drawn] = None
        rows = list(distractors)
        rows.insert(self._position(name), row)
        return rows

    def _position(self, name: str) -> int:
        if self._haystack.position is not None:
            return self._haystack.position
        return KeyedRng("position", self._haystack.seed, name).below(self._haystack.distractors + 1)
