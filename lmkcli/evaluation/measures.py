"""Measures: scores by query, computed by ir_measures and its engines.

Measures are spelled as ir_measures prints them: `nDCG@10`, `AP(rel=2)@100`. lmk replaces query ids by
numbers, and scores by whole numbers that decrease from rank to rank. The engines get only this ranking, so
no engine can change the order of ties, or fail because of an id.
"""

import contextlib
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ir_measures
from ir_measures import Measure

from lmkcli.data.collection import ArrowTable, Collection, Qrel, Source, open_collection
from lmkcli.data.qrels import read_qrels
from lmkcli.data.run import Ranking, Run, read_run
from lmkcli.errors import DataError, Mismatch, UnknownName, UsageError
from lmkcli.evaluation.coverage import Coverage, Judgements, answers, cover, without_self
from lmkcli.spec.result import Tabular
from lmkcli.text.formatting import counted

_DEFAULT_CUTOFF = 10
# The time and memory of trec_eval grow with the square of the largest grade; larger grades are mistakes.
_LARGEST_GRADE = 1000
# The engine of IPrec silently rounds recall levels to two decimals.
_RECALL_LEVELS = {hundredth / 100 for hundredth in range(101)}
_KINDS = {
    "cutoff": "a whole number from 1",
    "rel": "a whole number from 1",
    "recall": "a number from 0.0 to 1.0 with at most two decimals",
    "gains": f"whole numbers by grade, from 0 to {_LARGEST_GRADE}",
}


@dataclass(frozen=True, repr=False)
class Scores(Tabular):
    """A measure x query table of one run. Keys are the printed names of measures, in the given order."""

    aggregated: dict[str, float]
    """Measure -> value over all judged queries (a sum for counts such as NumRet, otherwise a mean)."""
    per_query: dict[str, dict[str, float]]
    """Measure -> query id -> value, in the order of the judgements."""
    coverage: Coverage
    """Missing queries, unjudged documents, ties and depth behind the numbers."""

    def __repr__(self) -> str:
        queries = counted(len(next(iter(self.per_query.values()), ())), "query", "queries")
        values = (f"{name} {value:.4f}" for name, value in self.aggregated.items())
        return f"<Scores: {', '.join(values)} ({queries})>"

    def __getitem__(self, measure: str) -> float:
        """Return the value over all judged queries of a measure, by its printed name."""
        return self.aggregated[measure]

    def as_columns(self) -> Mapping[str, Any]:
        """Return one row per judged query: its id, and a column for each measure."""
        queries = list(next(iter(self.per_query.values()), ()))
        return {
            "query_id": queries,
            **{name: [found[q] for q in queries] for name, found in self.per_query.items()},
        }


def parse_measures(names: Sequence[str], rel: int = 1) -> list[Measure]:
    """Return the measures of these names in the given order, each once.

    For a binary measure without a `rel` parameter, documents of grade `rel` and above are relevant, and
    its name contains the grade: with rel=2, 'R@100' is R(rel=2)@100. Counts (NumRet, NumRel) do not
    change.

    UsageError (UnknownName for a single unknown name) lists all problems at once: names, parameters,
    and engines that are not installed, with their pip line.
    """
    measures: dict[Measure, None] = {}
    errors: list[UsageError] = []
    for name in names:
        try:
            measures[_at_grade(_parse(name), rel)] = None
        except UsageError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise UsageError("\n".join(map(str, errors)))
    return list(measures)


def _parse(name: str) -> Measure:
    try:
        measure = ir_measures.parse_measure(name)
    except NameError:
        raise _unknown(name) from None
    except Exception as error:  # the parser raises various errors
        raise UsageError(
            f"measure '{name}': write Name@cutoff or Name(parameter=value)@cutoff, such as nDCG@10 "
            "or AP(rel=2)@100, each measure by itself"
        ) from error
    problem = _parameter_problem(measure) or _engine_problem(measure)
    if problem:
        raise UsageError(f"measure '{name}': {problem}")
    # Engines raise various errors for parameters that they do not support, and the engine of Accuracy
    # fails on a query with relevant documents only: compute the measure once for such a query.
    try:
        ir_measures.calc_aggregate([measure], {"1": {"d": 1}}, {"1": {"d": 1.0}})
    except Exception as error:
        raise UsageError(f"measure '{measure}' cannot be computed: {error}") from error
    return measure


def described() -> Iterator[tuple[str, str, str]]:
    """Yield the names of all measures, the first sentence of their description, and their parameters."""
    for name, measure in ir_measures.measures.registry.items():
        text = " ".join((measure.__doc__ or "").split())
        parameters = ", ".join(sorted(getattr(measure, "SUPPORTED_PARAMS", {})))
        yield name, text.partition(". ")[0].rstrip("."), parameters


