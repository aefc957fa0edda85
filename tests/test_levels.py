"""Levels: what a seed draws is the same in every process, and what is left out is nightly."""

from itertools import combinations, product
from typing import Any

import pytest

from tests import levels

pytest_plugins = ["pytester"]

AXES = {"a": [1, 2, 3], "b": ["x", "y"], "c": [True, False], "d": [None, 0, 1]}


def kept(cases: list[Any]) -> list[Any]:
    return [
        case
        for case in cases
        if not isinstance(case, levels.Parameters)
        or "nightly" not in {mark.name for mark in case.marks}
    ]


def test_a_sample_is_drawn_by_name_and_nothing_is_lost() -> None:
    cases = [*range(20), pytest.param(20, marks=pytest.mark.slow, id="last")]
    drawn = levels.sample("one", cases, 5)
    assert len(drawn) == 21
    assert len(kept(drawn)) == 5
    assert kept(drawn) == kept(levels.sample("one", cases, 5)) != kept(levels.sample("x", cases, 5))
    every = [case.values[0] if isinstance(case, levels.Parameters) else case for case in drawn]
    assert every == list(range(21))
    last = levels.sample("one", cases[-1:], 0)[0]
    assert ({mark.name for mark in last.marks}, last.id) == ({"slow", "nightly"}, "last")


def test_pairs_cover_each_two_values_with_few_combinations() -> None:
    cases = levels.pairs(**AXES)
    assert len(cases) == 36
    few = kept(cases)
    assert len(few) <= 14
    for (m, one), (n, other) in combinations(enumerate(AXES.values()), 2):
        assert {(case[m], case[n]) for case in few} >= set(product(one, other))


SUITE = """
import pytest
from tests import levels

@pytest.mark.slow
@pytest.mark.parametrize("n", levels.sample("sweep", range(40), 3))
def test_sweep(n):
    pass

@pytest.mark.nightly
def test_whole():
    pass

def test_plain():
    pass
"""


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ([], 1),
        (["-m", "slow"], 3),
        (["-m", "nightly"], 38),
        (["-m", "nightly", "--sample", "10"], 5),
        (["-m", "", "--sample", "10"], 9),
        (["-m", "", "--sample", "200"], 42),
        (["-m", ""], 42),
    ],
)
def test_what_a_level_runs(
    pytester: pytest.Pytester, request: pytest.FixtureRequest, words: list[str], count: int
) -> None:
    config = request.config.rootpath / "pyproject.toml"
    pytester.makepyfile(SUITE)
    pytester.makeconftest("from tests.conftest import *")
    done = pytester.inline_run("-c", str(config), "-n", "0", "--rootdir", pytester.path, *words)
    assert [len(outcomes) for outcomes in done.listoutcomes()] == [count, 0, 0]


def test_the_seed_is_printed(pytester: pytest.Pytester, request: pytest.FixtureRequest) -> None:
    pytester.makepyfile("def test_one(): pass")
    pytester.makeconftest("from tests.conftest import *")
    config = request.config.rootpath / "pyproject.toml"
    done = pytester.runpytest("-c", str(config), "-n", "0")
    done.stdout.fnmatch_lines([f"LMK_TEST_SEED={levels.SEED}"])
