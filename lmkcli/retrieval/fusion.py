"""Fusion: several runs to one. A document that a run lacks is handled as each method says."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.run import Ranking, Run, ranked
from lmkcli.errors import UsageError

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

    def shares(self, count: int) -> tuple[float, ...]:
        """A weight for each of `count` runs, equal ones by default; UsageError for too few or many."""
        weights = self.weights or (1.0 / count,) * count
        if len(weights) != count:
            raise UsageError(
                f"--fuse has {len(weights)} weights for {count} runs; give one for each"
            )
        return weights


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
        made = ranked(list(scores), np.fromiter(scores.values(), np.float64, len(scores)))
        fused[query] = Ranking(made.doc_ids[:k], made.scores[:k])
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
