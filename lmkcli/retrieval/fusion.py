"""Fusion: combine several runs or indexes. `fuse` describes how each method treats missing documents."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lmkcli.artifact import manifest
from lmkcli.data.collection import Doc, Query
from lmkcli.data.run import Ranking, Run, ranked
from lmkcli.errors import DataError, UsageError
from lmkcli.retrieval.index import (
    BoundsScores,
    Index,
    IndexInfo,
    Passage,
    WeighsWords,
    query_words,
    unfindable,
)
from lmkcli.text.query_words import QueryWords

DEPTH = 1000  # minimum number of documents that are retrieved from each fused index

Scale = Literal["minmax", "zscore", "bounds", "none"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Fusion:
    """A fusion method with its parameters."""

    method: Literal["rrf", "linear"]
    k: int = 60
    weights: tuple[float, ...] = ()
    scale: Scale = "minmax"

    @classmethod
    def parse(cls, text: str, scale: Scale = "minmax") -> "Fusion":
        """Read 'rrf', 'rrf:60', 'linear' or 'linear:0.3,0.7'. Raises UsageError for other texts."""
        if match := re.fullmatch(r"rrf(?::([0-9]{1,9}))?", text):
            return cls("rrf", k=int(match[1] or 60))
        number = r"-?(?:[0-9]{1,18}(?:\.[0-9]*)?|\.[0-9]+)"
        if match := re.fullmatch(rf"linear(?::({number}(?:,{number})*))?", text):
            weights = tuple(map(float, match[1].split(","))) if match[1] else ()
            return cls("linear", weights=weights, scale=scale)
        raise UsageError(f"--fuse {text}: write rrf, rrf:60, linear, linear:0.3,0.7 or tune:dev")

    @classmethod
    def from_identity(cls, identity: Mapping[str, Any]) -> "Fusion":
        """Return the fusion that a run records."""
        return cls(**{**identity, "weights": tuple(identity.get("weights", ()))})

    @property
    def meaning(self) -> str:
        """What a fused score is, for people."""
        if self.method == "rrf":
            return "sum of reciprocal ranks"
        if self.scale == "bounds":
            return "weighted mean of the shares of the greatest possible scores, 0 to 1"
        return "weighted sum of scaled scores"

    @property
    def identity(self) -> dict[str, Any]:
        """The parameters that determine fused scores, as a run records them."""
        if self.method == "rrf":
            return {"method": "rrf", "k": self.k}
        return {"method": "linear", "weights": list(self.weights), "scale": self.scale}

    def __str__(self) -> str:
        """Return the notation that `parse` reads, with the fewest digits that give the same weights."""
        weights = ",".join(np.format_float_positional(each, trim="-") for each in self.weights)
        return (
            f"rrf:{self.k}" if self.method == "rrf" else ":".join(filter(None, ("linear", weights)))
        )

    def shares(self, count: int) -> tuple[float, ...]:
        """Return a weight for each of `count` runs, equal by default.

        Raises UsageError for another number.
        """
        weights = self.weights or (1.0 / count,) * count
        if len(weights) != count:
            raise UsageError(
                f"--fuse has {len(weights)} weights for {count} runs; give one for each"
            )
        return weights


class FusedIndex:
    """Several indexes that are searched together. `note` is a message for the user.

    Raises UsageError for a wrong number of weights.
    """

    def __init__(self, indexes: Sequence[Index], fusion: Fusion, note: str = "") -> None:
        fusion.shares(len(indexes))
        self._indexes, self._fusion = indexes, fusion
        info = fused_info([index.info for index in indexes], fusion)
        self.info = info._replace(notes=(*info.notes, *filter(None, [note])))

    def search(self, queries: list[Query], k: int) -> Run:
        """Search each index for k documents, at least 1,000, and return the best k of the fusion."""
        runs = [index.search(queries, max(k, DEPTH)) for index in self._indexes]
        if self._fusion.method == "linear" and self._fusion.scale == "bounds":
            runs = [shares_of(i, r, queries) for i, r in zip(self._indexes, runs, strict=True)]
        return fuse(runs, self._fusion, k)

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Return documents of the first index that stores their text."""
        docs: dict[str, Doc] = {}
        for index in reversed(self._indexes):
            found = index.texts(ids)
            docs |= {name: doc for name, doc in found.items() if doc.text or name not in docs}
        return docs

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """Return the passages of the first index that has chunks.

        Another index replaces a passage if its own one contains twice as much of the question, by the weights
        of its words.
        """
        words = self.query_words(query.text)
        passages: dict[str, Passage] = {}
        for index in self._indexes:
            for name, passage in index.passages(query, ids).items():
                best = passages.setdefault(name, passage)
                if words.coverage(passage.text) > 2 * words.coverage(best.text):
                    passages[name] = passage
        return passages

    def unfindable(self, ids: Sequence[str]) -> list[str]:
        """Return the ids that none of the indexes can return."""
        lacking = [*ids]
        for index in self._indexes:
            lacking = unfindable(index, lacking)
        return lacking

    def query_words(self, question: str) -> QueryWords:
        """Return the words of a question with the weights of the first index that knows any."""
        known = [each for each in self._indexes if isinstance(each, WeighsWords)]
        return query_words(known[0] if known else None, question)


