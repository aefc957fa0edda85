"""Charts of the HTML report of a grid, as inline SVG: dots with whiskers, and small line charts.

The classes of the shapes select colours in the style sheet of the page, so charts follow its dark mode. All
sizes are in CSS pixels.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from lmkcli.evaluation.score_plots import Panel, Point

STRIP_WIDTH, STRIP_HEIGHT = 108, 12
_WIDTH, _HEIGHT = 272, 168  # of a line chart
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 8, 8, 34  # margins of a line chart
_INSET = 5  # between the end of an axis and the first possible dot
COLOURS = 6  # colours in the style sheet; more lines are grey
_LETTER = 6.2  # the width of a letter on an axis
_SAME = 1e-9  # values that differ by less are equal
_SHIFT = 7  # between the dots of two lines at one x


class Scale(NamedTuple):
    """An axis from `start` to `stop`, with round ticks at both ends and between them."""

    start: float
    stop: float
    ticks: tuple[float, ...]
    decimals: int

    def share(self, value: float) -> float:
        """Return the place of a value: 0 at the start of the axis, 1 at its end."""
        return (value - self.start) / (self.stop - self.start)

    def label(self, value: float) -> str:
        """Return a tick as text."""
        return f"{value:.{self.decimals}f}"


def scale(values: Iterable[float], steps: int = 6) -> Scale:
    """Return the axis of some values: as short as about this number of round steps allows.

    If all values are from 0 to 1, like those of nDCG and recall, the axis does not leave this range.
    """
    given = list(values)
    low, high = min(given), max(given)
    if high - low < _SAME:
        margin = abs(low) * 0.05 or 0.05
        low, high = low - margin, high + margin
        if 0 <= given[0] <= 1:
            low, high = max(low, 0.0), min(high, 1.0)
    rough = (high - low) / steps
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(number * step, 12) for number in range(first, last + 1))
    decimals = next((n for n in range(12) if round(step, n) == round(step, 12)), 12)
    return Scale(ticks[0], ticks[-1], ticks, decimals)


def strip(
    axis: Scale, value: float, interval: tuple[float, float] | None, best: bool = False
) -> str:
    """Return a dot at a value, with a whisker for its interval, on the axis of its column."""
    middle = STRIP_HEIGHT / 2
    shapes = [f'<line class="rule" x1="0" x2="{STRIP_WIDTH}" y1="{middle}" y2="{middle}"/>']
    if interval:
        low, high = (_along(axis, each) for each in interval)
        shapes.append(f'<line class="whisker" x1="{low}" x2="{high}" y1="{middle}" y2="{middle}"/>')
    dot = "dot best" if best else "dot"
    shapes.append(f'<circle class="{dot}" cx="{_along(axis, value)}" cy="{middle}" r="3.5"/>')
    return _strip(shapes)


def strip_axis(axis: Scale) -> str:
    """Return the ticks of the axis of a column; the first and the last have a label."""
    bottom = STRIP_HEIGHT - 1
    places = [_along(axis, tick) for tick in axis.ticks]
    marks = "".join(f"M{place} {bottom}v-4" for place in places)
    ends = (("start", 0, axis.ticks[0]), ("end", STRIP_WIDTH, axis.ticks[-1]))
    shapes = [f'<path class="axis" d="M{places[0]} {bottom}H{places[-1]}{marks}"/>']
    shapes += [
        f'<text x="{x}" y="{bottom - 6}" text-anchor="{anchor}">{axis.label(tick)}</text>'
        for anchor, x, tick in ends
    ]
    return _strip(shapes, above=STRIP_HEIGHT - 2)


def _along(axis: Scale, value: float) -> float:
    return round(_INSET + axis.share(value) * (STRIP_WIDTH - 2 * _INSET), 1)


def _strip(shapes: Sequence[str], above: int = 0) -> str:
    height = STRIP_HEIGHT + above
    return (
        f'<svg class="strip" width="{STRIP_WIDTH}" height="{height}" aria-hidden="true" '
        f'viewBox="0 {-above} {STRIP_WIDTH} {height}">{"".join(shapes)}</svg>'
    )


def looks(panels: Iterable[Panel]) -> dict[str, str]:
    """Name of a line or a level -> its CSS class.

    The lines with the highest values have colours. The others are grey, because more colours cannot be
    distinguished and their whiskers would overlap.
    """
    highest: dict[str, list[float]] = {}  # name -> its highest value in each panel
    for panel in panels:
        points = panel.lines | {name: [level] for name, level in panel.levels.items()}
        for name, mine in points.items():
            highest.setdefault(name, []).append(max(point.y for point in mine))
    ranked = sorted(highest, key=lambda name: -sum(highest[name]) / len(highest[name]))
    chosen = [name for name in highest if name in ranked[:COLOURS]]
    colours = {name: f"s{number}" for number, name in enumerate(chosen)}
    return {name: colours.get(name, "others") for name in highest}


def legend(classes: Mapping[str, str], levels: Iterable[str]) -> str:
    """Return the names of the lines with their marks; nothing for a single line."""
    if len(classes) < 2:
        return ""
    dashed = set(levels)
    items = [
        f'<li><svg width="22" height="10" aria-hidden="true" class="{look}">{_sample(name in dashed)}'
        f"</svg> {escape(name)}</li>"
        for name, look in classes.items()
        if look != "others"
    ]
    if left := sum(look == "others" for look in classes.values()):
        items.append(
            f'<li><svg width="22" height="10" aria-hidden="true" class="others">{_sample(False)}</svg> '
            f"{left} others</li>"
        )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _sample(dashed: bool) -> str:
    line = f'<line class="{"level" if dashed else "line"}" x1="0" x2="22" y1="5" y2="5"/>'
    return line if dashed else f'{line}<circle class="dot" cx="11" cy="5" r="3.5"/>'


def line_chart(panel: Panel, classes: Mapping[str, str], xlabel: str) -> str:
    """Lines over an axis of numbers, with a whisker for each known interval; levels are dashed lines.

    The dots of several lines at one x are side by side, so that their whiskers do not overlap.
    """
    coloured = [name for name in panel.lines if classes[name] != "others"]
    shown = [
        end
        for name, points in (panel.lines | {n: [p] for n, p in panel.levels.items()}).items()
        for point in points
        for end in (_interval(point) if classes[name] != "others" else None) or (point.y,)
    ]
    shown += [point.y for points in panel.lines.values() for point in points]
    y = scale(shown)
    values = sorted({point.x for points in panel.lines.values() for point in points})
    places = _places(values, _SHIFT * max(0, len(coloured) - 1) / 2)
    shapes = [*_grid(y), *_x_axis(places, xlabel)]
    for name, level in panel.levels.items():
        shapes.append(
            f'<line class="level {classes[name]}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" '
            f'y1="{_up(y, level.y)}" y2="{_up(y, level.y)}"><title>{_title(name, level)}</title></line>'
        )
    for name in sorted(panel.lines, key=coloured.__contains__):  # the grey lines below the others
        number = coloured.index(name) if name in coloured else (len(coloured) - 1) / 2
        shift = (number - (len(coloured) - 1) / 2) * _SHIFT
        points = sorted(panel.lines[name])
        across = [round(places[point.x] + shift, 1) for point in points]
        shapes.append(_line(points, across, y, name, classes[name]))
    return (
        f'<svg class="chart" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'role="img">{"".join(shapes)}</svg>'
    )


def _line(points: Sequence[Point], places: Sequence[float], y: Scale, name: str, look: str) -> str:
    corners = " ".join(f"{x},{_up(y, point.y)}" for x, point in zip(places, points, strict=True))
    shapes = [f'<polyline class="line" points="{corners}"/>']
    for point, x in zip(points, places, strict=True):
        interval = _interval(point)
        if interval and look != "others":
            low, high = (_up(y, end) for end in interval)
            shapes.append(f'<line class="whisker" x1="{x}" x2="{x}" y1="{low}" y2="{high}"/>')
        radius = 2 if look == "others" else 3.5
        shapes.append(
            f'<circle class="dot" cx="{x}" cy="{_up(y, point.y)}" r="{radius}">'
            f"<title>{_title(name, point)}</title></circle>"
        )
    return f'<g class="{look}">{"".join(shapes)}</g>'


def _interval(point: Point) -> tuple[float, float] | None:
    return None if point.low is None or point.high is None else (point.low, point.high)


def _title(name: str, point: Point) -> str:
    interval = _interval(point)
    shown = f"{point.y:.4f}" + (f" [{interval[0]:.4f}, {interval[1]:.4f}]" if interval else "")
    return escape(f"{name}: {shown}" if name else shown)


def _up(y: Scale, value: float) -> float:
    return round(_HEIGHT - _BOTTOM - y.share(value) * (_HEIGHT - _BOTTOM - _TOP), 1)


def _places(values: Sequence[float], margin: float) -> dict[float, float]:
    """x -> its place. The axis is logarithmic for positive values that span a factor of 8 or more."""
    logarithmic = values[0] > 0 and values[-1] / values[0] >= 8
    along = [math.log2(value) if logarithmic else value for value in values]
    span = along[-1] - along[0] or 1.0
    left, right = _LEFT + 8 + margin, _WIDTH - _RIGHT - 8 - margin
    middle = len(values) == 1
    return {
        value: (left + right) / 2 if middle else left + (each - along[0]) / span * (right - left)
        for value, each in zip(values, along, strict=True)
    }


def _grid(y: Scale) -> list[str]:
    shapes = []
    for tick in y.ticks:
        up = _up(y, tick)
        shapes.append(
            f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up}" y2="{up}"/>'
        )
        shapes.append(
            f'<text x="{_LEFT - 5}" y="{up + 3.5}" text-anchor="end">{y.label(tick)}</text>'
        )
    return shapes


def _x_axis(places: Mapping[float, float], xlabel: str) -> list[str]:
    """Return the values of the axis as ticks; labels that would overlap are left out."""
    bottom = _HEIGHT - _BOTTOM
    shapes = [
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>'
    ]
    free = -math.inf
    for value, place in places.items():
        text, at = f"{value:.12g}", round(place, 1)
        shapes.append(f'<line class="axis" x1="{at}" x2="{at}" y1="{bottom}" y2="{bottom + 4}"/>')
        half = len(text) * _LETTER / 2
        if place - half > free:
            free = place + half + 3
            shapes.append(f'<text x="{at}" y="{bottom + 15}" text-anchor="middle">{text}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    shapes.append(
        f'<text class="name" x="{middle}" y="{_HEIGHT - 4}" text-anchor="middle">{escape(xlabel)}</text>'
    )
    return shapes
