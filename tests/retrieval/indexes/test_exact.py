"""Exact search against float64 arithmetic: the k best and every tie with the last of them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lmkcli.retrieval.indexes import exact, exact_scorer, products, topk
from lmkcli.retrieval.indexes.exact import Exact
from lmkcli.retrieval.indexes.exact_scorer import ExactScorer, top
from lmkcli.retrieval.kinds import Hits
from lmkcli.store.ragged import Ragged

Floats = NDArray[np.float32]
CPU = torch.device("cpu")
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


class Held:
    """Ragged vectors in memory, handed out in uneven blocks of whole rows."""

    def __init__(self, of: Ragged, block: int = 7) -> None:
        self.of, self.block = of, block
        self.rows, self.total, self.dim = len(of.counts), *of.vectors.shape
        self.single = bool((of.counts == 1).all())

    def __iter__(self) -> Iterator[Ragged]:
        for start in range(0, self.rows, self.block):
            yield self.at(np.arange(start, min(start + self.block, self.rows)))

    def at(self, rows: NDArray[np.int64]) -> Ragged:
        return self.of.take(rows)


@pytest.fixture(autouse=True)
def low_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "LOW_FROM", 1)
    monkeypatch.setattr(exact_scorer, "LOW_FROM", 1)


def all_scores(of: Ragged, query: Floats) -> NDArray[np.float64]:
    """The definition, in float64: the score of every row."""
    products = of.vectors.astype(np.float64) @ query.astype(np.float64).T
    return np.maximum.reduceat(products, of.starts[:-1]).sum(axis=1)


def check(of: Ragged, queries: Ragged, k: int, dtype: torch.dtype = torch.float32) -> Hits:
    """Each query gets the rows whose score, as a run holds it, is not below the k-th best."""
    hits = Exact(Held(of), CPU, dtype).search(queries, k)
    for number, (rows, scores) in enumerate(zip(*hits, strict=True)):
        wanted = all_scores(of, queries.text(number))
        single = wanted.astype(np.float32)
        expected = np.flatnonzero(single >= np.sort(single)[-min(k, len(single))])
        assert np.sort(rows).tolist() == expected.tolist()
        np.testing.assert_allclose(scores, wanted[rows], rtol=1e-12, atol=1e-14)
    return hits


SMALL = st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0])


@st.composite
def tied(draw: st.DrawFn) -> tuple[Ragged, Ragged]:
    """Few values and few distinct vectors: hundreds of exact ties, whole duplicates, zeros."""
    dim = draw(st.integers(1, 4))
    pool = draw(st.lists(st.lists(SMALL, min_size=dim, max_size=dim), min_size=1, max_size=9))
    picks = draw(st.lists(st.integers(0, len(pool) - 1), min_size=1, max_size=300))
    asked = draw(st.lists(st.lists(SMALL, min_size=dim, max_size=dim), min_size=1, max_size=3))
    vectors, queries = np.array(pool, np.float32)[picks], np.array(asked, np.float32)
    if draw(st.booleans()):
        return Ragged.single(vectors), Ragged.single(queries)
    return Ragged.of(vectors, counts(draw, len(vectors))), Ragged.of(queries, counts(draw, 3))


def counts(draw: st.DrawFn, total: int) -> NDArray[np.int64]:
    """Positive numbers, of the sum `total` or what there is of it."""
    ends = draw(st.sets(st.integers(1, total - 1), max_size=40)) if total > 1 else set()
    return np.diff([0, *sorted(ends), total]).astype(np.int64)


@settings(max_examples=80, deadline=None)
@given(tied(), st.integers(1, 400), st.booleans())
def test_ties_are_all_there(case: tuple[Ragged, Ragged], k: int, low: bool) -> None:
    of, queries = case
    queries = queries if len(queries.vectors) == queries.starts[-1] else Ragged.single(queries[0])
    check(of, queries, k, torch.bfloat16 if low else torch.float32)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**31),
    st.integers(1, 64),
    st.integers(1, 40),
    st.sampled_from([0, 1e-8, 1e-7, 1e-6, 1e-3, 1]),
    st.booleans(),
)
def test_near_ties_are_decided_in_float64(
    seed: int, dim: int, k: int, spread: float, low: bool
) -> None:
    """Rows that differ by about one rounding of float32 from each other, or of bfloat16."""
    random = np.random.default_rng(seed)
    base = random.standard_normal(dim)
    vectors = (base + spread * random.standard_normal((200, dim))).astype(np.float32)
    asked = random.standard_normal((2, dim)).astype(np.float32)
    dtype = torch.bfloat16 if low else torch.float32
    check(Ragged.single(vectors), Ragged.single(asked), k, dtype)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 60), st.integers(1, 5), st.booleans())
def test_late_interaction_is_its_definition(seed: int, k: int, most: int, low: bool) -> None:
    """1 to 500 vectors a document, 1 to 5 a query, near each other; all scores negative at times."""
    random = np.random.default_rng(seed)
    sizes = np.ceil(500 ** random.random(40)).astype(np.int64)
    vectors = random.standard_normal(6) + random.standard_normal((sizes.sum(), 6)) * 0.2
    asked = random.integers(1, most + 1, 4)
    queries = random.standard_normal((asked.sum(), 6))
    of = Ragged.of(vectors.astype(np.float32), sizes)
    dtype = torch.bfloat16 if low else torch.float32
    check(of, Ragged.of(queries.astype(np.float32), asked), k, dtype)


@DTYPES
@pytest.mark.parametrize(("block", "tile"), [(3, 2), (64, 1024), (16384, 2)])
@pytest.mark.parametrize("single", [True, False])
def test_blocks_tiles_and_room_change_nothing(
    monkeypatch: pytest.MonkeyPatch, block: int, tile: int, single: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(products, "BLOCK_ROWS", block)
    monkeypatch.setattr(exact_scorer, "BLOCK_ROWS", block)
    monkeypatch.setattr(products, "QUERY_TILE", tile)
    monkeypatch.setattr(exact_scorer, "QUERY_TILE", tile)
    monkeypatch.setattr(topk, "SPARE", block)
    random = np.random.default_rng(block + tile)
    vectors = random.integers(-3, 4, (300, 6)).astype(np.float32)
    queries = random.standard_normal((5, 6)).astype(np.float32)
    of, asked = Ragged.single(vectors), Ragged.single(queries)
    if not single:
        of = Ragged.of(vectors, np.diff(np.arange(0, 301, 3)))
        asked = Ragged.of(queries, np.array([3, 1, 1]))
    for k in (1, 10, 97, 100, 267, 300, 5000):
        check(of, asked, k, dtype)


@DTYPES
@pytest.mark.parametrize("single", [True, False])
def test_a_sample_changes_nothing_even_where_it_misleads(
    monkeypatch: pytest.MonkeyPatch, single: bool, dtype: torch.dtype
) -> None:
    """Every fiftieth row is far better than the others, and just those are the sample."""
    monkeypatch.setattr(exact, "SAMPLE", 20)
    monkeypatch.setattr(products, "BLOCK_ROWS", 16)
    random = np.random.default_rng(4)
    for lucky in (False, True):
        vectors = random.standard_normal((1000, 8)).astype(np.float32)
        if lucky:
            vectors[np.linspace(0, 999, 20).astype(int)] += 5
        queries = np.abs(random.standard_normal((6, 8))).astype(np.float32)
        size = 1 if single else 2
        of = Ragged.of(vectors, np.full(1000 // size, size))
        asked = Ragged.of(queries, np.full(6 // size, size))
        for k in (1, 5, 60):
            check(of, asked, k, dtype)


@DTYPES
def test_scores_far_from_one(dtype: torch.dtype) -> None:
    random = np.random.default_rng(1)
    vectors = random.standard_normal((500, 8)).astype(np.float32)
    vectors[::7] *= 1e4
    vectors[::11] *= 1e-6
    vectors[::50] = 0
    queries = random.standard_normal((4, 8)).astype(np.float32)
    check(Ragged.single(vectors), Ragged.single(queries), 20, dtype)
    below = Ragged.single(-np.abs(vectors[::2]) / 1e4)  # all scores negative or zero
    check(below, Ragged.single(np.abs(vectors[1:5])), 20, dtype)


def test_rows_in_rising_order_are_found_late() -> None:
    """Each block is better than all before it."""
    vectors = Ragged.single(np.linspace(0, 1, 1000, dtype=np.float32)[:, None])
    hits = check(vectors, Ragged.single(np.ones((1, 1), np.float32)), 3)
    assert hits.rows[0].max() == 999


def test_a_query_that_ties_with_everything_takes_no_room_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(products, "BLOCK_ROWS", 64)
    monkeypatch.setattr(topk, "SPARE", 128)
    random = np.random.default_rng(6)
    vectors = random.standard_normal((2000, 4)).astype(np.float32)
    queries = random.standard_normal((9, 4)).astype(np.float32)
    queries[[2, 5]] = 0
    widths = []
    widened = topk._widened
    monkeypatch.setattr(topk, "_widened", lambda *x: widths.append(len(x[0])) or widened(*x))
    hits = check(Ragged.single(vectors), Ragged.single(queries), 10)
    assert len(hits.rows[2]) == len(hits.rows[5]) == 2000
    assert set(widths) == {1}


def test_few_rows_are_scored_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What float64 costs stays near k, though products are rounded to bfloat16."""
    counted: list[int] = []
    again = ExactScorer.__call__
    monkeypatch.setattr(
        ExactScorer,
        "__call__",
        lambda s, q, rows: counted.extend(map(len, rows)) or again(s, q, rows),
    )
    random = np.random.default_rng(3)
    vectors = random.standard_normal((20_000, 64)).astype(np.float32)
    queries = Ragged.single(random.standard_normal((5, 64)).astype(np.float32))
    for dtype, most in ((torch.float32, 101), (torch.bfloat16, 150)):
        counted.clear()
        Exact(Held(Ragged.single(vectors), 5000), CPU, dtype).search(queries, 100)
        assert 100 <= min(counted) <= max(counted) <= most


