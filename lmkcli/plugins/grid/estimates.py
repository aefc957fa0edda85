"""Estimates of the disk space and the time of the encodings of a grid, from samples on this machine."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmkcli.errors import LmkError
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import WHOLE
from lmkcli.text.formatting import duration, size

if TYPE_CHECKING:
    from lmkcli.encoding.forecast import Estimate
    from lmkcli.encoding.jobs import CollectionJob
    from lmkcli.plugins.grid.execution import ResultsFolder
    from lmkcli.plugins.grid.plan import Plan
    from lmkcli.plugins.grid.steps import GridStep

_MOST_REASONS = 5  # that are printed
_FEW = 100  # up to so many encodings are all measured
_SECONDS = 2.0  # for measuring more
Estimates = Mapping[str, "Estimate | str"]  # key of an encoding -> estimate, or reason why unknown


def estimates(plan: "Plan", results: "ResultsFolder", report: Report) -> Estimates:
    """Estimate each missing encoding. Downloads nothing; if the model is missing, the cost is unknown."""
    from lmkcli.system import network

    network.forbid()
    missing = results.missing(plan)
    steps = [step for step in missing.values() if step.verb == "encode"]
    steps.sort(key=_model)  # an estimator shares what belongs to a model
    errors: dict[str, str] = {}  # collection -> why it cannot be read; each is tried once
    found: dict[str, Estimate | str] = {}
    with report.step("dry run") as job:
        started = time.monotonic()
        estimate: Callable[[CollectionJob], Estimate | str] | None = None
        for number, step in enumerate(steps, 1):
            if len(steps) > _FEW and time.monotonic() - started > _SECONDS:
                found[step.key] = f"not measured after {_SECONDS:.0f} s; --only selects cells"
                continue
            planned = _planned(step, missing, errors)
            if isinstance(planned, str):
                found[step.key] = planned
            else:
                estimate = estimate or _estimator()
                found[step.key] = estimate(planned)
            job.progress(number, len(steps), "encodings")
    return found


def _model(step: "GridStep") -> tuple[str, str]:
    operation: Any = step.operation
    return operation.model, operation.revision or ""


def _planned(
    step: "GridStep", missing: Mapping[str, "GridStep"], errors: dict[str, str]
) -> "CollectionJob | str":
    """Return the job of an encoding, or the reason why its cost is unknown."""
    from lmkcli.encoding import jobs
    from lmkcli.plugins.grid.steps import local_model

    if step.trained:
        return "its model is not trained yet"
    operation: Any = step.operation
    if local_model(*_model(step)) is None:
        return f"the model {operation.model} is not on this machine"
    # If the tokens that the encoding reads are missing, the collection is used.
    tokens = [missing[key] for key in step.needs if key.startswith("tokenize-") and key in missing]
    reader: Any = tokens[0].operation if tokens else operation
    collection = str(reader.spelling(str(reader.source)))
    if collection not in errors:  # before a model is loaded
        errors[collection] = _read_error(collection)
    if error := errors[collection]:
        return error
    recipe, settings = operation.part(RecipeOptions), operation.part(EncodeSettings)
    try:
        return jobs.plan(collection, recipe, settings, WHOLE, offline=True)
    except LmkError as failure:
        return str(failure)


def _estimator() -> "Callable[[CollectionJob], Estimate | str]":
    """Return a function that returns the estimate of a job, or the reason why it is unknown."""
    from lmkcli.encoding.forecast import (
        Estimator,
    )  # only for models on this machine: it imports torch

    estimator = Estimator()

    def estimate(job: "CollectionJob") -> "Estimate | str":
        try:
            return estimator(job)
        except LmkError as failure:
            return str(failure)

    return estimate


def _read_error(collection: str) -> str:
    """Return the reason why the documents of a collection cannot be read; empty if they can."""
    from lmkcli.artifact import manifest
    from lmkcli.data.collection import Shard, open_collection

    if (Path(collection) / manifest.NAME).is_file():
        return ""  # tokens
    try:
        next(iter(open_collection(collection).docs(Shard(0, 2))), None)
    except LmkError as error:
        return str(error)
    return ""


def summed(estimates: Estimates) -> tuple[str, str]:
    """Total disk space and time as text; 'over' if some are unknown, '-' if all are."""
    known = [each for each in estimates.values() if not isinstance(each, str)]
    if not known:
        return "-", "-"
    some = "over " * (len(known) < len(estimates))
    disk, seconds = sum(each.disk for each in known), sum(each.seconds for each in known)
    return some + size(disk), some + duration(seconds)


def unknown(estimates: Estimates) -> Iterator[str]:
    """Yield the most frequent reasons for unknown disk space and time."""
    reasons = Counter(each for each in estimates.values() if isinstance(each, str))
    for why, count in reasons.most_common(_MOST_REASONS):
        yield f"disk and time not known ({count} of {len(estimates)} encodings): {why}"
    if len(reasons) > _MOST_REASONS:
        yield f"and {len(reasons) - _MOST_REASONS} more reasons; --json has all of them"


def as_json(estimate: "Estimate | str | None") -> dict[str, Any]:
    """Return an estimate as JSON: disk in bytes and seconds, or the reason why they are unknown."""
    if estimate is None:
        return {}
    return {"not known": estimate} if isinstance(estimate, str) else estimate._asdict()
