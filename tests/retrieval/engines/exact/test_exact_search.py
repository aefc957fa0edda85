"""Exact search compared with float64: the k best rows and all ties with the last of them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lmkcli.core import CODECS
from lmkcli.retrieval.engines.exact import gpu_search, topk
from lmkcli.retrieval.engines.exact.exact_search import Exact, ExactScorer, top
from lmkcli.retrieval.engines.exact.gpu_search import GpuExact, GpuSizes
from lmkcli.retrieval.engines.exact.topk import Sizes
from lmkcli.retrieval.vectors.vector_search import RowHits
from lmkcli.vectors.codec import open_codec
from lmkcli.vectors.rows import Ragged
from tests import levels

Floats = NDArray[np.float32]
CPU = torch.device("cpu")
LOW = Sizes(low_from=1)  # low precision for any number of queries
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


class BlockMatrix:
    """Ragged vectors in memory, in blocks of a few whole rows."""

    def __init__(self, docs: Ragged, block: int = 7) -> None:
        self.docs, self.block = docs, block
        self.rows, self.total, self.dim = len(docs.counts), *docs.vectors.shape
        self.single = bool((docs.counts == 1).all())

    def __iter__(self) -> Iterator[Ragged]:
        for start in range(0, self.rows, self.block):
            yield self.at(np.arange(start, min(start + self.block, self.rows)))

    def at(self, rows: NDArray[np.int64]) -> Ragged:
        return self.docs.take(rows)


def all_scores(docs: Ragged, query: Floats) -> NDArray[np.float64]:
    """The definition, in float64: the score of every row."""
    products = docs.vectors.astype(np.float64) @ query.astype(np.float64).T
    return np.maximum.reduceat(products, docs.starts[:-1]).sum(axis=1)


def check(
    docs: Ragged,
    queries: Ragged,
    k: int,
    dtype: torch.dtype = torch.float32,
    sizes: Sizes = LOW,
) -> RowHits:
    """Check that each query gets the rows with a float32 score of at least the k-th best.

    So do the searches of a GPU, with vectors that stay on the device and with those that do not.
    """
    matrix = BlockMatrix(docs)
    exact = Exact(matrix, CPU, dtype, sizes)
    on_gpu = [
        GpuExact(matrix, CPU, GpuSizes(tile=3, block=11, scored=1000, resident=resident))
        for resident in (0, 1 << 20)
    ]
    for search in (*on_gpu, exact):
        hits, again = (search.search(queries, k) for _ in range(2))  # the second one has the norms
        for rows, others in zip(hits.rows, again.rows, strict=True):
            assert np.sort(rows).tolist() == np.sort(others).tolist()
        for number, (rows, scores) in enumerate(zip(*hits, strict=True)):
            wanted = all_scores(docs, queries.text(number))
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
    encoded = draw(st.lists(st.lists(SMALL, min_size=dim, max_size=dim), min_size=1, max_size=3))
    vectors, queries = np.array(pool, np.float32)[picks], np.array(encoded, np.float32)
    if draw(st.booleans()):
        return Ragged.single(vectors), Ragged.single(queries)
    return Ragged.of(vectors, counts(draw, len(vectors))), Ragged.of(queries, counts(draw, 3))


def counts(draw: st.DrawFn, total: int) -> NDArray[np.int64]:
    """Positive numbers with the sum `total`."""
    ends = draw(st.sets(st.integers(1, total - 1), max_size=40)) if total > 1 else set()
    return np.diff([0, *sorted(ends), total]).astype(np.int64)


@settings(max_examples=80, deadline=None)
@given(tied(), st.integers(1, 400), st.booleans())
def test_all_ties_are_found(case: tuple[Ragged, Ragged], k: int, low: bool) -> None:
    docs, queries = case
    queries = queries if len(queries.vectors) == queries.starts[-1] else Ragged.single(queries[0])
    check(docs, queries, k, torch.bfloat16 if low else torch.float32)


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
    encoded = random.standard_normal((2, dim)).astype(np.float32)
    dtype = torch.bfloat16 if low else torch.float32
    check(Ragged.single(vectors), Ragged.single(encoded), k, dtype)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 60), st.integers(1, 5), st.booleans())
def test_late_interaction_is_its_definition(seed: int, k: int, most: int, low: bool) -> None:
    """1 to 500 similar vectors per document, 1 to 5 per query; all scores may be negative."""
    random = np.random.default_rng(seed)
    sizes = np.ceil(500 ** random.random(40)).astype(np.int64)
    vectors = random.standard_normal(6) + random.standard_normal((sizes.sum(), 6)) * 0.2
    encoded = random.integers(1, most + 1, 4)
    queries = random.standard_normal((encoded.sum(), 6))
    docs = Ragged.of(vectors.astype(np.float32), sizes)
    dtype = torch.bfloat16 if low else torch.float32
    check(docs, Ragged.of(queries.astype(np.float32), encoded), k, dtype)


@pytest.mark.parametrize(
    ("block", "tile", "single", "dtype"),
    levels.pairs(
        block=[3, 64, 16384],
        tile=[2, 1024],
        single=[True, False],
        dtype=[torch.float32, torch.bfloat16],
    ),
)
def test_sizes_of_blocks_tiles_and_buffers_change_nothing(
    block: int, tile: int, single: bool, dtype: torch.dtype
) -> None:
    random = np.random.default_rng(block + tile)
    vectors = random.integers(-3, 4, (300, 6)).astype(np.float32)
    queries = random.standard_normal((5, 6)).astype(np.float32)
    docs, encoded = Ragged.single(vectors), Ragged.single(queries)
    if not single:
        docs = Ragged.of(vectors, np.diff(np.arange(0, 301, 3)))
        encoded = Ragged.of(queries, np.array([3, 1, 1]))
    sizes = Sizes(tile=tile, block=block, spare=block, low_from=1)
    for k in (1, 10, 97, 100, 267, 300, 5000):
        check(docs, encoded, k, dtype, sizes)


@DTYPES
@pytest.mark.parametrize("single", [True, False])
def test_a_misleading_sample_does_not_change_results(single: bool, dtype: torch.dtype) -> None:
    """The sample is every fiftieth row, and only these rows have high scores."""
    sizes = Sizes(sample=20, block=16, low_from=1)
    random = np.random.default_rng(4)
    for lucky in (False, True):
        vectors = random.standard_normal((1000, 8)).astype(np.float32)
        if lucky:
            vectors[np.linspace(0, 999, 20).astype(int)] += 5
        queries = np.abs(random.standard_normal((6, 8))).astype(np.float32)
        size = 1 if single else 2
        docs = Ragged.of(vectors, np.full(1000 // size, size))
        encoded = Ragged.of(queries, np.full(6 // size, size))
        for k in (1, 5, 60):
            check(docs, encoded, k, dtype, sizes)


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


@pytest.mark.parametrize("size", [1, 2])
def test_the_best_row_may_lose_its_lead_when_it_is_rounded(size: int) -> None:
    """bfloat16 rounds the best row to the score 0, below all others, which it represents exactly."""
    best, other = [1 + 0.9 * 2**-8, 1], [0.25 + 2**-9, 0.25]
    vectors = np.array([other] * 1000 + [best] * size + [other] * 1000, np.float32)
    docs = Ragged.of(vectors, np.array([1] * 1000 + [size] + [1] * 1000))
    hits = check(docs, Ragged.single(np.array([[1, -1]], np.float32)), 1, torch.bfloat16)
    assert hits.rows[0].tolist() == [1000]


def test_rows_in_rising_order_are_found_late() -> None:
    """Each block is better than all before it."""
    vectors = Ragged.single(np.linspace(0, 1, 1000, dtype=np.float32)[:, None])
    hits = check(vectors, Ragged.single(np.ones((1, 1), np.float32)), 3)
    assert hits.rows[0].max() == 999


def test_the_shared_buffer_does_not_grow_for_a_query_that_ties_with_all_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(6)
    vectors = random.standard_normal((2000, 4)).astype(np.float32)
    queries = random.standard_normal((9, 4)).astype(np.float32)
    queries[[2, 5]] = 0
    widths = []
    widened = topk._widened
    monkeypatch.setattr(topk, "_widened", lambda *x: widths.append(len(x[0])) or widened(*x))
    sizes = Sizes(block=64, spare=128)
    hits = check(Ragged.single(vectors), Ragged.single(queries), 10, sizes=sizes)
    assert len(hits.rows[2]) == len(hits.rows[5]) == 2000
    assert set(widths) == {1}


@pytest.mark.parametrize("scale", [np.float32(1), np.float32(1e-4), np.float32(1e4)])
def test_few_rows_are_scored_again(monkeypatch: pytest.MonkeyPatch, scale: np.float32) -> None:
    """About k rows are scored in float64, for any lengths of vectors, also after rounding to bfloat16."""
    counted: list[int] = []
    score = ExactScorer.__call__
    monkeypatch.setattr(
        ExactScorer,
        "__call__",
        lambda s, q, rows: counted.extend(map(len, rows)) or score(s, q, rows),
    )
    random = np.random.default_rng(3)
    vectors = scale * random.standard_normal((20_000, 64)).astype(np.float32)
    queries = Ragged.single(scale * random.standard_normal((5, 64)).astype(np.float32))
    for dtype, most in ((torch.float32, 101), (torch.bfloat16, 150)):
        counted.clear()
        Exact(BlockMatrix(Ragged.single(vectors), 5000), CPU, dtype, LOW).search(queries, 100)
        assert 100 <= min(counted) <= max(counted) <= most


@pytest.mark.parametrize("resident", [0, 1 << 30])
@pytest.mark.parametrize("scale", [np.float32(1), np.float32(1e-4), np.float32(1e4)])
@pytest.mark.parametrize("vectors_each", [1, 3])
def test_a_gpu_needs_no_other_search(
    monkeypatch: pytest.MonkeyPatch, vectors_each: int, scale: np.float32, resident: int
) -> None:
    """The proof succeeds for ordinary vectors of any length, at the first attempt."""

    def refused(*_: object) -> None:
        raise AssertionError("searched again")

    monkeypatch.setattr(gpu_search, "Exact", refused)
    monkeypatch.setattr(GpuSizes, "spare", lambda _, k: (128 + k // 8,))
    random = np.random.default_rng(3)
    vectors = scale * random.standard_normal((30_000, 64)).astype(np.float32)
    docs = Ragged.of(vectors, np.full(30_000 // vectors_each, vectors_each))
    encoded = scale * random.standard_normal((15, 64)).astype(np.float32)
    for queries in (Ragged.single(encoded), Ragged.of(encoded, np.full(5, 3))):
        sizes = GpuSizes(tile=9, block=7000, resident=resident)
        search = GpuExact(BlockMatrix(docs, 5000), CPU, sizes)
        for _ in range(2):
            hits = search.search(queries, 100)
            exact = Exact(BlockMatrix(docs, 5000), CPU).search(queries, 100)
            for pair in zip(hits.rows, exact.rows, strict=True):
                assert np.sort(pair[0]).tolist() == np.sort(pair[1]).tolist()


def test_no_row_is_lost_if_a_gpu_keeps_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without spare rows, rounding to float16 loses some of the best rows; the proof notices it."""
    random = np.random.default_rng(4)
    base = random.standard_normal(32)
    vectors = (base + 1e-3 * random.standard_normal((4000, 32))).astype(np.float32)
    queries = Ragged.single((base + random.standard_normal((20, 32))).astype(np.float32))
    searched: list[int] = []
    monkeypatch.setattr(GpuSizes, "spare", lambda *_: (1, 3))
    whole = Exact.search
    monkeypatch.setattr(
        Exact, "search", lambda s, q, k: searched.append(len(q.counts)) or whole(s, q, k)
    )
    check(Ragged.single(vectors), queries, 10)
    assert len(searched) > 2  # `check` itself searches twice