def _at_grade(measure: Measure, rel: int) -> Measure:
    """Return the measure with `rel`, unless it has another default or no engine supports the parameter."""
    spec = measure.SUPPORTED_PARAMS.get("rel")
    if rel == 1 or spec is None or spec.default != 1 or "rel" in measure.params:
        return measure
    graded = measure(rel=rel)
    return measure if _engine_problem(graded) else graded


def _unknown(name: str) -> UsageError:
    """Return the error for an unknown name, with a similar name as a suggestion."""
    known = sorted(ir_measures.measures.registry)
    head = re.split(r"[@(]", name)[0].strip()
    folded = {measure.lower(): measure for measure in known}
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints the parts that it ignores
            # 'ndcg_cut_10' of trec_eval -> 'nDCG@10'
            meant = " ".join(map(str, ir_measures.parse_trec_measure(name)))
    except ValueError:
        meant = ""
    if not meant and head.lower() in folded:
        meant = name.replace(head, folded[head.lower()], 1)
    if meant:
        return UsageError(f"unknown measure '{name}': did you mean {meant}?")
    return UnknownName("measure", head, known)


def _parameter_problem(measure: Measure) -> str:
    """Return the problem with the parameters; empty if they are valid."""
    known = measure.SUPPORTED_PARAMS
    for key in measure.params:
        if key not in known:
            return f"it has no {key}; its parameters: {', '.join(known) or 'none'}"
    for key, spec in known.items():
        if key not in measure.params:
            if spec.required:
                example = f", such as {measure}@{_DEFAULT_CUTOFF}" if key == "cutoff" else ""
                return f"it needs {key} ({spec.desc}){example}"
            continue
        value = measure.params[key]
        if not spec.validate(value) or not _in_range(key, value):  # type: ignore[no-untyped-call]
            kind = _KINDS.get(key) or f"of type {spec.dtype.__name__}"
            return f"{key} ({spec.desc}) must be {kind}, not {value!r}"
    return ""


def _in_range(key: str, value: Any) -> bool:
    """Return whether the engines compute a value of the right type without crashing or rounding it."""
    if key in ("cutoff", "rel"):
        return bool(1 <= value < 2**31)
    if key == "gains":
        return all(gain in range(_LARGEST_GRADE + 1) for gain in value.values())
    return key != "recall" or value in _RECALL_LEVELS


def _engine_problem(measure: Measure) -> str:
    """Return the reason why no installed engine can compute the measure; empty if one can."""
    if ir_measures.pyndeval.supports(measure):
        return "it needs judgements by subtopic, which lmk does not read"
    able = [each for each in ir_measures.DefaultPipeline.providers if each.supports(measure)]
    if not able:
        known = ", ".join(measure.SUPPORTED_PARAMS) or "none"
        return f"ir_measures has no engine for it with these parameters (parameters: {known})"
    if not any(provider.is_available() for provider in able):
        lines = [str(provider.install_instructions()) for provider in able]
        return f"its engine is not installed: {' or '.join(lines)}"
    return ""


def evaluate(
    run: Run | str | Path | Mapping[str, Mapping[str, float]] | ArrowTable,
    qrels: Source,
    measures: str | Measure | Iterable[str | Measure],
    drop_self: bool = False,
) -> Scores:
    """Compute measures of a run over all judged queries, by names of ir-measures such as nDCG@10.

    `run` may be the path of a run, {query id: {document id: score}}, or a table of hits. `qrels` are Qrel
    objects, {query id: {document id: grade}}, a table, a file of judgements, or a collection.

    The score of a judged query without documents is 0 (its judgements still count in NumRel and NumQ).
    Queries without judgements are ignored. `Scores.coverage` counts both. With `drop_self`, documents
    with the id of the query are removed first. DataError for missing or contradictory judgements and
    for grades above 1,000; Mismatch if the run and the judgements have no query in common.
    """
    run = _run_of(run)
    measures = [measures] if isinstance(measures, str | Measure) else list(measures)
    if not measures:
        raise UsageError("measures is empty; name at least one, such as nDCG@10")
    judgements = _judgements(_qrels_of(qrels))
    if run.rankings and run.rankings.keys().isdisjoint(judgements):
        raise Mismatch(
            f"no query of the run is judged (the run has '{next(iter(run.rankings))}', the qrels "
            f"have '{next(iter(judgements))}'): give the qrels of the queries of this run"
        )
    ranked = without_self(run) if drop_self else run
    parsed = [
        m
        for each in measures
        for m in (parse_measures([each]) if isinstance(each, str) else [each])
    ]
    per_query = _per_query(answers(ranked, judgements), judgements, parsed)
    cutoffs = {str(m): m.params["cutoff"] for m in parsed if "cutoff" in m.params}
    return Scores(
        aggregated={str(m): aggregate(m, per_query[str(m)].values()) for m in parsed},
        per_query=per_query,
        coverage=cover(run, judgements, cutoffs, drop_self),
    )


