"""Bars: means with intervals, differences query by query, and the shares of bins."""

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.ticker import MaxNLocator, PercentFormatter

from lmkcli.evaluation.plots.looks import COLOURS, LETTERS_PER_LINE, need, saved_figure
from lmkcli.evaluation.points import Bar
from lmkcli.text.visible import visible

_INCH_PER_BAR = 0.28


def bars(panels: Mapping[str, Mapping[str, Bar]], caption: str, path: Path) -> None:
    """One panel a measure, one bar a system: measure -> system -> Bar, every measure of all systems.

    UsageError for a suffix that is none of .png, .svg and .pdf, DataError when there is nothing to draw; so
    for all functions here.
    """
    systems = list(next(iter(panels.values()), {}))
    need(len(systems))
    with saved_figure(path, caption, 1.1 + _INCH_PER_BAR * len(systems)) as figure:
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
    axis.barh(range(len(panel)), values, height=0.62, color=COLOURS[0])
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
    """One bar a query, the largest difference first: measure -> run -> its values less the baseline's.

    Several measures stand beside each other, the runs below each other; of one measure up to three runs
    stand in a row.
    """
    cells = [(m, run, values) for m, by_run in panels.items() for run, values in by_run.items()]
    need(sum(len(values) for _, _, values in cells))
    runs = max(map(len, panels.values()))
    columns = len(panels) if len(panels) > 1 else min(3, runs)
    rows = runs if len(panels) > 1 else ceil(runs / columns)
    with saved_figure(path, caption, 0.7 + (2.4 if rows == 1 else 1.5 * rows)) as figure:
        grid = figure.subplots(
            rows, columns, sharey="col" if len(panels) > 1 else True, squeeze=False
        )
        axes = list(grid.T.flat if len(panels) > 1 else grid.flat)
        for axis, (measure, run, values) in zip(axes, cells, strict=False):
            _sorted_bars(axis, sorted(values, reverse=True))
            axis.set_title(fill(run, LETTERS_PER_LINE // columns), fontsize=8, loc="left")
            axis.set_ylabel(f"Δ {measure}" if columns == len(panels) or axis in grid[:, 0] else "")
        for axis in axes[len(cells) :]:
            axis.set_visible(False)
        for column in grid.T:
            lowest = [axis for axis in column if axis.get_visible()][-1]
            lowest.set_xlabel("queries, by difference")


def _sorted_bars(axis: Any, values: list[float]) -> None:
    colours = [COLOURS[0] if value > 0 else COLOURS[1] for value in values]
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
    need(len(shares))
    with saved_figure(path, "", 3.0) as figure:
        axis = figure.subplots()
        drawn = axis.bar(range(len(shares)), shares, width=0.86, color=COLOURS[0])
        axis.bar_label(drawn, [f"{share:.1%}" for share in shares], fontsize=7, padding=2)
        axis.set_xticks([number - 0.5 for number in range(len(edges))], [f"{e:,}" for e in edges])
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axis.grid(visible=False, axis="x")
        axis.margins(y=0.1)
        axis.set_xlabel(labels[0])
        axis.set_ylabel(labels[1])
