"""The choice of a fusion on development queries: its method, scale and weights, with a held-out score.

The best of several candidates has a score that is too good on the queries that chose it. So each half of the
development queries also chooses a fusion for the other half. The held-out score is the mean over these.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from lmkcli.data.collection import Qrel
from lmkcli.data.run import Run
from lmkcli.errors import DataError
from lmkcli.evaluation.measures import evaluate
from lmkcli.retrieval.fusion import Fusion, Scale, fuse

MEASURE, CUTOFF = "nDCG@10", 10
_LEAST = 4  # development queries
_STEPS = {
    2: 10,
    3: 5,
}  # number of runs -> steps of a weight between 0 and 1; more runs have equal weights


class TunedFusion(NamedTuple):
    """The best fusion on development queries.

    score: its mean nDCG@10 on these queries. held_out: the mean with fusions that the other half of the
    queries chose. rrf: that of reciprocal rank fusion. single: the best of a single run.
    """

    fusion: Fusion
    score: float
    held_out: float
    rrf: float
    single: float
    queries: int


def tune(runs: Sequence[Run], shares: Sequence[Run] | None, qrels: Iterable[Qrel]) -> TunedFusion:
    """Choose the fusion of runs of the same development queries by nDCG@10.

    `shares` are the runs with shares of the greatest possible scores; None if an index has no such scores.
    Of equal candidates, the first one wins, and rrf is the first of all. Raises DataError for fewer than four
    judged queries.
    """
    answered = {name for run in runs for name in run.rankings}
    judged = [qrel for qrel in qrels if qrel.query_id in answered]
    names = sorted({qrel.query_id for qrel in judged})
    if len(names) < _LEAST:
        raise DataError(
            f"a fusion needs at least {_LEAST} judged development queries, and there are {len(names)}"
        )

    def by_query(run: Run) -> Mapping[str, float]:
        (values,) = evaluate(run, judged, [MEASURE]).per_query.values()
        return values

    candidates = list(_candidates(len(runs), shares is not None))
    values = [
        by_query(fuse(shares if each.scale == "bounds" and shares else runs, each, CUTOFF))
        for each in candidates
    ]

    def best(chosen: Sequence[str]) -> int:
        means = [_mean(of_query, chosen) for of_query in values]
        return means.index(max(means))

    halves = names[::2], names[1::2]
    held_out = sum(
        _mean(values[best(other)], half) * len(half) for half, other in (halves, halves[::-1])
    ) / len(names)
    winner = best(names)
    return TunedFusion(
        candidates[winner],
        _mean(values[winner], names),
        held_out,
        _mean(values[0], names),
        max(_mean(by_query(run), names) for run in runs),
        len(names),
    )


def _candidates(runs: int, bounded: bool) -> Iterator[Fusion]:
    """Yield all fusions that are tried, rrf first."""
    yield Fusion("rrf")
    scales: tuple[Scale, ...] = ("minmax", "zscore", "bounds") if bounded else ("minmax", "zscore")
    for scale, weights in product(scales, _weights(runs)):
        yield Fusion("linear", weights=weights, scale=scale)


def _weights(runs: int) -> list[tuple[float, ...]]:
    """Positive weights with the sum 1; no weights are equal ones."""
    steps = _STEPS.get(runs)
    if steps is None:
        return [()]
    parts = (each for each in product(range(1, steps), repeat=runs) if sum(each) == steps)
    return [tuple(part / steps for part in each) for each in parts]


def _mean(values: Mapping[str, float], names: Sequence[str]) -> float:
    return sum(values[name] for name in names) / len(names)