def _qrels_of(qrels: Source) -> Iterable[Qrel]:
    if isinstance(qrels, str | Path) and Path(qrels).is_file():
        return read_qrels(qrels)
    if isinstance(qrels, str | Path | Collection):
        return open_collection(qrels).qrels()
    from lmkcli.data.sources.memory import held_qrels  # imports pyarrow

    return held_qrels(qrels)


def _run_of(run: Any) -> Run:
    if isinstance(run, Run):
        return run
    if isinstance(run, str | Path):
        return read_run(run)
    from lmkcli.data.sources.memory import held_run  # imports pyarrow

    return held_run(run)


def _judgements(qrels: Iterable[Qrel]) -> dict[str, dict[str, int]]:
    """Query id -> document id -> grade."""
    judgements: dict[str, dict[str, int]] = {}
    for query_id, doc_id, grade in qrels:
        if judgements.setdefault(query_id, {}).setdefault(doc_id, grade) != grade:
            raise DataError(
                f"the qrels judge document '{doc_id}' twice for query '{query_id}', "
                f"as {judgements[query_id][doc_id]} and as {grade}; keep one of the two"
            )
        if grade > _LARGEST_GRADE:
            raise DataError(
                f"the qrels give document '{doc_id}' the grade {grade} for query '{query_id}', but "
                f"{_LARGEST_GRADE} is the largest grade; check the order of the columns"
            )
    if not judgements:
        raise DataError("the qrels contain no judgements: give other qrels, or another split")
    return judgements


def _per_query(
    answered: Mapping[str, Ranking], judgements: Judgements, measures: Sequence[Measure]
) -> dict[str, dict[str, float]]:
    """Measure -> query id -> value, queries in the order of the judgements."""
    query_ids = list(judgements)
    numbers = {query_id: str(number) for number, query_id in enumerate(query_ids)}
    grades = {}
    for query_id in query_ids:
        given = judgements[query_id]
        # If all grades are negative, trec_eval reads beyond its table of grades and may not return.
        # A grade of 0 is not relevant either.
        grades[numbers[query_id]] = (
            dict(given) if max(given.values()) >= 0 else dict.fromkeys(given, 0)
        )
    # The new score of a document is its rank from the end: positive, and exact in float32.
    ranks = {
        numbers[query_id]: {
            doc_id: float(len(ranking.doc_ids) - rank)
            for rank, doc_id in enumerate(ranking.doc_ids)
        }
        for query_id, ranking in answered.items()
    }
    # ir_measures lets measures share a pass of an engine. It may compute a plain nDCG together with an
    # nDCG with other gains, or NumRet without the unjudged documents, so these get separate passes.
    groups: dict[str, list[Measure]] = {}
    for measure in measures:
        key = f"{measure.params.get('gains')} {measure.params.get('judged_only', False)}"
        groups.setdefault(key, []).append(measure)
    values: dict[tuple[str, str], float] = {}
    for group in groups.values():
        for metric in ir_measures.iter_calc(group, grades, ranks):
            # NaN is 0/0: judged_only removed all documents.
            value = 0.0 if math.isnan(metric.value) else float(metric.value)
            values[str(metric.measure), query_ids[int(metric.query_id)]] = value
    for measure in measures:
        for query_id in judgements.keys() - answered.keys():
            values[str(measure), query_id] = _unanswered(measure, judgements[query_id])
    return {
        name: {query_id: values[name, query_id] for query_id in query_ids}
        for name in map(str, measures)
    }


def _unanswered(measure: Measure, grades: Mapping[str, int]) -> float:
    """Return the value of a judged query without documents, as in `trec_eval -c`."""
    if measure.NAME == "NumQ":
        return 1.0
    if measure.NAME == "NumRel":
        return float(sum(grade >= measure["rel"] for grade in grades.values()))
    return float(measure.DEFAULT)


def aggregate(measure: Measure, values: Iterable[float]) -> float:
    """Return one value from the values of several queries: the sum for counts, otherwise the mean."""
    aggregator = measure.aggregator()
    for value in values:
        aggregator.add(value)
    return float(aggregator.result())
