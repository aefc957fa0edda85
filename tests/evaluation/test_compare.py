"""Paired tests and corrections: compared with scipy, statsmodels and results by hand; invariants."""

import itertools
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from lmkcli.data.collection import Qrel
from lmkcli.data.run import Run, ranked
from lmkcli.errors import DataError, Mismatch, UnknownName
from lmkcli.evaluation.compare import (
    CORRECTIONS,
    Comparison,
    PairedTest,
    compare,
    compare_all,
    correct,
)
from lmkcli.evaluation.measures import evaluate, parse_measures
from lmkcli.evaluation.results import ScoredRun

values = st.integers(0, 20).map(lambda twentieth: twentieth / 20)
pairs = st.lists(st.tuples(values, values), min_size=2, max_size=9)
p_values = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def compared(pairs: list[tuple[float, float]]) -> Comparison:
    baseline = {f"q{number}": pair[0] for number, pair in enumerate(pairs)}
    return compare(baseline, {f"q{number}": pair[1] for number, pair in enumerate(pairs)})


@settings(deadline=None)
@given(pairs)
def test_t_test_is_scipys_paired_one(pairs: list[tuple[float, float]]) -> None:
    a, b = np.array(pairs).T
    assume(np.ptp(b - a) > 1e-9)
    assert compared(pairs).t_test == pytest.approx(float(stats.ttest_rel(b, a).pvalue), abs=1e-9)


@settings(deadline=None)
@given(pairs)
def test_randomisation_is_exact_for_few_queries(pairs: list[tuple[float, float]]) -> None:
    differences = np.array([b - a for a, b in pairs])
    signs = np.array(list(itertools.product((1, -1), repeat=len(pairs))))
    means = signs @ differences / len(pairs)
    above = np.mean(means >= differences.mean() - 1e-9)
    below = np.mean(means <= differences.mean() + 1e-9)
    assert compared(pairs).randomisation == pytest.approx(min(1.0, 2 * min(above, below)))


def test_randomisation_agrees_with_the_t_test_on_many_normal_differences() -> None:
    noise = np.random.default_rng(5).normal(0, 0.1, 80)
    result = compared([(0.0, x) for x in noise - noise.mean() + 0.015])
    assert 0.05 < result.t_test < 0.5
    assert result.randomisation == pytest.approx(result.t_test, abs=0.02)


def test_interval_is_close_to_the_normal_one() -> None:
    differences = np.random.default_rng(3).normal(0.05, 0.2, 400)
    result = compared([(0.0, x) for x in differences])
    margin = 1.96 * differences.std(ddof=1) / 20
    assert result.interval[0] == pytest.approx(differences.mean() - margin, abs=0.002)
    assert result.interval[1] == pytest.approx(differences.mean() + margin, abs=0.002)


@settings(deadline=None)
@given(pairs)
def test_swapping_the_runs_mirrors_the_comparison(pairs: list[tuple[float, float]]) -> None:
    forward, back = compared(pairs), compared([(b, a) for a, b in pairs])
    assert (forward.wins, forward.ties, forward.losses) == (back.losses, back.ties, back.wins)
    assert forward.wins + forward.ties + forward.losses == forward.queries == len(pairs)
    assert forward.difference == pytest.approx(-back.difference)
    assert forward.randomisation == pytest.approx(back.randomisation)
    assert forward.t_test == pytest.approx(back.t_test)
    assert forward.interval[0] - 1e-9 <= forward.difference <= forward.interval[1] + 1e-9


def test_equal_runs_and_constant_differences() -> None:
    same = compared([(0.1, 0.1), (0.4, 0.4), (0.9, 0.9)])
    assert (same.t_test, same.randomisation, same.interval) == (1.0, 1.0, (0.0, 0.0))
    assert same.ties == 3
    shifted = compared([(0.25, 0.5), (0.5, 0.75)])
    assert shifted.t_test == 0.0
    assert shifted.randomisation == 0.5


def test_differences_in_the_last_bits_are_ties() -> None:
    assert compared([(0.1 + 0.2, 0.3), (0.5, 0.6)]).ties == 1


def test_the_same_seed_gives_the_same_numbers() -> None:
    rng = np.random.default_rng(0)
    baseline = {f"q{i}": float(x) for i, x in enumerate(rng.random(40))}
    run = {query_id: value + float(rng.normal()) for query_id, value in baseline.items()}
    reordered = dict(reversed(run.items()))
    assert compare(baseline, run) == compare(baseline, reordered)
    assert compare(baseline, run, seed=1) != compare(baseline, run, seed=2)


def test_other_queries_and_single_queries_are_refused() -> None:
    with pytest.raises(Mismatch, match="such as 'q2'"):
        compare({"q1": 1.0, "q2": 0.0}, {"q1": 1.0})
    with pytest.raises(DataError, match="two queries"):
        compare({"q1": 1.0}, {"q1": 0.0})


STATSMODELS = {"holm": "holm", "bonferroni": "bonferroni", "bh": "fdr_bh"}


@settings(deadline=None)
@given(p_values, st.sampled_from(sorted(CORRECTIONS)))
def test_corrections_are_those_of_statsmodels(p_values: list[float], method: str) -> None:
    expected = multipletests(p_values, method=STATSMODELS[method])[1]
    assert correct(p_values, method) == pytest.approx(list(expected))


