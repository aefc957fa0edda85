"""Cells: the combinations of a grid's axes, narrowed where only some make sense."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product

from lmkcli import manifest
from lmkcli.experiments.gridfile import COLLECTION, GridFile, Narrowing, Value

Values = dict[str, Value]
_LONGEST = 80  # letters of a cell's name


@dataclass(frozen=True)
class Cell:
    """One combination: what it is called, and the value of each axis."""

    name: str
    values: Values

    def shown(self, axis: str) -> str:
        """The value of an axis in words; '-' where it is not given."""
        return shown(self.values[axis])


def shown(value: Value) -> str:
    """A value in words; '-' for none."""
    return " ".join(value) or "-"


def cells(grid: GridFile) -> list[Cell]:
    """The cells of a grid, each once, in the order of its axes and their values."""
    settings = [
        dict(zip(grid.axes, values, strict=True)) for values in product(*grid.axes.values())
    ]
    for narrowing in grid.narrowings:
        settings = list(_once(_narrowed(settings, narrowing)))
    names = _names(settings)
    return [Cell(name, values) for name, values in zip(names, settings, strict=True)]


def varying(settings: Sequence[Values]) -> list[str]:
    """The axes in which any two differ."""
    return [
        axis
        for axis in (settings[0] if settings else {})
        if len({each[axis] for each in settings}) > 1
    ]


def matches(values: Mapping[str, Value], conditions: Mapping[str, str]) -> bool:
    """Whether each setting is as its condition says, in which '*' stands for anything."""
    return all(
        fnmatchcase(" ".join(values[axis]), wanted) or " ".join(values[axis]) == wanted
        for axis, wanted in conditions.items()
    )


def _narrowed(settings: Sequence[Values], narrowing: Narrowing) -> Iterator[Values]:
    replaced = narrowing.values
    for each in settings:
        if not matches(each, narrowing.matching):
            yield each
            continue
        for values in product(*replaced.values()):
            yield each | dict(zip(replaced, values, strict=True))


def _once(settings: Iterator[Values]) -> Iterator[Values]:
    seen = set()
    for each in settings:
        key = tuple(each.values())
        if key not in seen:
            seen.add(key)
            yield each


def _names(settings: Sequence[Values]) -> list[str]:
    """A name for each that a shell takes as it is: the collection, and what differs."""
    told = [axis for axis in varying(settings) if axis != COLLECTION]
    names = [
        _slug([each[COLLECTION], *(each[axis] for axis in told if each[axis])]) for each in settings
    ]
    return [
        f"{name[:_LONGEST]}_{manifest.digest([each[axis] for axis in (COLLECTION, *told)])[:6]}"
        if names.count(name) > 1 or len(name) > _LONGEST
        else name
        for name, each in zip(names, settings, strict=True)
    ]


def _slug(parts: Sequence[Value]) -> str:
    words = (re.sub(r"[^\w.@,]+", "-", " ".join(part)).strip("-") for part in parts)
    return "_".join(words)
