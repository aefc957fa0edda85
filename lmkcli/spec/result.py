"""Results of operations: typed values that print as text for people and convert to JSON."""

from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple


class Format(StrEnum):
    """How a table is printed."""

    table = "table"
    json = "json"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"


PROGRAMS = (Format.csv, Format.json)  # their tables have one value per row, and no marks


class Table(NamedTuple):
    """Columns and rows of a result; None is a missing value."""

    columns: list[str]
    rows: list[list[Any]]


@dataclass(frozen=True)
class Result:
    """The base of all results. `str()` is the text for people; `as_json` the same facts for programs."""

    def as_json(self) -> Any:
        """The result as a JSON value."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {key: str(item) if isinstance(item, Path) else item for key, item in values.items()}

    def table(self) -> Table | None:
        """The result as a table, if people read it as one."""
        return None

    def __str__(self) -> str:
        table = self.table()
        if table is None:
            return repr(self)
        lines = ["  ".join(map(str, row)) for row in (table.columns, *table.rows)]
        return "\n".join(lines)
