"""What a shell is offered for every parameter that is a name, and that offering it imports nothing heavy."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperArgument
from typer.main import get_command

from lmkcli.cli.main import app

GROUP: Any = get_command(app)
CODE = """
import sys
from lmkcli.cli.main import app
try:
    app(prog_name="lmk")
finally:
    print(*sorted({"numpy", "torch", "transformers"} & sys.modules.keys()), file=sys.stderr)
"""
# Flag -> what is begun, and a name that must be among those offered.
FLAGS = {
    "--pool": ("l", "lmk"),
    "--kind": ("bm", "bm25"),
    "--loss": ("mar", "margin-mse"),
    "--objective": ("retro", "retromae"),
    "--model": ("mini", "minilm"),
    "--rerank-model": ("mini", "minilm"),
    "--init-from": ("mini", "minilm"),
    "--tokenizer": ("mini", "minilm"),
    "--measure": ("nDCG@1", "nDCG@10"),
    "--dev-measure": ("nDCG@1", "nDCG@10"),
    "--qrels": ("beir/sci", "beir/scifact/test"),
    "--dev": ("beir/sci", "beir/scifact/test"),
}
COLLECTIONS = {
    *("tokenize source", "encode source", "index source", "search queries", "fetch names"),
    *("train sources", "pretrain sources", "update source", "analyze source", "show what"),
    *("show name",),
}


def asked(line: str, **variables: str) -> set[str]:
    """What bash is offered for the last word of a line."""
    words = line.split(" ")
    asked = {
        "_LMK_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    env = {**os.environ, **asked, **variables}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True)
    assert done.stderr.strip() == ""
    return set(done.stdout.split())


def parameters() -> Iterator[tuple[str, Any]]:
    """(verb, parameter) of every command."""
    for verb, command in GROUP.commands.items():
        yield from ((verb, param) for param in command.params)


def offered(verb: str, param: Any, begun: str) -> list[str]:
    """What completes the value of one parameter, as a shell would ask for it."""
    context = GROUP.commands[verb].context_class(GROUP.commands[verb], info_name=verb)
    return [item.value for item in param.shell_complete(context, begun)]


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_is_completed_in_every_command_that_has_it(flag: str) -> None:
    begun, name = FLAGS[flag]
    having = [(verb, param) for verb, param in parameters() if flag in param.opts]
    assert having
    assert not [verb for verb, param in having if name not in offered(verb, param, begun)]


def test_every_argument_that_is_a_collection_is_completed() -> None:
    arguments = {
        f"{verb} {p.name}": (verb, p) for verb, p in parameters() if isinstance(p, TyperArgument)
    }
    named = {key for key, (_, param) in arguments.items() if "COLLECTION" in str(param.metavar)}
    assert named < COLLECTIONS
    for key in COLLECTIONS:
        assert "beir/scifact/test" in offered(*arguments[key], "beir/sci"), key


def test_what_is_no_name_is_left_to_the_shell() -> None:
    for verb, param in parameters():
        if param.name in ("output", "folder", "folders", "vectors", "log"):
            assert offered(verb, param, "beir") == []


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("lmk encode beir/sci", {"beir/scifact/test", "beir/scidocs"}),
        ("lmk encode x --dtype f", {"fp32", "fp16"}),
        ("lmk analyze att", {"attention"}),
        ("lmk show pool", {"poolers"}),
    ],
)
def test_bash_is_offered_names_and_nothing_heavy_is_imported(line: str, names: set[str]) -> None:
    assert names <= asked(line)


def test_models_of_the_cache_are_completed(tmp_path: Path) -> None:
    (tmp_path / "hub" / "models--Some--encoder-base").mkdir(parents=True)
    assert asked("lmk encode x -m S", HF_HOME=str(tmp_path)) == {"Some/encoder-base"}
