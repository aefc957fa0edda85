"""Results of operations: typed values that print as text for people and convert to JSON."""

from collections.abc import Iterator
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


class PValue(float):
    """A p-value; shown as <0.0001 rather than 0.0000."""


class Cell(NamedTuple):
    """A highlighted table value: the best of its column, or one with a mark such as †."""

    value: Any
    best: bool = False
    mark: str = ""


class Table(NamedTuple):
    """Columns and rows of a result; None is a missing value."""

    columns: list[str]
    rows: list[list[Any]]
    title: str = ""

    def as_json(self) -> list[dict[str, Any]]:
        """An object per row, without marks."""
        bare = [[v.value if isinstance(v, Cell) else v for v in row] for row in self.rows]
        return [dict(zip(self.columns, row, strict=True)) for row in bare]


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

    def blocks(self) -> Iterator[Table | str]:
        """What a terminal shows, from top to bottom: texts and tables."""
        table = self.table()
        text = "" if table and type(self).__str__ is Result.__str__ else str(self)
        if text:
            yield text
        if table is not None:
            yield table

    @property
    def form(self) -> Format:
        """How its tables are printed."""
        return Format.table

    def notes(self) -> Iterator[str]:
        """Remarks about the result, which the command line prints on stderr."""
        return iter(())

    def details(self) -> Iterator[Table | str]:
        """What `lmk -v` shows instead of `blocks`."""
        return self.blocks()

    def __str__(self) -> str:
        table = self.table()
        if table is None:
            return repr(self)
        lines = ["  ".join(map(str, row)) for row in (table.columns, *table.rows)]
        return "\n".join(lines)
