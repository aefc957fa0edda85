"""Grid files: the axes of an experiment, the cells, and the requested table.

A cell is one combination of values. [[grid.where]] changes the values of some cells.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

from lmkcli.artifact import manifest
from lmkcli.catalog import VERBS
from lmkcli.data import known_collections
from lmkcli.errors import UsageError
from lmkcli.spec.option import Option, options
from lmkcli.spec.values import MOST_SHARDS
from lmkcli.system.input_files import read_toml

Value = tuple[str, ...]  # the words of one setting; empty if it is not set
Values = dict[str, Value]  # axis -> value
COLLECTION, MEASURES = "collection", "measures"
BENCHMARK = "benchmark"  # an axis for tables only: the benchmark of the collection
EXAMPLES, TEXTS = "train.examples", "pretrain.collections"
_MEASURES: Value = ("nDCG@10",)
_WHOLE = (MEASURES, EXAMPLES, TEXTS)  # for these axes, a list is one value
_TABLES = ("grid", "table", "slurm")
# A flag of several commands belongs to the first one here; 'train.pool' names another command.
_OWNERS = ("encode", "index", "search", "eval", "train", "pretrain")
# Roles of settings that all commands of a cell share (and the setting offline): where a model runs and
# how text is read.
_SHARED = ("speed", "reading", "consent")
# Roles of settings that the grid sets: inputs, outputs, and the format of results.
_SET_HERE = ("output", "artifact", "run", "layout", "mode", "secret")
_ALSO_SET_HERE = ("measure", "question")
# Fields of search for a second ranking, by the vectors of the cell. These axes have a single value.
SECOND_STAGES = ("rerank", "others")
_OF_CELL = "vectors"
_LONGEST = 80  # letters in the name of a cell
_MOST_CELLS = 100_000
_SHOWN = 10  # errors of one kind in a message


@cache
def settings(verb: str) -> dict[str, Option]:
    """Return the settings of a command by their names in a grid file: the flag, and the field."""
    found: dict[str, Option] = {}
    for option in options(VERBS.load(verb)):
        if not option.flag.argument:
            for name in (option.spelling.removeprefix("--"), option.name.replace("_", "-")):
                found.setdefault(name, option)
    return found


def is_shared(option: Option) -> bool:
    """Return whether all commands of a cell that have this setting get the same value."""
    return option.flag.role in _SHARED or option.name == "offline"


@cache
def owner(name: str) -> tuple[str, Option]:
    """Return the command of an axis, and its setting: 'train.pool' -> ('train', --pool)."""
    verb, dot, flag = name.rpartition(".")
    if not dot:
        verb = next(each for each in _OWNERS if name in settings(each))
    return verb, settings(verb)[flag]


@dataclass(frozen=True)
class Narrowing:
    """A [[grid.where]]: `values` replace the values of cells that match all conditions in `matching`."""

    matching: dict[str, str]
    values: dict[str, list[Value]]


@dataclass(frozen=True)
class TableChoice:
    """The axes of rows and columns; `baseline` selects the row that others are compared with.

    means: further columns by name, each the mean over the columns that match its patterns.
    """

    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = (COLLECTION,)
    baseline: dict[str, str] = field(default_factory=dict)
    means: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class GridFile:
    """The contents of a grid file. Axes are in the order of the file, after the collections."""

    axes: dict[str, list[Value]]
    narrowings: list[Narrowing] = field(default_factory=list)
    table: TableChoice = field(default_factory=TableChoice)
    slurm: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def shards(self) -> int:
        """The number of shards of each encoding."""
        return int(self.slurm.get("encode", {}).get("shards", 1))


def read(path: Path) -> GridFile:
    """Read a TOML file. DataError if it is not TOML; UsageError lists all unknown keys."""
    tables = read_toml(path)
    if not isinstance(tables.get("grid"), dict):
        raise UsageError(f"{path} has no table [grid]; write the axes below [grid]")
    grid = dict(tables["grid"])
    where = grid.pop("where", [])
    if not isinstance(where, list) or not all(isinstance(each, dict) for each in where):
        raise UsageError(f"{path}: write [[grid.where]], in two pairs of brackets, above its axes")
    given, *conditions = blocks = list(map(_flat, [grid, *where]))
    # Similar names are only computed for the problems that are shown.
    odd_tables = (_unknown(name, "table", _TABLES) for name in tables if name not in _TABLES)
    odd_keys = map(_problem, dict.fromkeys(key for each in blocks for key in each))
    if problems := list(islice(filter(None, chain(odd_tables, odd_keys)), _SHOWN)):
        raise UsageError(f"{path}: {'; '.join(problems)}")
    narrowings = [_narrowing(path, block) for block in conditions]
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


def _flat(table: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Return the values of a table and the tables in it; keys are paths such as 'train.pool'."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{before}{key}.")
        else:
            flat[before + key] = value
    return flat


def _axis(key: str) -> str:
    return COLLECTION if key == "collections" else key


def _problem(key: str) -> str:
    """Return the problem with a key; empty if it is a setting of a command."""
    if _axis(key) in (COLLECTION, *_WHOLE):
        return ""
    verb, dot, flag = key.rpartition(".")
    if dot and verb not in _OWNERS:
        return _unknown(verb, "command", _OWNERS)
    found = [settings(each) for each in ([verb] if dot else _OWNERS)]
    named = [each[flag] for each in found if flag in each]
    if not named:
        return _unknown(flag, "flag", {name for each in found for name in each})
    for option in named:
        set_here = option.flag.role in _SET_HERE or option.name in _ALSO_SET_HERE
        if not set_here or is_shared(option) or option.name in SECOND_STAGES:
            return ""
    return f"{key} is set by the grid"


def _unknown(name: str, kind: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"there is no {kind} {name}" + (f" (did you mean {near[0]}?)" if near else "")


def _narrowing(path: Path, block: dict[str, Any]) -> Narrowing:
    """Single values are conditions for cells; lists are the values of these cells."""
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
            f"{path}: a [[grid.where]] has single values, which are the conditions for cells, and lists, "
            f"which are the values of these cells; this one has no {'list' if matching else 'single value'}"
        )
    return Narrowing(matching, values)


def _values(path: Path, key: str, given: Any) -> list[Value]:
    """Return the values of an axis, each once."""
    items = given if isinstance(given, list) else [given]
    if key in _WHOLE and not any(isinstance(item, list) for item in items):
        items = [items]
    values = [_value(path, key, item) for item in items]
    if _axis(key) == COLLECTION:  # a group is replaced by its members
        values = [
            (member,)
            for names in values
            for name in names
            for member in known_collections.members(name) or [name]
        ]
    second = _axis(key) not in (COLLECTION, *_WHOLE) and owner(key)[1].name in SECOND_STAGES
    if second and (other := [value for value in values if value not in ((), (_OF_CELL,))]):
        raise UsageError(
            f'{path}: {key} = {" ".join(other[0])!r}: write "{_OF_CELL}", which means the vectors of the '
            'cell\'s model, or ""'
        )
    if key == MEASURES:
        values = [value or _MEASURES for value in values]
    return list(dict.fromkeys(values))


def _value(path: Path, key: str, item: Any) -> Value:
    words = [word(path, key, each) for each in (item if isinstance(item, list) else [item])]
    return tuple(filter(None, words))


def word(path: Path, key: str, item: Any) -> str:
    """Return a single value in the spelling of a command line; 'true' or 'false' for a switch."""
    if isinstance(item, list | dict):
        raise UsageError(f"{path}: {key} takes single values, not {item!r}")
    return str(item).lower() if isinstance(item, bool) else str(item)


def _table(path: Path, given: Any, axes: Mapping[str, Any]) -> TableChoice:
    if not isinstance(given, dict):
        raise UsageError(f"{path}: [table] is a table with rows, columns, baseline and means")
    if unknown := [key for key in given if key not in ("rows", "columns", "baseline", "means")]:
        raise UsageError(
            f"{path}: [table] has rows, columns, baseline and means, not {', '.join(unknown[:_SHOWN])}"
        )
    conditions = given.get("baseline", {})
    if not isinstance(conditions, dict):
        raise UsageError(f'{path}: baseline is a table of axes, such as {{ pool = "cls" }}')
    chosen = {key: _value(path, key, given[key]) for key in ("rows", "columns") if key in given}
    baseline = {key: word(path, key, value) for key, value in _flat(conditions).items()}
    means = given.get("means", {})
    if not isinstance(means, dict):
        raise UsageError(
            f'{path}: means is a table of columns, such as {{ "Avg. short" = ["beir", "mteb-v2"] }}'
        )
    averaged = {name: _value(path, f"means.{name}", value) for name, value in means.items()}
    choice = TableChoice(baseline=baseline, means=averaged, **chosen)
    check_axes(choice, axes)
    return choice


def check_axes(choice: TableChoice, axes: Mapping[str, Any]) -> None:
    """UsageError for a name that is not an axis of the grid; rows and columns may be benchmarks."""
    shown = [*axes, BENCHMARK]
    names = [name for name in (*choice.rows, *choice.columns) if name not in shown]
    names += [name for name in choice.baseline if name not in axes]
    if names:
        problems = "; ".join(_unknown(name, "axis", list(axes)) for name in names[:_SHOWN])
        raise UsageError(
            f"the table: {problems}; the axes are {', '.join(axes)}, and {BENCHMARK} for rows and columns"
        )


def _slurm(path: Path, given: Any) -> dict[str, dict[str, str]]:
    """Command (or '' for all) -> option of sbatch -> value."""
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
    if type(shards) is not int or shards not in range(1, MOST_SHARDS + 1):
        raise UsageError(
            f"{path}: shards in [slurm.encode] must be between 1 and {MOST_SHARDS}, not {shards!r}"
        )
    options = {verb: {key: word(path, key, v) for key, v in t.items()} for verb, t in steps.items()}
    return {"": common, **options}


@dataclass(frozen=True)
class GridCell:
    """One combination: a name, and the value of each axis."""

    name: str
    values: Values

    def shown(self, axis: str) -> str:
        """Return the value of an axis as text; '-' if it is not set."""
        return " ".join(self.values[axis]) or "-"


def cells(grid: GridFile) -> list[GridCell]:
    """Return the cells of a grid, each once, in the order of the axes and their values. UsageError if too
    many.
    """
    _check_number(math.prod(map(len, grid.axes.values())))
    combinations = [
        dict(zip(grid.axes, values, strict=True)) for values in product(*grid.axes.values())
    ]
    for narrowing in grid.narrowings:
        narrowed: list[Values] = []
        several = math.prod(map(len, narrowing.values.values()))
        for each in combinations:
            if matches(each, narrowing.matching):
                _check_number(len(narrowed) + several)
                replaced = product(*narrowing.values.values())
                narrowed += [
                    each | dict(zip(narrowing.values, values, strict=True)) for values in replaced
                ]
            else:
                narrowed.append(each)
        unique: dict[tuple[Value, ...], Values] = {}
        for each in narrowed:
            unique.setdefault(tuple(each.values()), each)
        combinations = list(unique.values())
    names = _names(combinations)
    return [GridCell(name, values) for name, values in zip(names, combinations, strict=True)]


def _check_number(combinations: int) -> None:
    if combinations > _MOST_CELLS:
        raise UsageError(
            f"the axes of the grid have more than {_MOST_CELLS:,} combinations; divide it into several files"
        )


def varying(combinations: Sequence[Values]) -> list[str]:
    """Return the axes with different values."""
    return [
        axis
        for axis in (combinations[0] if combinations else {})
        if len({each[axis] for each in combinations}) > 1
    ]


def matches(values: Mapping[str, Value], conditions: Mapping[str, str]) -> bool:
    """Return whether each setting matches its condition, with '*' as a wildcard."""
    return all(
        fnmatchcase(" ".join(values[axis]), wanted) or " ".join(values[axis]) == wanted
        for axis, wanted in conditions.items()
    )


def _names(combinations: Sequence[Values]) -> list[str]:
    """Return a name for each combination that needs no quotes in a shell: the collection
    and the differences.
    """
    axes = [COLLECTION, *(axis for axis in varying(combinations) if axis != COLLECTION)]
    names = []
    for each in combinations:
        values = [each[axis] for axis in axes if each[axis] or axis == COLLECTION]
        names.append(
            "_".join(
                re.sub(r"[^\w.@,]+", "-", " ".join(value).removeprefix("./")).strip("-")
                for value in values
            )
        )
    count = Counter(names)
    return [
        f"{name[:_LONGEST]}_{manifest.digest([each[axis] for axis in axes])[:6]}"
        if count[name] > 1 or len(name) > _LONGEST
        else name
        for name, each in zip(names, combinations, strict=True)
    ]
