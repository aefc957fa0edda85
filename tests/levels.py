"""Levels of the test suite, and cases that a seed draws.

A sweep has more cases than a maintainer waits for. `sample` and `pairs` leave a few of them in the
level of the test, and mark the others `nightly`. `rng` draws moments, damages and the like. All of
them use one seed, LMK_TEST_SEED; every run without -q prints it.
"""

import itertools
import os
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

VARIABLE = "LMK_TEST_SEED"
# Set in the environment, so that workers and child processes draw the same cases.
SEED = int(os.environ.setdefault(VARIABLE, "0"))

Parameters = type(pytest.param())


def rng(name: str) -> random.Random:
    """A generator that depends on the seed of the run and on a name alone."""
    return random.Random(f"{SEED} {name}")


def sample(name: str, cases: Iterable[Any], count: int) -> list[Any]:
    """Cases for `parametrize`: `count` drawn ones stay in the level of the test, the rest is nightly.

    Each sweep has a name, so that two sweeps over the same cases draw different ones. A case for
    several arguments is a tuple or a `pytest.param`.
    """
    every = list(cases)
    drawn = set(rng(name).sample(range(len(every)), min(count, len(every))))
    return [case if n in drawn else _nightly(case) for n, case in enumerate(every)]


def pairs(**axes: Sequence[Any]) -> list[Any]:
    """All combinations of the values of two or more axes, for `parametrize(tuple(axes), pairs(**axes))`.

    A few combinations stay in the level of the test. Together they contain each pair of values of any two
    axes, since most faults depend on one or two settings. The rest is nightly.
    """
    every = [tuple(case) for case in itertools.product(*axes.values())]
    kept = _covering(every, rng(" ".join(axes)))
    return [case if case in kept else _nightly(case) for case in every]


def _covering(every: list[tuple[Any, ...]], draw: random.Random) -> list[tuple[Any, ...]]:
    """Greedy: of a drawn order, always the combination with the most pairs that are not yet covered."""

    def pairs_of(case: tuple[Any, ...]) -> set[Any]:
        # Values may be unhashable or equal across types, so their place and repr identify them.
        return set(itertools.combinations([(n, repr(value)) for n, value in enumerate(case)], 2))

    candidates = [(case, pairs_of(case)) for case in draw.sample(every, len(every))]
    missing = set().union(*(found for _, found in candidates))
    kept = []
    while missing:
        case, found = max(candidates, key=lambda each: len(each[1] & missing))
        kept.append(case)
        missing -= found
    return kept


def _nightly(case: Any) -> Any:
    mark = pytest.mark.nightly
    if isinstance(case, Parameters):
        return pytest.param(*case.values, marks=(*case.marks, mark), id=case.id)
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)


def left_out(items: list[pytest.Item], percent: float) -> set[pytest.Item]:
    """The nightly tests that a share of them lacks. Of each function, at least one test stays."""
    sweeps: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("nightly"):
            sweeps.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {name: max(1, round(percent * len(cases) / 100)) for name, cases in sweeps.items()}
    return {
        item
        for name, cases in sweeps.items()
        for item in rng(name).sample(cases, max(0, len(cases) - kept[name]))
    }
