"""Where the tables of a known collection lie on the Hugging Face hub, from the table in hub_layouts.toml.

Only facts: which repository and commit, which configuration, split, files and columns. The reading is
the source's (`sources/hub.py`).
"""

import os
import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from lmkcli.data.known import facts_of
from lmkcli.errors import DataError

MIRROR = (
    "LMK_DATA"  # a folder that holds repositories as the hub does: <root>/<organisation>/<name>/
)


@dataclass(frozen=True)
class Table:
    """One table: a split of a configuration of a repository.

    `revision` is a commit, or empty where none is known ('main' then). `files` are patterns to look
    for first. `columns` says what a column of ours may be called there ('_id|id'), `where` which rows
    belong to the collection. Configurations and splits also have alternatives between '|'.
    """

    repo: str
    revision: str = ""
    config: str = ""
    split: str = ""
    files: tuple[str, ...] = ()
    columns: dict[str, str] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)

    def names(self, column: str) -> list[str]:
        """What a column of ours may be called; [] when the table has none."""
        return self.columns.get(column, "").split("|") if column in self.columns else []

    @property
    def expected(self) -> str:
        """The columns, for error messages."""
        said = [name.replace("|", " or ") for name in (*self.columns.values(), *self.where)]
        return ", ".join(name for name in said if name != ROW)


ROW = "#"  # in `columns`: the table has no such column, and the number of the row stands for it


@dataclass(frozen=True)
class HubLayout:
    """The three tables. With `chunked`, rows of `docs` are chunks '<document>_<number>', and chunks
    are judged; with `skip_empty`, queries all of whose answers are empty texts are left out."""

    docs: Table
    queries: Table
    qrels: Table
    chunked: bool = False
    skip_empty: bool = False

    @property
    def tables(self) -> tuple[Table, ...]:
        """Documents, queries, judgements."""
        return self.docs, self.queries, self.qrels

    @property
    def mirrored(self) -> bool:
        """Whether the mirror folder has every repository of it."""
        return all(mirror(table.repo) for table in self.tables)


def mirror(repo: str) -> Path | None:
    """The repository's folder under LMK_DATA; None when there is none. DataError if LMK_DATA is wrong."""
    if not os.environ.get(MIRROR):
        return None
    root = Path(os.path.expanduser(os.environ[MIRROR]))
    if not root.is_dir():
        raise DataError(f"{MIRROR}={root}: no such folder; correct the variable or unset it")
    folder = root / repo
    return folder if folder.is_dir() else None


def layout_of(name: str) -> HubLayout | None:
    """The layout of the collection of this name ('mldr/en/test'); None when the hub has none."""
    for entry in _read()["layout"]:
        for pattern in entry["names"]:
            words = _match(pattern, name)
            if words is not None:
                return _filled_layout(entry, words)
    return None


def published(name: str) -> dict[str, Any]:
    """What is known of a collection without reading it, and where the hub has it; {} if nothing is."""
    facts = facts_of(name)
    if facts is None:
        return {}
    place = layout_of(facts.name)
    tables = place.tables if place else ()
    places = {
        f"{table.repo}@{table.revision}" if table.revision else table.repo for table in tables
    }
    return {
        "source": facts.name,
        "group": facts.group,
        "read by": {"irds": "ir_datasets", "hub": "the Hugging Face hub"}[facts.source],
        "on the hub": " ".join(sorted(places)),
        "documents": facts.docs,
        "judged queries": facts.queries,
        "measures": " ".join(facts.measures),
        "relevant from grade": facts.rel,
        "a query's own document": "is no result" if facts.drop_self else "",
        "prompts": facts.prompts,
        "licence": facts.licence,
        "citation": facts.citation,
        "note": facts.note,
    }


def _match(pattern: str, name: str) -> dict[str, str] | None:
    """The words of a name: ('mldr/{lang}/{split}', 'mldr/en/test') -> lang en, split test."""
    expression = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(pattern))
    match = re.fullmatch(expression, name)
    return None if match is None else match.groupdict()


def _filled_layout(entry: dict[str, Any], given: dict[str, str]) -> HubLayout:
    """An entry's words are those of the name, what `of` says of this name, then its defaults."""
    words = entry.get("words", {}) | entry.get("of", {}).get(given.get("name", ""), {}) | given
    words = {key: _filled(value, words) for key, value in words.items()}
    shape = _read()["shape"].get(entry.get("shape", ""), {})
    common = {key: value for key, value in entry.items() if key in Table.__dataclass_fields__}
    docs, queries, qrels = (
        _table(_filled(common | shape.get(key, {}) | entry.get(key, {}), words))
        for key in ("docs", "queries", "qrels")
    )
    skip_empty = not set(words.values()).isdisjoint(entry.get("skip_empty", ()))
    return HubLayout(docs, queries, qrels, entry.get("chunked", False), skip_empty)


def _table(given: dict[str, Any]) -> Table:
    revision = _read()["revisions"].get(given["repo"], "")
    return Table(**given | {"files": tuple(given.get("files", ())), "revision": revision})


def _filled(value: Any, words: dict[str, str]) -> Any:
    """The value with {word} replaced, in every text inside it."""
    if isinstance(value, str):
        return re.sub(r"\{(\w+)\}", lambda match: words[match[1]], value)
    if isinstance(value, dict):
        return {key: _filled(inner, words) for key, inner in value.items()}
    return [_filled(inner, words) for inner in value]


@cache
def _read() -> dict[str, Any]:
    return tomllib.loads(files("lmkcli.data").joinpath("hub_layouts.toml").read_text("utf-8"))
