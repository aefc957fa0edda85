"""The table of a grid: axes as rows and columns, the best, what differs from a baseline, and means."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

from lmkcli.data.known import facts_of
from lmkcli.errors import UsageError
from lmkcli.evaluation import results as evaluated
from lmkcli.evaluation.compare import PairedTest, compare_all
from lmkcli.evaluation.results import Grid, Result
from lmkcli.experiments.cells import Cell, matches, varying
from lmkcli.experiments.gridfile import BENCHMARK, COLLECTION, MEASURES, TableChoice
from lmkcli.experiments.scores import Scored
from lmkcli.progress import Progress, silent


class Entry(NamedTuple):
    """One value: None where nothing was measured; whether it is the best of its column; its mark."""

    value: float | None
    best: bool = False
    mark: str = ""


class Row(NamedTuple):
    """A system by one measure: the values of its axes, and those of the columns."""

    system: tuple[str, ...]
    measure: str
    entries: list[Entry]


class Table(NamedTuple):
    """What is shown. `heads` are the axes that name a row; `tests` are behind the marks."""

    heads: list[str]
    columns: list[str]
    rows: list[Row]
    tests: list[PairedTest]


@dataclass(frozen=True)
class TableLayout:
    """Where the cells of a plan stand: the axes of rows and of columns, and the row of the baseline."""

    heads: tuple[str, ...]
    columns: tuple[str, ...]
    baseline: str = ""

    @classmethod
    def of(cls, cells: Sequence[Cell], choice: TableChoice) -> "TableLayout":
        """The layout that is asked for; rows are by default all axes that vary and are no columns.

        UsageError where two cells would stand in one place, and for a baseline that is not one row.
        """
        plain = cls(choice.rows or _heads(cells, choice), choice.columns)
        places = [(plain.system(cell), plain.collection(cell)) for cell in cells]
        if odd := next((place for place in places if places.count(place) > 1), None):
            raise UsageError(
                f"several cells would stand in the row '{' '.join(odd[0])}' and one column: add the axis "
                f"in which they differ to --rows ({', '.join(plain.heads)}) or --columns"
            )
        return replace(plain, baseline=_baseline(plain, cells, choice.baseline))

    def system(self, cell: Cell) -> tuple[str, ...]:
        """What names the row of a cell."""
        return tuple(_label(cell, axis) for axis in self.heads)

    def collection(self, cell: Cell) -> str:
        """The collection of a cell; where columns are no collections, what names its column before it."""
        name = cell.shown(COLLECTION)
        if self.columns == (COLLECTION,):
            return name
        return "\t".join([*(_label(cell, axis) for axis in self.columns), name])


def _heads(cells: Sequence[Cell], choice: TableChoice) -> tuple[str, ...]:
    """The axes that vary; one that does not, if none does."""
    left = {*choice.columns, COLLECTION, MEASURES}
    heads = [axis for axis in varying([cell.values for cell in cells]) if axis not in left]
    named = [axis for axis in ("model", "kind", COLLECTION) if axis in cells[0].values]
    return tuple(heads or named[:1])


def _label(cell: Cell, axis: str) -> str:
    if axis != BENCHMARK:
        return cell.shown(axis)
    facts = facts_of(cell.shown(COLLECTION))
    return facts.group.partition("/")[0] if facts else cell.shown(COLLECTION)


def _baseline(layout: TableLayout, cells: Sequence[Cell], wanted: Mapping[str, str]) -> str:
    if not wanted:
        return ""
    rows = dict.fromkeys(layout.system(each) for each in cells if matches(each.values, wanted))
    if len(rows) != 1:
        said = ", ".join(f"{axis}={value}" for axis, value in wanted.items())
        matching = "; ".join(map(" ".join, rows)) or "none"
        raise UsageError(f"the baseline {said} must be one row of the table; it is {matching}")
    return " ".join(next(iter(rows)))


def table(
    scored: Sequence[Scored], layout: TableLayout, correction: str, progress: Progress = silent
) -> Table:
    """The table of finished cells; without tests while the row of the baseline has none."""
    placed = [
        replace(
            each.result,
            system=" ".join(layout.system(each.cell)),
            collection=layout.collection(each.cell),
        )
        for each in scored
    ]
    systems = {" ".join(row): row for row in (layout.system(each.cell) for each in scored)}
    tested = layout.baseline in systems
    tests = compare_all(placed, layout.baseline, correction, progress) if tested else []
    names = list(dict.fromkeys(name for each in placed for name in each.measures))
    grids = [_grid(placed, name, layout.columns) for name in names]
    marks = {(t.run, t.collection, t.measure): "†" for t in tests if t.significant}
    rows = [row for each in grids for row in _rows(each, systems, placed, marks)]
    return Table(list(layout.heads), grids[0][0].columns, rows, tests)


def _grid(
    placed: Sequence[Result], name: str, columns: Sequence[str]
) -> tuple[Grid, list[tuple[str, ...]]]:
    """One measure's values by row and column, and what the results of each column are called."""
    measured = [each for each in placed if name in each.measures]
    if tuple(columns) == (COLLECTION,):
        members = evaluated.columns_of(evaluated.collections_of(measured))
        return evaluated.grid(measured, name), [each.collections for each in members]
    labels = dict.fromkeys(_of_column(each) for each in measured)
    inside = {
        label: tuple(dict.fromkeys(r.collection for r in measured if _of_column(r) == label))
        for label in labels
    }
    values = {(each.system, each.collection): each.value(name) for each in measured}
    rows: dict[str, list[float | None]] = {}
    for system in dict.fromkeys(each.system for each in measured):
        rows[system] = [
            _mean({c: values.get((system, c)) for c in inside[label]}) for label in labels
        ]
    return Grid(name, [*labels], rows), list(inside.values())


def _of_column(result: Result) -> str:
    return result.collection.rpartition("\t")[0].replace("\t", " ")


def _mean(values: Mapping[str, float | None]) -> float | None:
    """The mean over collections, the parts of one being averaged first; None where one is missing."""
    if None in values.values():
        return None
    plain = {name.rpartition("\t")[2]: value for name, value in values.items()}
    parts = evaluated.columns_of(list(plain))
    return fmean(fmean(plain[name] or 0.0 for name in part.collections) for part in parts)


def _rows(
    grouped: tuple[Grid, list[tuple[str, ...]]],
    systems: Mapping[str, tuple[str, ...]],
    placed: Sequence[Result],
    marks: Mapping[tuple[str, str, str], str],
) -> list[Row]:
    grid, members = grouped
    computed = {
        (each.system, each.collection): str(each.measures[grid.measure])
        for each in placed
        if grid.measure in each.measures
    }
    best = [
        evaluated.best([row[n] for row in grid.rows.values()], grid.measure)
        for n in range(len(grid.columns))
    ]
    rows = []
    for number, (system, values) in enumerate(grid.rows.items()):
        signs = [
            marks.get((system, each[0], computed.get((system, each[0]), "")), "")
            if len(each) == 1
            else ""
            for each in members
        ]
        signs += [""] * (len(values) - len(signs))
        entries = [
            Entry(value, best[n][number], sign)
            for n, (value, sign) in enumerate(zip(values, signs, strict=True))
        ]
        rows.append(Row(systems[system], grid.measure, entries))
    return rows
