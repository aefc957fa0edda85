"""Scores of the finished cells of a grid, their table, and their figures."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

from lmkcli.artifact.kinds import OpenMapping
from lmkcli.data.known_collections import facts_of
from lmkcli.errors import DataError, UsageError
from lmkcli.evaluation import results as evaluated
from lmkcli.evaluation.coverage import Coverage
from lmkcli.evaluation.measures import Scores, parse_measures
from lmkcli.evaluation.results import ScoredRun, ScoreTable, headings
from lmkcli.evaluation.score_plots import Panel, Point
from lmkcli.plugins.grid.execution import SCORE_LOG, ResultsFolder
from lmkcli.plugins.grid.gridfile import (
    BENCHMARK,
    COLLECTION,
    MEASURES,
    GridCell,
    TableChoice,
    matches,
    varying,
)
from lmkcli.plugins.grid.plan import Plan
from lmkcli.plugins.grid.steps import RESULT
from lmkcli.progress import Progress, silent
from lmkcli.provenance import scorelog
from lmkcli.provenance.scorelog import as_number
from lmkcli.spec.values import is_count
from lmkcli.system.atomic import atomic_file
from lmkcli.system.input_files import read_json, validate

if TYPE_CHECKING:
    from lmkcli.evaluation.compare import PairedTest

_AGAIN = "remove the file and run the grid again"
_COLLECTIONS = 6  # that have figures, at most


@dataclass(frozen=True)
class ScoredCell:
    """A finished cell: its scores by query, the entry of its score log, and the costs of its encodings."""

    cell: GridCell
    result: ScoredRun
    entry: scorelog.LogEntry
    costs: "Sequence[Cost]" = ()


def scored(plan: Plan, results: ResultsFolder) -> list[ScoredCell]:
    """Return the finished cells of a plan, in order."""
    names = _measure_names([cell.values[MEASURES] for cell in plan.cells])
    found = []
    for cell in plan.cells:
        steps = [plan.steps[key] for key in plan.chains[cell.name]]
        if results.is_done(steps[-1]):
            costs = [_cost(results.of(step.key)) for step in steps if step.verb == "encode"]
            read = _read(cell, results.of(steps[-1].key), names)
            found.append(replace(read, costs=[each for each in costs if each is not None]))
    return found


def write_log(scored: Sequence[ScoredCell], folder: Path) -> None:
    """Write all entries to one score log, for lmk plot, show and repro."""
    with atomic_file(folder / SCORE_LOG) as temporary:
        lines = (json.dumps(each.entry, ensure_ascii=False) + "\n" for each in scored)
        temporary.write_text("".join(lines), encoding="utf-8", errors="surrogatepass")


def _measure_names(requested: Sequence[Sequence[str]]) -> list[str]:
    """Return the name of the first measure of all cells, of the second measure, and so on.

    If cells have different n-th measures, the name contains all of them: 'nDCG@10 / nDCG@1'.
    """
    most = max((len(each) for each in requested), default=0)
    columns = ([each[n] for each in requested if n < len(each)] for n in range(most))
    return [" / ".join(dict.fromkeys(column)) for column in columns]


class _Measured(TypedDict):
    """The fields that are read in the entry of a cell."""

    run: str
    scores: dict[str, float]
    coverage: Coverage


def _read(cell: GridCell, folder: Path, names: Sequence[str]) -> ScoredCell:
    entry = scorelog.read(folder / SCORE_LOG)[-1]
    stored = cast(OpenMapping, entry)  # JSON, whose keys are texts
    validate(stored, _Measured, folder / SCORE_LOG, _AGAIN)
    aggregated = dict(entry["scores"])
    per_query = _per_query(folder / RESULT, aggregated)
    collection = " ".join(cell.values[COLLECTION])
    facts = facts_of(collection)
    computed = []
    for name in cell.values[MEASURES]:
        (measure,) = parse_measures([name], facts.rel if facts else 1)
        computed.append(measure if str(measure) in aggregated else parse_measures([name])[0])
    if missing := [str(each) for each in computed if str(each) not in aggregated]:
        raise DataError(f"{folder / SCORE_LOG} has no {', '.join(missing)}; {_AGAIN}")
    scores = Scores(aggregated, per_query, _coverage(stored["coverage"], folder / SCORE_LOG))
    measures = dict(zip(names, computed, strict=False))
    return ScoredCell(
        cell, ScoredRun(Path(stored["run"]), cell.name, collection, scores, measures), entry
    )


def _per_query(path: Path, names: Iterable[str]) -> dict[str, dict[str, float]]:
    """Measure -> query -> value of a cell; DataError if a query lacks a measure."""
    rows = read_json(path, list[dict[str, Any]], _AGAIN)
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    for number, row in enumerate(rows):
        query = validate(row.get("query"), str, f"{path}, [{number}].query", _AGAIN)
        for name, values in found.items():
            values[query] = validate(row.get(name), float, f"{path}, [{number}].{name}", _AGAIN)
    return found


def _coverage(raw: OpenMapping, log: Path) -> Coverage:
    names = ("judged_at", "tied_at")
    if not all(is_count(cut) for name in names for cut in raw[name]):
        raise DataError(f"{log} cannot be read (a cut-off is not a number); {_AGAIN}")
    cuts = {name: {int(cut): share for cut, share in raw[name].items()} for name in names}
    try:
        return Coverage(**{**raw, **cuts})
    except TypeError as error:  # it names an unknown key
        raise DataError(f"{log} cannot be read ({error}); {_AGAIN}") from None


class Cost(NamedTuple):
    """The cost of an encoding, or the mean of several."""

    milliseconds: float  # per document
    memory: float  # the peak, in bytes
    stored: float  # bytes of the arrays on the disk


class EncodingCost(NamedTuple):
    """The cost of the encodings of a row: means over its collections."""

    system: tuple[str, ...]
    cost: Cost


def mean_cost(costs: Iterable[Cost]) -> Cost:
    """Return the mean of costs, at least one."""
    return Cost(*map(fmean, zip(*costs, strict=True)))


def encoding_costs(scored: Sequence[ScoredCell], layout: "TableLayout") -> list[EncodingCost]:
    """Return the costs of the rows of a table, in their order; rows without an encoding are left out."""
    found: dict[tuple[str, ...], list[Cost]] = {}
    for each in scored:
        found.setdefault(layout.system(each.cell), []).extend(each.costs)
    return [EncodingCost(system, mean_cost(costs)) for system, costs in found.items() if costs]


def _cost(folder: Path) -> Cost | None:
    """Return the cost of an encoding; None without its result."""
    path = folder / RESULT
    if not path.is_file():  # an encoding in shards
        return None
    stored = sum(file.stat().st_size for file in folder.rglob("*.npy"))
    result = read_json(path, dict[str, Any], _AGAIN)
    time, memory = (as_number(result.get(name)) for name in ("ms_per_document", "peak_memory"))
    return None if time is None or memory is None else Cost(time, memory, stored)


WINS = "*"  # marks a value that is significantly higher than every other value of its column


class TableEntry(NamedTuple):
    """One value of the table, None if there is no score."""

    value: float | None
    best: bool = False
    """Whether it is the highest value of its column."""
    mark: str = ""
    """Those of tests: WINS, and † for a difference from the baseline."""
    interval: tuple[float, float] | None = None
    """95 % bootstrap interval over the queries of a single collection."""


class TableRow(NamedTuple):
    """A system by one measure: the values of its axes, and the entries of the columns."""

    system: tuple[str, ...]
    measure: str
    entries: list[TableEntry]


class GridTable(NamedTuple):
    """The table of a grid. `heads` are the axes that name rows."""

    heads: list[str]
    columns: list[str]
    rows: list[TableRow]
    tests: "list[PairedTest]"
    """The tests for the marks."""
    compared: int
    """The number of tests for the winners."""
    costs: Sequence[EncodingCost] = ()
    """Those of the rows."""


@dataclass(frozen=True)
class TableLayout:
    """The places of cells in a table: the axes of rows and of columns, and the row of the baseline."""

    heads: tuple[str, ...]
    columns: tuple[str, ...]
    baseline: str = ""
    means: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, cells: Sequence[GridCell], choice: TableChoice) -> "TableLayout":
        """Return the requested layout. By default, the rows are all varying axes that are not columns.

        UsageError if two cells have the same place, and for a baseline that is not exactly one row.
        """
        plain = cls(choice.rows or _heads(cells, choice), choice.columns, means=choice.means)
        places = Counter((plain.system(cell), plain.collection(cell)) for cell in cells)
        if odd := next((place for place, count in places.items() if count > 1), None):
            raise UsageError(
                f"several cells have the row '{' '.join(odd[0])}' and the same column: add the axis in "
                f"which they differ to --rows ({', '.join(plain.heads)}) or --columns"
            )
        return replace(plain, baseline=_baseline(plain, cells, choice.baseline))

    def system(self, cell: GridCell) -> tuple[str, ...]:
        """Return the name of the row of a cell: the values of its axes."""
        return tuple(_label(cell, axis) for axis in self.heads)

    def collection(self, cell: GridCell) -> str:
        """Return the collection of a cell. If columns are other axes, their values come first, with tabs
        between.
        """
        name = cell.shown(COLLECTION)
        if self.columns == (COLLECTION,):
            return name
        return "\t".join([*(_label(cell, axis) for axis in self.columns), name])


def _heads(cells: Sequence[GridCell], choice: TableChoice) -> tuple[str, ...]:
    """Return the varying axes that are not columns; one constant axis if there are none."""
    excluded = {*choice.columns, COLLECTION, MEASURES}
    heads = [axis for axis in varying([cell.values for cell in cells]) if axis not in excluded]
    constant = [axis for axis in ("model", "kind", COLLECTION) if axis in cells[0].values]
    return tuple(heads or constant[:1])


def _label(cell: GridCell, axis: str) -> str:
    """Return the value of an axis, or the benchmark of the collection."""
    if axis != BENCHMARK:
        return cell.shown(axis)
    facts = facts_of(cell.shown(COLLECTION))
    return facts.group.partition("/")[0] if facts else cell.shown(COLLECTION)


def _baseline(layout: TableLayout, cells: Sequence[GridCell], wanted: Mapping[str, str]) -> str:
    if not wanted:
        return ""
    rows = dict.fromkeys(layout.system(each) for each in cells if matches(each.values, wanted))
    if len(rows) != 1:
        conditions = ", ".join(f"{axis}={value}" for axis, value in wanted.items())
        matching = "; ".join(map(" ".join, rows)) or "none"
        raise UsageError(
            f"the baseline {conditions} must be exactly one row of the table; it matches {matching}"
        )
    return " ".join(next(iter(rows)))


def table(
    scored: Sequence[ScoredCell], layout: TableLayout, correction: str, progress: Progress = silent
) -> GridTable:
    """Return the table of finished cells; without tests if the baseline has no finished cell."""
    from lmkcli.evaluation.compare import (
        compare_all,
        winners,
    )  # late: scipy.stats takes half a second

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
    tables = [
        _with_means(*_measure_table(placed, name, layout.columns), layout.means) for name in names
    ]
    marks = {(t.run, t.collection, t.measure): "†" for t in tests if t.significant}
    won = winners(placed, correction)
    single = {  # entries for columns of a single collection; columns of means have only values
        place: TableEntry(
            run.value(name),
            mark=WINS * (place in won.places)
            + marks.get((run.system, run.collection, str(measure)), ""),
            interval=each.entry.get("intervals", {}).get(str(measure)),
        )
        for each, run in zip(scored, placed, strict=True)
        for name, measure in run.measures.items()
        for place in [(run.system, run.collection, name)]
    }
    rows = [row for each in tables for row in _rows(each, systems, single)]
    return GridTable(list(layout.heads), tables[0][0].columns, rows, tests, won.tests)


def _measure_table(
    placed: Sequence[ScoredRun], name: str, columns: Sequence[str]
) -> tuple[ScoreTable, list[tuple[str, ...]]]:
    """Return the values of one measure by row and column, and the collections of each column.

    The columns are those of all measures; a cell without this one has no value.
    """
    if tuple(columns) == (COLLECTION,):
        members = evaluated.columns_of(evaluated.collections_of(placed))
        return evaluated.score_table(placed, name), [each.collections for each in members]
    measured = [each for each in placed if name in each.measures]
    members_of: dict[str, dict[str, None]] = {}  # column -> its collections
    for each in placed:
        column = each.collection.rpartition("\t")[0].replace("\t", " ")
        members_of.setdefault(column, {})[each.collection] = None
    values = {(each.system, each.collection): each.value(name) for each in measured}
    rows: dict[str, list[float | None]] = {}
    for system in dict.fromkeys(each.system for each in measured):
        rows[system] = [
            _mean({name: values.get((system, name)) for name in collections})
            for collections in members_of.values()
        ]
    return ScoreTable(name, [*members_of], rows), list(map(tuple, members_of.values()))


def _with_means(
    measured: ScoreTable, members: list[tuple[str, ...]], means: Mapping[str, Sequence[str]]
) -> tuple[ScoreTable, list[tuple[str, ...]]]:
    """Add a column for each mean over the columns that match its patterns.

    Raises UsageError for a mean without a column.
    """
    columns, rows = [*measured.columns], {row: [*values] for row, values in measured.rows.items()}
    own = columns[: len(members)]  # the others are means over all collections
    for name, patterns in means.items():
        chosen = [n for n, one in enumerate(own) if any(fnmatchcase(one, p) for p in patterns)]
        if not chosen:
            raise UsageError(
                f"the mean {name!r} has no column; the columns are {', '.join(own)} (see [table] means)"
            )
        columns.append(name)
        for values in rows.values():
            some = [values[n] for n in chosen]
            known = [each for each in some if each is not None]
            values.append(fmean(known) if len(known) == len(some) else None)
    return ScoreTable(measured.measure, columns, rows), members


def _mean(values: Mapping[str, float | None]) -> float | None:
    """Return the mean over collections, None if one is missing; parts of a collection are averaged first."""
    if None in values.values():
        return None
    plain = {name.rpartition("\t")[2]: value for name, value in values.items()}
    parts = evaluated.columns_of(list(plain))
    return fmean(fmean(plain[name] or 0.0 for name in part.collections) for part in parts)


def _rows(
    measured: tuple[ScoreTable, list[tuple[str, ...]]],
    systems: Mapping[str, tuple[str, ...]],
    single: Mapping[tuple[str, str, str], TableEntry],
) -> list[TableRow]:
    """Return the rows of one measure."""
    scores, members = measured
    best = [
        evaluated.best_values([row[n] for row in scores.rows.values()], scores.measure)
        for n in range(len(scores.columns))
    ]
    rows = []
    for number, (system, values) in enumerate(scores.rows.items()):
        entries = []
        for n, value in enumerate(values):
            entry = TableEntry(value)
            if n < len(members) and len(members[n]) == 1:
                entry = single.get((system, members[n][0], scores.measure), entry)
            entries.append(entry._replace(best=best[n][number]))
        rows.append(TableRow(systems[system], scores.measure, entries))
    return rows


def figures(scored: Sequence[ScoredCell]) -> Iterator[tuple[str, str, dict[str, Panel]]]:
    """Collection, axis, and measure -> panel, for each axis along which a line has two points.

    Each collection has its own figures, because the bands of many lines in one figure overlap. Only the
    first collections have figures.
    """
    by_collection: dict[str, list[ScoredCell]] = {}
    for each in scored:
        by_collection.setdefault(each.cell.shown(COLLECTION), []).append(each)
    short = headings(list(by_collection))
    for name, mine in islice(by_collection.items(), _COLLECTIONS):
        for axis in varying([each.cell.values for each in mine]):
            found = panels(mine, axis)
            if any(len(line) > 1 for panel in found.values() for line in panel.lines.values()):
                yield short[name], axis, found


def panels(scored: Sequence[ScoredCell], axis: str) -> dict[str, Panel]:
    """Measure -> lines of one collection over an axis; cells without a number on the axis are levels."""
    names = _line_names([each.cell for each in scored], axis)
    found: dict[str, Panel] = {}
    for each in scored:
        name, at = names[each.cell.name], each.cell.shown(axis)
        for measure, value in each.entry["scores"].items():
            lines, levels = found.setdefault(measure, Panel({}, {}))
            interval = each.entry.get("intervals", {}).get(measure, (None, None))
            if (x := as_number(at)) is not None:
                lines[name] = [*lines.get(name, []), Point(x, value, *interval)]
            else:
                levels[", ".join(filter(None, [name, _word(axis, at)]))] = Point(
                    0.0, value, *interval
                )
    return found


def _line_names(cells: Sequence[GridCell], axis: str) -> Mapping[str, str]:
    """Cell -> name of its line: the values of the other varying axes."""
    others = [
        each for each in varying([cell.values for cell in cells]) if each not in (axis, MEASURES)
    ]
    words = words_of(cells, others)
    return {cell.name: ", ".join(mine) for cell, mine in zip(cells, words, strict=True)}


def words_of(cells: Sequence[GridCell], axes: Sequence[str]) -> list[list[str]]:
    """For each cell, the values of axes that are set, in the words of the name of a line."""
    short = {axis: short_values([cell.shown(axis) for cell in cells]) for axis in axes}
    return [
        [word for axis in axes if (word := _word(axis, short[axis][cell.shown(axis)]))]
        for cell in cells
    ]


def short_values(values: Iterable[str]) -> dict[str, str]:
    """Value -> value. Paths and names of models are shortened to the shortest ends that differ."""
    parts = {value: [value] if " " in value else value.rstrip("/").split("/") for value in values}
    deepest = max(map(len, parts.values()), default=1)
    ends = (
        {value: "/".join(part[-n:]) for value, part in parts.items()} for n in range(1, deepest)
    )
    whole = {value: value for value in parts}
    return next((short for short in ends if len({*short.values()} - {""}) == len(parts)), whole)


def _word(axis: str, value: str) -> str:
    """Return a value in the name of a line; numbers and switches are preceded by their axis."""
    if value == "-":
        return ""
    return f"{axis} {value}" if value[0].isdigit() or value in ("true", "false") else value
