"""The packed attention against one n x n softmax in float64, sequence by sequence."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lmkcli.models import attention

# Block-local work begins at 512 positions; a reach of 8 makes blocks of 64 queries.
BORDERS = st.sampled_from([1, 2, 8, 9, 16, 17, 64, 65, 511, 512, 513, 528, 575, 576, 577, 640])
LENGTHS = st.lists(BORDERS, min_size=1, max_size=3)
WIDTH = 4


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, reach: int | None, causal: bool
) -> torch.Tensor:
    """[heads, n, width] of one sequence, by the definition."""
    n = q.shape[1]
    apart = torch.arange(n)[:, None] - torch.arange(n)
    seen = torch.ones(n, n, dtype=torch.bool)
    if causal:
        seen &= apart >= 0
    if reach is not None:
        seen &= apart.abs() <= reach
    k, v = (x.repeat_interleave(len(q) // len(x), 0) for x in (k, v))
    scores = (q @ k.transpose(1, 2) * WIDTH**-0.5).masked_fill(~seen, -torch.inf)
    return scores.softmax(-1) @ v


def random(lengths: list[int], heads: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, heads, sum(lengths), WIDTH, generator=generator) * 2


@settings(max_examples=25, deadline=None)
@given(
    LENGTHS, st.sampled_from([None, 1, 8, 150]), st.booleans(), st.sampled_from([(2, 2), (4, 2)])
)
def test_equals_the_definition(
    lengths: list[int], reach: int | None, causal: bool, heads: tuple[int, int]
) -> None:
    q, k, v = (random(lengths, n, seed) for seed, n in enumerate((heads[0], heads[1], heads[1])))
    module = torch.nn.Module()
    run = ALL_ATTENTION_FUNCTIONS[attention.NAME]
    made, weights = run(
        module, q, k, v, None,
        scaling=WIDTH**-0.5, sliding_window=None if reach is None else reach + 1,
        is_causal=causal, lengths=tuple(lengths),
    )  # fmt: skip
    assert weights is None
    assert made.shape == (1, sum(lengths), heads[0], WIDTH)
    at = 0
    for n in lengths:
        part = (x[0, :, at : at + n].double() for x in (q, k, v))
        wanted = dense(*part, reach, causal).transpose(0, 1)
        torch.testing.assert_close(made[0, at : at + n].double(), wanted, rtol=1e-5, atol=1e-5)
        at += n


@pytest.mark.parametrize("length", [40, 600])
def test_a_window_as_long_as_the_text_changes_nothing(length: int) -> None:
    q, k, v = (random([length], 2, seed) for seed in range(3))
    module = torch.nn.Module()
    windowed, _ = attention.packed_attention(
        module, q, k, v, None, sliding_window=length, lengths=(length,)
    )
    whole, _ = attention.packed_attention(module, q, k, v, None, lengths=(length,))
    torch.testing.assert_close(windowed, whole)


def test_padding_never_reaches_a_state() -> None:
    """Blocks are filled up with zeros; a huge value anywhere else must not pass through them."""
    lengths = [600, 70]
    q, k, v = (random(lengths, 2, seed) for seed in range(3))
    module = torch.nn.Module()
    before, _ = attention.packed_attention(
        module, q, k, v, None, sliding_window=9, lengths=tuple(lengths)
    )
    k[:, :, 600:] = 1e4
    v[:, :, 600:] = torch.nan
    after, _ = attention.packed_attention(
        module, q, k, v, None, sliding_window=9, lengths=tuple(lengths)
    )
    assert torch.equal(after[:, :600], before[:, :600])
