"""Positions beyond training: short inputs keep their states, long inputs follow the formulas."""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModel

from lmkcli.errors import UsageError
from lmkcli.models import extension
from lmkcli.models.attention import Pack, packed_attention
from lmkcli.models.extension import (
    QUERY_BLOCK,
    Groups,
    extend_positions,
    extended_limit,
    lengthened,
    ntk_factor,
    parse_extension,
    rotate_by,
    stride,
)
from lmkcli.models.lookup import read_model
from lmkcli.models.transformer import Transformer, length_limit, position_limit
from lmkcli.store.token_blocks import Ints
from tests import tiny

Models = Callable[[str], Path]
CPU = torch.device("cpu")
NEAR = {"rtol": 1e-4, "atol": 3e-5}
LONG = 4 * tiny.POSITIONS - 100  # four times the table, not a multiple of it


def loaded(folder: Path) -> Any:
    return AutoModel.from_pretrained(folder).eval()


def wrapped(model: Any) -> Transformer:
    """Wrap a model as open_model does: packed if the check allows it."""
    made = Transformer(model, tiny.WIDTH, position_limit(model), CPU, "fp32")
    model.requires_grad_(False)
    made.use(made.check(fusing=True))
    return made


def random_ids(*lengths: int) -> list[Ints]:
    random = np.random.default_rng(len(lengths))
    return [random.integers(5, tiny.VOCABULARY, n).astype(np.int32) for n in lengths]


def alone(model: Any, ids: Ints, positions: torch.Tensor | None = None) -> torch.Tensor:
    with torch.inference_mode():
        states: torch.Tensor = model(
            input_ids=torch.from_numpy(ids).long()[None], position_ids=positions
        ).last_hidden_state[0]
    return states


@pytest.mark.parametrize("how", ["grouped", "interpolate"])
@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "mpnet"])
def test_short_inputs_keep_the_states_of_the_model(tiny_model: Models, name: str, how: str) -> None:
    short = random_ids(1, 7, 40, 40, tiny.POSITIONS)
    original = loaded(tiny_model(name))
    expected = torch.cat([alone(original, ids) for ids in short])
    model = loaded(tiny_model(name))
    extend_positions(model, how, LONG)
    made = wrapped(model)
    assert made.limit == 4 * tiny.POSITIONS == extended_limit(tiny.POSITIONS, how, LONG)
    assert made.packed == tiny.KINDS[name].packs
    beside_a_long_one = made.states([*short, *random_ids(LONG)])
    torch.testing.assert_close(beside_a_long_one[:-LONG], expected, **NEAR)


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert"])
def test_recurrent_positions_are_remainders(tiny_model: Models, name: str) -> None:
    """Position p uses row p % L of the original table, so that short inputs keep their states."""
    ids, short = random_ids(LONG, 40)
    original, model = loaded(tiny_model(name)), loaded(tiny_model(name))
    extend_positions(model, "recurrent", LONG)
    made = wrapped(model)
    states = made.states([ids, short])
    torch.testing.assert_close(states[LONG:], alone(original, short), **NEAR)
    first = extension.first_position(original)
    table = extension.position_table(original).weight  # type: ignore[union-attr]
    longer_table = extension.position_table(model).weight  # type: ignore[union-attr]
    for p in range(LONG):
        assert torch.equal(longer_table[first + p], table[first + p % tiny.POSITIONS])


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "distilbert"])
def test_given_positions_are_used(tiny_model: Models, name: str) -> None:
    """Packed and padded states equal those of the model with these position ids."""
    sequences = random_ids(9, 20)
    places = [np.r_[0:4, 50:55].astype(np.int32), np.r_[0:10, 90:100].astype(np.int32)]
    made = wrapped(loaded(tiny_model(name)))
    original = loaded(tiny_model(name))
    first = extension.first_position(original)
    expected = [
        alone(original, ids, first + torch.from_numpy(at).long()[None])
        for ids, at in zip(sequences, places, strict=True)
    ]
    torch.testing.assert_close(
        made.states(sequences, positions=places), torch.cat(expected), **NEAR
    )
    padded = Transformer(loaded(tiny_model(name)), tiny.WIDTH, 128, CPU, "fp32")
    with torch.inference_mode():
        states = padded.states(sequences, positions=places)
    torch.testing.assert_close(states, torch.cat(expected), **NEAR)


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert"])
def test_grouped_positions_of_a_long_input_are_its_quotients(tiny_model: Models, name: str) -> None:
    """Position p uses row p // s of the original table, for every first position id."""
    (ids,) = random_ids(LONG)
    first = extension.first_position(loaded(tiny_model(name)))
    model = loaded(tiny_model(name))
    positions = first + torch.arange(LONG)[None] // 4
    if name == "bert":  # its buffer of token types is as short as its table
        with torch.inference_mode():
            expected = model(
                torch.from_numpy(ids).long()[None], position_ids=positions,
                token_type_ids=torch.zeros(1, LONG, dtype=torch.long),
            ).last_hidden_state[0]  # fmt: skip
    else:
        expected = alone(model, ids, positions)
    extend_positions(model, "grouped", LONG)
    made = wrapped(model)
    torch.testing.assert_close(made.states([ids, *random_ids(9)])[:LONG], expected, **NEAR)
    torch.testing.assert_close(made._padded([ids]), expected, **NEAR)


