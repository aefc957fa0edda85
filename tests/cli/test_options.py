"""Flags: one environment variable each, defaults from recipe.py, fast help."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

from lmkcli.artifact import manifest
from lmkcli.cli.main import app
from lmkcli.spec.settings import EncodeSettings

ROOT: Any = typer.main.get_command(app)
VERBS = sorted(ROOT.commands)


def context(verb: str) -> Any:
    top = ROOT.make_context("lmk", [verb], resilient_parsing=True)
    command = ROOT.commands[verb]
    return command.context_class(command, info_name=verb, parent=top)


def options(verb: str) -> Iterator[Any]:
    for parameter in ROOT.commands[verb].params:
        if parameter.param_type_name == "option":
            yield parameter


FLAGS = [
    (verb, next(flag for flag in option.opts if flag.startswith("--")))
    for verb in VERBS
    for option in options(verb)
]


@pytest.mark.parametrize(("verb", "flag"), FLAGS, ids=lambda value: value)
def test_every_flag_can_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, verb: str, flag: str
) -> None:
    """LMK_<VERB>_<FLAG>, with the spelling of the flag."""
    spelled = f"LMK_{verb}_{flag.removeprefix('--')}".upper().replace("-", "_")
    monkeypatch.setenv(spelled, "something")
    option = next(option for option in options(verb) if flag in option.opts)
    assert option.resolve_envvar_value(context(verb)) == "something"


@pytest.mark.parametrize("verb", VERBS)
def test_flags_are_kebab_case_and_explained(verb: str) -> None:
    for option in options(verb):
        assert option.help, option.opts
        long = [flag for flag in option.opts if flag.startswith("--")]
        assert long
        assert all(flag == flag.lower().replace("_", "-") for flag in long)


def test_defaults_are_the_settings_fields() -> None:
    found = {option.name: option.default for option in options("encode")}
    for field in fields(EncodeSettings):
        default = found[field.name]
        assert getattr(default, "value", default) == field.default


def test_the_environment_is_used_and_recorded(
    lmk: Callable[..., Any],
    tiny_model: Callable[[str], Path],
    beir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = {"LMK_ENCODE_POOL": "lmk", "LMK_ENCODE_GRAN": "8", "LMK_ENCODE_MODEL": "unused"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    lmk("encode", beir, "-m", tiny_model("bert"), "-o", tmp_path / "v")  # a flag wins
    found = manifest.read(tmp_path / "v")
    assert found.identity.recipe.doc.pool == "lmk"
    assert found.identity.recipe.doc.gran == "8"
    recorded = found.facts.environment
    recorded.pop("LMK_TEST_SEED", None)  # of the test run itself
    assert recorded == values
    monkeypatch.setenv("LMK_SEARCH_HITS", "3")
    assert len(lmk("search", tmp_path / "v", "-q", "copper", "--json").json) == 3
    monkeypatch.setenv("LMK_SEARCH_HITS", "many")
    assert "LMK_SEARCH_HITS" in lmk("search", tmp_path / "v", "-q", "copper", code=2).err
