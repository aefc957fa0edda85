"""Shell completion of every parameter that is a name, without heavy imports."""

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
# Flag -> the typed start of a word, and a name that must be among the completions.
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


def completions(line: str, **variables: str) -> set[str]:
    """The completions of bash for the last word of a line."""
    words = line.split(" ")
    request = {
        "_LMK_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    env = {**os.environ, **request, **variables}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True)
    assert done.stderr.strip() == ""
    return set(done.stdout.split())


def parameters() -> Iterator[tuple[str, Any]]:
    """(verb, parameter) for every parameter of every command."""
    for verb, command in GROUP.commands.items():
        yield from ((verb, param) for param in command.params)


def offered(verb: str, param: Any, prefix: str) -> list[str]:
    """The completions of the value of one parameter."""
    context = GROUP.commands[verb].context_class(GROUP.commands[verb], info_name=verb)
    return [item.value for item in param.shell_complete(context, prefix)]


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_is_completed_in_every_command_that_has_it(flag: str) -> None:
    prefix, name = FLAGS[flag]
    having = [(verb, param) for verb, param in parameters() if flag in param.opts]
    assert having
    assert not [verb for verb, param in having if name not in offered(verb, param, prefix)]


def test_every_argument_that_is_a_collection_is_completed() -> None:
    arguments = {
        f"{verb} {p.name}": (verb, p) for verb, p in parameters() if isinstance(p, TyperArgument)
    }
    named = {key for key, (_, param) in arguments.items() if "COLLECTION" in str(param.metavar)}
    assert named < COLLECTIONS
    for key in COLLECTIONS:
        assert "beir/scifact/test" in offered(*arguments[key], "beir/sci"), key


def test_other_values_are_left_to_the_shell() -> None:
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
def test_bash_gets_names_without_heavy_imports(line: str, names: set[str]) -> None:
    assert names <= completions(line)


def test_models_of_the_cache_are_completed(tmp_path: Path) -> None:
    (tmp_path / "hub" / "models--Some--encoder-base").mkdir(parents=True)
    assert completions("lmk encode x -m S", HF_HOME=str(tmp_path)) == {"Some/encoder-base"}


def test_the_examples_of_sources_are_completed() -> None:
    assert completions("lmk encode stdlib/f") == {"stdlib/functions"}
