"""Attention over relative positions: uniform attention, excluded tokens, small models."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lmkcli.data.collection import open_collection
from lmkcli.encoding.resolution import resolve
from lmkcli.encoding.token_stream import tokenized
from lmkcli.errors import UsageError
from lmkcli.models.attention_weights import mean_attention
from lmkcli.plugins.analysis import attention_profiles
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.store.token_blocks import TokenRow


def test_uniform_attention_is_one_everywhere() -> None:
    np.testing.assert_allclose(attention_profiles._relative(np.full((2, 10), 0.05), 3), 1)
    found = attention_profiles._relative(np.array([[0.4, 0.0, 0.0, 0.0]]), 2)
    np.testing.assert_allclose(found, [[2, 0]])
    with pytest.raises(UsageError, match="lower --bins"):
        attention_profiles._relative(np.ones((1, 3)), 4)


def opened(
    folder: Path, beir: Path, **how: object
) -> tuple[attention_profiles.AttentionModel, list[TokenRow]]:
    options = RecipeOptions(model=str(folder), max_length=64, **how)  # type: ignore[arg-type]
    model = attention_profiles.open_attention_model(resolve(options), "fp32", "cpu")
    rows = [
        row
        for batch in tokenized(open_collection(str(beir)).docs(), model.tokenizer)
        for row in batch
    ]
    return model, [row for row in rows if len(row.ids) > 12][:5]


@pytest.mark.parametrize("how", [{"pool": "cls"}, {"pool": "mean"}, {"pool": "lmk", "gran": "4"}])
def test_profiles_of_a_model(
    tiny_model: Callable[[str], Path], beir: Path, how: dict[str, str]
) -> None:
    model, rows = opened(tiny_model("bert"), beir, **how)
    (last,) = attention_profiles.profiles(model, rows, "last", 5)
    each = attention_profiles.profiles(model, rows, "each", 5)
    assert [profile.layer for profile in each] == ["layer 1", "layer 2"]
    assert [p.y for p in each[-1].points] == pytest.approx([p.y for p in last.points])
    assert last.documents == len(rows)
    assert [point.x for point in last.points] == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])
    for point in last.points:
        assert point.low is not None
        assert point.high is not None
        assert point.low - 1e-9 <= point.y <= point.high + 1e-9
    (mean,) = attention_profiles.profiles(model, rows, "mean", 5)
    assert mean.special == pytest.approx(np.mean([profile.special for profile in each]))


def test_a_profile_is_the_attention_to_content(
    tiny_model: Callable[[str], Path], beir: Path
) -> None:
    """By hand for CLS: the content is everything except the first and the last position."""
    model, rows = opened(tiny_model("bert"), beir, pool="cls")
    (found,) = attention_profiles.profiles(model, rows[:1], "last", 2)
    placer = model.placer
    one = placer.place_text(rows[0].ids, rows[0].prompt, rows[0].ends).inputs[0]
    weights = mean_attention(model.model, one.ids, np.zeros(1, np.int32))[-1].mean(0)
    inside = weights[1:-1]
    half = len(inside) // 2
    wanted = inside[:half].sum() / inside.sum() / (half / len(inside))
    assert found.points[0].y == pytest.approx(wanted)
    assert found.special == pytest.approx(weights[0] + weights[-1])


def test_landmarks_are_not_content(tiny_model: Callable[[str], Path], beir: Path) -> None:
    model, rows = opened(tiny_model("bert"), beir, pool="lmk", gran="4")
    (found,) = attention_profiles.profiles(model, rows[:1], "last", 2)
    assert found.tokens == min(len(rows[0].ids), 64 - 1 - 64 // 5)
