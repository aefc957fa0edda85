"""Show: what an artifact is and where it came from; the names that can be chosen."""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from lmkcli import catalog
from lmkcli.data import known
from lmkcli.data.collection import FILE_SUFFIXES
from lmkcli.errors import DataError, UnknownName, UsageError
from lmkcli.progress import Report
from lmkcli.reading import LONG_LINE, parsed
from lmkcli.settings import Flag, Offline
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result, Table

CATALOGS: dict[str, tuple[Mapping[str, catalog.Row], ...]] = {
    "sources": (catalog.SOURCES,),
    "poolers": (catalog.POOLERS,),
    "models": (catalog.MODELS, catalog.CROSS_ENCODERS),
    "indexes": (catalog.INDEXES,),
    "objectives": (catalog.OBJECTIVES,),
    "pretexts": (catalog.PRETEXTS,),
}
_DIGEST = re.compile(r"(\d+:)?[0-9a-f]{16,}(:lower)?")
_FIRST = ("artifact", "contents")
_LAST = ("from", "execution", "made", "command")


@dataclass(frozen=True)
class Listed(Result):
    """A table whose rows are also its JSON."""

    columns: list[str]
    rows: list[list[Any]]

    def as_json(self) -> Any:
        """An object per row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def table(self) -> Table:
        """The table."""
        return Table(self.columns, self.rows)


@dataclass(frozen=True)
class Described(Result):
    """Facts about an artifact, a run or a collection: text, numbers, and facts nested below a name."""

    facts: dict[str, Any]
    complete: bool = False  # also show digests and repetitions to people

    def as_json(self) -> Any:
        """All facts."""
        return self.facts

    def __str__(self) -> str:
        """The facts that people ask for, without digests; how it was made comes last."""
        return "\n".join(_lines(self.facts if self.complete else _brief(self.facts)))

    def details(self) -> Iterator[Table | str]:
        """All facts, as JSON has them."""
        yield "\n".join(_lines(self.facts))


@dataclass(frozen=True)
class Log(Result):
    """The entries of a score log."""

    entries: list[dict[str, Any]]

    def as_json(self) -> Any:
        """The entries as they are stored."""
        return self.entries

    def table(self) -> Table:
        """A row per entry, a column per measure."""
        from lmkcli.provenance import description

        # entries of other programs may lack these
        return Table(*description.log([{"time": "", "run": ""} | each for each in self.entries]))


@dataclass(frozen=True)
class Show(Operation[Result]):
    """Explain an artifact and its lineage, or list what can be chosen by name.

    Digests are shown by 'lmk -v show' and by --json.
    """

    verb: ClassVar[str] = "show"

    what: Annotated[
        str,
        Flag(
            "An artifact, a run, a score log, a grid's results, a collection or a group; or sources, "
            "poolers, models, indexes, objectives, pretexts.",
            argument=True,
            metavar="WHAT",
        ),
    ]
    name: Annotated[
        str | None,
        Flag(
            "After 'sources' a group, such as beir; after 'source' a collection; after results a cell.",
            argument=True,
            metavar="[NAME]",
        ),
    ] = None
    offline: Offline = field(default=False, kw_only=True)

    def execute(self, report: Report) -> Result:
        """Read the manifests and return what they say; a collection is read through."""
        path = Path(self.what)
        if (path / "plan.json").is_file():
            return self._grid(path)
        if self.name is not None:
            return _published(self.what, self.name)
        if self.what == "source":
            raise UsageError("which one? for instance: lmk show source beir/scifact/test")
        if self.what in CATALOGS:
            return _names(self.what)
        if known.group(self.what):
            return _group(self.what)
        from lmkcli.provenance import description

        if path.is_dir() and (path / "manifest.json").is_file():
            return Described(description.artifact(path))
        if path.is_file() and Path(self.what + ".json").is_file():
            return Described(description.run(path))
        if path.is_file() and path.suffix == ".jsonl" and _is_log(path):
            from lmkcli.provenance.scorelog import read

            return Log(read(path))
        if path.is_file() and path.suffix not in FILE_SUFFIXES:
            raise DataError(f"{path} is neither a run with a manifest nor a score log")
        return _collection(self.what)

    def _grid(self, folder: Path) -> Result:
        from lmkcli.operations import gridresults

        if self.name is None:
            return gridresults.state(folder)
        return gridresults.lineage(folder, self.name)


def _names(name: str) -> Listed:
    """The entries of a catalog."""
    rows = [
        [key, row.help, f'pip install "lmkcli[{row.extra}]"' if row.extra else ""]
        for table in CATALOGS[name]
        for key, row in table.items()
    ]
    if name == "sources":
        rows += [[each, _members(each), ""] for each in known.groups()]
    return Listed([name, "what it is", "needs"], rows)


def _members(name: str) -> str:
    members = known.group(name)
    return f"group of {len(members)}: {members[0]}" + (" …" if len(members) > 1 else "")


def _published(what: str, name: str) -> Result:
    """'sources GROUP' and 'source NAME'; each also takes the other's name."""
    if what not in ("source", "sources"):
        raise UsageError(f"'{what} {name}': a second name follows only 'sources' or 'source'")
    if known.group(name):
        return _group(name)
    if known.facts_of(name) is None:
        raise UnknownName("source", name, known.near(name))
    from lmkcli.data.hub_layouts import published

    return Described(published(name))


def _group(name: str) -> Listed:
    """The collections of a group, with their sizes, measures and licences."""
    members = [each for member in known.group(name) if (each := known.facts_of(member))]
    rows = [
        [each.name, _or(each.docs), _or(each.queries), " ".join(each.measures), each.licence]
        for each in members
    ]
    return Listed([name, "documents", "queries", "measures", "licence"], rows)


def _or(count: int | None) -> int | str:
    return "" if count is None else count


def _is_log(path: Path) -> bool:
    with open(path, encoding="utf-8", errors="replace") as file:
        try:
            return "scores" in parsed(file.readline(LONG_LINE) or "{}")
        except (ValueError, TypeError):
            return False


def _collection(spelling: str) -> Described:
    """Counts and digest of a collection, which is read through."""
    from lmkcli.data.collection import open_collection
    from lmkcli.provenance import description

    try:
        collection = open_collection(spelling)
    except UnknownName:
        if difflib.get_close_matches(spelling, CATALOGS):
            raise UnknownName("name", spelling, CATALOGS) from None
        raise
    return Described(description.collection(collection), complete=True)


def _brief(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts without digests and repetitions, in the order in which people ask for them."""
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


def _lines(facts: dict[str, Any], depth: int = 0) -> Iterator[str]:
    """A line per fact, indented below the name that it belongs to."""
    for key, item in facts.items():
        if item in ("", None, {}, []):
            continue
        if isinstance(item, dict):
            yield "  " * depth + f"{key}:"
            yield from _lines(item, depth + 1)
        else:
            number = isinstance(item, int) and not isinstance(item, bool)
            yield "  " * depth + (f"{key}: {item:,}" if number else f"{key}: {item}")
