"""Reductions of marked states, against NumPy in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.pooling.reductions import Marks, pool
from lmkcli.pooling.table import StateReduction

torch.set_num_threads(1)


def expected(states: np.ndarray, marks: np.ndarray, sizes: list[int]) -> np.ndarray:
    pieces = np.split(states.astype(np.float64)[marks], np.cumsum(sizes)[:-1])
    return np.stack([piece.mean(axis=0) for piece in pieces])


def pooled(states: torch.Tensor, marks: np.ndarray, sizes: list[int]) -> torch.Tensor:
    return pool(states, marks_of(marks, sizes))


def marks_of(marks: np.ndarray, sizes: list[int]) -> Marks:
    groups = np.repeat(np.arange(len(sizes)), sizes)
    return Marks(torch.from_numpy(marks), torch.from_numpy(groups), np.array(sizes))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 2**32 - 1))
def test_it_is_the_mean_of_each_group(sizes: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    states = random.normal(size=(40, 5)).astype(np.float32)
    marks = random.integers(0, 40, sum(sizes))
    made = pooled(torch.from_numpy(states), marks, sizes)
    assert made.dtype == torch.float32
    np.testing.assert_allclose(made.numpy(), expected(states, marks, sizes), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    """4,096 values of 1 + 2**-7: neither format can represent their sum to within 1."""
    states = torch.full((4096, 3), 1 + 2**-7).to(dtype)
    made = pooled(states, np.arange(4096), [4095, 1])
    assert made.dtype == torch.float32
    np.testing.assert_allclose(made.numpy(), 1 + 2**-7, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_mark_for_each_vector_selects_the_state(dtype: torch.dtype) -> None:
    states = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    made = pooled(states, np.array([6, 0, 3]), [1, 1, 1])
    assert made.dtype == torch.float32
    assert torch.equal(made, states[[6, 0, 3]].float())


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.booleans(),
    st.permutations(["mean", "sqrt", "weighted", "max", "first", "last"]),
    st.integers(1, 6),
    st.integers(0, 2**32 - 1),
)
def test_every_reduction_is_its_formula(
    sizes: list[int], weighted: bool, order: list[StateReduction], used: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    states = random.normal(size=(40, 5))
    rows = random.integers(0, 40, sum(sizes))
    places = random.integers(1, 99, sum(sizes))
    weights = random.uniform(0, 3, sum(sizes)) if weighted else None
    marks = marks_of(rows, sizes)._replace(places=torch.from_numpy(places))
    if weights is not None:
        marks = marks._replace(weights=torch.from_numpy(weights))
    made = pool(torch.from_numpy(states), marks, order[:used]).numpy()
    bounds = np.cumsum(sizes)[:-1]
    factors = np.ones(len(rows)) if weights is None else weights
    pieces = [np.split(each, bounds) for each in (states[rows], places, factors)]
    for vector, (x, p, w) in zip(made, zip(*pieces, strict=True), strict=True):
        y = x * w[:, None]
        formulas = {
            "mean": y.sum(0) / w.sum(),
            "sqrt": y.sum(0) / np.sqrt(w.sum()),
            "weighted": (y * p[:, None]).sum(0) / (w.sum() if weighted else p.sum()),
            "max": y.max(0),
            "first": y[0],
            "last": y[-1],
        }
        wanted = np.concatenate([formulas[how] for how in order[:used]])
        np.testing.assert_allclose(vector, wanted, rtol=1e-9, atol=1e-12)


def test_weights_of_zero_give_a_zero_vector() -> None:
    """As in sentence-transformers, which divides by 1e-9 at least."""
    marks = marks_of(np.array([0, 1, 2]), [2, 1])._replace(weights=torch.tensor([0.0, 0.0, 2.0]))
    made = pool(torch.ones(3, 4), marks)
    assert made.tolist() == [[0.0] * 4, [1.0] * 4]
