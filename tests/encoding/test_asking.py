"""Mistakes in what is asked of a recipe, which need no model to be seen, and what a model's folder adds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmkcli.encoding import asking
from lmkcli.encoding.resolving import resolve
from lmkcli.errors import UnknownName, UsageError
from lmkcli.models.finding import read_model
from lmkcli.models.transformer import length_limit
from lmkcli.recipe import RecipeOptions

Models = Callable[[str], Path]


@pytest.mark.parametrize(
    ("wishes", "why"),
    [
        ({"window": "512", "max_length": 256}, "drop --max-length 256"),
        ({"window": "some"}, "write full, chunk, or a number"),
        ({"overlap": "3"}, "no effect with --window full"),
        ({"window": "20", "overlap": "2x"}, "write tokens"),
        ({"window": "20", "overlap": "20"}, "must be smaller"),
        ({"pool": "mean", "window": "20", "overlap": "2c"}, "say what they are with --gran"),
        ({"unit": "word"}, "write doc, chunk, token"),
        ({"extend": "nope"}, "write one of grouped"),
        ({"extend": "ntk"}, "say to what length"),
        ({"pool": "lmk"}, "say how long with --gran"),
        ({"pool": "mean", "gran": "8"}, "has no effect"),
        ({"pool": "lmk", "gran": "8,16"}, "write a number of tokens"),
        ({"pool": "mean@0", "gran": "8"}, "whole number k"),
        ({"pool": "cls", "unit": "chunk", "gran": "8"}, "makes one vector of an input"),
    ],
)
def test_a_mistake_needs_no_model(wishes: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        asking.check(RecipeOptions(model="no/model", **wishes))


@pytest.mark.parametrize(
    "wishes",
    [
        {},
        {"gran": "8"},  # the folder may declare landmarks
        {"window": "512", "max_length": 512},
        {"window": "chunk", "max_length": 512, "unit": "chunk", "gran": "8"},
        {"window": "20", "overlap": "2c"},
        {"extend": "grouped", "window": "900"},
    ],
)
def test_what_a_model_decides_is_left_to_it(wishes: dict[str, Any]) -> None:
    asking.check(RecipeOptions(model="no/model", **wishes))


def test_each_of_several_granularities_is_read() -> None:
    asking.check_grans(RecipeOptions(model="no/model", pool="lmk", gran="8,16"))
    with pytest.raises(UsageError, match="--gran x"):
        asking.check_grans(RecipeOptions(model="no/model", pool="lmk", gran="8,x"))
    with pytest.raises(UnknownName):
        asking.check_grans(RecipeOptions(model="no/model", pool="lmq", gran="8"))


def test_a_window_may_be_called_the_length_that_it_is(tiny_model: Models) -> None:
    model = str(tiny_model("bert"))
    plain = resolve(RecipeOptions(model=model, pool="mean", window="32")).recipe
    twice = resolve(RecipeOptions(model=model, pool="mean", window="32", max_length=32)).recipe
    assert twice.doc == plain.doc
    assert twice.query.max_length == 32


def test_a_pooling_that_was_named_is_no_guess(tiny_model: Models) -> None:
    model = str(tiny_model("bert"))
    assert resolve(RecipeOptions(model=model, pool="cls")).notes == []
    assert "this is a guess" in resolve(RecipeOptions(model=model)).notes[0]


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "mpnet", "modernbert", "qwen2"])
def test_the_longest_input_is_what_its_model_allows(tiny_model: Models, name: str) -> None:
    """What is read from the configuration alone is what the opened model has."""
    folder = read_model(str(tiny_model(name)))
    assert folder.limit == length_limit(folder, trust=False)
