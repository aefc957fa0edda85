"""Scored runs, and the table of systems x collections with its means.

Collections that are parts of one (the twelve of CQADupStack) are averaged into one column before any
mean is taken. A system that lacks a collection has no value there and no mean.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any, NamedTuple

from lmkcli.data.known import facts_of
from lmkcli.errors import UsageError
from lmkcli.evaluation.measures import Scores

_CQADUPSTACK = re.compile(r"\bcqadupstack[/-]\w+")


@dataclass(frozen=True)
class Result:
    """One run, scored on one collection."""

    run: Path
    system: str
    """Its row in a table: the run's tag, until `named` finds that tags do not tell runs apart."""
    collection: str
    """The name of the collection, or the path of the qrels file, that judged it."""
    scores: Scores
    measures: dict[str, Any]
    """Measure as asked -> the ir_measures.Measure that was computed (R@1000 -> R(rel=2)@1000)."""

    def value(self, asked: str) -> float:
        """The score for a measure as it was asked."""
        return self.scores.aggregated[str(self.measures[asked])]

    def by_query(self, asked: str) -> dict[str, float]:
        """Query id -> value for a measure as it was asked."""
        return self.scores.per_query[str(self.measures[asked])]


class Column(NamedTuple):
    """A column of collections: one, or several whose scores are averaged."""

    name: str
    collections: tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """One measure: a value for each system and column, None where there is none."""

    measure: str
    columns: list[str]
    rows: dict[str, list[float | None]]


def collections_of(results: Iterable[Result]) -> list[str]:
    """The collections of the results, each once, in their order."""
    return list(dict.fromkeys(result.collection for result in results))


def names(runs: Sequence[tuple[Path, str, str]]) -> list[str]:
    """What each run (path, tag, collection) is called among the others.

    On one collection its path. Over several, where one name makes one row, its tag; where tags do not
    tell the runs on a collection apart, its path without what all paths on that collection begin or
    end with ('runs/dl19.bm25.txt' beside 'runs/dl19.tasb.txt' is bm25). UsageError if neither does.
    """
    paths = [str(path) for path, _, _ in runs]
    if len({collection for _, _, collection in runs}) < 2:
        return paths
    for called in ([tag for _, tag, _ in runs], _file_names(runs)):
        cells = [(name, run[2]) for name, run in zip(called, runs, strict=True)]
        if len(set(cells)) == len(cells):
            return called
    name, collection = next(cell for cell in cells if cells.count(cell) > 1)
    raise UsageError(
        f"two runs on {collection} are both called '{name}': a system is known by its run's tag "
        "(lmk search --tag), or by its file's name; give one of the two another"
    )


def row_names(runs: Sequence[Path], tags: Sequence[str]) -> list[str]:
    """What each run on one collection is called where people read it, among the others.

    The tag that it was given, where all have one and no two the same ('' is none); else as much of the
    end of its path as tells it from the others, which mostly is the name of its file.
    """
    if all(tags) and len(set(tags)) == len(runs):
        return list(tags)
    deepest = max(len(run.parts) for run in runs)
    ends = ([str(Path(*run.parts[-n:])) for run in runs] for n in range(1, deepest + 1))
    return next(
        (names for names in ends if len(set(names)) == len(set(runs))), list(map(str, runs))
    )


def _file_names(runs: Sequence[tuple[Path, str, str]]) -> list[str]:
    """The part of each path that differs among the runs on its collection."""
    parts = [re.split("[/.]", re.sub(r"\.\w+(\.gz)?$", "", str(path))) for path, _, _ in runs]
    beside: dict[str, list[list[str]]] = {}
    for part, (_, _, collection) in zip(parts, runs, strict=True):
        beside.setdefault(collection, []).append(part)
    return [
        ".".join(_differing(part, beside[collection]))
        for part, (_, _, collection) in zip(parts, runs, strict=True)
    ]


def columns_of(collections: Sequence[str]) -> list[Column]:
    """The columns for collections, in their order, with the parts of one in one.

    Headings are the collections' names without what all of them begin or end with.
    """
    wholes = [_whole(name) for name in collections]
    parted = len(set(wholes)) > 1
    groups: dict[str, list[str]] = {}
    for name, whole in zip(collections, wholes, strict=True):
        groups.setdefault(whole if parted else name, []).append(name)
    short = headings(list(groups))
    return [Column(short[name], tuple(members)) for name, members in groups.items()]