def shares_of(index: Index, run: Run, queries: Sequence[Query]) -> Run:
    """Return a run with each score as its share of the greatest possible score for the query.

    Raises UsageError if the index does not know that score.
    """
    rankings = {}
    for query in queries:
        most = index.greatest_score(query) if isinstance(index, BoundsScores) else None
        if most is None:
            raise UsageError(
                f"{index.info.path}: --fuse-scale bounds needs scores with a greatest value: those of BM25, "
                "or cosine similarities; use minmax or zscore"
            )
        ids, scores = run.rankings.get(query.id, ranked([], np.zeros(0, np.float32)))
        rankings[query.id] = Ranking(ids, np.minimum(scores / np.float32(most or 1.0), 1.0))
    return replace(run, rankings=rankings)


def fused_info(infos: Sequence[IndexInfo], fusion: Fusion) -> IndexInfo:
    """Return the description of fused indexes."""
    digest = manifest.digest([info.digest for info in infos])
    search = {"fuse": fusion.identity, "of": [info.search for info in infos]}
    notes = tuple(note for info in infos for note in info.notes)
    return IndexInfo(infos[0].path, fusion.method, digest, search, notes, fusion.meaning)


def fuse(runs: Sequence[Run], fusion: Fusion, k: int) -> Run:
    """Return the best k documents of each query by their fused score, for every query of any run.

    rrf: sum of 1 / (k + rank); a missing document adds nothing (Cormack et al., SIGIR 2009).
    linear: weighted sum of the runs' scores, each scaled per query. A missing document gets the lowest scaled
    score in the ranking of that run. If all scores of a ranking are equal, as of a single hit, this would
    give the hits no influence. Then min-max gives hits 1 and missing documents 0 (the rule of OpenSearch).
    The z-score gives 1 and -1, as for a hit and one document below it. Unscaled, a missing document gets 0,
    or 1 less than a score that is not positive. Shares of the greatest possible score (bounds) are comparable
    between queries, as in Bruch et al. (2022, arXiv 2210.11934); a missing document gets 0.
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
            floors = [_floor(run_scores, fusion.scale) for run_scores in scaled]
            scores = _sum(scaled, floors, weights)
        values = np.fromiter(scores.values(), np.float64, len(scores))
        fused[query] = ranked(list(scores), values).cut(k)
    cut = frozenset[str]().union(*(run.cut for run in runs))
    cut_pairs = sum((Counter(run.cut_pairs) for run in runs), Counter[str]())
    return Run(fused, tag=fusion.method, cut=cut, cut_pairs=cut_pairs)


def _sum(
    scores: Sequence[dict[str, float]], floors: Sequence[float], weights: Sequence[float]
) -> dict[str, float]:
    documents = dict.fromkeys(name for run_scores in scores for name in run_scores)
    return {
        name: sum(
            weight * run_scores.get(name, floor)
            for run_scores, floor, weight in zip(scores, floors, weights, strict=True)
        )
        for name in documents
    }


def _floor(scaled: dict[str, float], scale: Scale) -> float:
    """Return the score of a document that a ranking lacks: the lowest one, below equal ones."""
    if scale == "bounds":
        return 0.0
    low, high = min(scaled.values(), default=0.0), max(scaled.values(), default=0.0)
    if not scaled or low < high:
        return low
    if scale == "zscore":
        return -1.0
    return 0.0 if low > 0 else low - 1.0


def _reciprocal(ranking: Ranking, k: int) -> dict[str, float]:
    return {name: 1.0 / (k + rank) for rank, name in enumerate(ranking.doc_ids, 1)}


def _scaled(ranking: Ranking, scale: Scale) -> dict[str, float]:
    if not np.isfinite(ranking.scores).all():
        raise DataError(
            "a run to be fused has infinite scores (or scores beyond 3.4e38), which cannot be summed; fuse "
            "by ranks with --fuse rrf"
        )
    values = SCALES[scale](ranking.scores.astype(np.float64))
    return dict(zip(ranking.doc_ids, values.tolist(), strict=True))


def _minmax(scores: Floats) -> Floats:
    """Scale to 0 … 1; all 1 if every score is the same."""
    if not len(scores):
        return scores
    low, high = scores.min(), scores.max()
    return (scores - low) / (high - low) if high > low else np.ones_like(scores)


def _zscore(scores: Floats) -> Floats:
    """Scale to mean 0 and standard deviation 1; all 1 if every score is the same."""
    if not len(scores) or scores.min() == scores.max():  # the deviation may be a rounding error
        return np.ones_like(scores)
    scaled: Floats = (scores - scores.mean()) / scores.std()
    return scaled


def _unscaled(scores: Floats) -> Floats:
    return scores


SCALES: dict[Scale, Callable[[Floats], Floats]] = {
    "minmax": _minmax,
    "zscore": _zscore,
    "bounds": _unscaled,  # `FusedIndex` has scaled them
    "none": _unscaled,
}
