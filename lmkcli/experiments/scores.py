"""Scores: what the finished cells of a plan measured, read from their steps' folders."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from lmkcli.data.known import facts_of
from lmkcli.errors import DataError
from lmkcli.evaluation.coverage import Coverage
from lmkcli.evaluation.measures import Scores, parse_measures
from lmkcli.evaluation.results import Result
from lmkcli.experiments.cells import Cell
from lmkcli.experiments.gridfile import COLLECTION, MEASURES
from lmkcli.experiments.plan import Plan
from lmkcli.experiments.running import Results
from lmkcli.experiments.steps import RESULT
from lmkcli.provenance import scorelog
from lmkcli.reading import checked, read_json
from lmkcli.recipe import is_count
from lmkcli.system.atomic import atomic_file

LOG = "scores.jsonl"  # in the folder of the results: the last entry of every cell
_AGAIN = "remove the file and run the grid again"


@dataclass(frozen=True)
class Scored:
    """A finished cell: what was measured, query by query, and the entry of its score log."""

    cell: Cell
    result: Result
    entry: dict[str, Any]


def scored(plan: Plan, results: Results) -> list[Scored]:
    """The finished cells of a plan, in its order."""
    names = _names([cell.values[MEASURES] for cell in plan.cells])
    return [
        _read(cell, results.of(plan.chains[cell.name][-1]), names)
        for cell in plan.cells
        if results.is_done(plan.steps[plan.chains[cell.name][-1]])
    ]


def write_log(scored: Sequence[Scored], folder: Path) -> None:
    """All their entries as one score log, which lmk plot, show and repro read."""
    with atomic_file(folder / LOG) as temporary:
        lines = (json.dumps(each.entry, ensure_ascii=False) + "\n" for each in scored)
        temporary.write_text("".join(lines), encoding="utf-8", errors="surrogatepass")


def _names(asked: Sequence[Sequence[str]]) -> list[str]:
    """What measures are called in one table: the first of every cell, the second, and so on.

    Where cells have different ones in a place, all are named: 'nDCG@10 / nDCG@1'.
    """
    most = max((len(each) for each in asked), default=0)
    columns = ([each[n] for each in asked if n < len(each)] for n in range(most))
    return [" / ".join(dict.fromkeys(column)) for column in columns]


class _Measured(TypedDict):
    """What is read of the entry of a cell."""

    run: str
    scores: dict[str, float]
    coverage: Coverage


def _read(cell: Cell, folder: Path, names: Sequence[str]) -> Scored:
    entry = scorelog.read(folder / LOG)[-1]
    checked(entry, _Measured, folder / LOG, _AGAIN)
    aggregated = dict(entry["scores"])
    per_query = _per_query(folder / RESULT, aggregated)
    collection = " ".join(cell.values[COLLECTION])
    computed = list(_computed(cell.values[MEASURES], collection, aggregated))
    if strange := [str(each) for each in computed if str(each) not in aggregated]:
        raise DataError(f"{folder / LOG} has no {', '.join(strange)}; {_AGAIN}")
    scores = Scores(aggregated, per_query, _coverage(entry["coverage"], folder / LOG))
    measures = dict(zip(names, computed, strict=False))
    return Scored(cell, Result(Path(entry["run"]), cell.name, collection, scores, measures), entry)


def _per_query(path: Path, names: Iterable[str]) -> dict[str, dict[str, float]]:
    """Measure -> query -> its value, of a cell; DataError where a query has not all of them."""
    rows = read_json(path, list[dict[str, Any]], _AGAIN)
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    for number, row in enumerate(rows):
        query = checked(row.get("query"), str, f"{path}, [{number}].query", _AGAIN)
        for name, values in found.items():
            values[query] = checked(row.get(name), float, f"{path}, [{number}].{name}", _AGAIN)
    return found


def _computed(asked: Sequence[str], collection: str, scores: dict[str, float]) -> Iterator[Any]:
    """The measure that was computed for each that was asked for."""
    facts = facts_of(collection)
    for name in asked:
        graded = parse_measures([name], facts.rel if facts else 1)[0]
        yield graded if str(graded) in scores else parse_measures([name])[0]


def _coverage(raw: dict[str, Any], log: Path) -> Coverage:
    names = ("judged_at", "tied_at")
    if not all(is_count(cut) for name in names for cut in raw[name]):
        raise DataError(f"{log} cannot be read (a cut-off is no number); {_AGAIN}")
    cuts = {name: {int(cut): share for cut, share in raw[name].items()} for name in names}
    return Coverage(**{**raw, **cuts})
