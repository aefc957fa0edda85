"""Exact scores compared with their definition: sums of maxima of dot products."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lmkcli.retrieval.engines.exact import exact_search
from lmkcli.retrieval.engines.exact.exact_search import ExactScorer
from lmkcli.retrieval.engines.exact.topk import SIZES, Sizes
from lmkcli.vectors.rows import Ragged
from tests import levels
from tests.retrieval.engines.exact.test_exact_search import LOW, BlockMatrix, all_scores


def check(
    docs: Ragged,
    queries: Ragged,
    rows: list[NDArray[np.int64]],
    dtype: torch.dtype,
    sizes: Sizes = SIZES,
) -> None:
    scores = ExactScorer(BlockMatrix(docs), dtype=dtype, sizes=sizes)(queries, rows)
    for number, (own, found) in enumerate(zip(rows, scores, strict=True)):
        expected = all_scores(docs, queries.text(number))[own]
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.0, 1e-8, 1e-4, 1.0]), st.booleans(), st.booleans())
def test_any_rows_in_any_order(seed: int, spread: float, low: bool, dense: bool) -> None:
    """Vectors that are equal, or differ by a rounding of float32 or bfloat16, or more."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 30, 25)
    vectors = random.standard_normal(16) + spread * random.standard_normal((sizes.sum(), 16))
    counts = random.integers(1, 6, 7)
    queries = random.standard_normal((counts.sum(), 16)).astype(np.float32)
    few = [random.permutation(25)[: 25 if dense else n] for n in range(7)]
    dtype = torch.bfloat16 if low else torch.float32
    docs = Ragged.of(vectors.astype(np.float32), sizes)
    for each in (docs, Ragged.single(docs.vectors[:25])):
        check(each, Ragged.of(queries, counts), few, dtype, LOW)


@pytest.mark.parametrize(
    ("shared", "pairs", "dtype"),
    levels.pairs(shared=[0.0, 2.0], pairs=[1, 7], dtype=[torch.float32, torch.bfloat16]),
)
def test_tiles_and_batches_change_nothing(shared: float, pairs: int, dtype: torch.dtype) -> None:
    sizes = Sizes(tile=2, block=8, exact_pairs=pairs, exact_rows=3, shared=shared, low_from=1)
    random = np.random.default_rng(2)
    vectors = random.standard_normal((90, 6)).astype(np.float32)
    queries = random.standard_normal((9, 6)).astype(np.float32)
    docs = Ragged.of(vectors, np.array([40, 1, 1, 8, 30, 10]))
    rows = [np.array([5, 0]), np.array([], np.int64), np.array([1, 2, 4]), np.arange(6)]
    check(docs, Ragged.of(queries, np.array([1, 2, 5, 1])), rows, dtype, sizes)
    check(Ragged.single(vectors), Ragged.of(queries, np.array([1, 2, 5, 1])), rows, dtype, sizes)


def test_few_pairs_are_scored_in_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[int] = []
    dots: Callable[..., torch.Tensor] = exact_search._dots
    monkeypatch.setattr(exact_search, "_dots", lambda *x: counted.append(len(x[2])) or dots(*x))
    random = np.random.default_rng(3)
    docs = Ragged.of(random.standard_normal((9000, 64)).astype(np.float32), np.full(9, 1000))
    queries = Ragged.of(random.standard_normal((40, 64)).astype(np.float32), np.full(4, 10))
    for dtype, most in ((torch.float32, 1.01), (torch.bfloat16, 2.0)):
        counted.clear()
        ExactScorer(BlockMatrix(docs), dtype=dtype)(queries, [np.arange(9)] * 4)
        assert 360 <= sum(counted) <= most * 360
