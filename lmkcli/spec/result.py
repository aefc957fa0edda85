"""Results of operations: typed values that print as text for people and convert to JSON."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from html import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lmkcli.errors import MissingExtra
from lmkcli.text.formatting import counted, visible

if TYPE_CHECKING:
    import pandas
    import polars

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
        """Return the title, the columns and the rows in aligned columns; numbers are aligned on the right."""
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
        """Return one object per row, without marks."""
        return [dict(zip(self.columns, map(bare, row), strict=True)) for row in self.rows]

    def as_columns(self) -> dict[str, list[Any]]:
        """Column -> values, without marks."""
        return {name: [bare(row[n]) for row in self.rows] for n, name in enumerate(self.columns)}


def bare(value: Any) -> Any:
    """Return the value of a table without its mark."""
    return value.value if isinstance(value, Cell) else value


def shown(value: Any) -> str:
    """Return a value of a table as text: floats with four decimals, '-' for None, a mark behind its value."""
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
    """Return whether a column contains numbers only, apart from missing values."""
    given = [value for value in (bare(row[place]) for row in rows) if value is not None]
    return bool(given) and all(isinstance(value, int | float) for value in given)


_MOST_ROWS = 20  # of a table in a notebook
_MOST_CHARACTERS = 300  # of a value in a notebook


class Tabular:
    """Something with columns: a table of pandas, of polars, or of a notebook."""

    def as_columns(self) -> Mapping[str, Any]:
        """Column -> values: lists or arrays, all of the same length."""
        raise NotImplementedError

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the columns as a pandas DataFrame. Raises MissingExtra if pandas is not installed."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise MissingExtra("pandas", "pandas", "to_pandas") from error
        return pandas.DataFrame(dict(self.as_columns()))

    def to_polars(self) -> "polars.DataFrame":
        """Return the columns as a polars DataFrame. Raises MissingExtra if polars is not installed."""
        try:
            import polars
        except ModuleNotFoundError as error:
            raise MissingExtra("polars", "polars", "to_polars") from error
        return polars.DataFrame(dict(self.as_columns()), strict=False)

    def _repr_html_(self) -> str:
        """Return the first rows as HTML, which notebooks show."""
        columns = self.as_columns()
        rows = [list(row) for row in islice(zip(*columns.values(), strict=True), _MOST_ROWS)]
        left = max(map(len, columns.values()), default=0) - len(rows)
        return html_of([Table([*columns], rows), *([f"… {left:,} more rows"] if left else [])])


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the columns of rows. A value that a row lacks is None."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def html_of(blocks: Iterable[Table | str]) -> str:
    """Tables and texts as HTML."""
    return "\n".join(_table_html(b) if isinstance(b, Table) else _text_html(b) for b in blocks)


def _text_html(text: str) -> str:
    return f'<pre style="white-space: pre-wrap">{escape(visible(text))}</pre>' if text else ""


def _table_html(table: Table) -> str:
    align = [
        ' style="text-align: right"'
        if is_numeric(table.rows, place)
        else ' style="text-align: left"'
        for place in range(len(table.columns))
    ]
    heads = "".join(
        f"<th{style}>{escape(visible(name))}</th>"
        for name, style in zip(table.columns, align, strict=True)
    )
    lines = [
        "".join(
            f"<td{style}>{_cell_html(value)}</td>" for value, style in zip(row, align, strict=True)
        )
        for row in table.rows
    ]
    title = f"<caption>{escape(visible(table.title))}</caption>" if table.title else ""
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>{title}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _cell_html(value: Any) -> str:
    text = shown(value)
    text = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
    return f"<b>{escape(text)}</b>" if isinstance(value, Cell) and value.best else escape(text)


@dataclass(frozen=True)
class Result(Tabular):
    """The base of all results: `blocks` returns what people read, `as_json` the same facts for programs.

    `str()` returns the blocks as a text. The table of `to_pandas` and `to_polars` has the facts of `as_json`.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "__repr__" not in vars(cls):  # else dataclass would show all fields
            cls.__repr__ = Result.__repr__  # type: ignore[method-assign]

    def as_columns(self) -> Mapping[str, Any]:
        """Return the rows of `as_json`, or its facts as one row."""
        facts = self.as_json()
        return columns_of(facts if isinstance(facts, list) else [facts])

    def as_json(self) -> Any:
        """Return the result as a JSON value."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {key: str(item) if isinstance(item, Path) else item for key, item in values.items()}

    def blocks(self) -> Iterator[Table | str]:
        """Return the texts and tables for a terminal, from top to bottom."""
        return iter(())

    @property
    def form(self) -> Format:
        """The format of the tables."""
        return Format.table

    def notes(self) -> Iterator[str]:
        """Notes about the result. The command line prints them on stderr."""
        return iter(())

    def details(self) -> Iterator[Table | str]:
        """Return the blocks that `lmk -v` prints instead of `blocks`."""
        return self.blocks()

    def __str__(self) -> str:
        return "\n".join(map(str, self.blocks())) or type(self).__name__

    def __repr__(self) -> str:
        """Return the type, and the first line; or the size of the table."""
        first = next(self.blocks(), "")
        if isinstance(first, Table):
            columns = ", ".join(first.columns)
            return f"<{type(self).__name__}: {counted(len(first.rows), 'row')} of {columns}>"
        return f"<{type(self).__name__}: {first.partition(chr(10))[0]}>"

    def _repr_html_(self) -> str:
        """Return the texts and tables as HTML, which notebooks show."""
        return html_of(self.blocks())
