"""Show: describe an artifact and its origin, or list known names."""

import difflib
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from lmkcli import catalog
from lmkcli.data import known_collections
from lmkcli.data.collection import FILE_SUFFIXES
from lmkcli.errors import DataError, UnknownName, UsageError
from lmkcli.models.lookup import is_model
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result, Table
from lmkcli.spec.settings import Flag, Offline
from lmkcli.system import caches
from lmkcli.system.input_files import MAX_RECORD_LINE, parse_json
from lmkcli.text.formatting import counted, shell_line, size

if TYPE_CHECKING:
    from lmkcli.provenance.scorelog import LogEntry

CATALOGS: dict[str, tuple[Mapping[str, catalog.Row], ...]] = {
    "sources": (catalog.SOURCES,),
    "readers": (catalog.READERS,),
    "poolers": (catalog.POOLERS,),
    "models": (catalog.MODELS, catalog.CROSS_ENCODERS),
    "engines": (catalog.ENGINES,),
    "formats": (catalog.IMPORTERS, catalog.EXPORTERS),
    "losses": (catalog.LOSSES,),
    "pretexts": (catalog.PRETEXTS,),
}
_DIGEST = re.compile(r"(\d+:)?[0-9a-f]{16,}(:lower)?")
CACHES = "caches"
MEASURES = "measures"
_COUNTING_SECONDS = 2.0  # for each cache
_DIGITS = 8  # of a number that is printed exactly
_FIRST = ("artifact", "contents")
_MOST_MEASURES = 20  # columns of a log; a table with more takes long and cannot be read
_LAST = ("from", "execution", "made", "command")


