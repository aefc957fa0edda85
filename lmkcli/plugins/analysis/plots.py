"""Plots: a function for each kind of figure, from plain data to a file.

The suffix selects the format (.png, .svg, .pdf). Equal data give equal files, because the files contain no
dates and their ids are fixed. Figures are drawn without pyplot, so there are no windows and no global state.
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
from matplotlib.text import Text
from matplotlib.ticker import (
    LogLocator,
    MaxNLocator,
    NullLocator,
    PercentFormatter,
    ScalarFormatter,
)
from matplotlib.transforms import ScaledTranslation

from lmkcli.errors import DataError, UsageError
from lmkcli.evaluation.score_plots import Bar, Panel, Point, check_figure
from lmkcli.system.atomic import atomic_file, destination, make_folder
from lmkcli.text.formatting import visible

_WIDTH, _DPI = 6.4, 160
_LETTERS_PER_LINE = 90  # the longest title that fits the width
_LETTERS_AT_RIGHT = 26  # the longest line of a legend to the right of the axes
_INCH_PER_BAR = 0.28
_MARKED = 30  # a line in `panels` has marks up to this number of points
_BANDS = 2  # up to this number of lines, intervals are bands; the bands of more lines would overlap
_APART, _ACROSS = (
    5.0,
    200.0,
)  # points between the whiskers of two lines at one x, and of all together
_TICKS = 12  # up to this number of values, the values of an axis are its ticks
_DOTS = 500  # up to this number, the dots of a map are separate shapes; more dots are one picture
# Colours of Okabe and Ito, which most colour-blind readers can distinguish; without black and yellow.
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"]
_MARKS = ["o", "s", "^", "D", "v", "P"]
_DASHES = ["-", "--", ":", "-."]
# Suffix -> metadata that removes dates and versions from the file.
_DATELESS: dict[str, dict[str, Any]] = {
    ".png": {"Software": "Matplotlib"},
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
    "text.parse_math": False,  # a name with two dollars is not a formula
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "pdf.fonttype": 42,  # TrueType: some publishers refuse Type 3 fonts
    "svg.hashsalt": "lmk",
    "svg.fonttype": "none",  # text remains text, for search and editing
}


class Look(NamedTuple):
    """The style of a line. Six colours and marks distinguish lines; then the dashes change."""

    color: str
    marker: str
    linestyle: str

    @classmethod
    def of(cls, number: int) -> "Look":
        """Return the style of the line with this number, from 0."""
        again, place = divmod(number, len(_COLOURS))
        return cls(_COLOURS[place], _MARKS[place], _DASHES[again % len(_DASHES)])


def _legend(figure: Any, axes: Sequence[Any], lines: int) -> None:
    """Draw the names of the lines to the right of the axes, or below the axes if a name is too long."""
    if lines < 2:
        return
    shown = [pair for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
    by_name = {name: handle for handle, name in reversed(shown)}
    names = list(dict.fromkeys(name for _, name in shown))
    handles = [by_name[name] for name in names]
    if max(map(len, names)) <= _LETTERS_AT_RIGHT:
        place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0}
        axes[0].legend(handles, names, **place)
        return
    columns = _columns_below(names)
    figure.legend(handles, names, loc="outside lower left", ncols=columns)


def _columns_below(names: Sequence[str]) -> int:
    return max(1, min(3, _LETTERS_PER_LINE // (max(map(len, names)) + 8)))


def _height_below(names: Sequence[str]) -> float:
    """Height in inches of a legend below the axes."""
    if len(names) < 2 or max(map(len, names)) <= _LETTERS_AT_RIGHT:
        return 0.0
    return 0.17 * ceil(len(names) / _columns_below(names))


def _require(count: int) -> None:
    """DataError if there is nothing to draw: a count of 0."""
    if not count:
        raise DataError("there is nothing to plot: give runs or log entries with scores")


@contextmanager
def _saved_figure(path: Path, caption: str, height: float) -> Iterator[Any]:
    """An empty figure with the common style, saved when its block ends without an error.

    The height is in inches. Raises UsageError for a suffix other than .png, .svg or .pdf, and for an existing
    file that is no figure.
    """
    suffix = path.suffix.lower()
    if suffix not in _DATELESS:
        raise UsageError(f"{path}: the suffix of a plot must be one of {', '.join(_DATELESS)}")
    check_figure(path)
    with matplotlib.rc_context():
        # without the settings of a file matplotlibrc, which may be in the current folder and start LaTeX
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        figure.supxlabel(caption, fontsize=7.5, color="#555555")
        yield figure
        for text in figure.findobj(Text):  # names of runs and models may contain control characters
            text.set_text(visible(text.get_text()))
        make_folder(path.parent)
        with atomic_file(destination(path)) as temporary:
            figure.savefig(temporary, format=suffix[1:], dpi=_DPI, metadata=_DATELESS[suffix])


def bars(panels: Mapping[str, Mapping[str, Bar]], caption: str, path: Path) -> None:
    """A panel for each measure and a bar for each system: measure -> system -> Bar.

    All measures have the same systems. Raises UsageError for a suffix other than .png, .svg or .pdf, and
    DataError if there is nothing to draw. All functions of this module raise these errors.
    """
    systems = list(next(iter(panels.values()), {}))
    _require(len(systems))
    with _saved_figure(path, caption, 1.1 + _INCH_PER_BAR * len(systems)) as figure:
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axis, (measure, by_system) in zip(axes, panels.items(), strict=True):
            _bars(axis, [by_system[system] for system in systems])
            axis.set_xlabel(measure)
            axis.set_yticks(range(len(systems)), list(map(visible, systems)))
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
    axis.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10]))


def query_differences(
    panels: Mapping[str, Mapping[str, Sequence[float]]], caption: str, path: Path
) -> None:
    """A bar for each query, sorted: measure -> run -> differences from the baseline.

    With several measures, the figure has a column for each measure and a row for each run. With one measure,
    each row of panels shows up to three runs.
    """
    cells = [(m, run, values) for m, by_run in panels.items() for run, values in by_run.items()]
    _require(sum(len(values) for _, _, values in cells))
    runs = max(map(len, panels.values()))
    columns = len(panels) if len(panels) > 1 else min(3, runs)
    rows = runs if len(panels) > 1 else ceil(runs / columns)
    with _saved_figure(path, caption, 0.7 + (2.4 if rows == 1 else 1.5 * rows)) as figure:
        grid = figure.subplots(
            rows, columns, sharey="col" if len(panels) > 1 else True, squeeze=False
        )
        axes = list(grid.T.flat if len(panels) > 1 else grid.flat)
        for axis, (measure, run, values) in zip(axes, cells, strict=False):
            _sorted_bars(axis, sorted(values, reverse=True))
            axis.set_title(fill(run, _LETTERS_PER_LINE // columns), fontsize=8, loc="left")
            axis.set_ylabel(f"Δ {measure}" if columns == len(panels) or axis in grid[:, 0] else "")
        for axis in axes[len(cells) :]:
            axis.set_visible(False)
        for column in grid.T:
            lowest = [axis for axis in column if axis.get_visible()][-1]
            lowest.set_xlabel("queries, by difference")


def _sorted_bars(axis: Any, values: list[float]) -> None:
    colours = [_COLOURS[0] if value > 0 else _COLOURS[1] for value in values]
    axis.bar(range(1, len(values) + 1), values, width=1.0, color=colours)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xlim(0.5, len(values) + 0.5)
    axis.xaxis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))


def histogram(
    edges: Sequence[int], shares: Sequence[float], labels: tuple[str, str], path: Path
) -> None:
    """A bar for each bin, from `edges[i]` to below `edges[i + 1]`, labelled with its share.

    All bars have the same width. `labels` are the labels of the axes.
    """
    _require(len(shares))
    with _saved_figure(path, "", 3.0) as figure:
        axis = figure.subplots()
        drawn = axis.bar(range(len(shares)), shares, width=0.86, color=_COLOURS[0])
        axis.bar_label(drawn, [f"{share:.1%}" for share in shares], fontsize=7, padding=2)
        axis.set_xticks([number - 0.5 for number in range(len(edges))], [f"{e:,}" for e in edges])
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axis.grid(visible=False, axis="x")
        axis.margins(y=0.1)
        axis.set_xlabel(labels[0])
        axis.set_ylabel(labels[1])


def curve(
    series: Mapping[str, Sequence[Point | tuple[float, float]]],
    xlabel: str,
    ylabel: str,
    path: Path,
    levels: Mapping[str, Point] | None = None,
) -> None:
    """Draw one panel like `curves`, with labels for the axes; points may be plain pairs (x, y)."""
    lines = {name: [Point(*point) for point in points] for name, points in series.items()}
    curves({ylabel: Panel(lines, dict(levels or {}))}, xlabel, path)


def curves(panels: Mapping[str, Panel], xlabel: str, path: Path) -> None:
    """A panel for each label, one below the other: lines, with bands for known intervals, and levels.

    A name has the same style in all panels. Levels have no x and are drawn across the whole panel. The x
    axis is logarithmic if the values span a factor of 8 or more in uneven steps, like lengths and
    granularities.
    """
    values = sorted(
        {point.x for panel in panels.values() for line in panel.lines.values() for point in line}
    )
    _require(len(values))
    names = [name for panel in panels.values() for name in panel.lines]
    names = list(
        dict.fromkeys(names + [name for panel in panels.values() for name in panel.levels])
    )
    looks = {name: Look.of(number) for number, name in enumerate(names)}
    height = 3.2 if len(panels) == 1 else 0.6 + 2.2 * len(panels)
    with _saved_figure(path, "", height + _height_below(names)) as figure:
        axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for axis, (label, panel) in zip(axes, panels.items(), strict=True):
            _panel(axis, panel, looks)
            axis.set_ylabel(label)
        axes[-1].set_xlabel(xlabel)
        _ticks(axes[-1], values)
        _legend(figure, axes, len(names))


def _panel(axis: Any, panel: Panel, looks: Mapping[str, Look]) -> None:
    lines, longest = len(panel.lines), max(map(len, panel.lines.values()), default=0)
    banded = lines <= _BANDS or longest > _TICKS
    apart = 0.0 if banded else min(_APART, _ACROSS / (lines * longest))
    for number, (name, points) in enumerate(panel.lines.items()):
        shift = (number - (lines - 1) / 2) * apart
        _line(axis, sorted(points), name, looks[name], None if banded else shift)
    for name, level in panel.levels.items():
        color = looks[name].color
        axis.axhline(level.y, color=color, linestyle=(0, (5, 2)), linewidth=1.1, label=name)
    axis.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))


def _line(axis: Any, points: Sequence[Point], name: str, look: Look, shift: float | None) -> None:
    """Draw a line with marks, and its intervals: as whiskers, `shift` points to the right, or as a band."""
    x, y = [point.x for point in points], [point.y for point in points]
    known = [(p.x, p.low, p.high) for p in points if p.low is not None and p.high is not None]
    shifted = ScaledTranslation((shift or 0.0) / 72, 0, axis.figure.dpi_scale_trans)
    place = {"transform": axis.transData + shifted} if shift else {}
    axis.plot(x, y, label=name, **look._asdict(), **place)
    if known and shift is None:
        axis.fill_between(*zip(*known, strict=True), color=look.color, alpha=0.13, linewidth=0)
    elif known:
        axis.vlines(*zip(*known, strict=True), color=look.color, linewidth=1.0, **place)
        axis.update_datalim([(at, end) for at, *ends in known for end in ends])


def panels(
    curves: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], xlabel: str, path: Path
) -> None:
    """A panel for each label, one below the other, over one axis: label -> line -> points (x, y)."""
    _require(sum(len(points) for lines in curves.values() for points in lines.values()))
    with _saved_figure(path, "", 0.6 + 1.7 * len(curves)) as figure:
        axes = figure.subplots(len(curves), sharex=True, squeeze=False)[:, 0]
        for axis, (label, lines) in zip(axes, curves.items(), strict=True):
            for number, (name, points) in enumerate(lines.items()):
                look = Look.of(number)
                look = look if len(points) <= _MARKED else look._replace(marker="")
                x, y = zip(*points, strict=True) if points else ((), ())
                axis.plot(x, y, label=name, markersize=3, **look._asdict())
            axis.set_ylabel(label)
            if len(lines) > 1:
                axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0)
        axes[-1].set_xlabel(xlabel)


def _ticks(axis: Any, values: list[float]) -> None:
    """Set the ticks to the values if these are few and round, otherwise to round numbers near them."""
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
    """Return whether a number has few significant digits: at most two decimal digits, or a factor below 16.

    The factor is the number without its factors of two: 384 is 3 x 128, a usual length or granularity.
    """
    binary = (
        float(value).is_integer() and value != 0 and int(value) // (int(value) & -int(value)) < 16
    )
    return binary or value == float(f"{value:.2g}")


def scatter(
    places: Any, values: Sequence[str] | Sequence[float], labels: tuple[str, str, str], path: Path
) -> None:
    """A dot at each of `places` [n, 2]. Colours are a scale for numbers, or a colour for each name.

    The most frequent names have colours, and all others are grey. `labels` are the labels of the two
    axes and of the values.
    """
    _require(len(values))
    with _saved_figure(path, "", 4.2) as figure:
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
    for name, color in zip(common, _COLOURS, strict=False):
        mine = [number for number, value in enumerate(values) if value == name]
        axis.scatter(*places[mine].T, color=color, label=name, **dots)
    rest = [number for number, value in enumerate(values) if value not in common]
    if rest:  # last in the legend, and below all other dots
        axis.scatter(*places[rest].T, color="#bbbbbb", label="others", zorder=0.9, **dots)


def heatmap(square: Any, labels: tuple[str, str], path: Path) -> None:
    """Draw a matrix [n, n] as colours. `labels` are the labels of the axes and of the colour scale."""
    _require(len(square))
    with _saved_figure(path, "", 4.4) as figure:
        axis = figure.subplots()
        drawn = axis.imshow(square, cmap="viridis", interpolation="nearest")
        figure.colorbar(drawn, ax=axis, label=labels[1], shrink=0.8).outline.set_visible(False)
        axis.grid(visible=False)
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]))
        axis.set_xlabel(labels[0])
        axis.set_ylabel(labels[0])
