"""Steps: settings that change keys, settings that share a key, settings without an effect."""

from pathlib import Path

import pytest

from lmkcli.errors import UsageError
from lmkcli.plugins.grid.gridfile import GridCell
from lmkcli.plugins.grid.steps import CellSteps, GridStep


def steps(**axes: str) -> list[GridStep]:
    """The steps of a cell with one collection, which is not on this machine; '__' is a dot."""
    given = {name.replace("__", ".").replace("_", "-"): (value,) for name, value in axes.items()}
    cell = GridCell("a", {"collection": ("some",), "measures": ("P@1",), **given})
    return CellSteps(cell, Path("results")).steps


def keys(**axes: str) -> list[str]:
    return [step.key for step in steps(**axes)]


def test_keys_depend_on_effective_settings_and_on_the_previous_steps() -> None:
    encode, search, scored = keys(model="some/model", pool="cls", k="10")
    assert keys(model="some/model", pool="cls", k="10", device="cpu", batch_tokens="9") == [
        *(encode, search, scored)
    ]
    assert keys(model="some/model", pool="cls", k="20")[0] == encode
    assert not {search, scored} & {*keys(model="some/model", pool="cls", k="20")}
    assert not {encode, search, scored} & {*keys(model="some/model", pool="mean", k="10")}
    assert not {encode, search, scored} & {*keys(model="other/model", pool="cls", k="10")}


def test_a_step_reads_the_outputs_of_the_previous_steps() -> None:
    train, encode, search, scored = steps(model="some/model", train__examples="x.jsonl")
    assert [step.needs for step in (train, encode, search, scored)] == [
        *((), (train.key,), (encode.key,), (search.key,))
    ]
    assert encode.operation.model == f"results/steps/{train.key}/model"
    assert search.operation.words()[:3] == ["search", f"results/steps/{encode.key}/vectors", "some"]


@pytest.mark.parametrize(
    "axis", [{"train__pool": "cls"}, {"train__examples": "x"}, {"pretrain__collections": "x"}]
)
def test_settings_of_a_model_have_no_effect_on_an_index_of_words(axis: dict[str, str]) -> None:
    (name,) = (key.replace("__", ".") for key in axis)
    with pytest.raises(UsageError, match=rf'and {name} = \[""\]'):
        steps(kind="bm25", **axis)
    index, _, _ = steps(kind="bm25", device="cpu", k1="1.2")
    assert index.operation.words()[:2] == ["index", "some"]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"normalize": "yes"}, "--normalize .*true or false, .*yes"),
        ({"max_length": "many"}, "--max-length 'many': .*whole number"),
        ({"k": "0"}, r"lmk search: --hits 0: .*at least 1\b"),
        ({"dtype": "fp8"}, "--dtype: .*'fp8'"),
    ],
)
def test_values_that_a_command_refuses(axes: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        steps(model="some/model", **axes)


def test_values_have_the_types_of_the_fields() -> None:
    encode, _, _ = steps(model="some/model", normalize="false", max_length="64", gran="16")
    operation = encode.operation
    assert (operation.normalize, operation.max_length, operation.gran) == (False, 64, "16")
