"""Scores: measures by query, computed by ir_measures and the engines behind it.

Measures are spelled as ir_measures prints them: `nDCG@10`, `AP(rel=2)@100`. Providers are given the
ranking only: queries are numbered and scores replaced by whole numbers that fall from rank to rank,
so no engine can order ties in its own way or stumble over an id.
"""

import contextlib
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ir_measures
from ir_measures import Measure

from lmkcli.data.collection import Qrel
from lmkcli.data.run import Ranking, Run
from lmkcli.errors import DataError, Mismatch, UnknownName, UsageError
from lmkcli.evaluation.coverage import Coverage, Judgements, answers, cover, without_self

_DEFAULT_CUTOFF = 10
# trec_eval's time and memory grow with the square of the largest grade; a larger one is a mistake.
_LARGEST_GRADE = 1000
# IPrec's engine knows recall levels by two decimals and would silently round others.
_RECALL_LEVELS = {hundredth / 100 for hundredth in range(101)}
_KINDS = {
    "cutoff": "a whole number from 1",
    "rel": "a whole number from 1",
    "recall": "a number from 0.0 to 1.0 with at most two decimals",
    "gains": f"whole numbers by grade, from 0 to {_LARGEST_GRADE}",
}


@dataclass(frozen=True)
class Scores:
    """A measure x query table of one run, by the measures' printed names in the order asked."""

    aggregated: dict[str, float]
    """Measure -> its value over all judged queries (a sum for counts like NumRet, else a mean)."""
    per_query: dict[str, dict[str, float]]
    """Measure -> query id -> value, in the order of the judgements."""
    coverage: Coverage
    """What the numbers rest on: missing queries, unjudged documents, ties, depth."""


def parse_measures(names: Sequence[str], rel: int = 1) -> list[Measure]:
    """The measures in the order asked, each once.

    A binary measure that names no `rel` itself takes documents of grade `rel` and above for relevant,
    and says so in its name: with rel=2, 'R@100' is R(rel=2)@100. Those that count (NumRet, NumRel)
    stay as they are.

    UsageError (UnknownName for a single unknown name) lists everything that is wrong at once:
    names, parameters, and providers that are not installed, with their pip line.
    """
    measures: dict[Measure, None] = {}
    faults: list[UsageError] = []
    for name in names:
        try:
            measures[_at_grade(_parse(name), rel)] = None
        except UsageError as fault:
            faults.append(fault)
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise UsageError("\n".join(map(str, faults)))
    return list(measures)


def _parse(name: str) -> Measure:
    try:
        measure = ir_measures.parse_measure(name)
    except NameError:
        raise _unknown(name) from None
    except Exception as error:  # the parser fails in its own ways on what is not a measure
        raise UsageError(
            f"measure '{name}': write Name@cutoff or Name(parameter=value)@cutoff, such as nDCG@10 "
            "or AP(rel=2)@100, each measure by itself"
        ) from error
    fault = _parameter_fault(measure) or _provider_fault(measure)
    if fault:
        raise UsageError(f"measure '{name}': {fault}")
    _try(measure)
    return measure


def _at_grade(measure: Measure, rel: int) -> Measure:
    """The measure with `rel` where 1 stands for it unsaid, as far as an engine has it so."""
    spec = measure.SUPPORTED_PARAMS.get("rel")
    if rel == 1 or spec is None or spec.default != 1 or "rel" in measure.params:
        return measure
    raised = measure(rel=rel)
    return measure if _provider_fault(raised) else raised


def _try(measure: Measure) -> None:
    """Compute it once, for a query whose only document is relevant.

    Engines fail in their own ways on parameters that they cannot take, Accuracy's on such queries.
    """
    try:
        ir_measures.calc_aggregate([measure], {"1": {"d": 1}}, {"1": {"d": 1.0}})
    except Exception as error:
        raise UsageError(f"measure '{measure}' cannot be computed: {error}") from error


def _unknown(name: str) -> UsageError:
    """The error for a name that is not registered, with what it probably means."""
    known = sorted(ir_measures.measures.registry)
    head = re.split(r"[@(]", name)[0].strip()
    folded = {measure.lower(): measure for measure in known}
    meant = _from_trec_eval(name)
    if not meant and head.lower() in folded:
        meant = name.replace(head, folded[head.lower()], 1)
    if meant:
        return UsageError(f"unknown measure '{name}': did you mean {meant}?")
    return UnknownName("measure", head, known)


