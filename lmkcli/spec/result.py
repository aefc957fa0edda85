"""Results of operations: typed values that print as text for people and convert to JSON."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from lmkcli.text.formatting import visible

SMALLEST = 0.0001  # the smallest p-value that is printed


class Format(StrEnum):
    """The format of a printed table."""

    table = "table"
    json = "json"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"


PROGRAMS = (Format.csv, Format.json)  # formats with one value per row and without marks


class PValue(float):
    """A p-value; shown as <0.0001 rather than 0.0000."""


class Cell(NamedTuple):
    """A table value that is the best of its column or has a mark such as †."""

    value: Any
    best: bool = False
    mark: str = ""


class Table(NamedTuple):
    """Columns and rows of a result; None is a missing value."""

    columns: list[str]
    rows: list[list[Any]]
    title: str = ""

    def __str__(self) -> str:
        """The title, the columns and the rows in aligned columns; numbers are aligned on the right."""
        cells = [self.columns, *(list(map(shown, row)) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        numeric = [is_numeric(self.rows, place) for place in range(len(widths))]
        lines = [
            "  ".join(
                cell.rjust(width) if number else cell.ljust(width)
                for cell, width, number in zip(row, widths, numeric, strict=True)
            ).rstrip()
            for row in cells
        ]
        return "\n".join([self.title, *lines] if self.title else lines)

    def as_json(self) -> list[dict[str, Any]]:
        """One object per row, without marks."""
        return [dict(zip(self.columns, map(bare, row), strict=True)) for row in self.rows]


def bare(value: Any) -> Any:
    """The value of a table without its mark."""
    return value.value if isinstance(value, Cell) else value


def shown(value: Any) -> str:
    """A value of a table as text: floats with four decimals, '-' for None, a mark behind its value."""
    mark = value.mark if isinstance(value, Cell) else ""
    value = bare(value)
    if value is None:
        return "-"
    if isinstance(value, PValue) and value < SMALLEST:
        return f"<{SMALLEST}{mark}"
    if isinstance(value, float):
        return f"{value:.4f}{mark}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}{mark}"
    return visible(str(value)) + mark


def is_numeric(rows: list[list[Any]], place: int) -> bool:
    """Whether a column contains numbers only, apart from missing values."""
    given = [value for value in (bare(row[place]) for row in rows) if value is not None]
    return bool(given) and all(isinstance(value, int | float) for value in given)


@dataclass(frozen=True)
class Result:
    """The base of all results. `str()` returns a text for people, `as_json` the same facts for programs."""

    def as_json(self) -> Any:
        """The result as a JSON value."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {key: str(item) if isinstance(item, Path) else item for key, item in values.items()}

    def table(self) -> Table | None:
        """The result as a table for people; None if it has no table."""
        return None

    def blocks(self) -> Iterator[Table | str]:
        """The texts and tables for a terminal, from top to bottom."""
        if type(self).__str__ is not Result.__str__ and (text := str(self)):
            yield text
        if (table := self.table()) is not None:
            yield table

    @property
    def form(self) -> Format:
        """The format of the tables."""
        return Format.table

    def notes(self) -> Iterator[str]:
        """Notes about the result. The command line prints them on stderr."""
        return iter(())

    def details(self) -> Iterator[Table | str]:
        """The blocks that `lmk -v` prints instead of `blocks`."""
        return self.blocks()

    def __str__(self) -> str:
        return "\n".join(map(str, self.blocks())) or type(self).__name__

    def __repr__(self) -> str:
        """The type and the first line; for results with `@dataclass(repr=False)`, which hold many objects."""
        return f"<{type(self).__name__}: {str(self).partition(chr(10))[0]}>"