def test_no_queries_and_no_rows() -> None:
    none = Ragged.single(np.zeros((0, 4), np.float32))
    some = Ragged.single(np.ones((3, 4), np.float32))
    assert Exact(Held(some), CPU).search(none, 5) == ([], [])
    assert [len(rows) for rows in Exact(Held(none), CPU).search(some, 5).rows] == [0, 0, 0]


def unit(vectors: Floats) -> Floats:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def test_maxsim_is_the_official_one_under_its_zero_padding(parity: Callable[[str], Path]) -> None:
    """There, documents are padded with zero vectors, so that no maximum is below zero; here never."""
    given = np.load(parity("insent/insent.npz"))
    docs, queries = (unit(given[name]) for name in ("chunk_tokens", "qt"))
    padded = Held(Ragged.of(docs.reshape(-1, 8), np.full(12, 10)))
    asked = Ragged.of(queries.reshape(-1, 8), np.full(6, 5))
    made = np.stack(ExactScorer(padded)(asked, [np.arange(12)] * 6))
    np.testing.assert_allclose(made, given["maxsim"], atol=1e-6)
    hits = Exact(padded, CPU).search(asked, 12)
    for rows, scores, official in zip(*hits, given["maxsim"], strict=True):
        np.testing.assert_allclose(scores, official[rows], atol=1e-6)


def test_top_keeps_ties_of_float32_and_no_more() -> None:
    rows = np.arange(4)
    scores = np.array([1.0, 0.5, 0.5 + 1e-12, 0.4])
    kept, values = top(rows, scores, 2)
    assert kept.tolist() == [0, 1, 2]
    assert values.tolist() == scores[:3].tolist()
    assert top(rows, scores, 4)[0].tolist() == [0, 1, 2, 3]
