"""Comparisons of runs: paired tests over queries, and corrections for multiple tests."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lmkcli.errors import DataError, Mismatch, UnknownName, UsageError
from lmkcli.evaluation.results import ScoredRun
from lmkcli.progress import Progress, silent

LEVEL = 0.05  # a difference is significant if its corrected p-value is lower
_RESAMPLES = 10_000
_BATCH = 200  # resamples in memory at a time
# Engines add in different orders, so equal values may differ in the last bits. Such queries are ties.
_TIE = 1e-9


@dataclass(frozen=True)
class Comparison:
    """A run compared with a baseline by one measure, over the same queries; p-values are two-sided."""

    queries: int
    difference: float
    """Mean over the queries: the value of the run minus the value of the baseline."""
    interval: tuple[float, float]
    """95 % bootstrap interval of the difference (percentiles, 10,000 resamples of the queries)."""
    t_test: float
    """p-value of the paired t-test."""
    randomisation: float
    """p-value of the paired randomisation test (10,000 sign flips, or all of them if there are fewer)."""
    wins: int
    ties: int
    losses: int


class PairedTest(NamedTuple):
    """Two systems compared on one collection, with p-values that are corrected over all tests."""

    run: str
    against: str
    collection: str
    measure: str
    """The computed measure, such as R(rel=2)@1000."""
    score: float
    comparison: Comparison
    t_test: float
    randomisation: float

    @property
    def significant(self) -> bool:
        """Whether the corrected p-value of the paired t-test is below 0.05."""
        return self.t_test < LEVEL


def compare_all(
    results: Sequence[ScoredRun],
    baseline: str | None,
    correction: str,
    progress: Progress = silent,
) -> list[PairedTest]:
    """Compare every system with the baseline, or each pair of systems (later with earlier) without one.

    Compares two systems by every measure on every collection for which both have a result. The p-values are
    corrected over all of these tests. Raises the errors of `compare`.
    """
    systems = list(dict.fromkeys(result.system for result in results))
    by_cell = {(result.system, result.collection): result for result in results}
    pairs = []
    for run in results:
        earlier = systems[: systems.index(run.system)]
        others = earlier if baseline is None else [baseline] * (run.system != baseline)
        cells = [(system, run.collection) for system in others]
        pairs += [(run, by_cell[cell]) for cell in cells if cell in by_cell]
    tests = []
    compared = []
    for number, (run, against) in enumerate(pairs):
        names = [name for name in run.measures if name in against.measures]
        tests += [(run, against, name) for name in names]
        compared += [compare(against.by_query(name), run.by_query(name)) for name in names]
        progress(number + 1, len(pairs), "pairs")
    t_tests = correct([each.t_test for each in compared], correction)
    flips = correct([each.randomisation for each in compared], correction)
    return [
        PairedTest(
            *(run.system, against.system, run.collection, str(run.measures[name])),
            *(run.value(name), comparison, t, flip),
        )
        for (run, against, name), comparison, t, flip in zip(
            tests, compared, t_tests, flips, strict=True
        )
    ]


def compare(baseline: Mapping[str, float], run: Mapping[str, float], seed: int = 0) -> Comparison:
    """Compare a run with a baseline, both given as query id -> value (`Scores.per_query[measure]`).

    The same seed gives the same numbers. Raises Mismatch if the queries differ, and DataError for fewer than
    two queries.
    """
    if baseline.keys() != run.keys():
        odd = sorted(baseline.keys() ^ run.keys())
        raise Mismatch(
            f"the two runs were scored on different queries ({len(odd)} are in only one of them, such "
            f"as '{odd[0]}'): evaluate both with the same qrels"
        )
    if len(baseline) < 2:
        raise DataError("a paired test needs at least two queries: give qrels with more queries")
    differences = _differences(baseline, run)
    return Comparison(
        queries=len(differences),
        difference=float(differences.mean()),
        interval=_interval(differences, seed),
        t_test=_t_test(differences),
        randomisation=_randomisation(differences, seed),
        wins=int((differences > 0).sum()),
        ties=int((differences == 0).sum()),
        losses=int((differences < 0).sum()),
    )


class Winners(NamedTuple):
    """The significantly best systems, as (system, collection, requested measure), and the number of tests."""

    places: set[tuple[str, str, str]]
    tests: int


def winners(results: Sequence[ScoredRun], correction: str) -> Winners:
    """Find the system with the best score on each collection by each measure, if it is significantly better.

    A system wins if the paired t-test finds a difference from every other system. The p-values are corrected
    over all tests. Systems with other queries, and collections with fewer than two queries, are not tested.
    """
    groups: dict[tuple[str, str], list[ScoredRun]] = {}
    for result in results:
        for name in result.measures:
            groups.setdefault((result.collection, name), []).append(result)
    best: dict[tuple[str, str, str], int] = {}  # place of a possible winner -> number of its tests
    p_values: list[float] = []
    for (collection, name), group in groups.items():
        first, *others = sorted(group, key=lambda each: -each.value(name))
        values = first.by_query(name)
        comparable = all(each.by_query(name).keys() == values.keys() for each in others)
        if others and comparable and len(values) > 1:
            best[first.system, collection, name] = len(others)
            p_values += [_t_test(_differences(each.by_query(name), values)) for each in others]
    corrected = iter(correct(p_values, correction))
    tested = {place: [next(corrected) for _ in range(count)] for place, count in best.items()}
    return Winners({place for place, mine in tested.items() if max(mine) < LEVEL}, len(p_values))


def mean_interval(values: Mapping[str, float], seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of the mean of query id -> value, computed as in `Comparison`."""
    return _interval(np.array([values[query_id] for query_id in sorted(values)]), seed)


