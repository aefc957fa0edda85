"""Output: results on stdout; progress, notes and errors on stderr; tables in five formats.

All printed text passes through this module. Ids, titles, texts and names may come from untrusted files, so
their control characters are printed as escapes.
"""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lmkcli.errors import UsageError
from lmkcli.progress import Detail, Progress, silent
from lmkcli.spec.result import Cell, Format, PValue, bare, is_numeric, shown
from lmkcli.text.formatting import visible
from lmkcli.text.progress_bar import Lines, bar

_WIDTH = 200  # of tables without a terminal
_MANY = 1000  # rows of a table that rich would take seconds for
_LONGEST = (
    3_000  # characters of an error or a note; their texts may come from a file or the command line
)
_TRACEBACK = 30_000  # characters of a traceback

quiet = False
verbose = False


def accept_all_characters() -> None:
    """Print characters that the encoding of a stream lacks as escapes, for instance with LANG=C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not _is_unicode(stream):
            stream.reconfigure(errors="backslashreplace")


def _is_unicode(stream: TextIO) -> bool:
    return (stream.encoding or "utf-8").lower().startswith("utf")


def error(message: str, label: str = "error: ") -> None:
    """Print one message on stderr, also with --quiet. Of a very long message, print the start and the end."""
    print(visible(f"{label}{_bounded(message, _LONGEST)}"), file=sys.stderr)


def trace(lines: str) -> None:
    """Print a traceback on stderr."""
    print(visible(_bounded(lines, _TRACEBACK)), file=sys.stderr)


def note(message: str) -> None:
    """Print a note on stderr, unless --quiet is given; a Detail only with --verbose."""
    if not quiet and (verbose or not isinstance(message, Detail)):
        sys.stdout.flush()  # keeps the order of lines if both streams go to one file
        print(visible(_bounded(message, _LONGEST)), file=sys.stderr, flush=True)


def _bounded(message: str, most: int) -> str:
    """Return a message without its middle if it is too long: the start has the fault, the end the remedy."""
    if len(message) <= most:
        return message
    end = most // 4
    return f"{message[: most - end]} … {message[-end:]}"


def output(text: str = "", end: str = "\n") -> None:
    """Print a part of a result on stdout."""
    print(visible(text), end=end)


def plain_json(value: Any) -> None:
    """Print a JSON value on stdout."""
    output(json.dumps(value, indent=1, ensure_ascii=not _is_unicode(sys.stdout)))


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """A progress callback: it draws a bar on a terminal and prints occasional lines elsewhere."""
    if quiet:
        yield silent
    elif sys.stderr.isatty():
        with bar(title) as drawn:
            yield drawn
    else:
        yield Lines(title, note)


def form_of(form: Format, json: bool) -> Format:
    """Combine --format and --json. Raises UsageError if they contradict each other."""
    if json and form not in (Format.table, Format.json):
        raise UsageError(f"--json and --format {form.value} print different tables; drop one")
    return Format.json if json else form


def table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], form: Format, title: str = ""
) -> None:
    """Print a table on stdout. Floats have four decimals, except in JSON; None is a missing value.

    Best values are bold and marks are superscripts if the format supports it. CSV and JSON contain the
    values only.
    """
    _PRINTERS[form](list(columns), [list(row) for row in rows], title)


def text(line: str, form: Format) -> None:
    """Print a text between tables, such as a legend of marks."""
    output(
        {Format.markdown: f"\n{line}", Format.latex: f"% {line}"}.get(form, line) if line else ""
    )


def _rich(columns: list[str], rows: list[list[Any]], title: str) -> None:
    if len(rows) > _MANY and not title and not sys.stdout.isatty():
        lines = _aligned(columns, rows)
        if lines:
            output("\n".join(lines))
            return
    grid = Table(
        title=visible(title) or None,
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    widths: list[int] = []
    for i, column in enumerate(columns):
        values = [visible(column), *(shown(bare(row[i])) for row in rows)]
        # Pad numbers with marks here, so that the numbers align and their marks follow on the right.
        marked = any(isinstance(row[i], Cell) and row[i].mark for row in rows)
        widths.append(max(map(len, values)) if marked else 0)
        justify: Literal["left", "right"] = (
            "right" if is_numeric(rows, i) and not marked else "left"
        )
        grid.add_column(Text(visible(column).rjust(widths[i])), justify=justify, overflow="fold")
    for row in rows:
        grid.add_row(*(_rich_cell(value, width) for value, width in zip(row, widths, strict=True)))
    width = None if sys.stdout.isatty() else _WIDTH
    Console(width=width, soft_wrap=False, highlight=False).print(grid)


def _aligned(columns: list[str], rows: list[list[Any]]) -> list[str]:
    """Return the lines that rich would print without a terminal; empty if only rich can lay the table out."""
    if any(isinstance(value, Cell) for row in rows for value in row):
        return []
    cells = [list(map(visible, columns)), *(list(map(shown, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) > _WIDTH:
        return []  # it folds cells
    right = [is_numeric(rows, place) for place in range(len(columns))]
    lines = [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, right, strict=True)
        )
        for row in cells
    ]
    plain = all(line.isascii() and line.isprintable() for line in lines)  # a letter is a column
    return lines if plain else []


def _rich_cell(value: Any, width: int) -> Text:
    cell = value if isinstance(value, Cell) else Cell(value)
    text = Text(shown(cell.value).rjust(width), style="bold" if cell.best else "")
    return text.append(cell.mark, style="not bold")


def _json(columns: list[str], rows: list[list[Any]], title: str) -> None:
    plain_json([dict(zip(columns, map(bare, row), strict=True)) for row in rows])


def _markdown(columns: list[str], rows: list[list[Any]], title: str) -> None:
    def line(cells: Sequence[str]) -> str:
        return (
            "| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"
        )

    output(line(columns))
    output(
        "|" + "|".join("---:" if is_numeric(rows, i) else "---" for i in range(len(columns))) + "|"
    )
    for row in rows:
        output(line([_markdown_cell(value) for value in row]))


def _markdown_cell(value: Any) -> str:
    cell = value if isinstance(value, Cell) else Cell(value)
    text = f"**{shown(cell.value)}**" if cell.best else shown(cell.value)
    return f"{text}<sup>{cell.mark}</sup>" if cell.mark else text


def _csv(columns: list[str], rows: list[list[Any]], title: str) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_csv_cell(bare(value)) for value in row] for row in rows)
    output(text.getvalue(), end="")


def _csv_cell(value: Any) -> Any:
    if isinstance(value, PValue):
        return f"{value:.4g}"
    return f"{value:.4f}" if isinstance(value, float) else value


def _latex(columns: list[str], rows: list[list[Any]], title: str) -> None:
    align = "".join("r" if is_numeric(rows, i) else "l" for i in range(len(columns)))
    output(rf"\begin{{tabular}}{{{align}}}" + "\n" + r"\toprule")
    output(" & ".join(map(_tex, columns)) + r" \\" + "\n" + r"\midrule")
    for row in rows:
        output(" & ".join(map(_tex_cell, row)) + r" \\")
    output(r"\bottomrule" + "\n" + r"\end{tabular}")


def _tex_cell(value: Any) -> str:
    cell = value if isinstance(value, Cell) else Cell(value)
    text = _tex(shown(cell.value))
    text = rf"\textbf{{{text}}}" if cell.best else text
    mark = "".join(_TEX_MARKS.get(each, each) for each in cell.mark)
    return rf"{text}$^{{{mark}}}$" if mark else text


_TEX_MARKS = {"†": r"\dagger"}
_TEX_SIGNS = {
    **{character: rf"\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "<": "$<$",
    ">": "$>$",
    "∞": r"$\infty$",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
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