def _from_trec_eval(name: str) -> str:
    """trec_eval's name as ir_measures writes it ('ndcg_cut_10' -> 'nDCG@10'), or ''."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it leaves out
            return " ".join(map(str, ir_measures.parse_trec_measure(name)))
    except ValueError:
        return ""


def _parameter_fault(measure: Measure) -> str:
    """What is wrong with the parameters, or ''."""
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
    """Whether a value of the right type is one that the engines neither crash on nor round."""
    if key in ("cutoff", "rel"):
        return bool(1 <= value < 2**31)
    if key == "gains":
        return all(gain in range(_LARGEST_GRADE + 1) for gain in value.values())
    return key != "recall" or value in _RECALL_LEVELS


def _provider_fault(measure: Measure) -> str:
    """Why no engine computes the measure here, or ''."""
    if ir_measures.pyndeval.supports(measure):
        return "it needs judgements by subtopic, which are not read here"
    able = [each for each in ir_measures.DefaultPipeline.providers if each.supports(measure)]
    if not able:
        known = ", ".join(measure.SUPPORTED_PARAMS) or "none"
        return f"ir_measures has no provider for it with these parameters (it knows: {known})"
    if not any(provider.is_available() for provider in able):
        lines = [str(provider.install_instructions()) for provider in able]
        return f"its provider is not installed: {' or '.join(lines)}"
    return ""


def evaluate(
    run: Run, qrels: Iterable[Qrel], measures: Sequence[str | Measure], drop_self: bool = False
) -> Scores:
    """The measures of a run over all judged queries; names are those of ir-measures, such as nDCG@10.

    A judged query without documents scores 0 (its judgements still count into NumRel and NumQ),
    and queries without judgements are ignored; `Scores.coverage` tells both. With `drop_self`,
    documents of the query's own id are removed first. DataError for no judgements, contradicting
    ones or grades above 1,000, Mismatch when the run and the judgements have no query in common.
    """
    judgements = _judgements(qrels)
    if run.rankings and run.rankings.keys().isdisjoint(judgements):
        raise Mismatch(
            f"no query of the run is judged (the run has '{next(iter(run.rankings))}', the qrels "
            f"have '{next(iter(judgements))}'): give the qrels of the queries that were run"
        )
    ranked = without_self(run) if drop_self else run
    asked = [
        m
        for each in measures
        for m in (parse_measures([each]) if isinstance(each, str) else [each])
    ]
    per_query = _per_query(answers(ranked, judgements), judgements, asked)
    cutoffs = {str(m): m.params["cutoff"] for m in asked if "cutoff" in m.params}
    return Scores(
        aggregated={str(m): aggregate(m, per_query[str(m)].values()) for m in asked},
        per_query=per_query,
        coverage=cover(run, judgements, cutoffs, drop_self),
    )


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
                f"the qrels give document '{doc_id}' the grade {grade} for query '{query_id}', and "
                f"{_LARGEST_GRADE} is the largest; are the columns in order?"
            )
    if not judgements:
        raise DataError("the qrels hold no judgements: give other qrels, or another split")
    return judgements


def _per_query(
    answered: Mapping[str, Ranking], judgements: Judgements, measures: Sequence[Measure]
) -> dict[str, dict[str, float]]:
    """Measure -> query id -> value, queries in the order of the judgements."""
    query_ids = list(judgements)
    numbers = {query_id: str(number) for number, query_id in enumerate(query_ids)}
    grades = {numbers[query_id]: _gradable(judgements[query_id]) for query_id in query_ids}
    ranks = {numbers[query_id]: _by_rank(ranking) for query_id, ranking in answered.items()}
    values: dict[tuple[str, str], float] = {}
    for group in _groups(measures):
        for metric in ir_measures.iter_calc(group, grades, ranks):
            # No number is 0/0: judged_only left no document.
            value = 0.0 if math.isnan(metric.value) else float(metric.value)
            values[str(metric.measure), query_ids[int(metric.query_id)]] = value
    for measure in measures:
        for query_id in judgements.keys() - answered.keys():
            values[str(measure), query_id] = _unanswered(measure, judgements[query_id])
    return {
        name: {query_id: values[name, query_id] for query_id in query_ids}
        for name in map(str, measures)
    }


def _groups(measures: Sequence[Measure]) -> list[list[Measure]]:
    """Measures that can be computed together.

    ir_measures lets measures share a pass of an engine, and may put a plain nDCG into one with other
    gains, or NumRet into one without the unjudged documents.
    """
    groups: dict[str, list[Measure]] = {}
    for measure in measures:
        key = f"{measure.params.get('gains')} {measure.params.get('judged_only', False)}"
        groups.setdefault(key, []).append(measure)
    return list(groups.values())


def _gradable(grades: Mapping[str, int]) -> dict[str, int]:
    """Grades as the engines can take them.

    Where all are negative, trec_eval reads beyond its table of grades and may never come back; as
    0 they are just as irrelevant.
    """
    return dict(grades) if max(grades.values()) >= 0 else dict.fromkeys(grades, 0)


def _by_rank(ranking: Ranking) -> dict[str, float]:
    """Document id -> a score that says no more than its rank (exact in float32, and positive)."""
    depth = len(ranking.doc_ids)
    return {doc_id: float(depth - rank) for rank, doc_id in enumerate(ranking.doc_ids)}


def _unanswered(measure: Measure, grades: Mapping[str, int]) -> float:
    """The value of a judged query without documents, as trec_eval -c has it."""
    if measure.NAME == "NumQ":
        return 1.0
    if measure.NAME == "NumRel":
        return float(sum(grade >= measure["rel"] for grade in grades.values()))
    return float(measure.DEFAULT)


def aggregate(measure: Measure, values: Iterable[float]) -> float:
    """One value from those of several queries: the sum of counts, else the mean."""
    aggregator = measure.aggregator()
    for value in values:
        aggregator.add(value)
    return float(aggregator.result())
