"""Resolution of recipes: mistakes that are found without a model, and the declarations of a model folder."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmkcli import catalog
from lmkcli.encoding import resolution
from lmkcli.encoding.resolution import resolve
from lmkcli.errors import DataError, UnknownName, UsageError
from lmkcli.models.lookup import read_model
from lmkcli.models.transformer import length_limit
from lmkcli.pooling.table import Pooler
from lmkcli.spec.recipe import Recipe, RecipeOptions
from lmkcli.spec.values import Granularities
from lmkcli.system.input_files import decode
from tests.conftest import AddRows

Models = Callable[[str], Path]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"window": "512", "max_length": 256}, "drop --max-length 256"),
        ({"window": "some"}, "--window some: .*full, chunk, .*512"),
        ({"overlap": "3"}, "--overlap .*no effect.*--window full"),
        ({"window": "20", "overlap": "2x"}, "--overlap 2x: .*128, .*10c"),
        ({"window": "20", "overlap": "20"}, "--overlap 20 .*smaller.*--window 20"),
        ({"pool": "mean", "window": "20", "overlap": "2c"}, "--overlap 2c .*--gran"),
        ({"unit": "word"}, "--unit word: .*doc, chunk, token"),
        ({"extend": "nope"}, "--extend nope: .*grouped, interpolate, recurrent, ntk, selfextend"),
        ({"extend": "ntk"}, "--extend ntk .*--max-length"),
        ({"pool": "lmk"}, "set their length with --gran"),
        ({"pool": "mean", "gran": "8"}, "--gran 8 has no effect"),
        ({"pool": "lmk", "gran": "8,16"}, "--gran 8,16: .*one granularity"),
        ({"pool": "mean@0", "gran": "8"}, "mean@0: .*mean@k"),
        ({"pool": "cls", "unit": "chunk", "gran": "8"}, "--pool cls .*one vector.*--window chunk"),
    ],
)
def test_a_mistake_is_found_without_a_model(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        resolution.check_options(RecipeOptions(model="no/model", **options))


@pytest.mark.parametrize("side", ["doc_prompt", "query_prompt"])
def test_a_prompt_is_valid_unicode(tiny_model: Models, tmp_path: Path, side: str) -> None:
    """Lone surrogates come from JSON escapes, and from arguments that are not UTF-8."""
    with pytest.raises(DataError, match=r"prompt 'a\\ud800' .*Unicode"):
        resolve(RecipeOptions(model=str(tiny_model("bert")), **{side: "a\ud800"}))
    recipe = resolve(RecipeOptions(model=str(tiny_model("bert")))).recipe
    identity = recipe.identity()
    identity[side.partition("_")[0]]["prompt"] = "a\udcff"
    with pytest.raises(DataError, match=r"recipe .*Unicode"):
        decode(identity, Recipe, "the recipe", "")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gran": "8"},  # the folder may declare landmarks
        {"window": "512", "max_length": 512},
        {"window": "chunk", "max_length": 512, "unit": "chunk", "gran": "8"},
        {"window": "20", "overlap": "2c"},
        {"extend": "grouped", "window": "900"},
    ],
)
def test_options_that_depend_on_the_model_are_accepted(options: dict[str, Any]) -> None:
    resolution.check_options(RecipeOptions(model="no/model", **options))


def test_each_of_several_granularities_is_checked() -> None:
    resolution.check_grans(RecipeOptions(model="no/model", pool="lmk", gran="8,16"))
    with pytest.raises(UsageError, match="--gran x"):
        resolution.check_grans(RecipeOptions(model="no/model", pool="lmk", gran="8,x"))
    with pytest.raises(UnknownName):
        resolution.check_grans(RecipeOptions(model="no/model", pool="lmq", gran="8"))


def test_a_window_and_the_same_maximum_length_agree(tiny_model: Models) -> None:
    model = str(tiny_model("bert"))
    plain = resolve(RecipeOptions(model=model, pool="mean", window="32")).recipe
    twice = resolve(RecipeOptions(model=model, pool="mean", window="32", max_length=32)).recipe
    assert twice.doc == plain.doc
    assert twice.query.max_length == 32


def test_an_explicit_pooling_is_not_reported_as_a_guess(tiny_model: Models) -> None:
    model = str(tiny_model("bert"))
    assert resolve(RecipeOptions(model=model, pool="cls")).notes == []
    assert "this is a guess" in resolve(RecipeOptions(model=model)).notes[0]


@pytest.mark.parametrize(
    ("model", "pool", "noted"),
    [
        ("minilm", "mean", False),
        ("minilm", "auto", False),
        ("minilm", "cls", True),
        ("minilm", "mean@16", True),
        ("mean-minilm", "lmk", True),
        ("lmk-minilm", "lmk", False),  # trained with landmarks and with the mean
        ("lmk-minilm", "multicls", True),
    ],
)
@pytest.mark.usefixtures("minilm")
def test_a_pooler_that_the_model_was_not_trained_with_is_noted(
    model: str, pool: str, noted: bool
) -> None:
    gran = Granularities("64") if pool in ("lmk", "multicls") else None
    notes = resolve(RecipeOptions(model=model, pool=pool, gran=gran)).notes
    expected = rf"{model} declares --pool mean; .*--pool {pool}, .*--pool auto"
    assert len(notes) == int(noted)
    assert all(re.match(expected, note) for note in notes)


def test_one_note_names_all_poolers_of_a_model(tiny_model: Models) -> None:
    folder = replace(read_model(str(tiny_model("bert"))), pool="mean")
    (note,) = resolution.unfit_poolers(folder, ["auto", "cls", "mean", "lmk", "cls"])
    assert "--pool cls, lmk," in note
    assert resolution.unfit_poolers(replace(folder, pool=""), ["cls"]) == []


@pytest.mark.parametrize("pool", ["last", "mean", "mean@3", "lmk"])
def test_only_the_last_position_of_a_plain_decoder_is_an_eos(tiny_model: Models, pool: str) -> None:
    gran = "8" if pool == "lmk" else None
    options = RecipeOptions(model=str(tiny_model("qwen2")), pool=pool, gran=gran)
    assert resolve(options).recipe.doc.append_eos == (pool == "last")


def weighted(parameter: str) -> Pooler:
    """A pooler with a number as its parameter, 'weighted@NUMBER'."""
    if not parameter.replace(".", "", 1).isdigit():
        raise ValueError("write weighted@NUMBER, such as weighted@0.5")
    return Pooler(f"weighted@{parameter}", "every")


class Arranger:
    """A pooler of an older version of lmk."""


def test_a_pooler_parses_its_own_parameter(add_rows: AddRows) -> None:
    add_rows(catalog.PoolerRow("weighted@NUMBER", f"{__name__}:weighted", "an example"))
    assert resolution.open_pooler("weighted@0.5") == weighted("0.5")
    with pytest.raises(UsageError, match=r"--pool weighted@half: write weighted@NUMBER"):
        resolution.open_pooler("weighted@half")


def test_a_pooler_that_is_no_row_is_refused(add_rows: AddRows) -> None:
    add_rows(catalog.PoolerRow("old", f"{__name__}:Arranger", "an example", provider="other 0.1"))
    with pytest.raises(
        UsageError, match=r"--pool old: other 0\.1 .*lmkcli\.pooling\.table\.Pooler"
    ):
        resolution.open_pooler("old")


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "mpnet", "modernbert", "qwen2"])
def test_the_limit_of_a_configuration_is_that_of_the_opened_model(
    tiny_model: Models, name: str
) -> None:
    folder = read_model(str(tiny_model(name)))
    assert folder.limit == length_limit(folder, trust=False)


def test_a_longer_document_length_says_that_queries_keep_theirs(
    tiny_model: Models,
) -> None:
    """A trained folder declares the length of its training's queries, which --max-length does not change."""
    model = str(tiny_model("bert"))
    folder = replace(read_model(model), pool="mean", max_length=16, query_length=8)

    def notes(**options: Any) -> list[str]:
        found = resolve(RecipeOptions(model=model, **options), folder=folder)
        return [note for note in found.notes if "--query-max-length" in note]

    assert "keep the 8 positions" in notes(max_length=32)[0]
    assert not notes()
    assert not notes(max_length=32, query_max_length=8)
    assert not notes(max_length=8)
