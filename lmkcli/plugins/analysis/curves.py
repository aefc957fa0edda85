"""Curves of a score log: a measure over a setting, named by the differing settings; records of figures.

The settings of an entry are the settings of all steps in its lineage. A line is one method: two entries are
on the same line if they differ only in the setting along the axis.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lmkcli.artifact import manifest, outputs
from lmkcli.artifact.kinds import Facts, Manifest, OpenMapping
from lmkcli.evaluation.results import headings
from lmkcli.evaluation.score_plots import Panel, Point
from lmkcli.progress import Call
from lmkcli.provenance import scorelog
from lmkcli.provenance.scorelog import LogEntry
from lmkcli.system.atomic import atomic_file

Settings = dict[str, str]

KIND = "figure"  # of the manifest next to a figure


class FigureFacts(Facts, frozen=True, kw_only=True):
    """Also the numbers in the figure."""

    shown: Any


class FigureManifest(Manifest, frozen=True, kw_only=True, tag=KIND):
    """The manifest of a figure: `identity` has its inputs."""

    identity: OpenMapping
    facts: FigureFacts


# These settings are in the name of a line if they differ, in this order. Other settings are in the name
# only if two lines would have the same name without them.
_METHOD = (
    *("family", "pool", "model", "gran", "unit", "window", "overlap", "max_length", "extend"),
    "dim",
)
_WITHOUT_KEY = {"family", "pool", "model"}  # named by the value alone
_DEFAULTS = {"", "0", "None", "doc", "full"}  # values that are not named
_LEVELS = {"recipe", "doc", "settings", "search"}  # levels of an identity that are not named
# Digests and lists, which are not settings
_NO_SETTINGS = {"tokenizer", "index", "queries", "collection", "analysis", "text", "skip"}
_DIGEST = re.compile(r"[0-9a-f]{16,}")
_DIGITS = 8  # of a digest in a name


class Series(NamedTuple):
    """The lines of one measure by name, and the entries that are not on a line."""

    lines: dict[str, list[Point]]
    levels: dict[str, Point]
    """Entries without a number for the setting along the axis, by name; x is 0."""
    replaced: int
    """Number of points that a later entry replaces."""

    @property
    def drawn(self) -> Panel:
        """The panel of a figure."""
        return Panel(self.lines, self.levels)


def parameters(entries: Iterable[LogEntry], numeric: bool = False) -> list[str]:
    """Return the names of settings, spelled like flags; those that differ between entries come first.

    Settings of operations are included only if they are numbers that differ. The identities of the artifacts
    contain all other settings. With `numeric`, only settings with numbers are included.
    """
    recorded: dict[str, set[str]] = {}
    given: dict[str, set[str]] = {}
    for step in (step for entry in entries for step in entry.get("lineage", [])):
        for names, place in (
            (recorded, step["identity"]),
            (given, step["facts"].get("operation", {})),
        ):
            for path, value in _leaves(place):
                if value not in (None, "") and (
                    scorelog.as_number(value) is not None or not numeric
                ):
                    names.setdefault(path[-1], set()).add(str(value))
    for name, values in given.items():
        if name == "model" or (
            len(values) > 1 and all(scorelog.as_number(value) is not None for value in values)
        ):
            recorded.setdefault(name, values)
    known = sorted(
        (name for name in recorded if name not in _NO_SETTINGS),
        key=lambda name: (len(recorded[name]) < 2, name),
    )
    return [name.replace("_", "-") for name in known]


def series(entries: Sequence[LogEntry], x: str, by: str | None, measure: str) -> Series:
    """Return a measure over the setting `x`, with a line for each method and collection.

    The names of lines contain the settings that differ between the entries, the value of `by` first.
    """
    points: dict[str, dict[float | None, Point]] = {}
    replaced = 0
    for entry, name in zip(entries, _names(entries, x, by, measure), strict=True):
        if measure in entry["scores"]:
            line = points.setdefault(name, {})
            at = scorelog.as_number(scorelog.setting(entry, x))
            replaced += at in line
            interval = entry.get("intervals", {}).get(measure, (None, None))
            line[at] = Point(at or 0.0, entry["scores"][measure], *interval)
    levels = {name: line.pop(None) for name, line in points.items() if None in line}
    lines = {name: sorted(line.values()) for name, line in points.items() if line}
    return Series(lines, levels, replaced)


def _names(entries: Sequence[LogEntry], x: str, by: str | None, measure: str) -> list[str]:
    """Return the name of the line of each entry; the measure if nothing differs."""
    first = by.replace("-", "_") if by else ""
    methods = [_settings(entry, x) for entry in entries]
    for method, entry in zip(methods, entries, strict=True):
        if by and (value := scorelog.setting(entry, by)) is not None:
            method[first] = str(value)
    keys = _distinguishing(methods, first)
    collections = [scorelog.judged_by(entry) for entry in entries]
    short = headings(list(dict.fromkeys(collections)))
    return [
        ", ".join(_words(method, keys) + [short[collection]] * (len(short) > 1)) or measure
        for method, collection in zip(methods, collections, strict=True)
    ]


def _settings(entry: LogEntry, x: str) -> Settings:
    """Return the settings of the method of an entry, without the setting along the axis.

    Repetitions are left out: a query setting with the value of the document setting, and a maximum length
    if there is a window.
    """
    steps = entry.get("lineage", [])
    settings = {
        "_".join(part for part in path if part not in _LEVELS): str(value)
        for step in steps
        for path, value in _leaves(step["identity"])
        if not _NO_SETTINGS & set(path) and path != ("dim",)
    }
    if not steps:
        settings["family"] = Path(entry.get("run", "")).stem
    if model := str(scorelog.setting(entry, "model") or ""):
        settings["model"] = Path(model).name
    left_out = {
        name
        for name, value in settings.items()
        if name.startswith("query_") and value == settings.get(name.removeprefix("query_"))
    }
    if settings.get("window", "full").removeprefix("even:").isdigit():
        left_out.add("max_length")
    axis = x.replace("-", "_")
    if scorelog.as_number(settings.get(axis)) is not None:
        left_out.add(axis)
    if "extend" in settings:  # 'grouped:4096' repeats the length
        settings["extend"] = settings["extend"].partition(":")[0]
    return {name: value for name, value in settings.items() if name not in left_out}


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values in nested mappings, each with the path of its keys."""
    if not isinstance(value, dict):
        yield path, value
        return
    for key, inner in value.items():
        yield from _leaves(inner, (*path, key))


