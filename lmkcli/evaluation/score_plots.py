"""Bars, points and panels, the data of plots; and the plots of scored runs (`lmk eval --plot`)."""

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

from lmkcli import catalog
from lmkcli.errors import UsageError

if TYPE_CHECKING:
    from lmkcli.evaluation.breakdown import Value
    from lmkcli.evaluation.results import ScoredRun, ScoreTable

MARK = b"matplotlib"  # in the metadata of each figure, in any case
_SUFFIX = re.compile(r"\.(trec|txt|run)(\.gz)?$")


def check_figure(path: Path) -> None:
    """Raise UsageError for an existing file that is no figure of Matplotlib: a figure may be drawn again."""
    if not path.is_file() or not path.stat().st_size:
        return
    with path.open("rb") as file:
        drawn = any(MARK in block.lower() for block in iter(lambda: file.read(1 << 20), b""))
    if not drawn:
        raise UsageError(
            f"{path} is not a figure that lmk drew, and is not overwritten; name another output, or delete "
            "the file"
        )


class Bar(NamedTuple):
    """A mean and its interval."""

    value: float
    low: float
    high: float


class Point(NamedTuple):
    """A point of a curve, with the interval of y if it is known."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


class Panel(NamedTuple):
    """The plot of one measure: lines by name, and levels by name (values without an x)."""

    lines: dict[str, list[Point]]
    levels: dict[str, Point]


def scores(results: "Sequence[ScoredRun]", path: Path) -> None:
    """Draw a bar for each run and measure, with the 95 % bootstrap interval of the mean."""
    bars = catalog.PLOTS.load("bars")
    from lmkcli.evaluation.compare import mean_interval  # late: scipy.stats takes half a second

    _check_one_collection(results)
    if results[0].scores.coverage.judged < 2:
        raise UsageError(
            "--plot draws intervals over queries, but only one query is judged; drop --plot"
        )
    labels = labels_of([each.system for each in results])
    panels: dict[str, dict[str, Bar]] = {}
    for each in results:
        for name, values in each.scores.per_query.items():
            bar = Bar(fmean(values.values()), *mean_interval(values))
            panels.setdefault(name, {})[labels[each.system]] = bar
    bars(panels, f"means of {_queries(results)}, 95 % bootstrap intervals", path)


def query_differences(results: "Sequence[ScoredRun]", baseline: str, path: Path) -> None:
    """Draw the sorted differences from the baseline by query, for each other run and each measure."""
    draw = catalog.PLOTS.load("differences")
    _check_one_collection(results)
    base = next(each for each in results if each.system == baseline)
    labels = labels_of([each.system for each in results])
    panels: dict[str, dict[str, list[float]]] = {}
    for each in results:
        for name, values in each.scores.per_query.items() if each is not base else ():
            of_baseline = base.scores.per_query[name]
            panels.setdefault(name, {})[labels[each.system]] = [
                value - of_baseline[query] for query, value in values.items()
            ]
    legend = f"above 0 the run is better than {labels[baseline]}"
    draw(panels, f"differences of {_queries(results)}; {legend}", path)


def groups(
    tables: "Sequence[ScoreTable]", values: "Sequence[list[Value]]", by: str, path: Path
) -> None:
    """Draw a curve for each run and measure over groups of queries.

    The x of a group is the median of `values`, by which the queries are grouped.
    """
    draw = catalog.PLOTS.load("curve")
    numbers = [[value for value in group if not isinstance(value, str)] for group in values]
    if any(len(kept) < len(group) for kept, group in zip(numbers, values, strict=True)):
        raise UsageError(
            f"--plot draws groups along an axis of numbers, but {by} is not a number; drop --plot"
        )
    labels = labels_of([system for table in tables for system in table.rows])
    lines = {
        f"{labels[system]} {table.measure}" if len(tables) > 1 else labels[system]: [
            (median(group), score)
            for group, score in zip(numbers, scores, strict=False)
            if score is not None
        ]
        for table in tables
        for system, scores in table.rows.items()
    }
    measure = tables[0].measure if len(tables) == 1 else "score"
    draw(lines, f"{by}, median of each group", measure, path)


def labels_of(systems: Sequence[str]) -> dict[str, str]:
    """System -> label in a plot: without the suffix of a run file, if the labels stay different."""
    short = {system: _SUFFIX.sub("", system) for system in systems}
    return short if len(set(short.values())) == len(short) else {each: each for each in systems}


def _check_one_collection(results: "Sequence[ScoredRun]") -> None:
    names = list(dict.fromkeys(each.collection for each in results))
    if len(names) > 1:
        raise UsageError(
            f"--plot shows runs on one collection, but these are on {', '.join(names)}; "
            "plot each collection separately"
        )


def _queries(results: "Sequence[ScoredRun]") -> str:
    return f"{results[0].scores.coverage.judged:,} queries"