def headings(names: Sequence[str]) -> dict[str, str]:
    """Name -> itself without its options and the components that all of its kind begin or end with.

    Paths of folders are one kind and names another; of one path the last component is left, and a
    single name is whole. Where that makes two the same, all stay as they are.
    """
    short: dict[str, str] = {}
    for path in (True, False):
        parts = {
            name: name.partition(",")[0].strip("/").split("/")
            for name in names
            if name.startswith(("/", ".")) == path
        }
        for name, part in parts.items():
            whole = len(parts) == 1 and not path
            short[name] = "/".join(part if whole else _differing(part, list(parts.values())))
    return {name: short[name] if len(set(short.values())) == len(short) else name for name in names}


def _whole(collection: str) -> str:
    """The collection that this one is a part of, or itself."""
    facts = facts_of(collection)
    if facts and "/" in facts.group:
        return facts.group
    part = _CQADUPSTACK.search(collection)
    return collection[: part.start()] + "cqadupstack" if part else collection


def _differing(parts: list[str], all_parts: Sequence[list[str]]) -> list[str]:
    """The components of one name without those with which all names begin or end."""
    limit = min(map(len, all_parts)) - 1
    head = _common(all_parts, limit)
    tail = _common([each[::-1] for each in all_parts], limit - head)
    return parts[head : len(parts) - tail]


def _common(all_parts: Sequence[list[str]], limit: int) -> int:
    """With how many components all begin, `limit` at most."""
    columns = list(zip(*all_parts, strict=False))[:limit]
    return next((n for n, column in enumerate(columns) if len(set(column)) > 1), len(columns))


def grid(results: Sequence[Result], asked: str) -> Grid:
    """Systems x collections for one measure, with the means after them.

    Means are over all columns; where the collections are known and of several benchmarks, over those
    of each benchmark that has two or more.
    """
    by_cell = {(each.system, each.collection): each.value(asked) for each in results}
    columns = columns_of(collections_of(results))
    systems = dict.fromkeys(each.system for each in results)
    blocks = _blocks(columns)
    rows: dict[str, list[float | None]] = {}
    for system in systems:
        values = [
            _mean([by_cell.get((system, name)) for name in column.collections])
            for column in columns
        ]
        means: list[float | None] = []
        for rows_of_block in blocks.values():
            block = [values[number] for number in rows_of_block]
            means += [_mean(block), geometric(block)]
        rows[system] = values + means
    headings = [f"{name} {mean}".strip() for name in blocks for mean in ("mean", "geometric mean")]
    return Grid(asked, [column.name for column in columns] + headings, rows)


def _blocks(columns: Sequence[Column]) -> dict[str, list[int]]:
    """Name of each mean -> the columns that it is over; one without a name over all."""
    benchmarks = [_benchmark(column) for column in columns]
    if len(columns) < 2:
        return {}
    if "" in benchmarks or len(set(benchmarks)) == 1:
        return {"": list(range(len(columns)))}
    numbered = sorted(range(len(columns)), key=lambda number: benchmarks.index(benchmarks[number]))
    blocks = {
        name: list(numbers) for name, numbers in groupby(numbered, key=benchmarks.__getitem__)
    }
    return {name: numbers for name, numbers in blocks.items() if len(numbers) > 1}


def _benchmark(column: Column) -> str:
    facts = facts_of(column.collections[0])
    return facts.group.partition("/")[0] if facts else ""


def _mean(values: Sequence[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return fmean(given) if len(given) == len(values) else None


def geometric(values: Sequence[float | None]) -> float | None:
    """The geometric mean: 0 when a value is 0, None when one is None."""
    given = [value for value in values if value is not None]
    if len(given) < len(values):
        return None
    return geometric_mean(given) if all(given) else 0.0


def best(values: Sequence[float | None], measure: str) -> list[bool]:
    """Which values of a column are the best: all that print like the highest. Of counts there is no best."""
    shown = [None if value is None else round(value, 4) for value in values]
    compared = [] if len(values) < 2 or measure.startswith("Num") else shown
    top = max((value for value in compared if value is not None), default=None)
    return [value is not None and value == top for value in shown]
