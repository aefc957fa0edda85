"""Gradients of the largest logits: the ways of a CPU and of a GPU equal automatic differentiation."""

from itertools import pairwise

import pytest
import torch

from lmkcli.plugins.sparse.trained_splade import blockwise_gradients, sparse_gradients

STARTS = [0, 3, 4, 11]  # of the states of each vector
STATES, TERMS, DIM = STARTS[-1], 13, 5


@pytest.mark.parametrize("block", [1, 4, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_gradients_equal_those_of_automatic_differentiation(block: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(3)
    states = torch.randn(STATES, DIM, generator=draw).to(dtype)
    weight = torch.randn(TERMS, DIM, generator=draw).to(dtype).requires_grad_()
    gradient = torch.randn(len(STARTS) - 1, TERMS, generator=draw)
    gradient[gradient.abs() < 0.5] = 0  # terms without a weight

    exact_states = states.double().requires_grad_()
    exact_weight = weight.detach().double().requires_grad_()
    logits = exact_states @ exact_weight.T
    best = [logits[a:b].max(0) for a, b in pairwise(STARTS)]
    largest = torch.stack([values for values, _ in best])
    places = torch.stack([at + a for (_, at), a in zip(best, STARTS, strict=False)]).int()
    largest.backward(gradient.double())  # type: ignore[no-untyped-call]
    wanted = [exact_states.grad, exact_weight.grad]

    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    ways = {
        "sparse": sparse_gradients(states, weight, places, gradient),
        "blockwise": blockwise_gradients(states, weight, places, gradient, block),
    }
    for name, found in ways.items():
        for one, exact in zip(found, wanted, strict=True):
            assert exact is not None
            assert one.dtype == dtype, name
            assert torch.allclose(one.double(), exact, rtol=tolerance, atol=tolerance), name


def test_a_frozen_matrix_has_no_gradient() -> None:
    states, weight = torch.ones(STATES, DIM), torch.ones(TERMS, DIM)
    places = torch.tensor(STARTS[:-1]).int()[:, None].expand(-1, TERMS)
    gradient = torch.ones(len(STARTS) - 1, TERMS)
    for found in (
        sparse_gradients(states, weight, places, gradient),
        blockwise_gradients(states, weight, places, gradient, 4),
    ):
        assert found[0].sum() == (len(STARTS) - 1) * TERMS * DIM
        assert found[1] is None
