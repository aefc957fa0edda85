"""Scored runs, and tables of systems x collections with their means.

Collections that are parts of one (the twelve of CQADupStack) are averaged into one column before any
mean is computed. A system without a run on a collection has no value in its column and no mean.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Any, NamedTuple

from lmkcli.data.known_collections import facts_of
from lmkcli.errors import UsageError

if TYPE_CHECKING:
    from lmkcli.evaluation.measures import Scores

_CQADUPSTACK = re.compile(r"\bcqadupstack[/-]\w+")


@dataclass(frozen=True)
class ScoredRun:
    """One run, scored on one collection."""

    run: Path
    system: str
    """The row in a table: the tag of the run, or another name if tags do not distinguish the runs."""
    collection: str
    """The name of the collection, or the path of the qrels file, with the judgements."""
    scores: "Scores"
    measures: dict[str, Any]
    """Requested measure -> the computed ir_measures.Measure (R@1000 -> R(rel=2)@1000)."""

    def value(self, requested: str) -> float:
        """Return the score for a measure, by its requested name."""
        return self.scores.aggregated[str(self.measures[requested])]

    def by_query(self, requested: str) -> dict[str, float]:
        """Query id -> value for a measure, by its requested name."""
        return self.scores.per_query[str(self.measures[requested])]


class Column(NamedTuple):
    """A column of a table: one collection, or several collections that are averaged."""

    name: str
    collections: tuple[str, ...]


@dataclass(frozen=True)
class ScoreTable:
    """The values of one measure for each system and column; None for missing values."""

    measure: str
    columns: list[str]
    rows: dict[str, list[float | None]]


def collections_of(results: Iterable[ScoredRun]) -> list[str]:
    """Return the collections of the results, each once, in order."""
    return list(dict.fromkeys(result.collection for result in results))


def system_names(runs: Sequence[tuple[Path, str, str]]) -> list[str]:
    """Return a name for each run (path, tag, collection).

    If all runs are on one collection, the name is the path. On several collections, runs with the same name
    make one row. In this case the name is the tag, if tags distinguish the runs on each collection.
    Otherwise it is the part of the path that differs between the runs on the collection:
    'runs/dl19.bm25.txt', next to 'runs/dl19.tasb.txt', is bm25. Raises UsageError if neither distinguishes
    the runs.
    """
    paths = [str(path) for path, _, _ in runs]
    if len({collection for _, _, collection in runs}) < 2:
        return paths
    parts = [re.split("[/.]", re.sub(r"\.\w+(\.gz)?$", "", path)) for path in paths]
    on_collection: dict[str, list[list[str]]] = {}
    for part, (_, _, collection) in zip(parts, runs, strict=True):
        on_collection.setdefault(collection, []).append(part)
    file_names = [
        ".".join(_differing(part, on_collection[collection]))
        for part, (_, _, collection) in zip(parts, runs, strict=True)
    ]
    for names in ([tag for _, tag, _ in runs], file_names):
        cells = [(name, run[2]) for name, run in zip(names, runs, strict=True)]
        if len(set(cells)) == len(cells):
            return names
    name, collection = next(cell for cell in cells if cells.count(cell) > 1)
    raise UsageError(
        f"two runs on {collection} are both named '{name}' (from lmk search --tag, or from the file "
        "name); change the tag or the file name of one"
    )


def row_names(runs: Sequence[Path], tags: Sequence[str]) -> list[str]:
    """Short names of the runs on one collection, for people.

    The names are the tags, if every run has a tag and no two are equal ('' is no tag). Otherwise each
    name is the shortest end of the path that distinguishes the runs, usually the name of the file.
    """
    if all(tags) and len(set(tags)) == len(runs):
        return list(tags)
    deepest = max(len(run.parts) for run in runs)
    ends = ([str(Path(*run.parts[-n:])) for run in runs] for n in range(1, deepest + 1))
    return next(
        (names for names in ends if len(set(names)) == len(set(runs))), list(map(str, runs))
    )


def columns_of(collections: Sequence[str]) -> list[Column]:
    """Return the columns for collections, in order; the parts of one collection share a column.

    Headings are the names of the collections without their common start and end (see `headings`).
    """
    wholes = [_whole(name) for name in collections]
    parted = len(set(wholes)) > 1
    groups: dict[str, list[str]] = {}
    for name, whole in zip(collections, wholes, strict=True):
        groups.setdefault(whole if parted else name, []).append(name)
    short = headings(list(groups))
    return [Column(short[name], tuple(members)) for name, members in groups.items()]


def headings(names: Sequence[str]) -> dict[str, str]:
    """Name -> short name, without its options and the components that all names start or end with.

    Paths of folders and names of collections are shortened separately. A single path is reduced to its
    last component; a single name is not shortened. If two short names are equal, no name is shortened.
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
    """Return the collection that contains this one as a part, or the collection itself."""
    facts = facts_of(collection)
    if facts and "/" in facts.group:
        return facts.group
    part = _CQADUPSTACK.search(collection)
    return collection[: part.start()] + "cqadupstack" if part else collection


