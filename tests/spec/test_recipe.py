"""Recipes: what is compared, what only locates, and the way there and back through JSON."""

import json
from dataclasses import fields, replace

import pytest

from lmkcli.errors import DataError, UsageError
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSettings
from lmkcli.spec.recipe import EncoderConfig, ModelLocation, Recipe, RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import Granularity, Overlap, Window
from lmkcli.system.input_files import decode

DOC = EncoderConfig(
    "w1", "t1", "models/a", revision="abc", prompt="passage: ", pool="lmk", gran="64", dim=256,
    pool_package="lmk-head 0.1.0", context="title", landmark_token=3, static=True,
    settings={"top_terms": 9, "sum_windows": True},
    keep_space=True,
    prompt_apart=True,
)  # fmt: skip
RECIPE = Recipe(DOC, replace(DOC, prompt="query: ", max_length=64))


def test_a_recipe_survives_json() -> None:
    identity = json.loads(json.dumps(RECIPE.identity()))
    made = decode(identity, Recipe, "the recipe", "").located_at(RECIPE.located())
    assert made == RECIPE
    assert [(side.model, side.revision) for side in (made.doc, made.query)] == [
        ("models/a", "abc")
    ] * 2


def test_where_a_model_was_found_is_not_compared() -> None:
    moved = RECIPE.moved("elsewhere/b")
    assert (moved.doc.model, moved.query.model) == ("elsewhere/b", "elsewhere/b")
    assert moved == RECIPE
    assert moved.identity() == RECIPE.identity()
    assert moved.located() != RECIPE.located()


def test_every_field_is_either_identity_or_place() -> None:
    located = {field.name for field in fields(ModelLocation)}
    assert RECIPE.identity()["doc"].keys() | located == {
        field.name for field in fields(EncoderConfig)
    }
    assert not RECIPE.identity()["doc"].keys() & located


@pytest.mark.parametrize("name", [field.name for field in fields(EncoderConfig) if field.compare])
def test_every_compared_field_makes_another_recipe(name: str) -> None:
    value = getattr(DOC, name)
    others = {type(None): 7, tuple: (7,), bool: not value, dict: {"top_terms": 8}}
    others |= {Granularity: "77", Window: "77", Overlap: "7c"}
    named = {"unit": "chunk", "context": "headings"}
    other = (
        named[name]
        if name in named
        else others[type(value)]
        if type(value) in others
        else value * 2 + type(value)(1)
    )
    changed = replace(DOC, **{name: other})
    assert changed != DOC
    assert changed.identity() != DOC.identity()


def test_contexts_are_named_only_where_there_are_any() -> None:
    assert "context" not in replace(DOC, context="").identity()


@pytest.mark.parametrize(
    ("field", "value"),
    [("context", "titel"), ("unit", "page"), ("gran", "half"), ("window", -1), ("overlap", "1x"),
     ("max_length", 0), ("similarity", "l2"), ("prompt", 1), ("weights", None)],
)  # fmt: skip
def test_an_impossible_setting_is_named_with_its_field(field: str, value: object) -> None:
    bad = {**RECIPE.identity(), "doc": {**DOC.identity(), field: value}}
    with pytest.raises(DataError, match=rf"the recipe cannot be read \(doc(\.|: the ){field}"):
        decode(bad, Recipe, "the recipe", "make it again")


def test_settings_that_cannot_be_are_refused() -> None:
    for bad in ({"batch_tokens": -1}, {"batch_size": -1}):
        with pytest.raises(UsageError, match=r"--batch-tokens .*--batch-size"):
            EncodeSettings(**bad)
    for bad in ({"m": 1}, {"ef_construction": 0}):
        with pytest.raises(UsageError, match="--m of at least 2"):
            FaissSettings(**bad)
    for name in ("ef_search", "nprobe", "max_memory"):
        with pytest.raises(UsageError, match=r"cannot be negative|is not a size"):
            FaissSettings(**{name: -1})


def test_a_user_who_wishes_nothing_leaves_the_choice_to_the_folder() -> None:
    wishes = RecipeOptions(model="m")
    chosen = {f.name for f in fields(wishes) if getattr(wishes, f.name) is not None}
    assert chosen == {"model", "trust_remote_code", "pool"}
    assert wishes.pool == "auto"
