"""`--json` on every command: stdout is one JSON value, for the first case of each operation in the sweeps."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from lmkcli.catalog import VERBS
from lmkcli.cli.main import app
from lmkcli.plugins.demo import demo
from tests import sweeps
from tests.conftest import Lmk, Once

FIRST: dict[str, sweeps.Case] = {}
for _case in sweeps.cases().values():
    FIRST.setdefault(_case.verb, _case)
FIRST["doctor"] = sweeps.Case("doctor", ["doctor"], [])


@pytest.fixture
def world(
    once: Once, tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The current folder: a copy of the inputs and artifacts of the sweeps."""

    def make(folder: Path) -> None:
        sweeps.make_inputs(folder, tiny_model("bert"))
        monkeypatch.chdir(folder)
        for line in sweeps.ARTIFACTS:
            run(line.split())

    def run(words: list[str]) -> None:
        operation = parsed(words)
        operation.run()

    base = once("json/base", make)
    shutil.copytree(base, tmp_path / "world", symlinks=True)
    monkeypatch.chdir(tmp_path / "world")
    return tmp_path / "world"


def parsed(words: list[str]) -> Any:
    """The operation of a command line."""
    group: Any = get_command(app)
    verb, *rest = words
    command = group.commands[verb]
    context = command.make_context(verb, rest)
    values = {name: None if value in ((), []) else value for name, value in context.params.items()}
    values.pop("json", None)
    return command.callback.operation(context, values, False)


@pytest.mark.parametrize(
    "verb",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name == "grid"))
        for name in VERBS
        if name in FIRST
    ],
)
def test_every_command_prints_one_json_value(
    lmk: Lmk, world: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(demo, "COLLECTION", "./small")
    monkeypatch.setattr(demo, "LONG_COLLECTION", "./small")
    monkeypatch.setattr(demo, "MODEL", "bert")
    monkeypatch.setattr(demo, "BASE_MODEL", "bert")
    case = FIRST[verb]
    for step in case.before:
        if isinstance(step, str):
            lmk(*step.split())
        else:
            step(world)
    done = lmk(*case.words, "--json", code=None)
    assert done.code == 0 or verb == "doctor", done.err  # it depends on the machine
    value = json.loads(done.out)
    assert value
    assert isinstance(value, dict | list)
