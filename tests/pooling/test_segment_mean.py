"""The segment mean, against NumPy in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.pooling.segment_mean import pool

torch.set_num_threads(1)


def expected(states: np.ndarray, marks: np.ndarray, sizes: list[int]) -> np.ndarray:
    pieces = np.split(states.astype(np.float64)[marks], np.cumsum(sizes)[:-1])
    return np.stack([piece.mean(axis=0) for piece in pieces])


def pooled(states: torch.Tensor, marks: np.ndarray, sizes: list[int]) -> torch.Tensor:
    groups = np.repeat(np.arange(len(sizes)), sizes)
    return pool(states, torch.from_numpy(marks), torch.from_numpy(groups), len(sizes))


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
