"""lmk show: what an artifact is, where it came from, and what can be chosen by name."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lmkcli import catalog
from lmkcli.cli import console, options
from lmkcli.cli.console import Format
from lmkcli.collection import FILE_SUFFIXES
from lmkcli.errors import DataError, UnknownName

CATALOGS = {
    "sources": catalog.SOURCES,
    "poolers": catalog.POOLERS,
    "models": catalog.MODELS,
    "indexes": catalog.INDEXES,
}


def show(
    what: Annotated[
        str,
        typer.Argument(
            help="An artifact, a run, a score log, a collection; or sources, poolers, models, indexes."
        ),
    ],
    offline: options.Offline = False,
    json: options.Json = False,
) -> None:
    """Explain an artifact and its lineage, or list what can be chosen by name."""
    if what in CATALOGS:
        return _catalog(what, json)
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


def _catalog(name: str, json: bool) -> None:
    rows = [
        [key, row.help, f'pip install "lmkcli[{row.extra}]"' if row.extra else ""]
        for key, row in CATALOGS[name].items()
    ]
    console.table([name, "what it is", "needs"], rows, Format.json if json else Format.table)


def _artifact(path: Path, json: bool) -> None:
    from lmkcli import describing

    facts = describing.artifact(path)
    if json:
        return console.plain_json(facts)
    _print(facts)


def _run(path: Path, json: bool) -> None:
    from lmkcli import describing

    facts = describing.run(path)
    if json:
        return console.plain_json(facts)
    _print(facts)


def _print(value: dict[str, Any], depth: int = 0) -> None:
    for key, item in value.items():
        if item in ("", None, {}, []):
            continue
        if isinstance(item, dict):
            print("  " * depth + f"{key}:")
            _print(item, depth + 1)
        else:
            shown = (
                console.number(item)
                if isinstance(item, int) and not isinstance(item, bool)
                else item
            )
            print("  " * depth + f"{key}: {shown}")


def _is_log(path: Path) -> bool:
    import json as codec

    with open(path, encoding="utf-8") as file:
        try:
            return "scores" in codec.loads(file.readline() or "{}")
        except ValueError:
            return False


def _log(path: Path, json: bool) -> None:
    from lmkcli.scorelog import read

    entries = read(path)
    if json:
        return console.plain_json(entries)
    names = list(dict.fromkeys(name for entry in entries for name in entry["scores"]))
    rows = [
        [i, e["time"], e["run"], *(e["scores"].get(n, "") for n in names)]
        for i, e in enumerate(entries, 1)
    ]
    console.table(["#", "time", "run", *names], rows, Format.table)


def _collection(spelling: str, json: bool) -> None:
    from lmkcli import describing
    from lmkcli.collection import open_collection

    try:
        collection = open_collection(spelling)
    except UnknownName as error:
        raise UnknownName("name or artifact", spelling, [*CATALOGS], f"({error})") from None
    facts = describing.collection(collection)
    if json:
        return console.plain_json(facts)
    _print(facts)
