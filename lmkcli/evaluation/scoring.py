"""Scoring: the runs and judgements that a command names, and the scores of each run.

For known collections (data/known_collections.py) there are three defaults: the reported measures, the lowest
relevant grade, and whether a query may find a document with its own id.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from lmkcli.artifact.outputs import SIDECAR, sidecar
from lmkcli.data.collection import Collection, Qrel, Query, open_collection
from lmkcli.data.known_collections import KnownCollection, facts_of
from lmkcli.data.pairs import looks_like_qrels, read_pairs
from lmkcli.data.qrels import read_qrels
from lmkcli.data.run import read_run
from lmkcli.errors import DataError, Mismatch, UsageError
from lmkcli.evaluation.measures import evaluate, parse_measures
from lmkcli.evaluation.results import ScoredRun, collections_of, row_names, system_names
from lmkcli.retrieval.searching import queries_of, read_manifest
from lmkcli.system.input_files import not_a_file

MEASURES = ("nDCG@10", "R@100", "RR@10")
ACROSS = ("nDCG@10",)  # for several collections with different default measures


@dataclass(frozen=True)
class QrelSet:
    """The judgements that score a run. `collection` is None if they are from a qrels file."""

    name: str
    qrels: list[Qrel]
    collection: Collection | None = None

    @property
    def facts(self) -> KnownCollection | None:
        """The published facts of the collection, if it is a known one."""
        return facts_of(self.name) if self.collection else None

    @property
    def rel(self) -> int:
        """The lowest relevant grade."""
        return self.facts.rel if self.facts else 1


def runs_and_qrels(runs: list[Path], qrels: list[str]) -> tuple[list[Path], list[str]]:
    """Return the runs, and the spelling of the judgements: one for each run, or none.

    A first file with judgements is recognised as qrels, as in the order of trec_eval. A run may occur
    twice only with different judgements.
    """
    runs = [run for path in runs for run in _runs_in(path)]
    for path in runs:
        if fault := not_a_file(path):
            raise DataError(f"{path} is {fault}")
    missing = [str(path) for path in runs if not path.is_file()]
    if missing:
        measures = [name for name in missing if "@" in name]
        advice = f"; use -m for a measure: -m {measures[0]}" if measures else ""
        raise DataError(f"no such run: {', '.join(missing)}{advice}")
    if not qrels and len(runs) > 1 and looks_like_qrels(runs[0]):
        runs, qrels = runs[1:], [str(runs[0])]
    if read_pairs(runs[0]) is None and looks_like_qrels(runs[0]):
        raise UsageError(f"{runs[0]} looks like qrels, not like a run; give a run after it")
    twice = [str(run) for run in dict.fromkeys(runs) if runs.count(run) > 1]
    if twice and len(qrels) <= 1:
        raise UsageError(f"{', '.join(twice)}: given twice; give each run once")
    return runs, qrels * len(runs) if len(qrels) == 1 else qrels


def _runs_in(path: Path) -> list[Path]:
    """Return the runs with a manifest in a folder, sorted by name. A file is returned unchanged."""
    if not path.is_dir():
        return [path]
    runs = sorted(each for each in path.iterdir() if sidecar(each).is_file())
    if not runs:
        raise DataError(f"{path}: no run with a manifest (<run>{SIDECAR}) in this folder")
    return runs


def qrel_sets(runs: Sequence[Path], qrels: Sequence[str]) -> list[QrelSet]:
    """Return the judgements for each run.

    `qrels` are qrels files or collections: one for all runs, or one for each run. Each is read once.
    Without `qrels`, the manifest of each run names its collection. UsageError for another number of
    `qrels`, and for a run without a manifest if there are no `qrels`.
    """
    if len(qrels) > 1 and len(qrels) != len(runs):
        raise UsageError(
            f"{len(qrels)} --qrels for {len(runs)} runs: give one for all of them, or one for each "
            "in the same order"
        )
    spellings = list(qrels) * len(runs) if len(qrels) == 1 else list(qrels)
    spellings = spellings or [_collection_of(run) for run in runs]
    read = {spelling: qrel_set_of(spelling) for spelling in dict.fromkeys(spellings)}
    return [read[spelling] for spelling in spellings]


def _collection_of(run: Path) -> str:
    """Return the collection with the queries of a run, from its manifest."""
    if not sidecar(run).is_file():
        raise UsageError(
            f"{run} has no manifest, so its collection is not known: give the judgements with --qrels"
        )
    queries = read_manifest(run).facts.collection
    if Path(queries).is_file():
        raise UsageError(
            f"{run} has the queries of {queries}, which is a file without judgements: give the "
            "judgements with --qrels"
        )
    return queries


def recorded_collection(run: Path) -> str:
    """Return the collection with the queries of a run, as its manifest names it; empty without a manifest."""
    if not sidecar(run).is_file():
        return ""
    return read_manifest(run).facts.collection


def qrel_set_of(spelling: str) -> QrelSet:
    """Return the judgements of a qrels file or of a collection."""
    path = Path(spelling)
    if path.is_file():
        try:
            return QrelSet(spelling, list(read_qrels(path)))
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: cannot be read ({error})") from error
    collection = open_collection(spelling)
    return QrelSet(collection.name, list(collection.qrels()), collection)


def default_measures(judged_by: Sequence[QrelSet]) -> list[str]:
    """Return the reported measures of the collections, or nDCG@10 if the collections have different ones."""
    usual = {qrel_set.facts.measures if qrel_set.facts else MEASURES for qrel_set in judged_by}
    return list(usual.pop() if len(usual) == 1 else ACROSS)


def score(
    run: Path, qrel_set: QrelSet, measures: Sequence[str], drop_self: bool | None = None
) -> ScoredRun:
    """Score one run. `drop_self` None is the default of the collection.

    Errors are those of parse_measures, read_run and evaluate.
    """
    if drop_self is None:
        drop_self = bool(qrel_set.facts and qrel_set.facts.drop_self)
    computed = {name: parse_measures([name], qrel_set.rel)[0] for name in measures}
    ranked = read_run(run)
    try:
        scores = evaluate(ranked, qrel_set.qrels, list(dict.fromkeys(computed.values())), drop_self)
    except (DataError, Mismatch) as error:
        raise type(error)(f"{run}, judged by {qrel_set.name}: {error}") from error
    return ScoredRun(run, ranked.tag, qrel_set.name, scores, computed)


def score_all(
    runs: Sequence[Path],
    judged_by: Sequence[QrelSet],
    measures: Sequence[str],
    drop_self: bool | None = None,
) -> list[ScoredRun]:
    """Score every run and name its row in tables (see `system_names`)."""
    parse_measures(measures)
    scored = [
        score(run, qrel_set, measures, drop_self)
        for run, qrel_set in zip(runs, judged_by, strict=True)
    ]
    rows = system_names([(each.run, each.system, each.collection) for each in scored])
    return [replace(each, system=row) for each, row in zip(scored, rows, strict=True)]


def named_rows(results: list[ScoredRun], names: list[str] | None, program: bool) -> list[ScoredRun]:
    """Return the results with the names of their rows.

    These are the given `names`. Without names, rows on one collection get short names (see
    `row_names`), unless the reader is a program.
    """
    if names:
        cells = [(name, each.collection) for name, each in zip(names, results, strict=True)]
        if len(set(cells)) < len(cells):
            raise UsageError("two runs on one collection have the same --name; use different names")
    elif program or len(collections_of(results)) > 1:
        return results
    else:
        names = row_names([each.run for each in results], [_tag_of(each.run) for each in results])
    return [replace(each, system=name) for each, name in zip(results, names, strict=True)]


def _tag_of(run: Path) -> str:
    """Return the --tag of the `lmk search` that wrote a run; empty if it had no tag or is unknown."""
    if not sidecar(run).is_file():
        return ""
    return str(read_manifest(run).facts.operation.get("tag") or "")


class DevSet(NamedTuple):
    """A development set: the judged queries of a collection that score a model in training."""

    spelling: str
    judged: QrelSet
    queries: list[Query]
    measure: Any  # an ir_measures.Measure, with the lowest relevant grade of the collection


def read_devsets(spellings: Sequence[str], measure: str) -> tuple[DevSet, ...]:
    """Read queries and judgements. UsageError for an unknown measure, DataError without judgements."""
    if spellings:
        parse_measures([measure])  # before a collection is read
    sets = []
    for spelling in spellings:
        if not open_collection(spelling).has_qrels():
            raise DataError(
                f"--dev {spelling} has no judgements, so there is nothing to score; name a split"
            )
        judged = qrel_set_of(spelling)
        queries, _ = queries_of(spelling, False)
        sets.append(DevSet(spelling, judged, queries, parse_measures([measure], judged.rel)[0]))
    return tuple(sets)
