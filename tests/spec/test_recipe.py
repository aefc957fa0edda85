"""Recipes: what is compared, what only locates, and the way there and back through JSON."""

import json
from dataclasses import fields, replace

import pytest

from lmkcli.errors import DataError, UsageError
from lmkcli.retrieval.engines.faiss.settings import FaissSettings
from lmkcli.spec.recipe import EncoderConfig, Recipe, RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import Granularity, Overlap, Window

DOC = EncoderConfig(
    "models/a", "w1", "t1", revision="abc", prompt="passage: ", pool="lmk", gran="64", dim=256,
    pool_package="lmk-head 0.1.0", context="title", landmark_token=3, top_terms=9, static=True,
    sum_windows=True,
)  # fmt: skip
RECIPE = Recipe(DOC, replace(DOC, prompt="query: ", max_length=64))


def test_a_recipe_survives_json() -> None:
    identity, located = json.loads(json.dumps([RECIPE.identity(), RECIPE.located()]))
    made = Recipe.read(identity, located)
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
    assert RECIPE.identity()["doc"].keys() | RECIPE.located()["doc"].keys() == {
        field.name for field in fields(EncoderConfig)
    }
    assert not RECIPE.identity()["doc"].keys() & RECIPE.located()["doc"].keys()


@pytest.mark.parametrize("name", [field.name for field in fields(EncoderConfig) if field.compare])
def test_every_compared_field_makes_another_recipe(name: str) -> None:
    value = getattr(DOC, name)
    others = {type(None): 7, tuple: (7,), bool: not value}
    others |= {Granularity: "77", Window: "77", Overlap: "7c"}
    other = others[type(value)] if type(value) in others else value * 2 + type(value)(1)
    changed = replace(DOC, **{name: other})
    assert changed != DOC
    assert changed.identity() != DOC.identity()


def test_contexts_are_named_only_where_there_are_any() -> None:
    """Artifacts of before there were contexts say nothing of them."""
    assert "context" not in replace(DOC, context="").identity()
    old = {"doc": replace(DOC, context="").identity(), "query": RECIPE.query.identity()}
    assert Recipe.read(old, RECIPE.located()).doc.context == ""
    with pytest.raises(DataError, match="the context 'titel'"):
        Recipe.read({**old, "doc": {**old["doc"], "context": "titel"}}, RECIPE.located())


def test_token_ids_depend_on_three_things() -> None:
    assert DOC.tokens_identity() == {"tokenizer": "t1", "prompt": "passage: ", "splitter": ""}
    assert replace(DOC, gran="sentence").tokens_identity()["splitter"] == "sentence"
    same = replace(DOC, weights="w2", pool="mean", gran="", max_length=9, dim=0)
    assert same.tokens_identity() == DOC.tokens_identity()


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