def _differing(parts: list[str], all_parts: Sequence[list[str]]) -> list[str]:
    """Return the components of one name, without the common first and last components of all names; at least
    one.
    """
    limit = min(map(len, all_parts)) - 1
    head = _common(all_parts, limit)
    tail = _common([each[::-1] for each in all_parts], limit - head)
    return parts[head : len(parts) - tail]


def _common(all_parts: Sequence[list[str]], limit: int) -> int:
    """Return the number of components, at most `limit`, that all names start with."""
    columns = list(zip(*all_parts, strict=False))[:limit]
    return next((n for n, column in enumerate(columns) if len(set(column)) > 1), len(columns))


def score_table(results: Sequence[ScoredRun], requested: str) -> ScoreTable:
    """Return the table of systems x collections for one measure, followed by the means.

    A result without the measure is a missing value, so the tables of all measures have the same columns.
    Means are over all columns. If the collections are known and belong to several benchmarks, there
    are means for each benchmark with at least two columns.
    """
    by_cell = {
        (each.system, each.collection): each.value(requested)
        for each in results
        if requested in each.measures
    }
    columns = columns_of(collections_of(results))
    blocks = _blocks(columns)
    rows: dict[str, list[float | None]] = {}
    for system in dict.fromkeys(each.system for each in results):
        values = [
            _mean([by_cell.get((system, name)) for name in column.collections])
            for column in columns
        ]
        means: list[float | None] = []
        for numbers in blocks.values():
            block = [values[number] for number in numbers]
            means += [_mean(block), geometric(block)]
        rows[system] = values + means
    headings = [f"{name} {mean}".strip() for name in blocks for mean in ("mean", "geometric mean")]
    return ScoreTable(requested, [column.name for column in columns] + headings, rows)


def _blocks(columns: Sequence[Column]) -> dict[str, list[int]]:
    """Name of a mean -> numbers of its columns; the mean over all columns has an empty name."""
    if len(columns) < 2:
        return {}
    facts = [facts_of(column.collections[0]) for column in columns]
    benchmarks = [each.group.partition("/")[0] if each else "" for each in facts]
    if "" in benchmarks or len(set(benchmarks)) == 1:
        return {"": list(range(len(columns)))}
    numbered = sorted(range(len(columns)), key=lambda number: benchmarks.index(benchmarks[number]))
    blocks = {
        name: list(numbers) for name, numbers in groupby(numbered, key=benchmarks.__getitem__)
    }
    return {name: numbers for name, numbers in blocks.items() if len(numbers) > 1}


def _mean(values: Sequence[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return fmean(given) if len(given) == len(values) else None


def geometric(values: Sequence[float | None]) -> float | None:
    """Return the geometric mean: 0 if a value is 0, None if a value is None."""
    given = [value for value in values if value is not None]
    if len(given) < len(values):
        return None
    return geometric_mean(given) if all(given) else 0.0


def best_values(values: Sequence[float | None], measure: str) -> list[bool]:
    """Return whether each value of a column is the best: the highest value, and values that print the same.

    Counts (NumRet, NumRel, …) and columns with one value have no best value.
    """
    shown = [None if value is None else round(value, 4) for value in values]
    compared = [] if len(values) < 2 or measure.startswith("Num") else shown
    top = max((value for value in compared if value is not None), default=None)
    return [value is not None and value == top for value in shown]
