"""Fusion: several runs, or indexes, to one. A document that a run lacks is handled as each method says."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lmkcli import manifest
from lmkcli.data.collection import Doc, Query
from lmkcli.data.run import Ranking, Run, ranked
from lmkcli.errors import DataError, UsageError
from lmkcli.retrieval.index import Index, IndexInfo, Passage

DEPTH = 1000  # documents that each fused index is asked for, at least

Scale = Literal["minmax", "zscore", "none"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Fusion:
    """A method with its parameters; `parse` reads 'rrf', 'rrf:60', 'linear' or 'linear:0.3,0.7'."""

    method: Literal["rrf", "linear"]
    k: int = 60
    weights: tuple[float, ...] = ()
    scale: Scale = "minmax"

    @classmethod
    def parse(cls, text: str, scale: Scale = "minmax") -> "Fusion":
        """UsageError for anything else."""
        if match := re.fullmatch(r"rrf(?::(\d+))?", text):
            return cls("rrf", k=int(match[1] or 60))
        number = r"-?\d+(?:\.\d+)?"
        if match := re.fullmatch(rf"linear(?::({number}(?:,{number})*))?", text):
            weights = tuple(map(float, match[1].split(","))) if match[1] else ()
            return cls("linear", weights=weights, scale=scale)
        raise UsageError(f"--fuse {text}: write rrf, rrf:60, linear or linear:0.3,0.7")

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the fused scores, as a run records it."""
        if self.method == "rrf":
            return {"method": "rrf", "k": self.k}
        return {"method": "linear", "weights": list(self.weights), "scale": self.scale}

    def shares(self, count: int) -> tuple[float, ...]:
        """A weight for each of `count` runs, equal ones by default; UsageError for too few or many."""
        weights = self.weights or (1.0 / count,) * count
        if len(weights) != count:
            raise UsageError(
                f"--fuse has {len(weights)} weights for {count} runs; give one for each"
            )
        return weights


class FusedIndex:
    """Several indexes asked the same; their rankings fused. UsageError for weights of another number."""

    def __init__(self, indexes: Sequence[Index], fusion: Fusion) -> None:
        fusion.shares(len(indexes))
        self._indexes, self._fusion = indexes, fusion
        infos = [index.info for index in indexes]
        chain = manifest.digest([info.digest for info in infos])
        how = {"fuse": fusion.identity, "of": [info.search for info in infos]}
        notes = tuple(note for info in infos for note in info.notes)
        self.info = IndexInfo(infos[0].path, fusion.method, chain, how, notes)

    def search(self, queries: list[Query], k: int) -> Run:
        """Each index is asked for k documents, 1,000 at least; the k best of the fusion remain."""
        runs = [index.search(queries, max(k, DEPTH)) for index in self._indexes]
        return fuse(runs, self._fusion, k)

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """From the first index that stores texts."""
        docs: dict[str, Doc] = {}
        for index in reversed(self._indexes):
            own = index.texts(ids)
            docs |= {name: doc for name, doc in own.items() if doc.text or name not in docs}
        return docs

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """From the first index that has vectors of chunks."""
        passages: dict[str, Passage] = {}
        for index in reversed(self._indexes):
            passages |= index.passages(query, ids)
        return passages


def fuse(runs: Sequence[Run], fusion: Fusion, k: int) -> Run:
    """The k best documents of each query that any run answers, under the fused score.

    rrf: sum of 1 / (k + rank); a missing document adds nothing (Cormack et al., SIGIR 2009).
    linear: weighted sum of the runs' scores, each scaled per query; a missing document gets the
    least scaled score of that run's ranking, as if it stood at its end.
    """
    weights = fusion.shares(len(runs))
    queries = dict.fromkeys(query for run in runs for query in run.rankings)
    empty = ranked([], np.zeros(0, np.float32))
    fused = {}
    for query in queries:
        rankings = [run.rankings.get(query, empty) for run in runs]
        if fusion.method == "rrf":
            scores = _sum(
                [_reciprocal(r, fusion.k) for r in rankings], [0.0] * len(runs), (1.0,) * len(runs)
            )
        else:
            scaled = [_scaled(r, fusion.scale) for r in rankings]
            floors = [min(one.values(), default=0.0) for one in scaled]
            scores = _sum(scaled, floors, weights)
        values = np.fromiter(scores.values(), np.float64, len(scores))
        fused[query] = ranked(list(scores), values).cut(k)
    return Run(fused, tag=fusion.method)


def _sum(
    scores: Sequence[dict[str, float]], floors: Sequence[float], weights: Sequence[float]
) -> dict[str, float]:
    documents = dict.fromkeys(name for one in scores for name in one)
    return {
        name: sum(
            w * one.get(name, floor) for one, floor, w in zip(scores, floors, weights, strict=True)
        )
        for name in documents
    }


def _reciprocal(ranking: Ranking, k: int) -> dict[str, float]:
    return {name: 1.0 / (k + rank) for rank, name in enumerate(ranking.doc_ids, 1)}


def _scaled(ranking: Ranking, scale: Scale) -> dict[str, float]:
    if not np.isfinite(ranking.scores).all():
        raise DataError(
            "a run to be fused has infinite scores (or some beyond 3.4e38), which no sum can weigh; fuse "
            "by ranks with --fuse rrf"
        )
    values = SCALES[scale](ranking.scores.astype(np.float64))
    return dict(zip(ranking.doc_ids, values.tolist(), strict=True))


def _minmax(scores: Floats) -> Floats:
    """To 0 … 1; all 1 where every score is the same."""
    if not len(scores):
        return scores
    low, high = scores.min(), scores.max()
    return (scores - low) / (high - low) if high > low else np.ones_like(scores)


def _zscore(scores: Floats) -> Floats:
    """To mean 0 and deviation 1; all 0 where every score is the same."""
    deviation = scores.std() if len(scores) else 0.0
    return (scores - scores.mean()) / deviation if deviation > 0 else np.zeros_like(scores)


def _same(scores: Floats) -> Floats:
    return scores


SCALES: dict[Scale, Callable[[Floats], Floats]] = {
    "minmax": _minmax,
    "zscore": _zscore,
    "none": _same,
}
