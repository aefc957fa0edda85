"""Grid files: the axes of an experiment, what narrows them, and the table that is asked for."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from lmkcli.catalog import OPERATIONS, load
from lmkcli.data import known
from lmkcli.errors import DataError, UsageError
from lmkcli.reading import LINE, whole_file
from lmkcli.spec.operation import Option, options

Value = tuple[str, ...]  # the words of one setting; none where it is not given
COLLECTION, MEASURES = "collection", "measures"
BENCHMARK = "benchmark"  # of a table: an axis that follows from the collection's
EXAMPLES, TEXTS = "train.examples", "pretrain.collections"
_MEASURES: Value = ("nDCG@10",)
_WHOLE = (MEASURES, EXAMPLES, TEXTS)  # a list is one value of these, and not several
_TABLES = ("grid", "table", "slurm")
# Where a flag stands that several commands have, unless 'train.pool' says which is meant.
_OWNERS = ("encode", "index", "search", "eval", "train", "pretrain")
# Roles of settings that all commands of a cell share, as offline: where a model runs, how text is read.
_SHARED = ("speed", "reading", "consent")
# Roles of what the grid sets itself: inputs, outputs, and how results are printed.
_SET_HERE = ("output", "artifact", "run", "layout", "mode", "secret")
_ALSO_SET_HERE = ("measure", "question")


@cache
def settings(verb: str) -> dict[str, Option]:
    """The settings of a command by the names that a grid file may use: the flag's and the field's."""
    found: dict[str, Option] = {}
    for option in options(load(OPERATIONS, verb, "operation")):
        if not option.flag.argument:
            for name in (option.spelling.removeprefix("--"), option.name.replace("_", "-")):
                found.setdefault(name, option)
    return found


def is_shared(option: Option) -> bool:
    """Whether all commands of a cell that have a setting get its value."""
    return option.flag.role in _SHARED or option.name == "offline"


@dataclass(frozen=True)
class Narrowing:
    """A [[grid.where]]: cells in which all settings match take these values of these axes instead."""

    matching: dict[str, str]
    values: dict[str, list[Value]]


@dataclass(frozen=True)
class TableChoice:
    """Which axes make rows and columns; `baseline` says which row others are tested against."""

    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = (COLLECTION,)
    baseline: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GridFile:
    """What a grid file asks for. Axes are in the order of the file, the collections first."""

    axes: dict[str, list[Value]]
    narrowings: list[Narrowing] = field(default_factory=list)
    table: TableChoice = field(default_factory=TableChoice)
    slurm: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def shards(self) -> int:
        """Into how many shards every collection is cut when it is encoded."""
        return int(self.slurm.get("encode", {}).get("shards", 1))


def read(path: Path) -> GridFile:
    """The grid in a TOML file. DataError where it is none; UsageError lists every key that no command has."""
    tables = _load(path)
    given, *where = blocks = _blocks(path, tables["grid"])
    faults = [_unknown(name, "table", _TABLES) for name in tables if name not in _TABLES]
    faults += [_fault(key) for key in dict.fromkeys(key for each in blocks for key in each)]
    if any(faults):
        raise UsageError(f"{path}: {'; '.join(filter(None, faults))}")
    narrowings = [_narrowing(path, block) for block in where]
    axes = {_axis(key): _values(path, key, value) for key, value in given.items()}
    if COLLECTION not in axes:
        raise UsageError(f'{path}: [grid] names no collections; add collections = ["…"]')
    axes = {COLLECTION: axes.pop(COLLECTION), **axes}
    axes.setdefault(MEASURES, [_MEASURES])
    for name in dict.fromkeys(
        name for each in narrowings for name in (*each.matching, *each.values)
    ):
        axes.setdefault(name, [()])
    table = _table(path, tables.get("table", {}), axes)
    return GridFile(axes, narrowings, table, _slurm(path, tables.get("slurm", {})))


def owner(name: str) -> tuple[str, Option]:
    """The command that an axis belongs to, and its setting: 'train.pool' -> ('train', --pool)."""
    verb, dot, flag = name.rpartition(".")
    if not dot:
        verb = next(each for each in _OWNERS if name in settings(each))
    return verb, settings(verb)[flag]


def _load(path: Path) -> dict[str, Any]:
    try:
        tables = tomllib.loads(whole_file(path, LINE).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not TOML: {error}") from None
    if not isinstance(tables.get("grid"), dict):
        raise UsageError(f"{path} has no table [grid]; write its axes below one")
    return tables


def _blocks(path: Path, grid: dict[str, Any]) -> list[dict[str, Any]]:
    """The axes of [grid], and those of each [[grid.where]]."""
    where = grid.get("where", [])
    if not isinstance(where, list) or not all(isinstance(each, dict) for each in where):
        raise UsageError(f"{path}: write [[grid.where]], in two pairs of brackets, above its axes")
    return [_flat({key: grid[key] for key in grid if key != "where"}), *map(_flat, where)]


def _flat(table: dict[str, Any], before: str = "") -> dict[str, Any]:
    """A table with what stands in tables below it as 'train.pool'."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= (
            _flat(value, f"{before}{key}.") if isinstance(value, dict) else {before + key: value}
        )
    return flat