def _differences(baseline: Mapping[str, float], run: Mapping[str, float]) -> NDArray[np.float64]:
    """Return the differences of the queries [n]; 0 for ties."""
    differences = np.array([run[query_id] - baseline[query_id] for query_id in sorted(baseline)])
    differences[np.abs(differences) < _TIE] = 0
    return differences


def _t_test(differences: NDArray[np.float64]) -> float:
    """Return the p-value of the paired t-test."""
    if np.ptp(differences) < _TIE:  # no variance: scipy divides by zero, so the limit is given here
        return 0.0 if differences.any() else 1.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def _randomisation(differences: NDArray[np.float64], seed: int) -> float:
    # The p-value is the share of sign flips with a sum at least as large as the observed sum.
    # Differences in whole steps of _TIE have exact sums, so equal sums compare as equal. Sign flips are
    # symmetric, so the upper tail of |sum| is the two-sided p-value. scipy instead doubles the smaller
    # tail for "two-sided", with three times the sampling error.
    result = stats.permutation_test(
        (np.rint(differences / _TIE),),
        lambda flipped, axis: np.abs(np.sum(flipped, axis=axis)),
        permutation_type="samples",
        alternative="greater",
        vectorized=True,
        n_resamples=_RESAMPLES,
        batch=_BATCH,
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue)


def _interval(differences: NDArray[np.float64], seed: int) -> tuple[float, float]:
    interval = stats.bootstrap(
        (differences,),
        np.mean,
        method="percentile",
        vectorized=True,
        n_resamples=_RESAMPLES,
        batch=_BATCH,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def _bonferroni(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.minimum(1.0, p_values * len(p_values))


def _holm(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm (1979): the i-th smallest of m p-values times m - i + 1, and at least its predecessor."""
    order = np.argsort(p_values)
    factors = np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(p_values[order] * factors))
    return corrected


def _benjamini_hochberg(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(stats.false_discovery_control(p_values, method="bh"))


CORRECTIONS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "holm": _holm,
    "bonferroni": _bonferroni,
    "bh": _benjamini_hochberg,
}


def correct(p_values: Sequence[float], method: str) -> list[float]:
    """Return the p-values of several tests, corrected together, in the given order.

    'holm' and 'bonferroni' limit the probability of any false discovery; 'bh' (Benjamini-Hochberg)
    limits the expected share of false discoveries. UnknownName for another method.
    """
    if method not in CORRECTIONS:
        raise UnknownName("correction", method, CORRECTIONS)
    if not p_values:
        return []
    return [float(value) for value in CORRECTIONS[method](np.asarray(p_values, dtype=np.float64))]


def letters_of(results: Sequence[ScoredRun]) -> dict[str, str]:
    """System -> the letter that marks it in a table; UsageError for more than 26 systems."""
    systems = list(dict.fromkeys(result.system for result in results))
    if len(systems) > len(ascii_lowercase):
        raise UsageError(
            f"--all-pairs marks runs by letters, and {len(systems)} runs need more than 26 letters: "
            "give at most 26 runs, or name one of them as --baseline"
        )
    return dict(zip(systems, ascii_lowercase, strict=False))
