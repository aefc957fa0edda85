"""A page can be followed: what its commands read was made on it, or it says where that comes from.

A paragraph or list that starts with 'The examples on this page use' names and explains them.
"""

import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.core import TyperArgument

from lmkcli.data import known_collections
from lmkcli.data.collection import HUB_REPOSITORY
from lmkcli.models.lookup import OWN_NAMES
from tests.test_docs import GROUP, PAGES, TUTORIALS, blocks, page_ids

READ = [page for page in PAGES if page not in TUTORIALS]  # tests/test_tutorials.py runs those
OUTPUTS = ("-o", "--output", "--log", "--plot")
INPUTS = ("qrels", "rerank", "vectors", "only", "ids", "config", "with_", "dev", "stopwords")
NAMES = {
    name.partition("/")[0]
    for name in (*known_collections.names(), *known_collections.groups(), "stdlib/", "python/")
}
GENERATED = {"passkey", "needle", "haystack"}  # collections made from a seed
ANALYSES = {"attention", "landmarks", "lengths", "map", "similarity"}
SHOWN = {"poolers", "sources", "source", "models", "indexes", "objectives", "pretexts", "caches"}


class Line(NamedTuple):
    """One command of a page: what it reads, and what it makes."""

    inputs: list[str]
    outputs: list[str]


def command_lines(page: Path) -> list[Line]:
    """Commands of console blocks in full; of shell scripts what they make."""
    lines = []
    for block in blocks(page):
        text = block.text.replace("\\\n", " ")
        if block.language == "console":
            lines += [read(line[2:]) for line in text.splitlines() if line.startswith("$ ")]
        elif block.language in ("sh", "bash"):
            lines += [Line([], redirected(line)) for line in text.splitlines()]
    return lines


def read(line: str) -> Line:
    """What a command line reads and makes, by the command's own parser."""
    words = shlex.split(line, comments=True)
    words = words[words.index("lmk") + 1 :]
    parent = GROUP.make_context("lmk", words)
    name, command, rest = GROUP.resolve_command(parent, [*parent._protected_args, *parent.args])
    context = command.make_context(command.name, rest, parent=parent, resilient_parsing=True)
    used: list[str] = []
    for param in command.params:
        if isinstance(param, TyperArgument) or param.name in INPUTS:
            used += flat(context.params.get(param.name))
    used += [one for one in flat(context.params.get("model")) if one.startswith("./")]
    if name == "demo":
        return Line([], used)
    made = redirected(line)
    return Line([stem(one) for one in used], [stem(one) for one in made])


def redirected(line: str) -> list[str]:
    words = line.split()
    after = [word for flag, word in pairwise(words) if flag in (*OUTPUTS, ">")]
    return [word.removesuffix(";") for word in after]


def flat(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(one) for one in value] if isinstance(value, (list, tuple)) else [str(value)]


def stem(spelling: str) -> str:
    """A name without its options, split and number in a log: './scifact:train,weight=2' is 'scifact'."""
    if HUB_REPOSITORY.fullmatch(spelling.split(",")[0]) and not spelling.startswith("hf:./"):
        return ""  # streamed
    plain = re.sub(r"^(irds|hf|folder):", "", spelling)
    return re.split(r"[,:#]", plain)[0].removeprefix("./").rstrip("/")


def declared(page: Path) -> set[str]:
    text = page.read_text(encoding="utf-8")
    start = r"^The examples? (?:on this page )?uses?\b"
    named = re.findall(start + r".*?(?=\n\n(?!- )|\Z)", text, re.DOTALL | re.MULTILINE)
    return {stem(name) for part in named for name in re.findall(r"`([^`]+)`", part)}


def is_name(spelling: str) -> bool:
    known = NAMES | GENERATED | SHOWN | ANALYSES | {*OWN_NAMES, "-", ""}
    return spelling.partition("/")[0] in known


def is_in(spelling: str, folders: set[str]) -> bool:
    """Whether it is one of these, or lies in one."""
    parents = [str(parent) for parent in Path(spelling).parents]
    return bool({spelling, *parents} & folders)


@pytest.mark.parametrize("page", READ, ids=page_ids(READ))
def test_what_a_page_reads_was_made_on_it_or_is_declared(page: Path) -> None:
    there = declared(page)
    for line in command_lines(page):
        for name in line.inputs:
            assert is_name(name) or is_in(name, there), f"{page.name}: nothing makes {name}"
        there |= set(line.outputs)
    consoles = " ".join(block.text for block in blocks(page) if block.language == "console")
    assert not [name for name in declared(page) if name not in consoles], page.name


def test_the_test_sees_what_is_missing(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n$ lmk search vectors ./mine -k 3 -o a.trec\n```\n", encoding="utf-8"
    )
    with pytest.raises(AssertionError, match="nothing makes vectors"):
        test_what_a_page_reads_was_made_on_it_or_is_declared(page)
    text = page.read_text(encoding="utf-8")
    page.write_text(
        f"The examples on this page use `vectors` and `./mine`.\n\n{text}", encoding="utf-8"
    )
    test_what_a_page_reads_was_made_on_it_or_is_declared(page)
