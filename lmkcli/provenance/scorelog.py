"""The score log: one JSON line an evaluation, appended under a lock, with all that led to it."""

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from math import isclose
from pathlib import Path
from statistics import fmean
from typing import Any, NotRequired, TypedDict

from lmkcli import manifest
from lmkcli.data.collection import Qrel
from lmkcli.errors import DataError, UsageError
from lmkcli.evaluation.measures import Scores
from lmkcli.manifest_types import Facts
from lmkcli.progress import Call
from lmkcli.provenance import lineage
from lmkcli.reading import LONG_LINE, bounded_lines, check_finite, checked, file_digest, parsed
from lmkcli.store import outputs


def entry_of(
    run: Path,
    scores: Scores,
    qrels: str | None,
    judgements: Iterable[Qrel],
    call: Call,
) -> dict[str, Any]:
    """All that is known of an evaluation, as JSON values.

    `qrels` says where the judgements were asked from; None is: where the run's queries are from.
    `call` is the command that asked for it.
    """
    led = [step.as_json() for step in lineage.steps(run)] if outputs.sidecar(run).is_file() else []
    return {
        "run": os.path.abspath(run),
        "run_sha256": file_digest(run),
        "qrels": qrels,
        "qrels_digest": qrels_digest(judgements),
        "scores": scores.aggregated,
        "intervals": _intervals(scores),
        "coverage": asdict(scores.coverage),
        "lineage": led,
        **manifest.environment(call),
    }


def _intervals(scores: Scores) -> dict[str, tuple[float, float]]:
    """95 % bootstrap intervals of what is a mean over queries; none where one query is judged."""
    from lmkcli.evaluation.compare import mean_interval  # here: scipy.stats takes half a second

    if scores.coverage.judged < 2:
        return {}
    return {
        name: mean_interval(values)
        for name, values in scores.per_query.items()
        if isclose(fmean(values.values()), scores.aggregated[name])  # NumRet is a sum
    }


def append(log: Path, entry: Mapping[str, Any]) -> None:
    """Append an entry to a log as one line; lines stay whole however many processes write.

    A line that does not fit on the disk is taken back. What a killed writer left gets a line of its own.
    DataError when the file is no log: runs and collections are lines as well.
    """
    line = (json.dumps(entry, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and not log.is_file():
        raise DataError(f"{log} is no file; a score log grows at its end: choose a file for --log")
    with open(log, "a+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _check(log)
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        line = line if file.read(1) in (b"", b"\n") else b"\n" + line
        try:
            while line:
                line = line[file.write(line) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(end)
            raise


def _check(log: Path) -> None:
    with open(log, "rb") as file:
        lines = bounded_lines(file, log, LONG_LINE)
        first = next((line for line in lines if line.strip()), b'"scores":')
    if b'"scores":' not in first:
        raise DataError(
            f"{log} is there already and is no score log; choose another file for --log"
        )


def qrels_digest(judgements: Iterable[Qrel]) -> str:
    """sha256 of judgements, whatever their order."""
    return manifest.digest(sorted(list(qrel) for qrel in judgements))


def read(log: Path) -> list[dict[str, Any]]:
    """All entries; DataError names the line that cannot be read, or says that there is none."""
    check_finite(log)
    with open(log, "rb") as file:
        entries = [
            _entry(line, f"{log} line {number}")
            for number, line in enumerate(bounded_lines(file, log, LONG_LINE), 1)
            if line.strip()
        ]
    if not entries:
        raise DataError(f"{log} has no entries; lmk eval --log {log} appends them")
    return entries


class _Step(TypedDict):
    path: str
    kind: str
    identity: dict[str, Any]
    execution: dict[str, Any]
    facts: Facts
    digest: str
    collection: str


class _Entry(TypedDict):
    """What is read of any entry; any program may write a log, so little need be there."""

    scores: dict[str, float]
    intervals: NotRequired[dict[str, list[float]]]
    run: NotRequired[str]
    time: NotRequired[str]
    qrels: NotRequired[str | None]
    lineage: NotRequired[list[_Step]]


class _Repeated(Facts):
    """What it takes to make an entry again."""

    scores: dict[str, float]
    run: str
    run_sha256: str
    qrels: str | None
    qrels_digest: str


def _entry(line: bytes, where: str) -> dict[str, Any]:
    fix = "remove the line, or give a score log"
    try:
        entry = parsed(line.decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise DataError(f"{where} cannot be read ({error}); {fix}") from None
    return dict(checked(entry, _Entry, where, fix))


def recorded(entry: dict[str, Any], where: str) -> list[lineage.Step]:
    """The steps that led to an entry; DataError where it lacks what it takes to make them again."""
    fix = "evaluate the run again"
    checked(entry, _Repeated, where, fix)
    manifest.check_recorded(manifest.Manifest("", {}, facts=entry), where)
    steps = [lineage.Step(**step) for step in entry["lineage"]]
    for step in steps:
        described = manifest.Manifest(step.kind, step.identity, step.execution, step.facts)
        manifest.check_recorded(described, f"{where}, {step.path}")
    return steps


def pick(spelling: str) -> dict[str, Any]:
    """The entry behind 'scores.jsonl#2' (the first is 1); the number may be left out if there is one."""
    name, _, number = spelling.rpartition("#") if "#" in spelling else (spelling, "", "")
    entries = read(Path(name))
    if number.isdecimal() and 1 <= int(number) <= len(entries):
        return entries[int(number) - 1]
    if not number and len(entries) == 1:
        return entries[0]
    raise UsageError(
        f"{name} has {len(entries)} entries: choose one, such as {name}#{len(entries)}"
    )
