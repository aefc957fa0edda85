"""lmk show: what an artifact is, where it came from, and what can be chosen by name."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lmkcli import catalog
from lmkcli.cli import completion, console, tables
from lmkcli.cli.flags import with_flags
from lmkcli.cli.options import Json
from lmkcli.data import known
from lmkcli.data.collection import FILE_SUFFIXES
from lmkcli.errors import DataError, UnknownName, UsageError
from lmkcli.reading import LONG_LINE, parsed
from lmkcli.settings import Offline
from lmkcli.spec.result import Format

CATALOGS: dict[str, Mapping[str, catalog.Row]] = {
    "sources": catalog.SOURCES,
    "poolers": catalog.POOLERS,
    "models": catalog.MODELS | catalog.CROSS_ENCODERS,
    "indexes": catalog.INDEXES,
    "objectives": catalog.OBJECTIVES,
    "pretexts": catalog.PRETEXTS,
}


def _begun(word: str) -> list[str]:
    """What a shell completes: a list, or a collection."""
    return completion.among(["source", *CATALOGS])(word) + completion.collections(word)


_DIGEST = re.compile(r"(\d+:)?[0-9a-f]{16,}(:lower)?")
_FIRST = ("artifact", "contents")
_LAST = ("from", "execution", "made", "command")


@with_flags
def show(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="An artifact, a run, a score log, a grid's results, a collection or a group; or sources, "
            "poolers, models, indexes, objectives, pretexts.",
            autocompletion=_begun,
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="After 'sources' a group, such as beir; after 'source' a collection; after results a cell.",
            autocompletion=completion.collections,
        ),
    ] = None,
    offline: Offline = False,
    json: Json = False,
) -> None:
    """Explain an artifact and its lineage, or list what can be chosen by name.

    Digests are shown by 'lmk -v show' and by --json.
    """
    if (Path(what) / "plan.json").is_file():
        return _grid(Path(what), name, json)
    if name is not None:
        return _published(what, name, json)
    if what == "source":
        raise UsageError("which one? for instance: lmk show source beir/scifact/test")
    if what in CATALOGS:
        return _catalog(what, json)
    if known.group(what):
        return _group(what, json)
    path = Path(what)
    if path.is_dir() and (path / "manifest.json").is_file():
        return _artifact(path, json)
    if path.is_file() and Path(what + ".json").is_file():
        return _run(path, json)
    if path.is_file() and path.suffix == ".jsonl" and _is_log(path):
        return _log(path, json)
    if path.is_file() and path.suffix not in FILE_SUFFIXES:
        raise DataError(f"{path} is neither a run with a manifest nor a score log")
    _collection(what, json)


def _grid(folder: Path, cell: str | None, json: bool) -> None:
    """The results of a grid, or one cell of them."""
    from lmkcli.cli import gridtables

    if cell is None:
        return gridtables.state(folder, json)
    gridtables.lineage(folder, cell, json)


def _catalog(name: str, json: bool) -> None:
    rows = [
        [key, row.help, f'pip install "lmkcli[{row.extra}]"' if row.extra else ""]
        for key, row in CATALOGS[name].items()
    ]
    if name == "sources":
        rows += [[each, _members(each), ""] for each in known.groups()]
    tables.table([name, "what it is", "needs"], rows, Format.json if json else Format.table)


def _members(name: str) -> str:
    members = known.group(name)
    return f"group of {len(members)}: {members[0]}" + (" …" if len(members) > 1 else "")


def _published(what: str, name: str, json: bool) -> None:
    """'sources GROUP' and 'source NAME'; either takes the other's name as well."""
    if what not in ("source", "sources"):
        raise UsageError(f"'{what} {name}': a second name follows only 'sources' or 'source'")
    if known.group(name):
        return _group(name, json)
    if known.facts_of(name) is None:
        raise UnknownName("source", name, known.near(name))
    from lmkcli.data.hub_layouts import published

    facts = published(name)
    if json:
        return console.plain_json(facts)
    _tell(facts)


def _group(name: str, json: bool) -> None:
    members = [each for member in known.group(name) if (each := known.facts_of(member))]
    rows = [
        [each.name, _or(each.docs), _or(each.queries), " ".join(each.measures), each.licence]
        for each in members
    ]
    columns = [name, "documents", "queries", "measures", "licence"]
    tables.table(columns, rows, Format.json if json else Format.table)


def _or(count: int | None) -> int | str:
    return "" if count is None else count


def _artifact(path: Path, json: bool) -> None:
    from lmkcli.provenance import description

    facts = description.artifact(path)
    if json:
        return console.plain_json(facts)
    _tell(facts)


def _run(path: Path, json: bool) -> None:
    from lmkcli.provenance import description

    facts = description.run(path)
    if json:
        return console.plain_json(facts)
    _tell(facts)


def _tell(facts: dict[str, Any]) -> None:
    """Print facts for people; with -v all of them, as --json has them."""
    _print(facts if console.verbose else _brief(facts))


def _brief(facts: dict[str, Any]) -> dict[str, Any]:
    """What a person asks first, and last how it was made; without digests, and nothing twice."""
    shown = {key: facts[key] for key in _FIRST if key in facts}
    shown |= {key: item for key, item in facts.items() if key not in _LAST}
    shown |= {key: facts[key] for key in _LAST if key in facts}
    documents, queries = facts.get("documents"), facts.get("queries")
    if isinstance(documents, dict) and isinstance(queries, dict):
        other = {key: item for key, item in queries.items() if item != documents.get(key)}
        shown["queries"] = other or "as documents"
    return {
        key: _brief(item) if isinstance(item, dict) else item
        for key, item in shown.items()
        if not _DIGEST.fullmatch(str(item))
    }


def _print(value: dict[str, Any], depth: int = 0) -> None:
    for key, item in value.items():
        if item in ("", None, {}, []):
            continue
        if isinstance(item, dict):
            console.say("  " * depth + f"{key}:")
            _print(item, depth + 1)
        else:
            shown = (
                console.number(item)
                if isinstance(item, int) and not isinstance(item, bool)
                else item
            )
            console.say("  " * depth + f"{key}: {shown}")


def _is_log(path: Path) -> bool:
    with open(path, encoding="utf-8", errors="replace") as file:
        try:
            return "scores" in parsed(file.readline(LONG_LINE) or "{}")
        except (ValueError, TypeError):
            return False


def _log(path: Path, json: bool) -> None:
    from lmkcli.provenance import description
    from lmkcli.provenance.scorelog import read

    entries = read(path)
    if json:
        return console.plain_json(entries)
    shown = [{"time": "", "run": ""} | entry for entry in entries]  # any program may write a log
    tables.table(*description.log(shown), Format.table)


def _collection(spelling: str, json: bool) -> None:
    from lmkcli.data.collection import open_collection
    from lmkcli.provenance import description

    try:
        collection = open_collection(spelling)
    except UnknownName:
        if difflib.get_close_matches(spelling, CATALOGS):
            raise UnknownName("name", spelling, CATALOGS) from None
        raise
    facts = description.collection(collection)
    if json:
        return console.plain_json(facts)
    _print(facts)
