"""Exact search against float64 arithmetic: the k best and every tie with the last of them."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lmkcli.indexes import exact
from lmkcli.indexes.exact import Exact, Hits, rescore, top

Floats = NDArray[np.float32]


class Held:
    """A matrix in memory, handed out in uneven blocks."""

    def __init__(self, vectors: Floats, block: int = 7) -> None:
        self.vectors, self.block = vectors, block
        self.rows, self.dim = vectors.shape

    def __iter__(self) -> Iterator[Floats]:
        for start in range(0, self.rows, self.block):
            yield self.vectors[start : start + self.block]

    def at(self, rows: NDArray[np.int64]) -> Floats:
        return self.vectors[rows]


def oracle(vectors: Floats, query: Floats, k: int) -> set[int]:
    """Rows whose score, as a run holds it, is not below the k-th best."""
    scores = (vectors.astype(np.float64) @ query.astype(np.float64)).astype(np.float32)
    bar = np.sort(scores)[-min(k, len(scores))]
    return set(np.flatnonzero(scores >= bar).tolist())


def check(vectors: Floats, queries: Floats, k: int) -> Hits:
    hits = Exact(Held(vectors), torch.device("cpu")).search(queries, k)
    for query, rows, scores in zip(queries, hits.rows, hits.scores, strict=True):
        assert len(set(rows.tolist())) == len(rows)
        assert set(rows.tolist()) == oracle(vectors, query, k)
        np.testing.assert_allclose(
            scores, rescore(Held(vectors), query, rows), rtol=1e-12, atol=1e-14
        )
    return hits


SMALL = st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0])


@st.composite
def tied(draw: st.DrawFn) -> tuple[Floats, Floats]:
    """Few values and few distinct vectors: hundreds of exact ties, whole duplicates, zeros."""
    dim = draw(st.integers(1, 4))
    pool = draw(st.lists(st.lists(SMALL, min_size=dim, max_size=dim), min_size=1, max_size=9))
    picks = draw(st.lists(st.integers(0, len(pool) - 1), min_size=1, max_size=300))
    asked = draw(st.lists(st.lists(SMALL, min_size=dim, max_size=dim), min_size=1, max_size=3))
    return np.array(pool, np.float32)[picks], np.array(asked, np.float32)


@settings(max_examples=60, deadline=None)
@given(tied(), st.integers(1, 400))
def test_ties_are_all_there(case: tuple[Floats, Floats], k: int) -> None:
    check(*case, k)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**31),
    st.integers(1, 64),
    st.integers(1, 40),
    st.sampled_from([0, 1e-8, 1e-7, 1e-6, 1]),
)
def test_near_ties_are_decided_in_float64(seed: int, dim: int, k: int, spread: float) -> None:
    """Rows that differ by about one rounding of float32 from each other."""
    random = np.random.default_rng(seed)
    base = random.standard_normal(dim)
    vectors = (base + spread * random.standard_normal((200, dim))).astype(np.float32)
    check(vectors, random.standard_normal((2, dim)).astype(np.float32), k)


@pytest.mark.parametrize("block", [3, 64, 16384])
@pytest.mark.parametrize("tile", [2, 1024])
def test_blocks_and_tiles_change_nothing(
    monkeypatch: pytest.MonkeyPatch, block: int, tile: int
) -> None:
    monkeypatch.setattr(exact, "BLOCK_ROWS", block)
    monkeypatch.setattr(exact, "QUERY_TILE", tile)
    random = np.random.default_rng(block + tile)
    vectors = random.integers(-3, 4, (900, 6)).astype(np.float32)
    queries = random.standard_normal((5, 6)).astype(np.float32)
    for k in (1, 10, 867, 868, 899, 900, 5000):
        check(vectors, queries, k)


def test_scores_far_from_one() -> None:
    random = np.random.default_rng(1)
    vectors = random.standard_normal((500, 8)).astype(np.float32)
    vectors[::7] *= 1e4
    vectors[::11] *= 1e-6
    vectors[::50] = 0
    check(vectors, random.standard_normal((4, 8)).astype(np.float32), 20)
    check(-np.abs(vectors[::2]) / 1e4, np.abs(vectors[1:5]), 20)  # all scores negative or zero


def test_rows_in_rising_order_are_found_late() -> None:
    """Each block is better than all before it."""
    vectors = np.linspace(0, 1, 1000, dtype=np.float32)[:, None]
    assert check(vectors, np.ones((1, 1), np.float32), 3).rows[0].max() == 999


def test_top_keeps_ties_of_float32_and_no_more() -> None:
    rows = np.arange(4)
    scores = np.array([1.0, 0.5, 0.5 + 1e-12, 0.4])
    kept, values = top(rows, scores, 2)
    assert kept.tolist() == [0, 1, 2]
    assert values.tolist() == scores[:3].tolist()
    assert top(rows, scores, 4)[0].tolist() == [0, 1, 2, 3]
