"""Help as newcomers read it: short pages at 80 columns, the most used first, examples that parse."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from lmkcli import cli
from lmkcli.catalog import OPERATIONS
from lmkcli.cli.main import app
from lmkcli.cli.verbs import VERBS

Lmk = Callable[..., Any]
ROOT: Any = typer.main.get_command(app)
# Lines of `lmk VERB -h` at 80 columns; every other page has fewer than the last.
LONGEST = {"encode": 85, "search": 80, "train": 115, "pretrain": 105, "": 70}
EXAMPLES = [(verb, line) for verb, said in VERBS.items() for line in said.examples]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_every_verb_has_its_line_and_its_group() -> None:
    modules = Path(cli.__file__).parent.glob("cmd_*.py")
    commands = {each.stem.removeprefix("cmd_") for each in modules}
    assert set(VERBS) == commands | set(OPERATIONS)
    assert list(ROOT.commands) == list(VERBS)


@pytest.mark.parametrize("verb", sorted(ROOT.commands))
def test_a_page_is_short_and_fits(lmk: Lmk, verb: str) -> None:
    lines = lmk(verb, "-h").out.rstrip().splitlines()
    assert len(lines) <= LONGEST.get(verb, LONGEST[""])
    assert max(map(len, lines[:-2])) <= 80  # the examples below them are lines to be copied
    text = "\n".join(lines)
    assert "LMK_" not in text
    assert "<bool>" not in text
    assert [line.strip() for line in lines[-2:]] == list(VERBS[verb].examples)


def test_the_most_used_flags_come_first(lmk: Lmk) -> None:
    page = lmk("encode", "-h").out
    places = [page.index(f" {flag}") for flag in ("-m,", "--pool", "-o,", "--revision", "--only")]
    assert places == sorted(places)
    assert page.index("Most used") < page.index("What a vector is") < page.index("Others")


def test_choices_and_defaults_are_said(lmk: Lmk) -> None:
    page = " ".join(lmk("encode", "-h").out.split())
    assert "of a byte or a bit. [default: fp16; or fp32, int8, binary]" in page
    assert "--[no-]store-text Keep title and text beside the vectors. [default: on]" in page
    assert (
        "-m, --model TEXT A model folder, a hub name, lmk-minilm or minilm (extra demo). [required]"
        in page
    )


@pytest.mark.parametrize(("verb", "line"), EXAMPLES)
def test_an_example_parses(verb: str, line: str) -> None:
    lmk, name, *words = shlex.split(line)
    assert (lmk, name) == ("lmk", verb)
    parent = ROOT.make_context("lmk", [name, *words])
    ROOT.commands[verb].make_context(verb, words, parent=parent)


def test_all_commands_stand_in_groups_with_a_line_each(lmk: Lmk) -> None:
    lines = lmk("--help").out.splitlines()
    headings = [line for line in lines if line in {verb.group for verb in VERBS.values()}]
    assert headings == ["Prepare", "Search", "Evaluate", "Train", "Inspect"]
    for name, verb in VERBS.items():
        assert any(line.split() == [name, *verb.summary.split()] for line in lines), name


def test_lmk_alone_says_how_to_begin(lmk: Lmk) -> None:
    said = lmk(code=2).out
    assert "lmk demo" in said
    assert "lmk --help" in said
    assert len(said.splitlines()) < 15