def _axis(key: str) -> str:
    return COLLECTION if key == "collections" else key


def _fault(key: str) -> str:
    """What is wrong with a key; empty if a command has such a setting."""
    if _axis(key) in (COLLECTION, *_WHOLE):
        return ""
    verb, dot, flag = key.rpartition(".")
    if dot and verb not in _OWNERS:
        return _unknown(verb, "command", _OWNERS)
    found = [settings(each) for each in ([verb] if dot else _OWNERS)]
    named = [each[flag] for each in found if flag in each]
    if not named:
        return _unknown(flag, "flag", {name for each in found for name in each})
    free = [option for option in named if not _is_set_here(option)]
    return "" if free else f"{key} is what the grid itself sets"


def _is_set_here(option: Option) -> bool:
    own = option.flag.role in _SET_HERE or option.name in _ALSO_SET_HERE
    return own and not is_shared(option)


def _unknown(name: str, what: str, names: Any) -> str:
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"there is no {what} {name}" + (f" (did you mean {near[0]}?)" if near else "")


def _narrowing(path: Path, block: dict[str, Any]) -> Narrowing:
    """Single values are what cells must have; lists are what those cells take instead."""
    matching = {
        _axis(key): word(path, key, value)
        for key, value in block.items()
        if not isinstance(value, list)
    }
    values = {
        _axis(key): _values(path, key, value)
        for key, value in block.items()
        if isinstance(value, list)
    }
    if not matching or not values:
        raise UsageError(
            f"{path}: a [[grid.where]] has single values, which say for which cells it holds, and lists, "
            f"which those cells take instead; this one has no {'list' if matching else 'single value'}"
        )
    return Narrowing(matching, values)


def _values(path: Path, key: str, given: Any) -> list[Value]:
    items = given if isinstance(given, list) else [given]
    if key in _WHOLE and not any(isinstance(item, list) for item in items):
        items = [items]
    values = [_value(path, key, item) for item in items]
    if _axis(key) == COLLECTION:
        values = [member for names in values for name in names for member in _members(name)]
    if key == MEASURES:
        values = [value or _MEASURES for value in values]
    return list(dict.fromkeys(values))


def _members(name: str) -> list[Value]:
    return [(member,) for member in known.group(name) or [name]]


def _value(path: Path, key: str, item: Any) -> Value:
    words = [word(path, key, each) for each in (item if isinstance(item, list) else [item])]
    return tuple(filter(None, words))


def word(path: Path, key: str, item: Any) -> str:
    """A single value as it stands on a command line; 'true' or 'false' for a switch."""
    if isinstance(item, list | dict):
        raise UsageError(f"{path}: {key} takes single values, not {item!r}")
    return str(item).lower() if isinstance(item, bool) else str(item)


def _table(path: Path, given: Any, axes: Mapping[str, Any]) -> TableChoice:
    if not isinstance(given, dict):
        raise UsageError(f"{path}: [table] is a table with rows, columns and baseline")
    if unknown := [key for key in given if key not in ("rows", "columns", "baseline")]:
        raise UsageError(
            f"{path}: [table] has rows, columns and baseline, not {', '.join(unknown)}"
        )
    wanted = given.get("baseline", {})
    if not isinstance(wanted, dict):
        raise UsageError(f'{path}: baseline is a table of axes, such as {{ pool = "cls" }}')
    chosen = {key: _value(path, key, given[key]) for key in ("rows", "columns") if key in given}
    baseline = {key: word(path, key, value) for key, value in _flat(wanted).items()}
    choice = TableChoice(baseline=baseline, **chosen)
    check_axes(choice, axes)
    return choice


def check_axes(choice: TableChoice, axes: Mapping[str, Any]) -> None:
    """UsageError for a name that is no axis of the grid; rows and columns may be benchmarks."""
    shown = [*axes, BENCHMARK]
    names = [name for name in (*choice.rows, *choice.columns) if name not in shown]
    names += [name for name in choice.baseline if name not in axes]
    if names:
        faults = "; ".join(_unknown(name, "axis", list(axes)) for name in names)
        raise UsageError(
            f"the table: {faults}; its axes are {', '.join(axes)}, of rows and columns also {BENCHMARK}"
        )


def _slurm(path: Path, given: Any) -> dict[str, dict[str, str]]:
    """Command (or '' for all) -> option of sbatch -> its value."""
    if not isinstance(given, dict):
        raise UsageError(f"{path}: [slurm] is a table of options of sbatch")
    common = {
        key: word(path, key, value) for key, value in given.items() if not isinstance(value, dict)
    }
    steps = {verb: table for verb, table in given.items() if isinstance(table, dict)}
    if odd := [verb for verb in steps if verb not in (*_OWNERS, "tokenize")]:
        raise UsageError(
            f"{path}: {_unknown(odd[0], 'step', (*_OWNERS, 'tokenize'))} for [slurm.{odd[0]}]"
        )
    shards = steps.get("encode", {}).get("shards", 1)
    if type(shards) is not int or shards < 1:
        raise UsageError(f"{path}: [slurm.encode] shards is a number from 1 on, not {shards!r}")
    options = {verb: {key: word(path, key, v) for key, v in t.items()} for verb, t in steps.items()}
    return {"": common, **options}
