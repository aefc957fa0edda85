"""The places of the tables of known collections on the Hugging Face hub, from hub_layouts.toml.

A place is a repository and commit, a configuration, a split, files and columns. `sources/hub.py` reads the
tables.
"""

import os
import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from lmkcli.data.known_collections import facts_of
from lmkcli.errors import DataError

MIRROR = "LMK_DATA"  # a folder with repositories as on the hub: <root>/<organisation>/<name>/
ROW = "#"  # in `columns`: the table has no such column, and the number of the row is its value


@dataclass(frozen=True)
class HubTable:
    """One table: a split of a configuration of a repository.

    '|' separates alternative names of configurations, splits and columns ('_id|id').
    """

    repo: str
    revision: str = ""
    """A commit; empty (for 'main') if no publication names one."""
    config: str = ""
    split: str = ""
    files: tuple[str, ...] = ()
    """Patterns of files that are searched first."""
    columns: dict[str, str] = field(default_factory=dict)
    """Column of lmk (id, text, title, query, doc, score) -> its names in the table."""
    where: dict[str, str] = field(default_factory=dict)
    """Column -> value of the rows that belong to the collection."""

    def names(self, column: str) -> list[str]:
        """Return the possible names of a column; [] if the table has no such column."""
        return self.columns.get(column, "").split("|") if column in self.columns else []

    @property
    def expected(self) -> str:
        """The columns, for error messages."""
        names = [name.replace("|", " or ") for name in (*self.columns.values(), *self.where)]
        return ", ".join(name for name in names if name != ROW)


@dataclass(frozen=True)
class HubLayout:
    """The three tables of a collection."""

    docs: HubTable
    queries: HubTable
    qrels: HubTable
    chunked: bool = False
    """Whether rows of `docs` are chunks '<document>_<number>', and judgements refer to chunks."""
    skip_empty: bool = False
    """Whether queries are skipped if the texts of all their relevant documents are empty."""

    @property
    def tables(self) -> tuple[HubTable, ...]:
        """Documents, queries, judgements."""
        return self.docs, self.queries, self.qrels

    @property
    def mirrored(self) -> bool:
        """Whether the mirror folder contains all its repositories."""
        return all(mirror(table.repo) for table in self.tables)


def mirror(repo: str) -> Path | None:
    """Return the repository's folder in LMK_DATA, or None. Raises DataError if LMK_DATA is not a folder."""
    if not os.environ.get(MIRROR):
        return None
    root = Path(os.path.expanduser(os.environ[MIRROR]))
    if not root.is_dir():
        raise DataError(f"{MIRROR}={root}: no such folder; correct the variable or unset it")
    folder = root / repo
    return folder if folder.is_dir() else None


def layout_of(name: str) -> HubLayout | None:
    """Return the layout of the collection with this name ('mldr/en/test'); None if the
    hub does not have it.
    """
    for entry in _read()["layout"]:
        for pattern in entry["names"]:
            words = _match(pattern, name)
            if words is not None:
                return _filled_layout(entry, words)
    return None


def published(name: str) -> dict[str, Any]:
    """Return the published facts of a collection and its place on the hub; {} if it is not known."""
    facts = facts_of(name)
    if facts is None:
        return {}
    layout = layout_of(facts.name)
    repos = {
        f"{table.repo}@{table.revision}" if table.revision else table.repo
        for table in (layout.tables if layout else ())
    }
    return {
        "source": facts.name,
        "group": facts.group,
        "read by": {"irds": "ir_datasets", "hub": "the Hugging Face hub"}[facts.source],
        "on the hub": " ".join(sorted(repos)),
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
    """Match a name: ('mldr/{lang}/{split}', 'mldr/en/test') -> {'lang': 'en', 'split': 'test'}."""
    expression = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(pattern))
    match = re.fullmatch(expression, name)
    return None if match is None else match.groupdict()


def _filled_layout(entry: dict[str, Any], matched: dict[str, str]) -> HubLayout:
    """Fill {word} in an entry: from the name, else from the row `of` this name, else from its defaults."""
    words = entry.get("words", {}) | entry.get("of", {}).get(matched.get("name", ""), {}) | matched
    words = {key: _filled(value, words) for key, value in words.items()}
    shape = _read()["shape"].get(entry.get("shape", ""), {})
    common = {key: value for key, value in entry.items() if key in HubTable.__dataclass_fields__}
    tables = []
    for key in ("docs", "queries", "qrels"):
        row = _filled(common | shape.get(key, {}) | entry.get(key, {}), words)
        row["files"] = tuple(row.get("files", ()))
        row["revision"] = _read()["revisions"].get(row["repo"], "")
        tables.append(HubTable(**row))
    skip_empty = not set(words.values()).isdisjoint(entry.get("skip_empty", ()))
    docs, queries, qrels = tables
    return HubLayout(docs, queries, qrels, entry.get("chunked", False), skip_empty)


def _filled(value: Any, words: dict[str, str]) -> Any:
    """Replace {word} in every text of a TOML value."""
    if isinstance(value, str):
        return re.sub(r"\{(\w+)\}", lambda match: words[match[1]], value)
    if isinstance(value, dict):
        return {key: _filled(inner, words) for key, inner in value.items()}
    return [_filled(inner, words) for inner in value]


@cache
def _read() -> dict[str, Any]:
    return tomllib.loads(files("lmkcli.data").joinpath("hub_layouts.toml").read_text("utf-8"))