def _distinguishing(methods: Sequence[Settings], first: str) -> list[str]:
    """Return the settings that name lines: `first`, the settings of _METHOD that differ, then others if
    necessary.

    Another setting is necessary if methods would have equal names without it.
    """

    def combinations(keys: Sequence[str]) -> int:
        return len({tuple(method.get(key, "") for key in keys) for method in methods})

    keys = [first] if first else []
    for name in dict.fromkeys([*_METHOD, *(name for method in methods for name in sorted(method))]):
        values = {method[name] for method in methods if name in method}
        if name == "family" and values:  # exact search has no family
            values.add("")
        differs = name in _METHOD and len(values) > 1
        if name != first and (differs or combinations([*keys, name]) > combinations(keys)):
            keys.append(name)
    return keys


def _words(method: Settings, keys: Sequence[str]) -> list[str]:
    """Return the parts of the name of a line. Defaults are left out, unless the name would be empty."""
    values = {name: method[name] for name in keys if name in method}
    named = {name: value for name, value in values.items() if value not in _DEFAULTS} or values
    if keys and not named and "pool" in method:
        return [method["pool"]]
    words = []
    for name, value in named.items():
        flag = name.replace("_", "-")
        if name in _WITHOUT_KEY:
            words.append(value)
        elif _DIGEST.fullmatch(value):
            words.append(f"{flag} {value[:_DIGITS]}")
        else:
            words.append(f"{flag} {value}" if value else f"no {flag}")
    return words


def record_figure(path: Path, sources: Mapping[str, Any], shown: Any, call: Call) -> None:
    """Write FIGURE.json, the manifest of a figure, with `sources` as its identity.

    The numbers in the figure, `shown`, are among its facts.
    """
    facts = FigureFacts(**manifest.environment(call), shown=shown)
    text = manifest.as_text(FigureManifest(identity=dict(sources), facts=facts))
    with atomic_file(outputs.sidecar(path)) as temporary:
        temporary.write_text(text + "\n", "utf-8", "surrogatepass")
