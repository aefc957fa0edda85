"""What the encodings of a grid will take: disk and time, each from a sample on this machine."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmkcli.errors import LmkError
from lmkcli.progress import Report
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import EncodeSettings
from lmkcli.text.numbers import duration, size

if TYPE_CHECKING:
    from lmkcli.encoding.forecast import Estimate
    from lmkcli.experiments.plan import Plan
    from lmkcli.experiments.running import Results
    from lmkcli.experiments.steps import Step

_TOLD = 5  # reasons that are printed
Estimates = Mapping[str, "Estimate | str"]  # key of an encoding -> what it takes, or why not known


def estimates(plan: "Plan", results: "Results", report: Report) -> Estimates:
    """Of each encoding that is to run. Nothing is downloaded: what is not here is not known."""
    from lmkcli.system import network

    network.forbid()
    missing = results.missing(plan)
    steps = [step for step in missing.values() if step.verb == "encode"]
    estimator = _Estimator(missing)
    with report.step("dry run") as job:
        found = {}
        for number, step in enumerate(steps, 1):
            found[step.key] = estimator.of(step)
            job.progress(number, len(steps), "encodings")
    return found


class _Estimator:
    """Estimates of single encodings; a collection that cannot be read is tried once."""

    def __init__(self, missing: Mapping[str, "Step"]) -> None:
        self._missing = missing
        self._faults: dict[str, str] = {}

    def of(self, step: "Step") -> "Estimate | str":
        """What an encoding takes, or why that is not known."""
        from lmkcli.experiments import sources

        if step.trained:
            return "its model is not trained yet"
        asked: Any = step.operation
        if sources.local_model(asked.model, asked.revision or "") is None:
            return f"the model {asked.model} is not here"
        collection = self._collection(step, asked)
        if collection not in self._faults:
            self._faults[collection] = _fault(collection)
        if fault := self._faults[collection]:
            return fault
        try:
            return _estimate(collection, asked)
        except LmkError as error:
            return str(error)

    def _collection(self, step: "Step", asked: Any) -> str:
        """What an encoding reads; if tokens that are yet to be made, what they will be made of."""
        tokens = [
            self._missing[key]
            for key in step.needs
            if key.startswith("tokenize-") and key in self._missing
        ]
        read: Any = tokens[0].operation if tokens else asked
        return str(read.spelling(str(read.source)))


def _fault(collection: str) -> str:
    """Why the documents of a collection cannot be read, or ''; said before a model is loaded."""
    from lmkcli import manifest
    from lmkcli.data.collection import Shard, open_collection

    if (Path(collection) / manifest.NAME).is_file():
        return ""  # tokens
    try:
        next(iter(open_collection(collection).docs(Shard(0, 2))), None)
    except LmkError as error:
        return str(error)
    return ""


def _estimate(collection: str, asked: Any) -> "Estimate":
    from lmkcli.encoding import planning

    job = planning.plan(
        collection, asked.part(RecipeOptions), asked.part(EncodeSettings), "0/1", offline=True
    )
    from lmkcli.encoding.forecast import estimate  # here, after what can be said without torch

    return estimate(job)


def summed(estimates: Estimates) -> tuple[str, str]:
    """Disk and time of all in words; '-' where nothing is known, 'over' where not all is."""
    known = [each for each in estimates.values() if not isinstance(each, str)]
    if not known:
        return "-", "-"
    some = "over " * (len(known) < len(estimates))
    disk, seconds = sum(each.disk for each in known), sum(each.seconds for each in known)
    return some + size(disk), some + duration(seconds)


def unknown(estimates: Estimates) -> Iterator[str]:
    """Why the disk and time of some encodings are not known, the most frequent reasons."""
    reasons = Counter(each for each in estimates.values() if isinstance(each, str))
    for why, count in reasons.most_common(_TOLD):
        yield f"disk and time not known ({count} of {len(estimates)} encodings): {why}"
    if len(reasons) > _TOLD:
        yield f"and for {len(reasons) - _TOLD} more reasons, which --json has"


def as_json(estimate: "Estimate | str | None") -> dict[str, Any]:
    """What programs are told of one encoding: disk in bytes and seconds, or why they are not known."""
    if estimate is None:
        return {}
    return {"not known": estimate} if isinstance(estimate, str) else estimate._asdict()