@dataclass(frozen=True, repr=False)
class Listed(Result):
    """A table; its JSON has the same rows."""

    columns: list[str]
    rows: list[list[Any]]

    def as_json(self) -> Any:
        """Return an object per row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def blocks(self) -> Iterator[Table | str]:
        """Yield the table."""
        yield Table(self.columns, self.rows)


@dataclass(frozen=True, repr=False)
class Described(Result):
    """Facts about an artifact, a run or a collection; facts can be nested."""

    facts: dict[str, Any]
    complete: bool = False  # whether the text includes digests and repetitions

    def as_json(self) -> Any:
        """Return all facts."""
        return self.facts

    def blocks(self) -> Iterator[Table | str]:
        """Yield the facts without digests; the origin comes last. Files have sizes and times for people."""
        facts = dict(self.facts if self.complete else _brief(self.facts))
        if stamp := facts.pop("stamp", None):
            facts["files"] = {name: _file_state(*state) for name, state in stamp.items()}
        yield "\n".join(_lines(facts))

    def details(self) -> Iterator[Table | str]:
        """Yield all facts, as JSON has them."""
        yield "\n".join(_lines(self.facts))


@dataclass(frozen=True, repr=False)
class Log(Result):
    """The entries of a score log."""

    entries: "list[LogEntry]"

    def as_json(self) -> Any:
        """Return the entries as they are stored."""
        return self.entries

    def as_columns(self) -> Mapping[str, Any]:
        """Return a row per entry, a column per measure."""
        from lmkcli.provenance import description

        return Table(*description.log(self.entries, self._measures())).as_columns()

    def blocks(self) -> Iterator[Table | str]:
        """Yield a row per entry, a column per measure."""
        from lmkcli.provenance import description

        yield Table(*description.log(self.entries, self._measures()[:_MOST_MEASURES]))

    def notes(self) -> Iterator[str]:
        """Yield the number of measures that the table leaves out."""
        if left := len(self._measures()[_MOST_MEASURES:]):
            yield f"{counted(left, 'more measure')} not shown; --json prints all"

    def _measures(self) -> list[str]:
        return list(dict.fromkeys(name for each in self.entries for name in each["scores"]))


@dataclass(frozen=True)
class Show(Operation[Result]):
    """Describe an artifact and its lineage, or list known names or caches.

    'lmk -v show' and --json also print digests.
    """

    verb: ClassVar[str] = "show"

    what: Annotated[
        str,
        Flag(
            f"{', '.join(['An artifact', 'a model', 'a run', 'a score log', *catalog.DESCRIBERS])}, "
            f"a collection or a group; a catalog: {', '.join([*CATALOGS, MEASURES])}; or {CACHES}.",
            argument=True,
            metavar="WHAT",
        ),
    ]
    name: Annotated[
        str | None,
        Flag(
            "After 'sources' a group, such as beir; after 'source' a collection; after results with "
            "several parts, a part.",
            argument=True,
            metavar="[NAME]",
        ),
    ] = None
    offline: Offline = field(default=False, kw_only=True)

    def execute(self, report: Report) -> Result:
        """Read the manifests of an artifact. A collection is read completely."""
        path = Path(self.what)
        for row in catalog.DESCRIBERS.values():
            if (path / row.marker).is_file():
                described: Result = catalog.DESCRIBERS.load(row.name)(path, self.name)
                return described
        if self.name is not None:
            return _published(self.what, self.name)
        if self.what == "source":
            raise UsageError("NAME is missing; for instance: lmk show source beir/scifact/test")
        if self.what in (*CATALOGS, MEASURES, CACHES):
            return _names(self.what)
        if known_collections.members(self.what):
            return _group(self.what)
        from lmkcli.provenance import description

        if path.is_dir() and (path / "manifest.json").is_file():
            return Described(description.artifact(path))
        if is_model(self.what):
            return Described(description.model(self.what))
        return _file(self.what) if path.is_file() else _collection(self.what)


def _file(name: str) -> Result:
    """Return a run, a score log, or the file of a collection."""
    from lmkcli.provenance import description

    path = Path(name)
    if Path(f"{name}.json").is_file():
        return Described(description.run(path))
    if path.suffix == ".jsonl" and _is_log(path):
        from lmkcli.provenance.scorelog import read

        return Log(read(path))
    if path.suffix not in FILE_SUFFIXES:
        raise DataError(f"{path} is neither a run with a manifest nor a score log")
    return _collection(name)


def _names(name: str) -> Listed:
    """Return the entries of a catalog, or the caches."""
    if name == CACHES:
        return _caches()
    if name == MEASURES:
        from lmkcli.evaluation.measures import described

        return Listed([name, "description", "parameters"], [list(row) for row in described()])
    rows = [
        [key, row.help, f'pip install "lmkcli[{row.extra}]"' if row.extra else row.provider]
        for table in CATALOGS[name]
        for key, row in table.items()
    ]
    if name == "sources":
        rows += [[each, _members(each), ""] for each in known_collections.groups()]
    return Listed([name, "description", "needs"], rows)


def _caches() -> Listed:
    """Return the caches on this machine, with their sizes, their last use if known, and
    how to remove them.
    """
    rows: list[list[Any]] = []
    for name in catalog.CACHES:
        kept: Iterator[caches.Kept] = catalog.CACHES.load(name)()
        rows += [
            _cache(each.name, each.folder, _minute(each.used) if each.used else None)
            for each in kept
        ]
    own = caches.lmk_cache()
    others = {
        "models merged with their adapters": own / "merged",
        "fast paths of models": own / "routes",
        "Hugging Face hub": caches.hub_cache(),
        "ir_datasets": caches.ir_datasets_cache(),
    }
    rows += [_cache(name, folder, None) for name, folder in others.items() if folder.is_dir()]
    return Listed(["cache", "size", "last used", "remove it with"], rows)


def _cache(name: str, folder: Path, used: str | None) -> list[Any]:
    measured = caches.inspect_folder(folder, _COUNTING_SECONDS)
    more = "" if measured.whole else "more than "
    return [name, more + size(measured.bytes), used, shell_line("rm", "-r", str(folder))]


def _minute(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _members(name: str) -> str:
    members = known_collections.members(name)
    return f"group of {len(members)}: {members[0]}" + (" …" if len(members) > 1 else "")


def _published(what: str, name: str) -> Result:
    """'sources GROUP' and 'source NAME'; both accept groups and collections."""
    if what not in ("source", "sources"):
        raise UsageError(f"'{what} {name}': only 'sources' and 'source' accept a second name")
    if known_collections.members(name):
        return _group(name)
    if known_collections.facts_of(name) is None:
        raise UnknownName("source", name, known_collections.similar_names(name))
    from lmkcli.data.hub_layouts import published

    return Described(published(name))


def _group(name: str) -> Listed:
    """Return the collections of a group, with their sizes, measures and licences."""
    members = [
        each
        for member in known_collections.members(name)
        if (each := known_collections.facts_of(member))
    ]
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
            return "scores" in parse_json(file.readline(MAX_RECORD_LINE) or "{}")
        except (ValueError, TypeError):
            return False


def _collection(spelling: str) -> Described:
    """Counts and the digest of a collection, which is read completely."""
    from lmkcli.data.collection import open_collection
    from lmkcli.provenance import description

    try:
        collection = open_collection(spelling)
    except UnknownName:
        names = [*CATALOGS, MEASURES, CACHES]
        if difflib.get_close_matches(spelling, names):
            raise UnknownName("name", spelling, names) from None
        raise
    return Described(description.collection(collection), complete=True)


def _brief(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts without digests and repetitions. The most important facts come first."""
    shown = {key: facts[key] for key in _FIRST if key in facts}
    shown |= {key: item for key, item in facts.items() if key not in _LAST}
    shown |= {key: facts[key] for key in _LAST if key in facts}
    documents, queries = facts.get("documents"), facts.get("queries")
    if isinstance(documents, dict) and isinstance(queries, dict):
        other = {key: item for key, item in queries.items() if item != documents.get(key)}
        shown["queries"] = other or "as documents"
    shown = {key: item for key, item in shown.items() if not _DIGEST.fullmatch(str(item))}
    if shown.get("dim") == 0:
        shown["dim"] = "all"
    return {key: _brief(item) if isinstance(item, dict) else item for key, item in shown.items()}


def _file_state(*state: int) -> str:
    """Return the size of a file or folder, and the local time of its last change if that is recorded."""
    if len(state) < 2 or not state[1]:
        return size(state[0])
    changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(state[1] / 1e9))
    return f"{size(state[0])}, changed {changed}"


def _lines(facts: dict[str, Any], depth: int = 0) -> Iterator[str]:
    """Yield one line per fact; nested facts are indented."""
    for key, item in facts.items():
        if item in ("", None, {}) or (isinstance(item, list) and not any(e != {} for e in item)):
            continue
        if isinstance(item, dict):
            yield "  " * depth + f"{key}:"
            yield from _lines(item, depth + 1)
        else:
            yield "  " * depth + f"{key}: {_readable(item)}"


def _readable(item: Any) -> str:
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, list):
        return ", ".join(map(_readable, item))
    if isinstance(item, float) and len(str(item)) > _DIGITS and not item.is_integer():
        return f"{item:.6g}"
    return f"{item:,}" if isinstance(item, int) else str(item)
