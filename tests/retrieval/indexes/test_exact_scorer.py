"""Scores in float64, against the definition: sums of maxima of dot products."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lmkcli.retrieval.indexes import exact_scorer
from lmkcli.retrieval.indexes.exact_scorer import ExactScorer
from lmkcli.store.ragged import Ragged
from tests.retrieval.indexes.test_exact import Held, all_scores

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def check(of: Ragged, queries: Ragged, rows: list[NDArray[np.int64]], dtype: torch.dtype) -> None:
    made = ExactScorer(Held(of), dtype=dtype)(queries, rows)
    for number, (mine, found) in enumerate(zip(rows, made, strict=True)):
        expected = all_scores(of, queries.text(number))[mine]
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.0, 1e-8, 1e-4, 1.0]), st.booleans(), st.booleans())
def test_of_any_rows_in_any_order(seed: int, spread: float, low: bool, dense: bool) -> None:
    """Vectors that are the same, or differ by a rounding of float32 or bfloat16, or by much."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 30, 25)
    vectors = random.standard_normal(16) + spread * random.standard_normal((sizes.sum(), 16))
    asked = random.integers(1, 6, 7)
    queries = random.standard_normal((asked.sum(), 16)).astype(np.float32)
    few = [random.permutation(25)[: 25 if dense else n] for n in range(7)]
    dtype = torch.bfloat16 if low else torch.float32
    of = Ragged.of(vectors.astype(np.float32), sizes)
    check(of, Ragged.of(queries, asked), few, dtype)
    check(Ragged.single(of.vectors[:25]), Ragged.of(queries, asked), few, dtype)


@DTYPES
@pytest.mark.parametrize("pairs", [1, 7])
@pytest.mark.parametrize("shared", [0.0, 2.0])
def test_tiles_and_batches_change_nothing(
    monkeypatch: pytest.MonkeyPatch, shared: float, pairs: int, dtype: torch.dtype
) -> None:
    sizes = {"QUERY_TILE": 2, "BLOCK_ROWS": 8, "PAIRS": pairs, "AGAIN": 3, "SHARED": shared}
    for name, value in {**sizes, "LOW_FROM": 1}.items():
        monkeypatch.setattr(exact_scorer, name, value)
    random = np.random.default_rng(2)
    vectors = random.standard_normal((90, 6)).astype(np.float32)
    queries = random.standard_normal((9, 6)).astype(np.float32)
    of = Ragged.of(vectors, np.array([40, 1, 1, 8, 30, 10]))
    rows = [np.array([5, 0]), np.array([], np.int64), np.array([1, 2, 4]), np.arange(6)]
    check(of, Ragged.of(queries, np.array([1, 2, 5, 1])), rows, dtype)
    check(Ragged.single(vectors), Ragged.of(queries, np.array([1, 2, 5, 1])), rows, dtype)


def test_float64_is_spent_on_what_may_be_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[int] = []
    dots: Callable[..., torch.Tensor] = exact_scorer._dots
    monkeypatch.setattr(exact_scorer, "_dots", lambda *x: counted.append(len(x[2])) or dots(*x))
    random = np.random.default_rng(3)
    of = Ragged.of(random.standard_normal((9000, 64)).astype(np.float32), np.full(9, 1000))
    queries = Ragged.of(random.standard_normal((40, 64)).astype(np.float32), np.full(4, 10))
    for dtype, most in ((torch.float32, 1.01), (torch.bfloat16, 2.0)):
        counted.clear()
        ExactScorer(Held(of), dtype=dtype)(queries, [np.arange(9)] * 4)
        assert 360 <= sum(counted) <= most * 360
