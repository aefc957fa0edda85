"""What is known of collections, where a command takes one: groups of them, and their sizes."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from lmkcli import manifest
from lmkcli.cli import console, recording
from lmkcli.data import known
from lmkcli.data.collection import Collection
from lmkcli.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., None])
LEFT_OUT = 10  # lines that say what was left out
INPUTS = ("index", "rerank", "others", "only")  # what may hold a folder or a run for each member


def over_groups(argument: str, suffix: str = "") -> Callable[[Command], Command]:
    """A command that is run once for each member when its `argument` names a group.

    The output of a member is OUTPUT/<name><suffix>, with '-' for '/' in the name; input folders that
    hold something under that name stand for it ('lmk search vectors/ beir -o runs/').
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(**given: Any) -> None:
            members = known.group(given.get(argument) or "")
            if members:
                _check_output(given.get("output"))
            for name in members:
                console.note(f"{name}:")
                member = _of_member(given, name, suffix) | {argument: name}
                with recording.call_with(member):
                    command(**given | member)
            if not members:
                command(**given)

        return run  # type: ignore[return-value]

    return decorate


def note_differences(name: str, docs: int | None = None, queries: int | None = None) -> None:
    """A line for each count that is not the published one."""
    for line in known.count_differences(name, docs, queries):
        console.note(line)


def note_left_out(source: object) -> None:
    """What a collection left out of its documents: a line for each of the first, then how many more."""
    out = source.left_out() if isinstance(source, Collection) else {}
    for name, reason in list(out.items())[:LEFT_OUT]:
        console.note(f"left out: {name} {reason}")
    if len(out) > LEFT_OUT:
        more = console.number(len(out) - LEFT_OUT)
        console.note(f"and {more} more, which lmk show lists with the collection's name")


def _check_output(output: Path | None) -> None:
    """UsageError where a folder for the entries of a group cannot be."""
    taken = output is not None and (output.is_file() or (output / manifest.NAME).is_file())
    if taken:
        raise UsageError(
            f"-o {output} is one artifact or file already; a group needs a folder for its members"
        )


def _of_member(given: dict[str, Any], name: str, suffix: str) -> dict[str, Any]:
    """The paths of a command line as they are for one member."""
    file = name.replace("/", "-")
    output = given.get("output")
    paths: dict[str, Any] = {"output": output / f"{file}{suffix}"} if output else {}
    return paths | {key: _inside(given[key], file) for key in INPUTS if given.get(key)}


def _inside(given: Path | list[Path], file: str) -> Path | list[Path]:
    """The member's own artifact or run, where the folder has one."""
    if isinstance(given, list):
        return [path for each in given if isinstance(path := _inside(each, file), Path)]
    candidates = (given / f"{file}{suffix}" for suffix in ("", ".trec", ".trec.gz"))
    return next((path for path in candidates if path.exists()), given)
