"""Lines of a figure from the entries of a score log: a measure over a setting, named by what differs.

An entry's settings are those of the steps that led to its run. A line is one method, so that two entries
stand on one line only if they differ in the setting along the axis and in nothing else.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lmkcli.evaluation.points import Panel, Point
from lmkcli.evaluation.results import headings

Entry = dict[str, Any]
Settings = dict[str, str]

# Named wherever they differ, in this order; every other setting only where these leave two lines alike.
_METHOD = (
    *("family", "pool", "model", "gran", "unit", "window", "overlap", "max_length", "extend"),
    "dim",
)
_BARE = {"family", "pool", "model"}  # whose values speak for themselves
_PLAIN = {"", "0", "None", "doc", "full"}  # what is meant where nothing is said
_LEVELS = {"recipe", "doc", "settings", "search"}  # of an identity, that are no part of a name
_OTHER = {
    "tokenizer",
    "index",
    "queries",
    "collection",
    "analysis",
    "text",
    "skip",
}  # digests, lists

_DIGEST, _DIGITS = (
    re.compile(r"[0-9a-f]{16,}"),
    8,
)  # a digest in a name, and how much of it is shown


class Series(NamedTuple):
    """Lines of points by their names, methods without the parameter, and what is not among them."""

    lines: dict[str, list[Point]]
    levels: dict[str, Point]
    """Of entries in which the parameter is not set, or no number; their x is 0."""
    replaced: int
    """Points for which there is a later entry."""

    @property
    def drawn(self) -> Panel:
        """What a figure shows of it."""
        return Panel(self.lines, self.levels)


def setting(entry: Entry, name: str) -> Any:
    """What a flag such as 'gran' or 'ef-search' was, in the latest step that has it; None if none has.

    The identity of a step, which knows what 'auto' became, goes before what the command was asked.
    """
    key = name.replace("-", "_")
    for step in reversed(entry.get("lineage", [])):
        for place in (step["identity"], step["facts"].get("operation", {})):
            value = _find(place, key)
            if value not in (None, ""):
                return value
    return None


def _find(value: Any, key: str) -> Any:
    """The first value under a key, however deep; a recipe's document side is before its query side."""
    if not isinstance(value, dict):
        return None
    if key in value:
        return value[key]
    return next((x for inner in value.values() if (x := _find(inner, key)) is not None), None)


def parameters(entries: Iterable[Entry], numeric: bool = False) -> list[str]:
    """What can be asked of `setting`, as flags are called: what differs among the entries first.

    Of what commands were asked, only numbers that differ: the rest is in what they made.
    """
    recorded: dict[str, set[str]] = {}
    asked: dict[str, set[str]] = {}
    for step in (step for entry in entries for step in entry.get("lineage", [])):
        for names, place in (
            (recorded, step["identity"]),
            (asked, step["facts"].get("operation", {})),
        ):
            for path, value in _leaves(place):
                if value not in (None, "") and (number(value) is not None or not numeric):
                    names.setdefault(path[-1], set()).add(str(value))
    for name, values in asked.items():
        if name == "model" or (
            len(values) > 1 and all(number(value) is not None for value in values)
        ):
            recorded.setdefault(name, values)
    known = sorted(
        (name for name in recorded if name not in _OTHER), key=lambda n: (len(recorded[n]) < 2, n)
    )
    return [name.replace("_", "-") for name in known]


def series(entries: Sequence[Entry], x: str, by: str | None, measure: str) -> Series:
    """A measure over a setting, a line for each method and collection that there is.

    Lines are named by what differs among all entries, the value of `by` first.
    """
    drawn: dict[str, dict[float | None, Point]] = {}
    replaced = 0
    for entry, name in zip(entries, _names(entries, x, by, measure), strict=True):
        if measure in entry["scores"]:
            line = drawn.setdefault(name, {})
            at = number(setting(entry, x))
            replaced += at in line
            line[at] = _point(entry, at or 0.0, measure)
    levels = {name: line.pop(None) for name, line in drawn.items() if None in line}
    lines = {name: sorted(line.values()) for name, line in drawn.items() if line}
    return Series(lines, levels, replaced)


