"""Filters of documents by their metadata: path, type and date of their file, and fields of their record.

A filter keeps documents of a ranking, and the ranking becomes deeper until enough are found. So the hits are
those of the whole ranking that fulfil all conditions, for every engine.
"""

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmkcli.data.collection import open_collection
from lmkcli.data.sources.files import FileCollection
from lmkcli.errors import DataError, UsageError
from lmkcli.plugins.documents.file_trees import is_table, kind_of, unpacked
from lmkcli.plugins.documents.folder import file_at, matches

PATH, TYPE, DATE = "path", "type", "date"
_CONDITION = re.compile(r"\s*([\w.-]+)\s*(<=|>=|!=|=|<|>)\s*(.*?)\s*")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


@dataclass(frozen=True)
class Condition:
    """One condition: the name of a metadatum, an operator and a value."""

    name: str
    operator: str
    value: str

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Read 'type=pdf', 'path=mail/**' or 'date>=2026-03'. Raises UsageError for other texts."""
        found = _CONDITION.fullmatch(text)
        if found is None or not found[3]:
            raise UsageError(
                f"where {text!r}: write a name, an operator and a value, such as type=pdf, path=mail/**, "
                "date>=2026-03 or status!=closed"
            )
        condition = cls(*found.groups())
        if condition.name in (PATH, TYPE) and condition.operator not in ("=", "!="):
            raise UsageError(f"where {text!r}: {condition.name} can only be compared with = and !=")
        return condition

    def holds(self, value: str | float) -> bool:
        """Whether a value fulfils the condition: as numbers if both are numbers, else as texts."""
        given: str | float = self.value
        try:
            value, given = float(value), float(given)
        except ValueError:
            value = str(value)
        return _COMPARE[self.operator](value, given)


class Where:
    """Whether documents of a collection on disk fulfil all of some conditions.

    `root` is the folder that contains the files of the documents; None if the collection is one file of
    records. Files are read at the first condition on a field, and never again.
    """

    def __init__(self, conditions: Sequence[str], collection: str, root: Path | None) -> None:
        self._conditions = [Condition.parse(text) for text in conditions]
        self._collection, self._root = collection, root
        self._fields: dict[tuple[str, str], dict[str, str | float]] = {}

    def accepts(self, doc_id: str) -> bool:
        """Whether a document fulfils all conditions. One without the metadatum does not."""
        path = self._path(doc_id)
        return all(self._holds(each, doc_id, path) for each in self._conditions)

    def _path(self, doc_id: str) -> str:
        """The path of the file of a document, below the root."""
        if self._root is None:
            return Path(self._collection.partition(",")[0]).name
        return file_at(self._root, doc_id)

    def _holds(self, condition: Condition, doc_id: str, path: str) -> bool:
        if not path:  # it was removed, or is in an archive
            return False
        if condition.name == PATH:
            return matches(path, condition.value) == (condition.operator == "=")
        if condition.name == TYPE:
            suffix = unpacked(path).rpartition(".")[2]
            wanted = condition.value.lower().lstrip(".")
            return (wanted in (suffix, kind_of(path))) == (condition.operator == "=")
        if condition.name == DATE:
            day = _day(self._file(path))
            return bool(day) and _COMPARE[condition.operator](
                day[: len(condition.value)], condition.value
            )
        value = self._values(path, condition.name).get(doc_id)
        return value is not None and condition.holds(value)

    def _file(self, path: str) -> Path:
        return Path(self._collection.partition(",")[0]) if self._root is None else self._root / path

    def _values(self, path: str, name: str) -> dict[str, str | float]:
        """Document -> value of a field, for the records of a file; empty if it is no table."""
        key = path, name
        if key not in self._fields:
            self._fields[key] = {}
            if is_table(path):
                given = self._collection if self._root is None else str(self._file(path))
                table = open_collection(given)
                if isinstance(table, FileCollection):
                    start = "" if self._root is None else f"{path}#"
                    try:
                        found = table.document_metadata(name)
                    except DataError:  # it is read as text
                        found = {}
                    self._fields[key] = {start + doc: value for doc, value in found.items()}
        return self._fields[key]


def _day(file: Path) -> str:
    """The day on which a file was changed, as 2026-03-04 in local time; empty if it is gone."""
    try:
        return time.strftime("%Y-%m-%d", time.localtime(os.stat(file).st_mtime))
    except OSError:
        return ""