@pytest.mark.parametrize("name", [row.name for row in CODECS])
def test_a_device_decodes_the_same_bits(name: str) -> None:
    random = np.random.default_rng(5)
    codec = open_codec(name)
    for dim in (1, 7, 8, 37):
        vectors = random.standard_normal((50, dim)).astype(np.float32)
        vectors[3] = 0
        stored = codec.encode(vectors)
        tensors = {stem: torch.from_numpy(array) for stem, array in stored.items()}
        decoded = codec.on_device(tensors, dim).float().numpy()
        np.testing.assert_array_equal(decoded, codec.decode(stored, dim))


def test_no_queries_and_no_rows() -> None:
    none = Ragged.single(np.zeros((0, 4), np.float32))
    some = Ragged.single(np.ones((3, 4), np.float32))
    assert Exact(BlockMatrix(some), CPU).search(none, 5) == ([], [])
    assert [len(rows) for rows in Exact(BlockMatrix(none), CPU).search(some, 5).rows] == [0, 0, 0]


def unit(vectors: Floats) -> Floats:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def test_maxsim_equals_the_official_one_with_zero_padding(parity: Callable[[str], Path]) -> None:
    """The official code pads documents with zero vectors, so its maxima are at least 0; lmk never pads."""
    given = np.load(parity("insent/insent.npz"))
    docs, queries = (unit(given[name]) for name in ("chunk_tokens", "qt"))
    padded = BlockMatrix(Ragged.of(docs.reshape(-1, 8), np.full(12, 10)))
    encoded = Ragged.of(queries.reshape(-1, 8), np.full(6, 5))
    scores = np.stack(ExactScorer(padded)(encoded, [np.arange(12)] * 6))
    np.testing.assert_allclose(scores, given["maxsim"], atol=1e-6)
    hits = Exact(padded, CPU).search(encoded, 12)
    for rows, scores, official in zip(*hits, given["maxsim"], strict=True):
        np.testing.assert_allclose(scores, official[rows], atol=1e-6)


def test_top_keeps_ties_of_float32_and_no_more() -> None:
    rows = np.arange(4)
    scores = np.array([1.0, 0.5, 0.5 + 1e-12, 0.4])
    kept, values = top(rows, scores, 2)
    assert kept.tolist() == [0, 1, 2]
    assert values.tolist() == scores[:3].tolist()
    assert top(rows, scores, 4)[0].tolist() == [0, 1, 2, 3]
