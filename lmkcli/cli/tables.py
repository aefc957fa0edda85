"""Tables in five forms: for a terminal, markdown, LaTeX, CSV and JSON."""

import csv
import io
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lmkcli.cli.console import plain_json, say
from lmkcli.errors import UsageError
from lmkcli.spec.result import Cell, Format, PValue
from lmkcli.text.visible import visible

_SMALLEST = 0.0001


def form_of(form: Format, json: bool) -> Format:
    """The form that --format and --json ask for together; UsageError where they contradict each other."""
    if json and form not in (Format.table, Format.json):
        raise UsageError(f"--json and --format {form.value} print different tables; drop one")
    return Format.json if json else form


def table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], form: Format, title: str = ""
) -> None:
    """Print a table on stdout. Floats are shown with four decimals, except in JSON.

    None is no value. Best values are bold and marks raised where the form can have it; CSV and
    JSON have the bare values.
    """
    _PRINTERS[form](list(columns), [list(row) for row in rows], title)


def text(line: str, form: Format) -> None:
    """Print a text between tables, such as the legend of their marks."""
    say({Format.markdown: f"\n{line}", Format.latex: f"% {line}"}.get(form, line) if line else "")


def _shown(value: Any) -> str:
    value = _bare(value)
    if value is None:
        return "-"
    if isinstance(value, PValue) and value < _SMALLEST:
        return f"<{_SMALLEST}"
    if isinstance(value, float):
        return f"{value:.4f}"
    return (
        f"{value:,}"
        if isinstance(value, int) and not isinstance(value, bool)
        else visible(str(value))
    )


def _rich(columns: list[str], rows: list[list[Any]], title: str) -> None:
    grid = Table(
        title=visible(title) or None,
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    widths: list[int] = []
    for i, column in enumerate(columns):
        values = [visible(column), *(_shown(row[i]) for row in rows)]
        # Numbers with marks are aligned here, so that the marks stand to the right of all of them.
        marked = any(isinstance(row[i], Cell) and row[i].mark for row in rows)
        widths.append(max(map(len, values)) if marked else 0)
        justify: Literal["left", "right"] = "right" if _numeric(rows, i) and not marked else "left"
        grid.add_column(Text(visible(column).rjust(widths[i])), justify=justify, overflow="fold")
    for row in rows:
        grid.add_row(*(_rich_cell(value, width) for value, width in zip(row, widths, strict=True)))
    width = None if sys.stdout.isatty() else 200
    Console(width=width, soft_wrap=False, highlight=False).print(grid)


def _rich_cell(value: Any, width: int) -> Text:
    cell = value if isinstance(value, Cell) else Cell(value)
    text = Text(_shown(cell).rjust(width), style="bold" if cell.best else "")
    return text.append(cell.mark, style="not bold")


def _bare(value: Any) -> Any:
    return value.value if isinstance(value, Cell) else value


def _json(columns: list[str], rows: list[list[Any]], title: str) -> None:
    plain_json([dict(zip(columns, map(_bare, row), strict=True)) for row in rows])


def _markdown(columns: list[str], rows: list[list[Any]], title: str) -> None:
    def line(cells: Sequence[str]) -> str:
        return (
            "| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"
        )

    say(line(columns))
    say("|" + "|".join("---:" if _numeric(rows, i) else "---" for i in range(len(columns))) + "|")
    for row in rows:
        say(line([_markdown_cell(value) for value in row]))


def _markdown_cell(value: Any) -> str:
    cell = value if isinstance(value, Cell) else Cell(value)
    text = f"**{_shown(cell)}**" if cell.best else _shown(cell)
    return f"{text}<sup>{cell.mark}</sup>" if cell.mark else text


def _numeric(rows: list[list[Any]], i: int) -> bool:
    values = [_bare(row[i]) for row in rows]
    given = [value for value in values if value is not None]
    return bool(given) and all(isinstance(value, (int, float)) for value in given)


def _csv(columns: list[str], rows: list[list[Any]], title: str) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_csv_cell(_bare(value)) for value in row] for row in rows)
    say(text.getvalue(), end="")


def _csv_cell(value: Any) -> Any:
    if isinstance(value, PValue):
        return f"{value:.4g}"
    return f"{value:.4f}" if isinstance(value, float) else value


def _latex(columns: list[str], rows: list[list[Any]], title: str) -> None:
    align = "".join("r" if _numeric(rows, i) else "l" for i in range(len(columns)))
    say(rf"\begin{{tabular}}{{{align}}}" + "\n" + r"\toprule")
    say(" & ".join(map(_tex, columns)) + r" \\" + "\n" + r"\midrule")
    for row in rows:
        say(" & ".join(map(_tex_cell, row)) + r" \\")
    say(r"\bottomrule" + "\n" + r"\end{tabular}")


def _tex_cell(value: Any) -> str:
    cell = value if isinstance(value, Cell) else Cell(value)
    text = _tex(_shown(cell))
    text = rf"\textbf{{{text}}}" if cell.best else text
    return rf"{text}$^{{{_TEX_MARKS.get(cell.mark, cell.mark)}}}$" if cell.mark else text


_TEX_MARKS = {"†": r"\dagger"}
_TEX_SIGNS = {
    **{character: rf"\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "<": "$<$",
    ">": "$>$",
    "∞": r"$\infty$",
}


def _tex(text: str) -> str:
    return "".join(_TEX_SIGNS.get(character, character) for character in text)


_PRINTERS: dict[Format, Callable[[list[str], list[list[Any]], str], None]] = {
    Format.table: _rich,
    Format.json: _json,
    Format.markdown: _markdown,
    Format.csv: _csv,
    Format.latex: _latex,
}
