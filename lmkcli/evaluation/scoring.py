"""The eval step: runs and what judges them to results, with what is known of a collection.

Known collections (known.py) decide three things that users need not remember: which measures
are reported, from which grade a document is relevant, and whether a text may find itself.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lmkcli.data.collection import Collection, Qrel, open_collection
from lmkcli.data.known import KnownCollection, facts_of
from lmkcli.data.run import read_run
from lmkcli.data.trec import read_qrels
from lmkcli.errors import DataError, Mismatch, UsageError
from lmkcli.evaluation import results
from lmkcli.evaluation.measures import evaluate, parse_measures
from lmkcli.evaluation.results import Result
from lmkcli.retrieval.searching import read_manifest
from lmkcli.store.outputs import sidecar

MEASURES = ("nDCG@10", "R@100", "RR@10")
ACROSS = ("nDCG@10",)  # over collections whose own measures differ


@dataclass(frozen=True)
class QrelSet:
    """The judgements that score a run. `collection` is None where only a qrels file was given."""

    name: str
    qrels: list[Qrel]
    collection: Collection | None = None

    @property
    def facts(self) -> KnownCollection | None:
        """What is published about the collection."""
        return facts_of(self.name) if self.collection else None

    @property
    def rel(self) -> int:
        """The least grade that counts as relevant."""
        return self.facts.rel if self.facts else 1


def qrel_sets(runs: Sequence[Path], qrels: Sequence[str]) -> list[QrelSet]:
    """The judgements for each run: the one `qrels` for all, its own of as many, or what its manifest says.

    `qrels` are qrels files or collections; each is read once. UsageError for another number of them
    and for a run without a manifest when there are none.
    """
    if len(qrels) > 1 and len(qrels) != len(runs):
        raise UsageError(
            f"{len(qrels)} --qrels for {len(runs)} runs: give one for all of them, or one for each "
            "in the same order"
        )
    spellings = list(qrels) * len(runs) if len(qrels) == 1 else list(qrels)
    spellings = spellings or [_said_by(run) for run in runs]
    read = {spelling: qrel_set_of(spelling) for spelling in dict.fromkeys(spellings)}
    return [read[spelling] for spelling in spellings]


def _said_by(run: Path) -> str:
    """The collection whose queries made the run."""
    if not sidecar(run).is_file():
        raise UsageError(
            f"{run} does not say which queries made it: give the judgements with --qrels"
        )
    made_by = str(read_manifest(run).facts["collection"])
    if Path(made_by).is_file():
        raise UsageError(
            f"{run} was made with the queries of {made_by}, a file without judgements: give them with "
            "--qrels"
        )
    return made_by


def qrel_set_of(spelling: str) -> QrelSet:
    """The judgements of a qrels file or of a collection."""
    path = Path(spelling)
    if path.is_file():
        try:
            return QrelSet(spelling, list(read_qrels(path)))
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: cannot be read ({error})") from error
    collection = open_collection(spelling)
    return QrelSet(collection.name, list(collection.qrels()), collection)


def default_measures(judged_by: Sequence[QrelSet]) -> list[str]:
    """The measures that the collections are reported with, or nDCG@10 where they do not agree."""
    usual = {qrel_set.facts.measures if qrel_set.facts else MEASURES for qrel_set in judged_by}
    return list(usual.pop() if len(usual) == 1 else ACROSS)


def score(
    run: Path, qrel_set: QrelSet, asked: Sequence[str], drop_self: bool | None = None
) -> Result:
    """One run, scored. Without `drop_self`, what is known of the collection decides.

    The errors are those of parse_measures, read_run and evaluate.
    """
    if drop_self is None:
        drop_self = bool(qrel_set.facts and qrel_set.facts.drop_self)
    measures = {name: parse_measures([name], qrel_set.rel)[0] for name in asked}
    ranked = read_run(run)
    computed = list(dict.fromkeys(measures.values()))
    try:
        scores = evaluate(ranked, qrel_set.qrels, computed, drop_self)
    except (DataError, Mismatch) as error:
        raise type(error)(f"{run}, judged by {qrel_set.name}: {error}") from error
    return Result(run, ranked.tag, qrel_set.name, scores, measures)


def given_tag(run: Path) -> str:
    """The tag that `lmk search --tag` was given for a run; '' where it was not, or is not known."""
    if not sidecar(run).is_file():
        return ""
    return str(read_manifest(run).facts.get("operation", {}).get("tag") or "")


def score_all(
    runs: Sequence[Path],
    judged_by: Sequence[QrelSet],
    asked: Sequence[str],
    drop_self: bool | None = None,
) -> list[Result]:
    """Every run, scored, each with the name of its row."""
    parse_measures(asked)
    scored = [
        score(run, qrel_set, asked, drop_self)
        for run, qrel_set in zip(runs, judged_by, strict=True)
    ]
    rows = results.names([(each.run, each.system, each.collection) for each in scored])
    return [replace(each, system=row) for each, row in zip(scored, rows, strict=True)]