@given(st.integers(2, 9), st.integers(1, 6))
def test_interpolated_rows_blend_their_neighbours(rows: int, steps: int) -> None:
    table = torch.from_numpy(np.random.default_rng(rows).normal(size=(rows, 3))).float()
    made = lengthened(table, steps, "interpolate")
    assert len(made) == rows * steps
    torch.testing.assert_close(made[::steps], table)
    for i in range((rows - 1) * steps):
        share = (i % steps) / steps
        expected = (1 - share) * table[i // steps] + share * table[i // steps + 1]
        torch.testing.assert_close(made[i], expected)
    torch.testing.assert_close(made[(rows - 1) * steps :], table[-1:].expand(steps, -1))


@given(st.integers(2, 9), st.integers(1, 6))
def test_grouped_rows_repeat(rows: int, steps: int) -> None:
    table = torch.arange(float(rows))[:, None]
    expected = torch.arange(rows * steps) // steps
    assert lengthened(table, steps, "grouped")[:, 0].tolist() == expected.tolist()


def test_factors_on_the_rotary_base() -> None:
    """LongEmbed's factors for 2, 4 and 8 times the length; growing between, proportional beyond."""
    assert [ntk_factor(times) for times in (2, 4, 8)] == pytest.approx([3, 5, 10])
    assert ntk_factor(16) == pytest.approx(20)
    grid = [ntk_factor(1 + i / 10) for i in range(200)]
    assert all(a < b for a, b in pairwise(grid))


@pytest.mark.parametrize("name", ["qwen2", "modernbert"])
def test_ntk_is_the_model_with_a_larger_base(tiny_model: Models, name: str) -> None:
    model, other = loaded(tiny_model(name)), loaded(tiny_model(name))
    trained = model.config.max_position_embeddings
    extend_positions(model, "ntk", 4 * trained)
    text = other.config.rope_parameters
    full = text["full_attention"] if name == "modernbert" else text
    full["rope_theta"] *= 5
    rotary = next(m for m in other.modules() if hasattr(m, "rope_type"))
    kind = {"layer_type": "full_attention"} if name == "modernbert" else {}
    frequencies, _ = rotary.compute_default_rope_parameters(other.config, **kind)
    setattr(rotary, "full_attention_inv_freq" if kind else "inv_freq", frequencies)
    short, long = random_ids(20, 300)
    for ids in (short, long):
        torch.testing.assert_close(alone(model, ids), alone(other, ids), **NEAR)
    plain = alone(loaded(tiny_model(name)), long)
    assert (alone(model, long) - plain).abs().max() > 1e-2
    made = wrapped(model)
    assert made.packed
    torch.testing.assert_close(made.states([short, long])[20:], alone(other, long), **NEAR)


@pytest.mark.parametrize(
    ("name", "how", "message"),
    [
        ("modernbert", "grouped", "--extend grouped .*rotary.*--extend ntk or selfextend"),
        ("qwen2", "interpolate", "--extend interpolate .*rotary.*--extend ntk or selfextend"),
        ("bert", "ntk", "--extend ntk .*rotary.*--extend grouped or --extend interpolate"),
        (
            "bert",
            "selfextend",
            "--extend selfextend .*rotary.*--extend grouped or --extend interpolate",
        ),
        ("bert", "other", "--extend other: .*grouped, interpolate, recurrent, ntk, selfextend"),
    ],
)
def test_an_extension_for_other_positions_is_refused(
    tiny_model: Models, name: str, how: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        extend_positions(loaded(tiny_model(name)), how, 100_000)


@pytest.mark.parametrize(
    ("name", "how"), [("bert", "grouped"), ("modernbert", "ntk"), ("qwen2", "selfextend")]
)
def test_an_extension_without_effect_is_refused(tiny_model: Models, name: str, how: str) -> None:
    with pytest.raises(UsageError, match=r"reads \d+ positions"):
        extend_positions(loaded(tiny_model(name)), how, 100)


def test_scaled_rotary_positions_are_refused(tiny_model: Models) -> None:
    model = loaded(tiny_model("qwen2"))
    model.rotary_emb.rope_type = "yarn"
    with pytest.raises(UsageError, match="or extends them itself"):
        extend_positions(model, "ntk", 4096)


def test_extensions_are_written_with_their_length() -> None:
    assert parse_extension("grouped:4096") == ("grouped", 4096)
    assert stride(512, 4096) == 8
    assert stride(512, 513) == 2
    assert extended_limit(2**31 - 1, "ntk", 32768) == 2**31 - 1
    for text in ("grouped", "grouped:", "grouped:0", "other:4096", "ntk:4k"):
        with pytest.raises(UsageError, match="grouped, interpolate, recurrent, ntk"):
            parse_extension(text)


def test_a_model_without_position_ids_is_refused(tiny_model: Models) -> None:
    class Counting(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> None: ...

    module: Any = Counting()
    module.config = loaded(tiny_model("bert")).config
    made = Transformer(module, tiny.WIDTH, 128, CPU, "fp32")
    with pytest.raises(UsageError, match="position ids"):
        made.states(random_ids(4), positions=[np.arange(4, dtype=np.int32)])


Array = np.ndarray[Any, np.dtype[np.float64]]


def turn(x: Array, position: int, frequencies: Array) -> Array:
    """Rotate one vector to a position, pair by pair."""
    half, made = len(frequencies), x.copy()
    for i, frequency in enumerate(frequencies):
        angle = position * frequency
        made[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        made[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return made


def places(i: int, j: int, size: int, window: int) -> tuple[int, int]:
    """Return the positions to which a query and a key are rotated."""
    shift = window - window // size
    if abs(i - j) < window:
        return i, j
    return (i // size + shift, j // size) if i > j else (i // size, j // size + shift)


def by_the_formula(
    q: Array, k: Array, v: Array, groups: Groups, causal: bool, reach: int | None = None
) -> Array:
    """Return the output of one head, [length, width], from queries and keys before rotation."""
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
    st.lists(st.sampled_from([3, 20, 47, 64, 70, QUERY_BLOCK + 9]), min_size=1, max_size=3),
    st.integers(2, 5), st.integers(1, 30), st.booleans(), st.booleans(),
    st.sampled_from([None, None, 12]),
)  # fmt: skip
def test_packed_sequences_equal_the_formula(
    lengths: list[int], size: int, window: int, causal: bool, aligned: bool, reach: int | None
) -> None:
    width, heads = 6, (2, 1)
    frequencies = torch.tensor([1.0, 0.1])  # the last two of six dimensions are not rotated
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
def test_no_distance_exceeds_those_of_training(trained: int, more: int) -> None:
    groups = Groups.of(trained, trained + more, torch.ones(1))
    at, to = places(trained + more - 1, 0, groups.size, groups.window)
    assert at - to <= trained
    assert 1 <= groups.window <= trained


def test_rotations_add_up() -> None:
    x = torch.randn(5, 8)
    frequencies = torch.tensor([1.0, 0.3, 0.1])
    once = rotate_by(x, torch.full((5,), 7), frequencies)
    twice = rotate_by(
        rotate_by(x, torch.full((5,), 3), frequencies), torch.full((5,), 4), frequencies
    )
    torch.testing.assert_close(once, twice)
    torch.testing.assert_close(rotate_by(x, torch.zeros(5), frequencies), x)


def opened(folder: Path, trained: int, length: int) -> Transformer:
    """Open a model as if it had been trained on fewer positions than its folder declares."""
    model = AutoModel.from_pretrained(folder).eval().requires_grad_(False)
    model.config.max_position_embeddings = trained
    groups = extend_positions(model, "selfextend", length)
    made = Transformer(model, tiny.WIDTH, position_limit(model), torch.device("cpu"), "fp32")
    made.use(made.check(fusing=True))
    made.groups = groups
    assert made.packed
    return made


@pytest.mark.parametrize("name", ["qwen2", "modernbert"])
def test_only_inputs_beyond_training_change(tiny_model: Models, name: str) -> None:
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
    """The formula starts from the layer's own projections, before rotation."""
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


def test_other_kinds_of_rotation_are_refused(
    tiny_model: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = AutoModel.from_pretrained(tiny_model("qwen2"))
    monkeypatch.setattr(
        "transformers.models.qwen2.modeling_qwen2.rotate_half",
        lambda x: torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2),
    )
    with pytest.raises(UsageError, match="use --extend ntk"):
        extend_positions(model, "selfextend", 10**6)


@pytest.fixture(params=["NystromformerConfig", "YosoConfig", "MraConfig"])
def before_the_first(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A model with two rows of its table before the first position, of 40 positions."""
    config = getattr(transformers, request.param)(
        vocab_size=tiny.VOCABULARY, hidden_size=tiny.WIDTH, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=40, initializer_range=0.2, use_expectation=True,
    )  # fmt: skip
    torch.manual_seed(3)
    AutoModel.from_config(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_rows_before_the_first_position(before_the_first: Path) -> None:
    """The limit, the first position, and given positions are those of transformers' own forward."""
    model = wrapped(loaded(before_the_first))
    assert position_limit(model.module) == 40
    assert length_limit(read_model(str(before_the_first)), trust=False) == 40
    (ids,) = random_ids(40)
    expected = alone(loaded(before_the_first), ids)
    torch.testing.assert_close(model.states([ids]), expected, **NEAR)
    counted = model.states([ids], positions=[np.arange(40, dtype=np.int32)])
    torch.testing.assert_close(counted, expected, **NEAR)
    with pytest.raises((IndexError, RuntimeError)):
        alone(loaded(before_the_first), random_ids(41)[0])


@pytest.mark.parametrize("how", ["grouped", "recurrent"])
def test_rows_before_the_first_position_stay(before_the_first: Path, how: str) -> None:
    """Short inputs keep their states, and long ones can be read."""
    ids, long = random_ids(40, 75)
    original, model = loaded(before_the_first), loaded(before_the_first)
    extend_positions(model, how, 80)
    assert position_limit(model) == 80
    made = wrapped(model)
    torch.testing.assert_close(made.states([ids]), alone(original, ids), **NEAR)
    rows, longer = (extension.position_table(each).weight for each in (original, model))
    places = torch.arange(75) % 40 if how == "recurrent" else torch.arange(75) // 2
    torch.testing.assert_close(longer[2:77], rows[2 + places])
    assert len(made.states([long])) == 75
