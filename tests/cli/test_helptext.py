"""Help pages: short at 80 columns, the most used flags first, all flags on request, examples that parse."""

import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
import typer

from lmkcli.catalog import VERBS
from lmkcli.cli.main import app
from lmkcli.cli.verbs import verbs

Lmk = Callable[..., Any]
ROOT: Any = typer.main.get_command(app)
# Maximum lines of `lmk VERB --help-all` at 80 columns; the last number is for all other pages.
LONGEST = {
    "encode": 89,
    "index": 74,
    "search": 104,
    "train": 128,
    "pretrain": 106,
    "serve": 78,
    "": 70,
}
SHORT = 58  # maximum lines of `lmk VERB -h`
EXAMPLES = [(verb, line) for verb, entry in verbs().items() for line in entry.examples]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_every_verb_has_its_line_and_its_group() -> None:
    assert set(verbs()) == set(VERBS)
    assert list(ROOT.commands) == list(verbs())


@pytest.mark.parametrize("flag", ["-h", "--help-all"])
@pytest.mark.parametrize("verb", sorted(ROOT.commands))
def test_a_page_is_short_and_fits(lmk: Lmk, verb: str, flag: str) -> None:
    lines = lmk(verb, flag).out.rstrip().splitlines()
    assert len(lines) <= (SHORT if flag == "-h" else LONGEST.get(verb, LONGEST[""]))
    assert max(map(len, lines[:-2])) <= 80  # the examples below are lines to copy
    text = "\n".join(lines)
    assert "LMK_" not in text
    assert "<bool>" not in text
    assert [line.strip() for line in lines[-2:]] == list(verbs()[verb].examples)


@pytest.mark.parametrize("verb", sorted(ROOT.commands))
def test_both_pages_name_every_flag_and_one_explains_it(lmk: Lmk, verb: str) -> None:
    command = ROOT.commands[verb]
    context = command.make_context(verb, [], resilient_parsing=True)
    short, whole = lmk(verb, "-h").out, lmk(verb, "--help-all").out
    for param in command.get_params(context):
        if param.param_type_name == "option":
            name = max(param.opts, key=len).removeprefix("--")
            assert re.search(rf"--(\[no-\])?{name}\b", short), name
            meaning = " ".join((param.help or "").split())
            assert meaning in " ".join(re.sub(r"\s+", " ", whole).split()), name
    assert short.rstrip() == whole.rstrip() or "--help-all" in short


def test_the_most_used_flags_come_first(lmk: Lmk) -> None:
    page = lmk("encode", "--help-all").out
    places = [page.index(f" {flag}") for flag in ("-m,", "--pool", "-o,", "--revision", "--only")]
    assert places == sorted(places)
    assert page.index("Most used") < page.index("Recipe") < page.index("Others")


def test_help_shows_choices_and_defaults(lmk: Lmk) -> None:
    page = " ".join(lmk("encode", "--help-all").out.split())
    for facts in (
        r"--store-dtype .*fp16, fp32, int8, int4, int2, binary .*\[default: fp16\]",
        r"--\[no-\]store-text [^\[]*\[default: on\]",
        r"-m, --model TEXT [^\[]*\[required\]",
    ):
        assert re.search(facts, page)


@pytest.mark.parametrize(("verb", "line"), EXAMPLES)
def test_an_example_parses(verb: str, line: str) -> None:
    lmk, name, *words = shlex.split(line)
    assert (lmk, name) == ("lmk", verb)
    parent = ROOT.make_context("lmk", [name, *words])
    ROOT.commands[verb].make_context(verb, words, parent=parent)


def test_all_commands_are_listed_in_groups(lmk: Lmk) -> None:
    lines = lmk("--help").out.splitlines()
    headings = [line for line in lines if line in {verb.group for verb in verbs().values()}]
    assert headings == ["Prepare", "Search", "Evaluate", "Train", "Inspect"]
    for name, verb in verbs().items():
        assert any(line.split() == [name, *verb.help.split()] for line in lines), name


def test_lmk_alone_prints_first_commands(lmk: Lmk) -> None:
    text = lmk(code=2).out
    assert "lmk demo" in text
    assert "lmk --help" in text
    assert len(text.splitlines()) < 15
