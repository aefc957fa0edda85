"""Plots: means with intervals, curves over a parameter, differences by query. Plain data to a file.

The suffix chooses the format (.png, .svg, .pdf). The same data make the same file: no dates, fixed
ids. Figures are drawn without pyplot, so no window and no global state is touched.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from lmkcli.errors import DataError, UsageError
from lmkcli.system.atomic import atomic_file, destination

_WIDTH, _INCH_PER_BAR, _DPI = 6.4, 0.28, 160
_MARKED = 30  # points of a line in a panel that have a mark each, at most
_LETTERS_PER_LINE = 90  # of a title, at most: as many as the width holds
# Okabe and Ito's colours, which most colour-blind readers tell apart; black and yellow left out.
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"]
_MARKS = ["o", "s", "^", "D", "v", "P"]
# Suffix -> what its writer would otherwise add of time and version.
_DATELESS: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
_STYLE: Any = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": "#dddddd",
    "font.size": 9,
    "svg.hashsalt": "lmk",
    "svg.fonttype": "none",  # text stays text, which can be searched and edited
}


class Bar(NamedTuple):
    """A mean and its interval."""

    value: float
    low: float
    high: float


def bars(panels: Mapping[str, Mapping[str, Bar]], caption: str, path: Path) -> None:
    """One panel a measure, one bar a system: measure -> system -> Bar, every measure of all systems.

    UsageError for a suffix that is none of .png, .svg and .pdf, DataError when there is nothing to draw; so
    for all functions here.
    """
    systems = list(next(iter(panels.values()), {}))
    _need(len(systems))
    with _figure(path, caption, 1.1 + _INCH_PER_BAR * len(systems)) as figure:
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axis, (measure, by_system) in zip(axes, panels.items(), strict=True):
            _bars(axis, [by_system[system] for system in systems])
            axis.set_xlabel(measure)
            axis.set_yticks(range(len(systems)), systems)
            axis.grid(visible=False, axis="y")
        axes[0].invert_yaxis()  # the first system on top


def _bars(axis: Any, panel: Sequence[Bar]) -> None:
    values = [bar.value for bar in panel]
    reach = [[v - b.low for v, b in zip(values, panel, strict=True)],
             [b.high - v for v, b in zip(values, panel, strict=True)]]  # fmt: skip
    axis.barh(range(len(panel)), values, height=0.62, color=_COLOURS[0])
    axis.errorbar(values, range(len(panel)), xerr=reach, fmt="none", ecolor="black", capsize=2.5)
    top = max(bar.high for bar in panel)
    for row, bar in enumerate(panel):
        axis.annotate(f"{bar.value:.3f}", (bar.high, row), (3, 0), textcoords="offset points",
                      va="center", fontsize=7)  # fmt: skip
    axis.set_xlim(min(0.0, *(bar.low for bar in panel)), top * 1.22 if top > 0 else 1.0)
    axis.xaxis.set_major_locator(MaxNLocator(3))


def curve(
    series: Mapping[str, Sequence[tuple[float, float]]], xlabel: str, ylabel: str, path: Path
) -> None:
    """A line a series, its points (x, y) in the order of x.

    The x axis is logarithmic where the values span a factor of 16 or more, as lengths and
    granularities do; its ticks are the values themselves while there are at most twelve.
    """
    _need(sum(map(len, series.values())))
    with _figure(path, "", 3.6) as figure:
        axis = figure.subplots()
        for number, (name, points) in enumerate(series.items()):
            mark, colour = _MARKS[number % len(_MARKS)], _COLOURS[number % len(_COLOURS)]
            style = "-" if number < len(_COLOURS) else "--"
            x, y = zip(*sorted(points), strict=True) if points else ((), ())
            axis.plot(x, y, style, marker=mark, color=colour, label=name, markersize=4.5)
        axis.set_xlabel(xlabel)
        axis.set_ylabel(ylabel)
        _ticks(axis, sorted({x for points in series.values() for x, _ in points}))
        if len(series) > 1:
            axis.legend(frameon=False)


def panels(
    curves: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], xlabel: str, path: Path
) -> None:
    """Curves over one axis, a panel for each label, one below the other: label -> line -> points (x, y)."""
    _need(sum(len(points) for lines in curves.values() for points in lines.values()))
    with _figure(path, "", 0.6 + 1.7 * len(curves)) as figure:
        axes = figure.subplots(len(curves), sharex=True, squeeze=False)[:, 0]
        for axis, (label, lines) in zip(axes, curves.items(), strict=True):
            for number, (name, points) in enumerate(lines.items()):
                mark = "o" if len(points) <= _MARKED else ""
                x, y = zip(*points, strict=True) if points else ((), ())
                colour = _COLOURS[number % len(_COLOURS)]
                axis.plot(x, y, marker=mark, color=colour, label=name, markersize=3)
            axis.set_ylabel(label)
            if len(lines) > 1:
                axis.legend(frameon=False)
        axes[-1].set_xlabel(xlabel)


def _ticks(axis: Any, values: list[float]) -> None:
    if values[0] > 0 and values[-1] / values[0] >= 16:
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    if len(values) <= 12:
        axis.set_xticks(values, [f"{v:.0f}" if v >= 100 else f"{v:.3g}" for v in values])


def query_differences(panels: Mapping[str, Sequence[float]], caption: str, path: Path) -> None:
    """One bar a query, the largest difference first; a panel for each label, one below the other.

    The labels say what was subtracted from what, such as 'nDCG@10: lmk less bm25'.
    """
    _need(sum(map(len, panels.values())))
    with _figure(path, caption, 0.6 + 2.4 * len(panels)) as figure:
        axes = figure.subplots(len(panels), squeeze=False)[:, 0]
        for axis, (label, values) in zip(axes, panels.items(), strict=True):
            _sorted_bars(axis, sorted(values, reverse=True))
            axis.set_title(fill(label, _LETTERS_PER_LINE), fontsize=8, loc="left")
        axes[-1].set_xlabel("queries, by difference")


def _sorted_bars(axis: Any, values: list[float]) -> None:
    colours = [_COLOURS[0] if value > 0 else _COLOURS[1] for value in values]
    axis.bar(range(1, len(values) + 1), values, width=1.0, color=colours)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xlim(0.5, len(values) + 0.5)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _need(count: int) -> None:
    if not count:
        raise DataError("there is nothing to plot: give runs, or entries of a log, with scores")


@contextmanager
def _figure(path: Path, caption: str, height: float) -> Iterator[Any]:
    """An empty figure in the house style, saved when its block ends without an error."""
    suffix = path.suffix.lower()
    if suffix not in _DATELESS:
        raise UsageError(f"{path}: a plot's suffix must be one of {', '.join(_DATELESS)}")
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        figure.supxlabel(caption, fontsize=7.5, color="#555555")
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(destination(path)) as temporary:
            figure.savefig(temporary, format=suffix[1:], dpi=_DPI, metadata=_DATELESS[suffix])
