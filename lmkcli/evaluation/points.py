"""What figures are drawn of: means and points of curves, with their intervals where they are known."""

from typing import NamedTuple


class Bar(NamedTuple):
    """A mean and its interval."""

    value: float
    low: float
    high: float


class Point(NamedTuple):
    """A point of a curve, with the interval of its y where that is known."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


class Panel(NamedTuple):
    """Lines of one measure by their names, and levels: what has no x to stand at."""

    lines: dict[str, list[Point]]
    levels: dict[str, Point]
