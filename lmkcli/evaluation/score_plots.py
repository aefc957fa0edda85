"""What lmk eval plots: scored runs, or their differences from a baseline query by query."""

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

from lmkcli import catalog
from lmkcli.errors import UsageError

if TYPE_CHECKING:
    from lmkcli.evaluation.breakdown import Value
    from lmkcli.evaluation.results import Grid, Result

_SUFFIX = re.compile(r"\.(trec|txt|run)(\.gz)?$")


def scores(results: "Sequence[Result]", path: Path) -> None:
    """A bar a run and measure, with the 95 % bootstrap interval of the mean; one collection."""
    bars = catalog.load(catalog.PLOTS, "bars", "plot")
    from lmkcli.evaluation.compare import mean_interval
    from lmkcli.evaluation.points import Bar

    _one_collection(results)
    if results[0].scores.coverage.judged < 2:
        raise UsageError("--plot draws intervals over queries, and one is judged; drop --plot")
    labels = labels_of([each.system for each in results])
    panels: dict[str, dict[str, Bar]] = {}
    for each in results:
        for name, values in each.scores.per_query.items():
            bar = Bar(fmean(values.values()), *mean_interval(values))
            panels.setdefault(name, {})[labels[each.system]] = bar
    bars(panels, f"means of {_queries(results)}, 95 % bootstrap intervals", path)


def query_differences(results: "Sequence[Result]", baseline: str, path: Path) -> None:
    """For each other run and measure, the differences from the baseline's system, sorted."""
    draw = catalog.load(catalog.PLOTS, "differences", "plot")
    _one_collection(results)
    base = next(each for each in results if each.system == baseline)
    labels = labels_of([each.system for each in results])
    panels: dict[str, dict[str, list[float]]] = {}
    for each in results:
        for name, values in each.scores.per_query.items() if each is not base else ():
            less = base.scores.per_query[name]
            panels.setdefault(name, {})[labels[each.system]] = [
                value - less[query] for query, value in values.items()
            ]
    above = f"above 0 the run is better than {labels[baseline]}"
    draw(panels, f"differences of {_queries(results)}; {above}", path)


def groups(grids: "Sequence[Grid]", values: "Sequence[list[Value]]", by: str, path: Path) -> None:
    """A curve a run and measure; a group stands at the median of what its queries are grouped by."""
    draw = catalog.load(catalog.PLOTS, "curve", "plot")
    numbers = [[value for value in group if not isinstance(value, str)] for group in values]
    if any(len(kept) < len(group) for kept, group in zip(numbers, values, strict=True)):
        raise UsageError(f"--plot draws groups along a line, and {by} is no number; drop --plot")
    labels = labels_of([system for grid in grids for system in grid.rows])
    lines = {
        f"{labels[system]} {grid.measure}" if len(grids) > 1 else labels[system]: [
            (median(group), score)
            for group, score in zip(numbers, scores, strict=False)
            if score is not None
        ]
        for grid in grids
        for system, scores in grid.rows.items()
    }
    draw(lines, f"{by}, median of each group", _measure(grids), path)


def labels_of(systems: Sequence[str]) -> dict[str, str]:
    """System -> what it is called in a figure: without the suffix of a run's file, where all stay apart."""
    short = {system: _SUFFIX.sub("", system) for system in systems}
    return short if len(set(short.values())) == len(short) else {each: each for each in systems}


def _measure(grids: "Sequence[Grid]") -> str:
    return grids[0].measure if len(grids) == 1 else "score"


def _one_collection(results: "Sequence[Result]") -> None:
    names = list(dict.fromkeys(each.collection for each in results))
    if len(names) > 1:
        raise UsageError(
            f"--plot shows runs on one collection, and these are on {', '.join(names)}; "
            "plot each by itself"
        )


def _queries(results: "Sequence[Result]") -> str:
    return f"{results[0].scores.coverage.judged:,} queries"
