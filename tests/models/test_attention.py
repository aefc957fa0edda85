"""Packed attention against one n x n softmax in float64, sequence by sequence."""

import itertools
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lmkcli.models import attention
from lmkcli.models.attention import NAME, Pack, SlidingWindow

# Blocks are used above 512 positions; with a reach of 8, a block has 64 queries.
BORDERS = st.sampled_from(
    [1, 2, 8, 9, 16, 17, 32, 33, 47, 64, 65, 511, 512, 513, 528, 575, 576, 577, 640]
)
LENGTHS = st.lists(BORDERS, min_size=1, max_size=3)
HEADS = st.sampled_from([(2, 2), (4, 2)])
WIDTH = 4


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, reach: int | None, causal: bool
) -> torch.Tensor:
    """Return the attention of one sequence by its definition, [heads, n, width]."""
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


def random(pack: Pack, heads: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, heads, sum(pack.taken), WIDTH, generator=generator) * 2


def run(
    pack: Pack, states: tuple[torch.Tensor, ...], reach: int | None, causal: bool
) -> torch.Tensor:
    """Call packed attention as transformers does."""
    made, weights = ALL_ATTENTION_FUNCTIONS[NAME](
        torch.nn.Module(), *states, None,
        scaling=WIDTH**-0.5, sliding_window=None if reach is None else reach + 1,
        is_causal=causal, pack=pack,
    )  # fmt: skip
    assert weights is None
    return made


def places(pack: Pack) -> list[slice]:
    """Return the slice of the filled positions of each sequence."""
    starts = [sum(pack.taken[:i]) for i in range(len(pack.taken))]
    return [slice(start, start + n) for start, n in zip(starts, pack.lengths, strict=True)]


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.sampled_from([None, 1, 8, 60, 150]), st.booleans(), st.booleans(), HEADS)
def test_packed_attention_equals_its_definition(
    lengths: list[int], reach: int | None, causal: bool, aligned: bool, heads: tuple[int, int]
) -> None:
    pack = Pack.of(lengths, aligned)
    q, k, v = (random(pack, n, seed) for seed, n in enumerate((heads[0], heads[1], heads[1])))
    made = run(pack, (q, k, v), reach, causal)
    assert made.shape == (1, sum(pack.taken), heads[0], WIDTH)
    for place in places(pack):
        part = (x[0, :, place].double() for x in (q, k, v))
        wanted = dense(*part, reach, causal).transpose(0, 1)
        torch.testing.assert_close(made[0, place].double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("reach", [None, 8])
def test_states_do_not_depend_on_other_sequences(aligned: bool, reach: int | None) -> None:
    """Huge keys and values in other sequences and in unfilled positions change nothing."""
    pack = Pack.of([600, 70, 9, 530], aligned)
    q, k, v = (random(pack, 2, seed) for seed in range(3))
    before = run(pack, (q, k, v), reach, causal=False)
    for mine in places(pack):
        others = torch.ones(sum(pack.taken), dtype=torch.bool)
        others[mine] = False
        loud = [x.clone() for x in (k, v)]
        for x in loud:
            x[:, :, others] = 1e4
        after = run(pack, (q, *loud), reach, causal=False)
        torch.testing.assert_close(after[:, mine], before[:, mine], rtol=1e-6, atol=1e-6)


@given(LENGTHS, st.booleans())
def test_a_pack_takes_at_least_the_positions_of_its_sequences(
    lengths: list[int], aligned: bool
) -> None:
    pack = Pack.of(lengths, aligned)
    assert pack.lengths == tuple(lengths)
    assert all(a <= b for a, b in zip(pack.lengths, pack.taken, strict=True))
    assert aligned or pack.taken == pack.lengths
    runs = list(pack.batches())
    assert [n for part in runs for n in part.filled] == lengths
    assert sum(part.sequences * part.length for part in runs) == sum(pack.taken)


def by_definition(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: object, **how: object
) -> torch.Tensor:
    """varlen_attn as torch documents it, [tokens, heads, width] in and out."""
    bounds, other, longest, longest_key = rest
    left, right = how["window_size"]  # type: ignore[misc]
    assert bounds is other
    assert how["scale"] == WIDTH**-0.5
    assert how.get("enable_gqa", False) == (q.shape[1] != k.shape[1])
    starts = bounds.tolist()  # type: ignore[attr-defined]
    assert longest == longest_key == max(b - a for a, b in itertools.pairwise(starts))
    assert right == (0 if how.get("causal") or right == 0 else left)
    made = [
        dense(
            *(x[a:b].transpose(0, 1) for x in (q, k, v)),
            None if left == -1 else left,
            right == 0,
        ).transpose(0, 1)
        for a, b in itertools.pairwise(starts)
    ]
    return torch.cat(made)


@settings(max_examples=20, deadline=None)
@given(LENGTHS, HEADS, st.sampled_from([None, 8]), st.booleans())
def test_the_gpu_kernel_receives_equivalent_arguments(
    lengths: list[int], heads: tuple[int, int], reach: int | None, causal: bool
) -> None:
    """The kernel needs a GPU. Its documented behaviour with these arguments equals the path of the CPU."""
    pytest.importorskip("torch.nn.attention.varlen")  # since torch 2.10
    pack = Pack.of(lengths, aligned=False)
    states = tuple(random(pack, n, seed) for seed, n in enumerate((heads[0], heads[1], heads[1])))
    window = SlidingWindow(-1 if reach is None else reach, causal)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.nn.attention.varlen.varlen_attn", by_definition)
        made = attention._varlen(*states, (pack, window), WIDTH**-0.5)
    torch.testing.assert_close(made, run(pack, states, reach, causal), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("capability", "module"), [((8, 0), None), ((7, 5), "any")])
def test_an_older_torch_or_gpu_has_no_kernel(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], module: str | None
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: capability)
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", module)  # None: no such module
    attention.kernel_arguments.cache_clear()
    assert attention.kernel_arguments(torch.device("cuda")) == frozenset()
    attention.kernel_arguments.cache_clear()


@pytest.mark.parametrize("length", [5, 40, attention.FLOAT_BELOW + 16])
def test_bf16_gradients_agree_with_float64(length: int) -> None:
    pack = Pack.of([length, length - 3], aligned=True)
    states = [random(pack, 2, seed).bfloat16().requires_grad_() for seed in range(3)]
    weights = random(pack, 2, 3).transpose(1, 2)
    made = run(pack, tuple(states), None, causal=False)
    assert made.dtype == torch.bfloat16
    filled = places(pack)
    mine = sum((made[:, where] * weights[:, where]).sum() for where in filled)
    found = torch.autograd.grad(mine, states)
    exact = [state.detach().double().requires_grad_() for state in states]
    true = sum(
        (
            dense(*(x[0, :, where] for x in exact), None, False).transpose(0, 1) * weights[0, where]
        ).sum()
        for where in filled
    )
    for gradient, expected in zip(found, torch.autograd.grad(true, exact), strict=True):
        apart = (gradient.double() - expected).norm() / expected.norm()
        assert apart < 0.01


@pytest.mark.parametrize("unknown", ["softcap", "s_aux", "position_bias"])
def test_arguments_that_it_does_not_compute_are_refused(unknown: str) -> None:
    """Gemma 2 caps its logits. Packed states without the cap differ little, and its vectors by 1e-4."""
    x = torch.ones(1, 2, 3, 8)
    with pytest.raises(TypeError, match=unknown):
        attention.packed_attention(torch.nn.Identity(), x, x, x, None, **{unknown: 50.0})
    attention.packed_attention(torch.nn.Identity(), x, x, x, None, **{unknown: None})
