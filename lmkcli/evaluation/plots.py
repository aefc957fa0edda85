"""Plots: means with intervals, curves over a parameter, differences by query. Plain data to a file.

The suffix chooses the format (.png, .svg, .pdf). The same data make the same file: no dates, fixed
ids. Figures are drawn without pyplot, so no window and no global state is touched.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import (
    LogLocator,
    MaxNLocator,
    NullLocator,
    PercentFormatter,
    ScalarFormatter,
)

from lmkcli.errors import DataError, UsageError
from lmkcli.evaluation.points import Bar, Panel, Point
from lmkcli.system.atomic import atomic_file, destination

_WIDTH, _INCH_PER_BAR, _DPI = 6.4, 0.28, 160
_MARKED = 30  # points of a line in a panel that have a mark each, at most
_BANDS = 6  # of intervals that can be told apart in a panel, at most
_LETTERS_PER_LINE = 90  # of a title, at most: as many as the width holds
_LETTERS_BESIDE = 26  # of a legend's longest line, if the legend is to stand beside the axes
_DOTS = 500  # of a map that are drawn as shapes of their own, at most; more become one picture
_TICKS = 12  # values of an axis that are its ticks, at most
# Okabe and Ito's colours, which most colour-blind readers tell apart; black and yellow left out.
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"]
_MARKS = ["o", "s", "^", "D", "v", "P"]
_DASHES = ["-", "--", ":", "-."]
# Suffix -> what its writer would otherwise add of time and version.
_DATELESS: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
_STYLE: Any = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": "#444444",
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "font.size": 9,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "pdf.fonttype": 42,  # whole fonts: some publishers refuse the others
    "svg.hashsalt": "lmk",
    "svg.fonttype": "none",  # text stays text, which can be searched and edited
}


class _Look(NamedTuple):
    """How a line is told from the others: by colour, mark and, after six of them, dashes."""

    color: str
    marker: str
    linestyle: str

    @classmethod
    def of(cls, number: int) -> "_Look":
        again, place = divmod(number, len(_COLOURS))
        return cls(_COLOURS[place], _MARKS[place], _DASHES[again % len(_DASHES)])


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
    series: Mapping[str, Sequence[Point | tuple[float, float]]],
    xlabel: str,
    ylabel: str,
    path: Path,
    levels: Mapping[str, Point] | None = None,
) -> None:
    """The one panel of `curves`, with what is along its sides; points may be plain pairs."""
    lines = {name: [Point(*point) for point in points] for name, points in series.items()}
    curves({ylabel: Panel(lines, dict(levels or {}))}, xlabel, path)


def curves(panels: Mapping[str, Panel], xlabel: str, path: Path) -> None:
    """A panel a label, one below the other; a line a series, with a band where intervals are known.

    What is of one name looks the same in all panels. Levels, which have no x to stand at, are drawn from
    side to side. The x axis is logarithmic where the values span a factor of 8 or more in uneven steps, as
    lengths and granularities do.
    """
    values = sorted(
        {point.x for panel in panels.values() for line in panel.lines.values() for point in line}
    )
    _need(len(values))
    names = [name for panel in panels.values() for name in panel.lines]
    names = list(
        dict.fromkeys(names + [name for panel in panels.values() for name in panel.levels])
    )
    looks = {name: _Look.of(number) for number, name in enumerate(names)}
    height = 3.2 if len(panels) == 1 else 0.6 + 2.2 * len(panels)
    with _figure(path, "", height + _height_below(names)) as figure:
        axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for axis, (label, panel) in zip(axes, panels.items(), strict=True):
            _panel(axis, panel, looks)
            axis.set_ylabel(label)
        axes[-1].set_xlabel(xlabel)
        _ticks(axes[-1], values)
        _legend(figure, axes, len(names))


def _panel(axis: Any, panel: Panel, looks: Mapping[str, _Look]) -> None:
    for name, points in panel.lines.items():
        _line(axis, sorted(points), name, looks[name], banded=len(panel.lines) <= _BANDS)
    for name, level in panel.levels.items():
        color = looks[name].color
        axis.axhline(level.y, color=color, linestyle=(0, (5, 2)), linewidth=1.1, label=name)
    axis.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))


def _line(axis: Any, points: Sequence[Point], name: str, look: _Look, banded: bool) -> None:
    """A line with its marks, on the band of its intervals, or with a bar for each."""
    x, y = [point.x for point in points], [point.y for point in points]
    axis.plot(x, y, label=name, **look._asdict())
    known = [(p.x, p.low, p.high) for p in points if p.low is not None and p.high is not None]
    if known and banded:
        axis.fill_between(*zip(*known, strict=True), color=look.color, alpha=0.13, linewidth=0)
    elif known:
        axis.vlines(*zip(*known, strict=True), color=look.color, alpha=0.5, linewidth=0.8)


def _legend(figure: Any, axes: Sequence[Any], lines: int) -> None:
    """What the lines are, outside the axes: beside them, or below where a name is too long for that."""
    if lines < 2:
        return
    shown = [pair for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
    by_name = {name: handle for handle, name in reversed(shown)}
    names = list(dict.fromkeys(name for _, name in shown))
    handles = [by_name[name] for name in names]
    if max(map(len, names)) <= _LETTERS_BESIDE:
        place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0}
        axes[0].legend(handles, names, **place)
        return
    columns = _columns_below(names)
    figure.legend(handles, names, loc="outside lower left", ncols=columns)


def _columns_below(names: Sequence[str]) -> int:
    return max(1, min(3, _LETTERS_PER_LINE // (max(map(len, names)) + 8)))


def _height_below(names: Sequence[str]) -> float:
    """Inches that a legend takes below the axes."""
    if len(names) < 2 or max(map(len, names)) <= _LETTERS_BESIDE:
        return 0.0
    return 0.17 * ceil(len(names) / _columns_below(names))


def panels(
    curves: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], xlabel: str, path: Path
) -> None:
    """Curves over one axis, a panel for each label, one below the other: label -> line -> points (x, y)."""
    _need(sum(len(points) for lines in curves.values() for points in lines.values()))
    with _figure(path, "", 0.6 + 1.7 * len(curves)) as figure:
        axes = figure.subplots(len(curves), sharex=True, squeeze=False)[:, 0]
        for axis, (label, lines) in zip(axes, curves.items(), strict=True):
            for number, (name, points) in enumerate(lines.items()):
                look = _Look.of(number)
                look = look if len(points) <= _MARKED else look._replace(marker="")
                x, y = zip(*points, strict=True) if points else ((), ())
                axis.plot(x, y, label=name, markersize=3, **look._asdict())
            axis.set_ylabel(label)
            if len(lines) > 1:
                axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0)
        axes[-1].set_xlabel(xlabel)


def _ticks(axis: Any, values: list[float]) -> None:
    """Ticks at the values where these are few and round, else at round numbers near them."""
    steps = [b - a for a, b in pairwise(values)]
    even = len(steps) > 1 and max(steps) - min(steps) < 1e-6 * max(steps)
    if values[0] > 0 and values[-1] / values[0] >= 8 and not even:
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(LogLocator(base=2, numticks=_TICKS))
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.xaxis.set_minor_locator(NullLocator())
    else:
        axis.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    if len(values) <= _TICKS and all(map(_is_round, values)):
        axis.set_xticks(values, [f"{value:.12g}" for value in values])


def _is_round(value: float) -> bool:
    """Whether it has two digits at most before its zeros, as a decimal or as a binary number.

    384 is three times 128; so are lengths and granularities chosen.
    """
    binary = (
        float(value).is_integer() and value != 0 and int(value) // (int(value) & -int(value)) < 16
    )
    return binary or value == float(f"{value:.2g}")


def query_differences(
    panels: Mapping[str, Mapping[str, Sequence[float]]], caption: str, path: Path
) -> None:
    """One bar a query, the largest difference first: measure -> run -> its values less the baseline's.

    Several measures stand beside each other, the runs below each other; of one measure up to three runs
    stand in a row.
    """
    cells = [(m, run, values) for m, by_run in panels.items() for run, values in by_run.items()]
    _need(sum(len(values) for _, _, values in cells))
    runs = max(map(len, panels.values()))
    columns = len(panels) if len(panels) > 1 else min(3, runs)
    rows = runs if len(panels) > 1 else ceil(runs / columns)
    with _figure(path, caption, 0.7 + (2.4 if rows == 1 else 1.5 * rows)) as figure:
        grid = figure.subplots(
            rows, columns, sharey="col" if len(panels) > 1 else True, squeeze=False
        )
        axes = list(grid.T.flat if len(panels) > 1 else grid.flat)
        for axis, (measure, run, values) in zip(axes, cells, strict=False):
            _sorted_bars(axis, sorted(values, reverse=True))
            axis.set_title(fill(run, _LETTERS_PER_LINE // columns), fontsize=8, loc="left")
            axis.set_ylabel(measure if columns == len(panels) or axis in grid[:, 0] else "")
        for axis in axes[len(cells) :]:
            axis.set_visible(False)
        for axis in grid[-1]:
            axis.set_xlabel("queries, by difference")


def _sorted_bars(axis: Any, values: list[float]) -> None:
    colours = [_COLOURS[0] if value > 0 else _COLOURS[1] for value in values]
    axis.bar(range(1, len(values) + 1), values, width=1.0, color=colours)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xlim(0.5, len(values) + 0.5)
    axis.xaxis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))


def histogram(
    edges: Sequence[int], shares: Sequence[float], labels: tuple[str, str], path: Path
) -> None:
    """A bar a bin, from `edges[i]` to below `edges[i + 1]`, with its share of the whole above it.

    Bins stand side by side whatever their widths; `labels` are those of the axes.
    """
    _need(len(shares))
    with _figure(path, "", 3.0) as figure:
        axis = figure.subplots()
        drawn = axis.bar(range(len(shares)), shares, width=0.86, color=_COLOURS[0])
        axis.bar_label(drawn, [f"{share:.1%}" for share in shares], fontsize=7, padding=2)
        axis.set_xticks([number - 0.5 for number in range(len(edges))], [f"{e:,}" for e in edges])
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axis.grid(visible=False, axis="x")
        axis.margins(y=0.1)
        axis.set_xlabel(labels[0])
        axis.set_ylabel(labels[1])


def scatter(
    places: Any, values: Sequence[str] | Sequence[float], labels: tuple[str, str, str], path: Path
) -> None:
    """A dot at each of `places` [n, 2], coloured by its value: by a scale of numbers, or by name.

    The names of the most dots have a colour each, what is left is grey. `labels` are those of the axes
    and of the values.
    """
    _need(len(values))
    with _figure(path, "", 4.2) as figure:
        axis = figure.subplots()
        many = len(values) > _DOTS
        dots: Any = {"s": 9 if many else 20, "linewidths": 0, "alpha": 0.75, "rasterized": many}
        if numeric := all(isinstance(value, float) for value in values):
            drawn = axis.scatter(*places.T, c=values, cmap="viridis", **dots)
            figure.colorbar(drawn, ax=axis, label=labels[2], shrink=0.8).outline.set_visible(False)
        else:
            _named_dots(axis, places, [str(value) for value in values], dots)
        axis.set_xlabel(labels[0])
        axis.set_ylabel(labels[1])
        _legend(figure, [axis], 0 if numeric else len({*values}))


def _named_dots(axis: Any, places: Any, values: Sequence[str], dots: Any) -> None:
    common = [name for name, _ in Counter(values).most_common(len(_COLOURS))]
    rest = [number for number, value in enumerate(values) if value not in common]
    if rest:
        axis.scatter(*places[rest].T, color="#bbbbbb", label="others", **dots)
    for name, color in zip(common, _COLOURS, strict=False):
        mine = [number for number, value in enumerate(values) if value == name]
        axis.scatter(*places[mine].T, color=color, label=name, **dots)


def heatmap(square: Any, labels: tuple[str, str], path: Path) -> None:
    """The values of a square [n, n] as colours; `labels` are those of its sides and of the values."""
    _need(len(square))
    with _figure(path, "", 4.4) as figure:
        axis = figure.subplots()
        drawn = axis.imshow(square, cmap="viridis", interpolation="nearest")
        figure.colorbar(drawn, ax=axis, label=labels[1], shrink=0.8).outline.set_visible(False)
        axis.grid(visible=False)
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]))
        axis.set_xlabel(labels[0])
        axis.set_ylabel(labels[0])


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
