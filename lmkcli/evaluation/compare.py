"""Whether one run beats another: paired tests over queries, and corrections for many of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lmkcli.errors import DataError, Mismatch, UnknownName, UsageError
from lmkcli.evaluation.results import Result
from lmkcli.progress import Progress, silent

LEVEL = 0.05  # a corrected p-value below it is called significant
_RESAMPLES = 10_000
_BATCH = 200  # resamples in memory at a time
# Sums in another order give values that differ in the last bits; such queries are ties.
_TIE = 1e-9


@dataclass(frozen=True)
class Comparison:
    """A run against a baseline on one measure, over the same queries; p-values are two-sided."""

    queries: int
    difference: float
    """Mean over the queries of the run's value less the baseline's."""
    interval: tuple[float, float]
    """95 % bootstrap interval of the difference (percentiles, 10,000 resamples of the queries)."""
    t_test: float
    """p-value of the paired t-test."""
    randomisation: float
    """p-value of the paired randomisation test (10,000 sign flips, or all if they are fewer)."""
    wins: int
    ties: int
    losses: int


class PairedTest(NamedTuple):
    """A comparison between two systems on one collection, with p-values corrected over all tests."""

    run: str
    against: str
    collection: str
    measure: str
    """As it was computed."""
    score: float
    comparison: Comparison
    t_test: float
    randomisation: float

    @property
    def significant(self) -> bool:
        """Whether the corrected p-value of the paired t-test is below 0.05."""
        return self.t_test < LEVEL


def compare_all(
    results: Sequence[Result],
    baseline: str | None,
    correction: str,
    progress: Progress = silent,
) -> list[PairedTest]:
    """Every system against the baseline, or each pair (the later against the earlier) without one.

    Two systems are compared where both have a result on a collection, by every measure as asked;
    p-values are corrected over all tests that this makes. The same errors as `compare`.
    """
    pairs = list(_pairs(results, baseline))
    asked = list(results[0].measures)
    compared = []
    for number, (run, against) in enumerate(pairs):
        compared += [compare(against.by_query(name), run.by_query(name)) for name in asked]
        progress(number + 1, len(pairs), "pairs")
    t_tests = correct([each.t_test for each in compared], correction)
    flips = correct([each.randomisation for each in compared], correction)
    cells = [(run, against, name) for run, against in pairs for name in asked]
    return [
        PairedTest(
            *(run.system, against.system, run.collection, str(run.measures[name])),
            *(run.value(name), comparison, t, flip),
        )
        for (run, against, name), comparison, t, flip in zip(
            cells, compared, t_tests, flips, strict=True
        )
    ]


def _pairs(results: Sequence[Result], baseline: str | None) -> Iterator[tuple[Result, Result]]:
    systems = list(dict.fromkeys(result.system for result in results))
    by_cell = {(result.system, result.collection): result for result in results}
    for run in results:
        earlier = systems[: systems.index(run.system)]
        others = earlier if baseline is None else [baseline] * (run.system != baseline)
        for system in others:
            against = by_cell.get((system, run.collection))
            if against is not None:
                yield run, against


def compare(baseline: Mapping[str, float], run: Mapping[str, float], seed: int = 0) -> Comparison:
    """The run against the baseline, each given as query id -> value (`Scores.per_query[measure]`).

    The same seed gives the same numbers. Mismatch when the queries are not the same, DataError with
    fewer than two.
    """
    if baseline.keys() != run.keys():
        odd = sorted(baseline.keys() ^ run.keys())
        raise Mismatch(
            f"the two runs were scored on different queries ({len(odd)} in one only, such as "
            f"'{odd[0]}'): evaluate both with the same qrels"
        )
    if len(baseline) < 2:
        raise DataError("a paired test needs two queries at least: give qrels with more queries")
    differences = np.array([run[query_id] - baseline[query_id] for query_id in sorted(baseline)])
    differences[np.abs(differences) < _TIE] = 0
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


def mean_interval(values: Mapping[str, float], seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of a mean over queries, as in `Comparison`, of query id -> value."""
    return _interval(np.array([values[query_id] for query_id in sorted(values)]), seed)


def _t_test(differences: NDArray[np.float64]) -> float:
    if np.ptp(differences) < _TIE:  # no variance: the limit, where scipy divides by zero
        return 0.0 if differences.any() else 1.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def _randomisation(differences: NDArray[np.float64], seed: int) -> float:
    # In whole steps sums are exact, so a sum that equals the observed one is seen to be equal.
    # Sign flips are symmetric: the tail of |sum| is the two-sided p-value, with a third of the
    # sampling error of twice the smaller tail, scipy's reading of "two-sided".
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
    """Holm (1979): the i-th smallest of m times m - i + 1, and no less than the one before it."""
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
    """The p-values of several tests, corrected together, in the order given.

    'holm' and 'bonferroni' hold the chance of any false discovery, 'bh' (Benjamini-Hochberg) the
    expected share of false ones. UnknownName for another method.
    """
    if method not in CORRECTIONS:
        raise UnknownName("correction", method, CORRECTIONS)
    if not p_values:
        return []
    return [float(value) for value in CORRECTIONS[method](np.asarray(p_values, dtype=np.float64))]


def letters_of(results: "Sequence[Result]") -> dict[str, str]:
    """System -> the letter that stands for it; UsageError for more than 26."""
    systems = list(dict.fromkeys(result.system for result in results))
    if len(systems) > len(ascii_lowercase):
        raise UsageError(
            f"--all-pairs marks runs by letters, and {len(systems)} are more than there are: give "
            "26 runs at most, or one of them as --baseline"
        )
    return dict(zip(systems, ascii_lowercase, strict=False))
