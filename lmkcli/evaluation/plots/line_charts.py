"""Lines: scores over a parameter, with their intervals, and the curves of a training."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, ScalarFormatter

from lmkcli.evaluation.plots.looks import Look, height_below, legend, need, saved_figure
from lmkcli.evaluation.points import Panel, Point

_MARKED = 30  # points of a line in a panel that have a mark each, at most
_BANDS = 6  # of intervals that can be told apart in a panel, at most
_TICKS = 12  # values of an axis that are its ticks, at most


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
    need(len(values))
    names = [name for panel in panels.values() for name in panel.lines]
    names = list(
        dict.fromkeys(names + [name for panel in panels.values() for name in panel.levels])
    )
    looks = {name: Look.of(number) for number, name in enumerate(names)}
    height = 3.2 if len(panels) == 1 else 0.6 + 2.2 * len(panels)
    with saved_figure(path, "", height + height_below(names)) as figure:
        axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for axis, (label, panel) in zip(axes, panels.items(), strict=True):
            _panel(axis, panel, looks)
            axis.set_ylabel(label)
        axes[-1].set_xlabel(xlabel)
        _ticks(axes[-1], values)
        legend(figure, axes, len(names))


def _panel(axis: Any, panel: Panel, looks: Mapping[str, Look]) -> None:
    for name, points in panel.lines.items():
        _line(axis, sorted(points), name, looks[name], banded=len(panel.lines) <= _BANDS)
    for name, level in panel.levels.items():
        color = looks[name].color
        axis.axhline(level.y, color=color, linestyle=(0, (5, 2)), linewidth=1.1, label=name)
    axis.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))


def _line(axis: Any, points: Sequence[Point], name: str, look: Look, banded: bool) -> None:
    """A line with its marks, on the band of its intervals, or with a bar for each."""
    x, y = [point.x for point in points], [point.y for point in points]
    axis.plot(x, y, label=name, **look._asdict())
    known = [(p.x, p.low, p.high) for p in points if p.low is not None and p.high is not None]
    if known and banded:
        axis.fill_between(*zip(*known, strict=True), color=look.color, alpha=0.13, linewidth=0)
    elif known:
        axis.vlines(*zip(*known, strict=True), color=look.color, alpha=0.5, linewidth=0.8)


def panels(
    curves: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], xlabel: str, path: Path
) -> None:
    """Curves over one axis, a panel for each label, one below the other: label -> line -> points (x, y)."""
    need(sum(len(points) for lines in curves.values() for points in lines.values()))
    with saved_figure(path, "", 0.6 + 1.7 * len(curves)) as figure:
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
