"""Positions beyond training: short inputs keep their states, long ones are read, formulas hold."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModel

from lmkcli.errors import UsageError
from lmkcli.models import extend as extending
from lmkcli.models.extend import extend, extended_limit, longer, ntk_factor, parse, stride
from lmkcli.models.transformer import Transformer, position_limit
from lmkcli.pooling.placement import Ints
from tests import tiny

Models = Callable[[str], Path]
CPU = torch.device("cpu")
NEAR = {"rtol": 1e-4, "atol": 3e-5}
LONG = 4 * tiny.POSITIONS - 100  # four times the table, not a multiple of it


def loaded(folder: Path) -> Any:
    return AutoModel.from_pretrained(folder).eval()


def wrapped(model: Any) -> Transformer:
    """As open_model wraps it: packed where that is found to be right."""
    made = Transformer(model, tiny.WIDTH, position_limit(model), CPU, "fp32")
    model.requires_grad_(False)
    made.take(made.check(fusing=True))
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
    extend(model, how, LONG)
    made = wrapped(model)
    assert made.limit == 4 * tiny.POSITIONS == extended_limit(tiny.POSITIONS, how, LONG)
    assert made.packed == tiny.KINDS[name].packs
    beside_a_long_one = made.states([*short, *random_ids(LONG)])
    torch.testing.assert_close(beside_a_long_one[:-LONG], expected, **NEAR)


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert"])
def test_recurrent_positions_are_remainders(tiny_model: Models, name: str) -> None:
    """p % L in the original table for inputs of any length, so that short ones keep their states."""
    ids, short = random_ids(LONG, 40)
    original, model = loaded(tiny_model(name)), loaded(tiny_model(name))
    extend(model, "recurrent", LONG)
    made = wrapped(model)
    states = made.states([ids, short])
    torch.testing.assert_close(states[LONG:], alone(original, short), **NEAR)
    first = extending.first_position(extending.position_table(original))
    table = extending.position_table(original).weight  # type: ignore[union-attr]
    longer_table = extending.position_table(model).weight  # type: ignore[union-attr]
    for p in range(LONG):
        assert torch.equal(longer_table[first + p], table[first + p % tiny.POSITIONS])


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "distilbert"])
def test_positions_that_are_given_are_those_that_are_used(tiny_model: Models, name: str) -> None:
    """Packed and padded, as the model alone with these position ids."""
    sequences = random_ids(9, 20)
    places = [np.r_[0:4, 50:55].astype(np.int32), np.r_[0:10, 90:100].astype(np.int32)]
    made = wrapped(loaded(tiny_model(name)))
    original = loaded(tiny_model(name))
    first = extending.first_position(extending.position_table(original))
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
    """p // s in the original table, wherever the ids begin."""
    (ids,) = random_ids(LONG)
    first = extending.first_position(extending.position_table(loaded(tiny_model(name))))
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
    extend(model, "grouped", LONG)
    made = wrapped(model)
    torch.testing.assert_close(made.states([ids, *random_ids(9)])[:LONG], expected, **NEAR)
    torch.testing.assert_close(made._padded([ids]), expected, **NEAR)


@given(st.integers(2, 9), st.integers(1, 6))
def test_interpolated_rows_blend_their_neighbours(rows: int, steps: int) -> None:
    table = torch.from_numpy(np.random.default_rng(rows).normal(size=(rows, 3))).float()
    made = longer(table, steps, "interpolate")
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
    assert longer(table, steps, "grouped")[:, 0].tolist() == expected.tolist()


def test_factors_on_the_rotary_base() -> None:
    """LongEmbed's for 2, 4 and 8 times the length; growing in between; in proportion beyond."""
    assert [ntk_factor(times) for times in (2, 4, 8)] == pytest.approx([3, 5, 10])
    assert ntk_factor(16) == pytest.approx(20)
    grid = [ntk_factor(1 + i / 10) for i in range(200)]
    assert all(a < b for a, b in pairwise(grid))


@pytest.mark.parametrize("name", ["qwen2", "modernbert"])
def test_ntk_is_the_model_with_a_larger_base(tiny_model: Models, name: str) -> None:
    model, other = loaded(tiny_model(name)), loaded(tiny_model(name))
    trained = model.config.max_position_embeddings
    extend(model, "ntk", 4 * trained)
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
        ("modernbert", "grouped", "has none; for rotary positions use --extend ntk"),
        ("qwen2", "interpolate", "use --extend ntk"),
        ("bert", "ntk", "use --extend grouped or --extend interpolate"),
        ("bert", "selfextend", "use --extend grouped or --extend interpolate"),
        ("bert", "other", "write one of grouped, interpolate, recurrent, ntk, selfextend"),
    ],
)
def test_what_does_not_fit_the_positions_is_refused(
    tiny_model: Models, name: str, how: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        extend(loaded(tiny_model(name)), how, 100_000)


@pytest.mark.parametrize(
    ("name", "how"), [("bert", "grouped"), ("modernbert", "ntk"), ("qwen2", "selfextend")]
)
def test_an_extension_without_effect_is_refused(tiny_model: Models, name: str, how: str) -> None:
    with pytest.raises(UsageError, match=r"has no effect: this model reads \d+ positions, and 100"):
        extend(loaded(tiny_model(name)), how, 100)


def test_rotary_positions_that_are_scaled_already_are_refused(tiny_model: Models) -> None:
    model = loaded(tiny_model("qwen2"))
    model.rotary_emb.rope_type = "yarn"
    with pytest.raises(UsageError, match="in a way of its own"):
        extend(model, "ntk", 4096)


def test_extensions_are_written_with_their_length() -> None:
    assert parse("grouped:4096") == ("grouped", 4096)
    assert stride(512, 4096) == 8
    assert stride(512, 513) == 2
    assert extended_limit(2**31 - 1, "ntk", 32768) == 2**31 - 1
    for text in ("grouped", "grouped:", "grouped:0", "other:4096", "ntk:4k"):
        with pytest.raises(UsageError, match="is not one of grouped, interpolate, recurrent, ntk"):
            parse(text)


def test_a_model_that_counts_by_itself_is_refused(tiny_model: Models) -> None:
    class Counting(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> None: ...

    module: Any = Counting()
    module.config = loaded(tiny_model("bert")).config
    made = Transformer(module, tiny.WIDTH, 128, CPU, "fp32")
    with pytest.raises(UsageError, match="takes no position ids"):
        made.states(random_ids(4), positions=[np.arange(4, dtype=np.int32)])
