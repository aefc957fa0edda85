"""Haystacks from any collection: a relevant passage among random others, as one long document.

LoCo's distractor test (Table 17 of the M2-BERT paper): how well is evidence found at every position
of a long document?
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
)
from lmkcli.data.sources.seeded import Draws, whole_number
from lmkcli.errors import DataError, UsageError

DISTRACTORS = 39
OPTIONS = ("from", "distractors", "position", "docs", "seed")


def open_haystack(name: str, options: dict[str, str]) -> "HaystackCollection":
    """'haystack,from=COLLECTION' with `distractors` (39), `position`, `docs` and `seed` (0).

    Without `position` each document has its own, drawn at random. `docs` takes so many of the
    relevant passages (default: all). What is none of these options is one of COLLECTION's.
    """
    own = {key: value for key, value in options.items() if key in OPTIONS}
    if not own.get("from"):
        raise UsageError(
            f"'{spell(name, options)}': say which collection the passages come from, for instance "
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
    wanted = whole_number(name, own, "docs", 0, least=1)
    haystack = Haystack(distractors, position, wanted, whole_number(name, own, "seed", 0))
    return HaystackCollection(spell(name, {**own, "from": inner.name}), inner, haystack)


class Haystack(NamedTuple):
    """How documents are made: `position` None is another for each, `docs` 0 is all there are."""

    distractors: int
    position: int | None
    docs: int
    seed: int


class Plan(NamedTuple):
    """Which rows of the inner collection are evidence, which may not distract, and of how many."""

    evidence: list[tuple[int, str]]
    barred: set[int]
    total: int
    qrels: list[Qrel]


class HaystackCollection(Collection):
    """One long document for each relevant passage of `inner`, under the id of that passage.

    Distractors are passages that none of the queries is judged for. Passages are joined as chunks
    that the collection gives.
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
        asked = {qrel.query_id for qrel in self._plan.qrels}
        return (query for query in self._inner.queries() if query.id in asked)

    def qrels(self) -> Iterator[Qrel]:
        return iter(self._plan.qrels)

    def query_facts(self, name: str) -> dict[str, str | float]:
        """'position': how many passages stand before the evidence (the earliest, where several do).

        Anything else is what the inner collection says.
        """
        if name != "position":
            return self._inner.query_facts(name)
        facts: dict[str, str | float] = {}
        for qrel in self._plan.qrels:
            at = self._position(qrel.doc_id)
            facts[qrel.query_id] = min(at, facts.get(qrel.query_id, at))
        return facts

    def stamp(self) -> dict[str, list[int]]:
        return self._inner.stamp()

    def fetch(self) -> None:
        self._inner.fetch()

    def has_qrels(self) -> bool:
        return True

    @cached_property
    def _plan(self) -> Plan:
        """Read once: judgements, and where the relevant passages stand."""
        known = {query.id for query in self._inner.queries()}
        qrels = [q for q in self._inner.qrels() if q.grade > 0 and q.query_id in known]
        relevant = {qrel.doc_id for qrel in qrels}
        rows, total = {}, 0
        for total, doc in enumerate(self._inner.docs(), 1):
            if doc.id in relevant:
                rows[doc.id] = total - 1
        kept = self._kept(list(rows))
        asked = {qrel.query_id for qrel in qrels if qrel.doc_id in kept}
        barred = {rows[q.doc_id] for q in qrels if q.query_id in asked and q.doc_id in rows}
        self._check(len(kept), total - len(barred))
        evidence = [(row, name) for name, row in rows.items() if name in kept]
        return Plan(evidence, barred, total, [q for q in qrels if q.doc_id in kept])

    def _kept(self, names: list[str]) -> set[str]:
        wanted = self._haystack.docs or len(names)
        draws = Draws("haystack", self._haystack.seed)
        return set(draws.some(names, min(wanted, len(names))))

    def _check(self, docs: int, free: int) -> None:
        if not docs:
            raise DataError(
                f"{self.name}: none of its documents is judged relevant to a query of it"
            )
        if free < self._haystack.distractors:
            raise DataError(
                f"{self.name}: {self._haystack.distractors} distractors are asked for, and only {free} "
                "of its documents are relevant to none of the queries; lower distractors=, or make "
                "fewer documents with docs="
            )

    def _docs(self, evidence: list[tuple[int, str]]) -> Iterator[Doc]:
        """In memory: the passages that these documents are made of, each once."""
        rows = [self._rows(row, name) for row, name in evidence]
        wanted = set().union(*rows)
        texts = {row: doc.content for row, doc in enumerate(self._inner.docs()) if row in wanted}
        for (_, name), passages in zip(evidence, rows, strict=True):
            yield Doc(name, join_chunks(texts[row] for row in passages))

    def _rows(self, row: int, name: str) -> list[int]:
        """Rows of the passages of one document, the evidence at its place."""
        draws = Draws("distractors", self._haystack.seed, name)
        chosen: dict[int, None] = {}
        while len(chosen) < self._haystack.distractors:
            drawn = draws.below(self._plan.total)
            if drawn not in self._plan.barred:
                chosen[drawn] = None
        rows = list(chosen)
        rows.insert(self._position(name), row)
        return rows

    def _position(self, name: str) -> int:
        if self._haystack.position is not None:
            return self._haystack.position
        return Draws("position", self._haystack.seed, name).below(self._haystack.distractors + 1)
