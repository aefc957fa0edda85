"""Figures of a grid: its measures over an axis of numbers, lines named by the cells' other axes."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from lmkcli.evaluation.points import Panel, Point
from lmkcli.evaluation.results import headings
from lmkcli.experiments.cells import Cell, varying
from lmkcli.experiments.gridfile import COLLECTION, MEASURES
from lmkcli.experiments.scores import Scored
from lmkcli.provenance.series import number

_COLLECTIONS = 6  # that have figures, at most


def figures(scored: Sequence[Scored]) -> Iterator[tuple[str, str, dict[str, Panel]]]:
    """Collection, axis and measure -> panel: of each axis over which any line has two points.

    The first collections have theirs: bands of many in one figure cannot be told apart.
    """
    by_collection: dict[str, list[Scored]] = {}
    for each in scored:
        by_collection.setdefault(each.cell.shown(COLLECTION), []).append(each)
    short = headings(list(by_collection))
    for name, mine in islice(by_collection.items(), _COLLECTIONS):
        for axis in varying([each.cell.values for each in mine]):
            drawn = panels(mine, axis)
            if any(len(line) > 1 for panel in drawn.values() for line in panel.lines.values()):
                yield short[name], axis, drawn


def panels(scored: Sequence[Scored], axis: str) -> dict[str, Panel]:
    """Measure -> its lines over an axis, of one collection; cells in which it has no number are levels."""
    names = _names([each.cell for each in scored], axis)
    found: dict[str, Panel] = {}
    for each in scored:
        name, at = names[each.cell.name], each.cell.shown(axis)
        for measure, value in each.entry["scores"].items():
            lines, levels = found.setdefault(measure, Panel({}, {}))
            interval = each.entry.get("intervals", {}).get(measure, (None, None))
            if (x := number(at)) is not None:
                lines[name] = [*lines.get(name, []), Point(x, value, *interval)]
            else:
                levels[", ".join(filter(None, [name, _word(axis, at)]))] = Point(
                    0.0, value, *interval
                )
    return found


def _names(cells: Sequence[Cell], axis: str) -> Mapping[str, str]:
    """Cell -> the name of its line: what varies besides the axis."""
    told = [
        each for each in varying([cell.values for cell in cells]) if each not in (axis, MEASURES)
    ]
    return {
        cell.name: ", ".join(filter(None, (_word(each, cell.shown(each)) for each in told)))
        for cell in cells
    }


def _word(axis: str, value: str) -> str:
    """A value as it stands in a name; numbers say of what they are."""
    if value == "-":
        return ""
    return f"{axis} {value}" if value[0].isdigit() or value in ("true", "false") else value
