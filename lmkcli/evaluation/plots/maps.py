"""Maps: vectors as dots in the plane, and the square of their cosines."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator

from lmkcli.evaluation.plots.looks import COLOURS, legend, need, saved_figure

_DOTS = 500  # of a map that are drawn as shapes of their own, at most; more become one picture


def scatter(
    places: Any, values: Sequence[str] | Sequence[float], labels: tuple[str, str, str], path: Path
) -> None:
    """A dot at each of `places` [n, 2], coloured by its value: by a scale of numbers, or by name.

    The names of the most dots have a colour each, what is left is grey. `labels` are those of the axes
    and of the values.
    """
    need(len(values))
    with saved_figure(path, "", 4.2) as figure:
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
        legend(figure, [axis], 0 if numeric else len({*values}))


def _named_dots(axis: Any, places: Any, values: Sequence[str], dots: Any) -> None:
    common = [name for name, _ in Counter(values).most_common(len(COLOURS))]
    for name, color in zip(common, COLOURS, strict=False):
        mine = [number for number, value in enumerate(values) if value == name]
        axis.scatter(*places[mine].T, color=color, label=name, **dots)
    rest = [number for number, value in enumerate(values) if value not in common]
    if rest:  # the last of the legend, and below all others
        axis.scatter(*places[rest].T, color="#bbbbbb", label="others", zorder=0.9, **dots)


def heatmap(square: Any, labels: tuple[str, str], path: Path) -> None:
    """The values of a square [n, n] as colours; `labels` are those of its sides and of the values."""
    need(len(square))
    with saved_figure(path, "", 4.4) as figure:
        axis = figure.subplots()
        drawn = axis.imshow(square, cmap="viridis", interpolation="nearest")
        figure.colorbar(drawn, ax=axis, label=labels[1], shrink=0.8).outline.set_visible(False)
        axis.grid(visible=False)
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]))
        axis.set_xlabel(labels[0])
        axis.set_ylabel(labels[0])
