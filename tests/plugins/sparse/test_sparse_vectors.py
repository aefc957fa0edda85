"""Sparse vectors in memory: entries in any order, pruning, and what is no sparse vector."""

import numpy as np
import pytest
from numpy.typing import NDArray

from lmkcli.plugins.sparse.sparse_vectors import Entries, SparseRows, collected

DIM = 30


def table(seed: int, rows: int = 12) -> NDArray[np.float32]:
    """Weights [rows, DIM], about a third of them positive; two rows are empty."""
    random = np.random.default_rng(seed)
    weights = random.random((rows, DIM)).astype(np.float32)
    weights[random.random(weights.shape) < 0.7] = 0
    weights[[0, rows - 1]] = 0
    return weights


def sparse(weights: NDArray[np.float32], counts: list[int] | None = None) -> SparseRows:
    rows, terms = np.nonzero(weights)
    of = np.array(counts) if counts else np.ones(len(weights), np.int64)
    order = np.random.default_rng(9).permutation(len(rows))
    return collected(Entries(rows[order], terms[order], weights[rows, terms][order]), of, DIM)


def test_entries_in_any_order_become_rows() -> None:
    weights = table(0)
    made = sparse(weights)
    np.testing.assert_array_equal(made.matrix(), weights)
    assert made.fault() == ""
    taken = made.take(np.array([3, 0, 3, 11]))
    np.testing.assert_array_equal(taken.matrix(), weights[[3, 0, 3, 11]])
    joined = SparseRows.joined([made, taken], DIM)
    np.testing.assert_array_equal(joined.matrix(), weights[[*range(12), 3, 0, 3, 11]])


def test_the_largest_of_repeated_entries_counts() -> None:
    one, other = table(1), table(2)
    rows, terms = np.nonzero(np.stack([one, other]).max(0))
    entries = np.tile(rows, 2), np.tile(terms, 2)
    values = np.concatenate([one[rows, terms], other[rows, terms]])
    made = collected(Entries(*entries, values), np.ones(12, np.int64), DIM)
    np.testing.assert_array_equal(made.matrix(), np.maximum(one, other))


@pytest.mark.parametrize("most", [1, 4, 100])
def test_pruning_keeps_the_largest_weights(most: int) -> None:
    weights = table(3)
    weights[2, :9] = 0.5  # ties: the lower terms stay
    pruned = sparse(weights).pruned(most)
    assert pruned.fault() == ""
    for row, kept in zip(weights, pruned.matrix(), strict=True):
        best = sorted(np.flatnonzero(row), key=lambda term: (-row[term], term))[:most]
        np.testing.assert_array_equal(np.flatnonzero(kept), sorted(best))
        np.testing.assert_array_equal(kept[best], row[best])


def test_lengths_are_one_after_normalisation() -> None:
    norms = np.linalg.norm(sparse(table(4)).normalized().matrix(), axis=1)
    np.testing.assert_allclose(norms, [0, *[1] * 10, 0], atol=1e-6)


def test_products_with_a_query() -> None:
    weights, query = table(5), table(6)[4]
    asked = sparse(query[None])
    np.testing.assert_allclose(sparse(weights).products(asked), weights @ query, rtol=1e-6)


def test_the_text_of_a_weight_that_is_not_finite() -> None:
    made = sparse(table(7), [1, 4, 0, 7])
    assert made.not_finite() is None
    for text, vector in ((1, 1), (1, 4), (3, 5), (3, 10)):
        weights = made.weights.copy()
        weights[made.offsets[vector]] = np.nan
        assert made._replace(weights=weights).not_finite() == text


def test_what_is_no_sparse_vector() -> None:
    made = sparse(table(8))
    for term, value, reason in (
        (0, DIM, "terms are not ascending"),
        (0, -1, "terms are not ascending"),
        (1, made.terms[0], "terms are not ascending"),
    ):
        terms = made.terms.copy()
        terms[term] = value
        assert reason in made._replace(terms=terms).fault()
    for value, reason in ((np.inf, "not finite"), (0.0, "not positive"), (-1.0, "not positive")):
        weights = made.weights.copy()
        weights[3] = value
        assert reason in made._replace(weights=weights).fault()
