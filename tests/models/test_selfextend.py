"""Self-extension against its formula, position by position in float64."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModel

from lmkcli.errors import UsageError
from lmkcli.models.attention import Pack, packed_attention
from lmkcli.models.extend import extend
from lmkcli.models.selfextend import BLOCK, Groups, turned
from lmkcli.models.transformer import Transformer, position_limit
from tests import tiny

Models = Callable[[str], Path]
Array = np.ndarray[Any, np.dtype[np.float64]]
NEAR = {"rtol": 1e-4, "atol": 3e-5}


def turn(x: Array, position: int, frequencies: Array) -> Array:
    """One vector turned to a position, pair by pair."""
    half, made = len(frequencies), x.copy()
    for i, frequency in enumerate(frequencies):
        angle = position * frequency
        made[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        made[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return made


def places(i: int, j: int, size: int, window: int) -> tuple[int, int]:
    """The positions that a query and a key are turned to."""
    shift = window - window // size
    if abs(i - j) < window:
        return i, j
    return (i // size + shift, j // size) if i > j else (i // size, j // size + shift)


def by_the_formula(
    q: Array, k: Array, v: Array, groups: Groups, causal: bool, reach: int | None = None
) -> Array:
    """[length, width] of one head from queries and keys that were not turned."""
    frequencies = groups.frequencies.double().numpy()
    made = np.zeros_like(v)
    for i in range(len(q)):
        scores = {}
        for j in range(i + 1 if causal else len(k)):
            if reach is None or abs(i - j) <= reach:
                at, to = (i, j)
                if len(q) > groups.trained:
                    at, to = places(i, j, groups.size, groups.window)
                score = turn(q[i], at, frequencies) @ turn(k[j], to, frequencies)
                scores[j] = math.exp(score / math.sqrt(q.shape[1]))
        made[i] = sum(weight * v[j] for j, weight in scores.items()) / sum(scores.values())
    return made


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.sampled_from([3, 20, 47, 64, 70, BLOCK + 9]), min_size=1, max_size=3),
    st.integers(2, 5), st.integers(1, 30), st.booleans(), st.booleans(),
    st.sampled_from([None, None, 12]),
)  # fmt: skip
def test_packed_sequences_equal_the_formula(
    lengths: list[int], size: int, window: int, causal: bool, aligned: bool, reach: int | None
) -> None:
    width, heads = 6, (2, 1)
    frequencies = torch.tensor([1.0, 0.1])  # the last two of six dimensions are not turned
    groups = Groups(32, size, window, frequencies)
    pack = Pack.of(lengths, aligned)
    random = np.random.default_rng(size)
    raw = [random.normal(size=(n, sum(pack.taken), width)) * 2 for n in (*heads, heads[1])]
    at = np.concatenate([np.arange(n) for n in pack.taken])
    own = frequencies.double().numpy()
    turned_to = [
        np.array([[turn(row, int(p), own) for row, p in zip(x, at, strict=True)] for x in part])
        for part in raw[:2]
    ]
    q, k, v = (torch.from_numpy(x).float()[None] for x in (*turned_to, raw[2]))
    made, _ = packed_attention(
        torch.nn.Module(), q, k, v, None, is_causal=causal, pack=pack, groups=groups,
        sliding_window=None if reach is None else reach + 1,
    )  # fmt: skip
    starts = np.cumsum([0, *pack.taken])
    for start, length in zip(starts[:-1], lengths, strict=True):
        mine = slice(start, start + length)
        long = (
            groups if pack.taken[list(starts).index(start)] > 32 else groups._replace(trained=999)
        )
        for head in range(heads[0]):
            wanted = by_the_formula(
                raw[0][head, mine], raw[1][0, mine], raw[2][0, mine],
                long._replace(trained=0) if long is groups else long, causal, reach,
            )  # fmt: skip
            np.testing.assert_allclose(made[0, mine, head].numpy(), wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(("times", "size"), [(2, 3), (4, 5), (8, 9), (16, 17)])
def test_groups_are_those_of_longembed(times: int, size: int) -> None:
    groups = Groups.of(512, 512 * times, torch.ones(1))
    assert (groups.size, groups.window) == (size, 512 // times)


@given(st.integers(2, 600), st.integers(1, 20000))
def test_no_distance_is_beyond_what_was_trained(trained: int, more: int) -> None:
    groups = Groups.of(trained, trained + more, torch.ones(1))
    at, to = places(trained + more - 1, 0, groups.size, groups.window)
    assert at - to <= trained
    assert 1 <= groups.window <= trained


def test_turning_goes_on_from_where_one_is() -> None:
    x = torch.randn(5, 8)
    frequencies = torch.tensor([1.0, 0.3, 0.1])
    once = turned(x, torch.full((5,), 7), frequencies)
    twice = turned(turned(x, torch.full((5,), 3), frequencies), torch.full((5,), 4), frequencies)
    torch.testing.assert_close(once, twice)
    torch.testing.assert_close(turned(x, torch.zeros(5), frequencies), x)


def opened(folder: Path, trained: int, length: int) -> Transformer:
    """As open_model opens it, for a model that was trained on fewer positions than its folder says."""
    model = AutoModel.from_pretrained(folder).eval().requires_grad_(False)
    model.config.max_position_embeddings = trained
    groups = extend(model, "selfextend", length)
    made = Transformer(model, tiny.WIDTH, position_limit(model), torch.device("cpu"), "fp32")
    made.take(made.check(fusing=True))
    made.groups = groups
    assert made.packed
    return made


@pytest.mark.parametrize("name", ["qwen2", "modernbert"])
def test_inputs_that_fit_keep_their_states_and_longer_ones_do_not(
    tiny_model: Models, name: str
) -> None:
    random = np.random.default_rng(1)
    short, long = (random.integers(5, tiny.VOCABULARY, n).astype(np.int32) for n in (64, 300))
    plain = AutoModel.from_pretrained(tiny_model(name)).eval()
    made = opened(tiny_model(name), 64, 300)
    with torch.inference_mode():
        states = made.states([short, long])
        alone = [
            plain(torch.from_numpy(ids).long()[None]).last_hidden_state[0] for ids in (short, long)
        ]
        torch.testing.assert_close(states[:64], alone[0], **NEAR)
        assert (states[64:] - alone[1]).abs().max() > 1e-2
        torch.testing.assert_close(made.states([long]), states[64:], **NEAR)
        made.groups = made.groups and made.groups._replace(size=1)  # groups of one are positions
        torch.testing.assert_close(made.states([long]), alone[1], **NEAR)


def test_a_layer_of_a_model_equals_the_formula(tiny_model: Models) -> None:
    """From what its own projections say, before the model turns it."""
    made = opened(tiny_model("qwen2"), 32, 100)
    layer = made.module.layers[0].self_attn
    kept: dict[str, torch.Tensor] = {}
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(layer, name).register_forward_hook(
            lambda _module, _in, out, name=name: kept.__setitem__(name, out[0])
        )
    layer.o_proj.register_forward_pre_hook(
        lambda _module, given: kept.__setitem__("o", given[0][0])
    )
    ids = np.random.default_rng(3).integers(5, tiny.VOCABULARY, 100).astype(np.int32)
    with torch.inference_mode():
        made.states([ids])
    width = layer.head_dim
    q, k, v, o = (
        kept[name].double().view(100, -1, width).numpy()
        for name in ("q_proj", "k_proj", "v_proj", "o")
    )
    assert made.groups is not None
    for head in range(q.shape[1]):
        own = head // (q.shape[1] // k.shape[1])
        wanted = by_the_formula(q[:, head], k[:, own], v[:, own], made.groups, causal=True)
        np.testing.assert_allclose(o[:, head], wanted, rtol=1e-3, atol=1e-5)


def test_what_turns_otherwise_is_refused(
    tiny_model: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = AutoModel.from_pretrained(tiny_model("qwen2"))
    monkeypatch.setattr(
        "transformers.models.qwen2.modeling_qwen2.rotate_half",
        lambda x: torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2),
    )
    with pytest.raises(UsageError, match="use --extend ntk"):
        extend(model, "selfextend", 10**6)