def _point(entry: Entry, x: float, measure: str) -> Point:
    interval = entry.get("intervals", {}).get(measure, (None, None))
    return Point(x, entry["scores"][measure], *interval)


def judged_by(entry: Entry) -> str:
    """The collection or the qrels file that an evaluation was held against."""
    lineage = entry.get("lineage") or [{"facts": {}}]
    return str(entry.get("qrels") or lineage[-1]["facts"].get("collection", ""))


def number(value: Any) -> float | None:
    """The number that a setting is, or spells; None where it is none."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def _names(entries: Sequence[Entry], x: str, by: str | None, measure: str) -> list[str]:
    """For each entry the name of its line; that of the measure where nothing differs."""
    methods = [_settings(entry, x) for entry in entries]
    for method, entry in zip(methods, entries, strict=True):
        if by and (value := setting(entry, by)) is not None:
            method[by.replace("-", "_")] = str(value)
    told = _told(methods, by.replace("-", "_") if by else "")
    collections = [judged_by(entry) for entry in entries]
    short = headings(list(dict.fromkeys(collections)))
    return [
        ", ".join(_words(method, told) + [short[collection]] * (len(short) > 1)) or measure
        for method, collection in zip(methods, collections, strict=True)
    ]


def _words(method: Settings, told: Sequence[str]) -> list[str]:
    """The settings that name a line; what is meant anyway is left out, unless nothing else is left."""
    words = {name: method[name] for name in told if name in method}
    spoken = {name: value for name, value in words.items() if value not in _PLAIN} or words
    if told and not spoken and "pool" in method:
        return [method["pool"]]
    return [_worded(name, value) for name, value in spoken.items()]


def _worded(name: str, value: str) -> str:
    if name in _BARE:
        return value
    if _DIGEST.fullmatch(value):
        value = value[:_DIGITS]
    return f"{name.replace('_', '-')} {value}" if value else f"no {name.replace('_', '-')}"


def _told(methods: Sequence[Settings], by: str) -> list[str]:
    """The settings that name lines: `by`, those of a method that differ, and what else parts two lines."""
    told = [by] if by else []
    for name in dict.fromkeys([*_METHOD, *(name for method in methods for name in sorted(method))]):
        values = {method[name] for method in methods if name in method}
        parts = _parted(methods, [*told, name]) > _parted(methods, told)
        if name == "family" and values:  # exact search has none
            values.add("")
        if name != by and (parts or (name in _METHOD and len(values) > 1)):
            told.append(name)
    return told


def _parted(methods: Sequence[Settings], names: Sequence[str]) -> int:
    return len({tuple(method.get(name, "") for name in names) for method in methods})


def _settings(entry: Entry, x: str) -> Settings:
    """What the method behind an entry was set to, less the setting along the axis."""
    steps = entry.get("lineage", [])
    settings = {
        "_".join(part for part in path if part not in _LEVELS): str(value)
        for step in steps
        for path, value in _leaves(step["identity"])
        if not _OTHER & set(path) and path != ("dim",)
    }
    if not steps:
        settings["family"] = Path(entry.get("run", "")).stem
    if model := str(setting(entry, "model") or ""):
        settings["model"] = Path(model).name
    return _as_asked(settings, x.replace("-", "_"))


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values of nested mappings with the keys that lead to them."""
    if not isinstance(value, dict):
        yield path, value
        return
    for key, inner in value.items():
        yield from _leaves(inner, (*path, key))


def _as_asked(settings: Settings, x: str) -> Settings:
    """Less the setting along the axis, and what repeats another: a query's side, the length of a window."""
    repeated = {
        name for name in settings if settings[name] == settings.get(name.removeprefix("query_"))
    }
    left = {name for name in repeated if name.startswith("query_")}
    if settings.get("window", "full").isdigit():
        left.add("max_length")
    if number(settings.get(x)) is not None:
        left.add(x)
    if "extend" in settings:  # 'grouped:4096' names the length again
        settings["extend"] = settings["extend"].partition(":")[0]
    return {name: value for name, value in settings.items() if name not in left}