@pytest.mark.parametrize("better", [0.0, 0.05, 0.1])
@pytest.mark.parametrize("seed", range(4))
def test_randomisation_is_the_share_of_all_sign_flips(seed: int, better: float) -> None:
    """17 queries have 131,072 flips, and 10,000 are sampled: equal within five standard deviations."""
    rng = np.random.default_rng(seed)
    a = rng.random(17)
    b = a + rng.normal(better, 0.2, 17)
    sums = np.zeros(1)
    for difference in b - a:
        sums = np.concatenate([sums + difference, sums - difference])
    p_value = np.mean(np.abs(sums) >= abs(np.sum(b - a)) - 1e-12)
    found = compared(list(zip(a.tolist(), b.tolist(), strict=True))).randomisation
    deviation = float(np.sqrt(p_value * (1 - p_value) / 10_000))
    assert found == pytest.approx(p_value, abs=5 * deviation)


@pytest.mark.parametrize("queries", [15, 40])
@pytest.mark.parametrize("seed", range(4))
def test_interval_is_scipys(seed: int, queries: int) -> None:
    """Scipy with other resamples: the error is that of 10,000 resamples."""
    rng = np.random.default_rng(seed)
    a = rng.random(queries)
    b = a + rng.normal(0.05, 0.2, queries)
    found = compared(list(zip(a.tolist(), b.tolist(), strict=True)))
    interval = stats.bootstrap((b - a,), np.mean, method="percentile", rng=1).confidence_interval
    error = float(np.std(b - a, ddof=1)) / queries**0.5
    assert found.interval == pytest.approx(tuple(interval), abs=0.15 * error)


def scored(system: str, ranks: list[int], collection: str = "c") -> ScoredRun:
    """A result in which the relevant document of the n-th query is at the n-th rank (from 1)."""
    order = ["x1", "x2", "x3"]
    scores = np.array([3.0, 2.0, 1.0, 0.0])
    rankings = {
        f"q{n}": ranked([*order[: rank - 1], "d", *order[rank - 1 :]], scores)
        for n, rank in enumerate(ranks)
    }
    qrels = [Qrel(f"q{n}", "d", 1) for n in range(len(ranks))]
    measures = {name: parse_measures([name])[0] for name in ("RR@10", "P@1")}
    found = evaluate(Run(rankings), qrels, list(measures.values()))
    return ScoredRun(Path(f"{system}.trec"), system, collection, found, measures)


def cells(tests: list[PairedTest]) -> list[tuple[str, str, str, str]]:
    return [(each.run, each.against, each.collection, each.measure) for each in tests]


def test_every_run_is_compared_with_the_baseline_on_their_collections() -> None:
    results = [
        scored("base", [2, 2, 1]),
        scored("new", [1, 2, 1]),
        scored("base", [1, 1], "d"),
        scored("other", [1, 2], "d"),
        scored("new", [1, 2], "e"),
    ]
    tests = compare_all(results, "base", "holm")
    assert cells(tests) == [
        ("new", "base", "c", "RR@10"),
        ("new", "base", "c", "P@1"),
        ("other", "base", "d", "RR@10"),
        ("other", "base", "d", "P@1"),
    ]
    first = tests[0].comparison
    assert (first.wins, first.ties, first.losses) == (1, 2, 0)
    assert first.difference == pytest.approx(1 / 6)
    assert tests[0].score == pytest.approx((1 + 1 / 2 + 1) / 3)


def test_all_pairs_are_compared_once_and_corrected_together() -> None:
    results = [scored(name, ranks) for name, ranks in RANKS.items()]
    tests = compare_all(results, None, "bonferroni")
    pairs = list(dict.fromkeys((each.run, each.against) for each in tests))
    assert pairs == [("b", "a"), ("c", "a"), ("c", "b")]
    assert len(tests) == 6
    for each in tests:
        assert each.t_test == pytest.approx(min(1, 6 * each.comparison.t_test))
        assert each.randomisation == pytest.approx(min(1, 6 * each.comparison.randomisation))
        assert each.significant == (each.t_test < 0.05)
    assert any(each.significant for each in tests)
    assert not all(each.significant for each in tests)


RANKS = {
    "a": [3, 3, 4, 3, 3, 4, 3, 3],
    "b": [3, 3, 4, 3, 3, 4, 3, 2],
    "c": [1, 1, 2, 1, 1, 1, 1, 1],
}


def test_holm_by_hand() -> None:
    # Sorted: .005 x4 = .02, .01 x3 = .03, .03 x2 = .06, .04 x1 = .04 -> .06 (none falls)
    assert correct([0.01, 0.04, 0.03, 0.005], "holm") == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_bonferroni_and_benjamini_hochberg_by_hand() -> None:
    assert correct([0.01, 0.4, 0.03], "bonferroni") == pytest.approx([0.03, 1.0, 0.09])
    # Sorted: .01 x3/1 = .03, .02 x3/2 = .03, .5 x3/3 = .5
    assert correct([0.5, 0.01, 0.02], "bh") == pytest.approx([0.5, 0.03, 0.03])


@settings(deadline=None)
@given(p_values)
def test_corrections_are_ordered(p_values: list[float]) -> None:
    bonferroni, holm, bh = (
        np.array(correct(p_values, name)) for name in ("bonferroni", "holm", "bh")
    )
    assert np.all(np.array(p_values) <= bh + 1e-12)
    assert np.all(bh <= holm + 1e-12)
    assert np.all(holm <= bonferroni + 1e-12)
    assert np.all(bonferroni <= 1)


@settings(deadline=None)
@given(p_values, st.sampled_from(sorted(CORRECTIONS)), st.randoms())
def test_corrections_do_not_depend_on_the_order(
    p_values: list[float], method: str, random: Random
) -> None:
    corrected = correct(p_values, method)
    order = list(range(len(p_values)))
    random.shuffle(order)
    shuffled = correct([p_values[i] for i in order], method)
    assert shuffled == pytest.approx([corrected[i] for i in order])


def test_no_tests_and_an_unknown_correction() -> None:
    assert correct([], "holm") == []
    with pytest.raises(UnknownName, match="did you mean holm"):
        correct([0.1], "holms")
