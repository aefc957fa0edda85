"""Steps: which settings make another key, which share one, and what has no sense together."""

from pathlib import Path

import pytest

from lmkcli.errors import UsageError
from lmkcli.experiments.cells import Cell
from lmkcli.experiments.steps import Chain, Step


def steps(**axes: str) -> list[Step]:
    """The steps of a cell of one collection, which is not on this machine; '__' stands for a dot."""
    given = {name.replace("__", ".").replace("_", "-"): (value,) for name, value in axes.items()}
    cell = Cell("a", {"collection": ("some",), "measures": ("P@1",), **given})
    return Chain(cell, Path("results")).steps()


def keys(**axes: str) -> list[str]:
    return [step.key for step in steps(**axes)]


def test_a_key_follows_from_what_decides_the_result_and_from_the_steps_before() -> None:
    encode, search, scored = keys(model="some/model", pool="cls", k="10")
    assert keys(model="some/model", pool="cls", k="10", device="cpu", batch_tokens="9") == [
        *(encode, search, scored)
    ]
    assert keys(model="some/model", pool="cls", k="20")[0] == encode
    assert not {search, scored} & {*keys(model="some/model", pool="cls", k="20")}
    assert not {encode, search, scored} & {*keys(model="some/model", pool="mean", k="10")}
    assert not {encode, search, scored} & {*keys(model="other/model", pool="cls", k="10")}


def test_a_step_reads_what_those_before_it_write() -> None:
    train, encode, search, scored = steps(model="some/model", train__examples="x.jsonl")
    assert [step.needs for step in (train, encode, search, scored)] == [
        *((), (train.key,), (encode.key,), (search.key,))
    ]
    assert encode.operation.model == f"results/steps/{train.key}/model"
    assert search.operation.words()[:3] == ["search", f"results/steps/{encode.key}/vectors", "some"]


@pytest.mark.parametrize(
    "axis", [{"train__pool": "cls"}, {"train__examples": "x"}, {"pretrain__collections": "x"}]
)
def test_an_index_of_words_takes_nothing_that_is_of_a_model(axis: dict[str, str]) -> None:
    (name,) = (key.replace("__", ".") for key in axis)
    with pytest.raises(UsageError, match=rf'leaves it out by {name} = \[""\]'):
        steps(kind="bm25", **axis)
    index, _, _ = steps(kind="bm25", device="cpu", k1="1.2")
    assert index.operation.words()[:2] == ["index", "some"]


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"normalize": "yes"}, "--normalize is a switch: write true or false, not yes"),
        ({"max_length": "many"}, "--max-length 'many': write a whole number"),
        ({"k": "0"}, "lmk search: --hits 0: write a number that is at least 1"),
        ({"dtype": "fp8"}, "--dtype"),
    ],
)
def test_values_that_a_command_refuses(axes: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        steps(model="some/model", **axes)
    assert said in str(refused.value)


def test_values_have_the_types_of_the_fields() -> None:
    encode, _, _ = steps(model="some/model", normalize="false", max_length="64", gran="-1")
    operation = encode.operation
    assert (operation.normalize, operation.max_length, operation.gran) == (False, 64, "-1")
