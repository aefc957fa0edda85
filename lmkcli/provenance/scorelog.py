"""The score log: a JSON line for each evaluation with its lineage, appended under a lock."""

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from math import isclose
from pathlib import Path
from statistics import fmean
from typing import Any, BinaryIO, NotRequired, TypedDict, cast

from lmkcli.artifact import manifest, outputs
from lmkcli.artifact.kinds import Facts, OpenMapping
from lmkcli.data.collection import Qrel
from lmkcli.errors import DataError, UsageError
from lmkcli.evaluation.measures import Scores
from lmkcli.progress import Call
from lmkcli.provenance import lineage
from lmkcli.spec.values import is_digits
from lmkcli.system.atomic import make_folder, sync
from lmkcli.system.input_files import (
    MAX_RECORD_LINE,
    bounded_lines,
    check_finite,
    decode,
    file_digest,
    parse_json,
    validate,
)
from lmkcli.system.output_streams import is_stream
from lmkcli.text.formatting import shell_line

_START = b'{"run": '  # of each line
_BLOCK = 1 << 16  # bytes


class LoggedStep(TypedDict):
    """A step in the lineage of a run (`LineageStep.as_json`)."""

    path: str
    kind: str
    identity: OpenMapping
    execution: OpenMapping
    facts: OpenMapping
    digest: str
    collection: str


class LogEntry(TypedDict):
    """The fields of an entry that lmk reads to show or draw it.

    Only `scores` is required, because other programs write logs too.
    """

    scores: dict[str, float]
    intervals: NotRequired[dict[str, tuple[float, float]]]
    run: NotRequired[str]
    time: NotRequired[str]
    qrels: NotRequired[str | None]
    lineage: NotRequired[list[LoggedStep]]


class RepeatableEntry(TypedDict):
    """The fields of an entry that are required to reproduce it, in addition to those of Facts."""

    scores: dict[str, float]
    run: str
    run_sha256: str
    qrels: str | None
    qrels_digest: str
    directory: str
    operation: NotRequired[OpenMapping]


def entry_of(
    run: Path,
    scores: Scores,
    qrels: str | None,
    judgements: Iterable[Qrel],
    call: Call,
) -> dict[str, Any]:
    """Return the entry of an evaluation, as JSON values.

    `qrels` is the given source of the judgements; None is the collection of the run's queries. `call` is
    the command.
    """
    steps = (
        [step.as_json() for step in lineage.steps(run)] if outputs.sidecar(run).is_file() else []
    )
    return {
        "run": os.path.abspath(run),
        "run_sha256": file_digest(run),
        "qrels": qrels,
        "qrels_digest": qrels_digest(judgements),
        "scores": scores.aggregated,
        "intervals": _intervals(scores),
        "coverage": asdict(scores.coverage),
        "lineage": steps,
        **manifest.environment(call),
    }


def _intervals(scores: Scores) -> dict[str, tuple[float, float]]:
    """95 % bootstrap intervals of means over queries; none if only one query is judged."""
    from lmkcli.evaluation.compare import mean_interval  # late: scipy.stats takes half a second

    if scores.coverage.judged < 2:
        return {}
    return {
        name: mean_interval(values)
        for name, values in scores.per_query.items()
        if isclose(fmean(values.values()), scores.aggregated[name])  # NumRet is a sum
    }


def append(log: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """Append entries to a log, one line each. The entries of concurrent processes do not mix.

    Entries that do not all fit on the disk are removed, and so is the start of a line that a killed process
    left. Raises DataError if the file is not a score log.
    """
    text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
    added = text.encode("utf-8", "surrogatepass")
    make_folder(log.parent)
    if is_stream(log) or (log.exists() and not log.is_file()):
        raise DataError(f"{log} is not a regular file; choose a regular file for --log")
    with open(log, "a+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        end = file.seek(0, os.SEEK_END)
        with open(log, "rb") as existing:
            lines = bounded_lines(existing, log, MAX_RECORD_LINE)
            first = next((each for each in lines if each.strip()), b'"scores":')
            last_start = _last_line(existing, end)
            existing.seek(last_start)
            last = existing.read(MAX_RECORD_LINE)
        cut_off = _is_cut_off(last)
        if b'"scores":' not in first and not (cut_off and first == last):
            raise DataError(f"{log} exists and is not a score log; choose another file for --log")
        if cut_off:
            file.truncate(last_start)
            end = last_start
        elif last:
            added = b"\n" + added
        try:
            while added:
                added = added[file.write(added) :]
            os.fsync(file.fileno())
            if not end:
                sync(log.parent)  # the log is new
        except OSError:
            file.truncate(end)
            raise


def _last_line(file: BinaryIO, end: int) -> int:
    """Return the position after the last newline of a file of `end` bytes."""
    while end:
        start = max(0, end - _BLOCK)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _is_cut_off(line: bytes) -> bool:
    """Return whether a line is the start of an entry; its process was killed while it wrote the line."""
    if not line or line.endswith(b"\n") or line[: len(_START)] != _START[: len(line)]:
        return False
    try:
        parse_json(line.decode("utf-8", "surrogatepass"))
    except ValueError:
        return True
    return False


def qrels_digest(judgements: Iterable[Qrel]) -> str:
    """sha256 of judgements, independent of their order."""
    return manifest.digest(sorted(list(qrel) for qrel in judgements))


def read(log: Path) -> list[LogEntry]:
    """Return all entries, without the start of a line that another process is writing, or that a killed one
    left.

    Raises DataError for an unreadable line, or if there are no entries.
    """
    check_finite(log)
    with open(log, "rb") as file:
        entries = [
            _entry(line, f"{log} line {number}")
            for number, line in enumerate(bounded_lines(file, log, MAX_RECORD_LINE), 1)
            if line.strip() and not _is_cut_off(line)
        ]
    if not entries:
        raise DataError(f"{log} has no entries; lmk eval --log {shell_line(str(log))} appends them")
    return entries


def _entry(line: bytes, where: str) -> LogEntry:
    fix = "remove the line, or give a score log"
    try:
        entry = parse_json(line.decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise DataError(f"{where} cannot be read ({error}); {fix}") from None
    return validate(entry, LogEntry, where, fix)


def repeatable(entry: LogEntry, where: str) -> RepeatableEntry:
    """Return the entry itself; DataError if a field is missing that is required to reproduce it."""
    found = validate(cast(RepeatableEntry, entry), RepeatableEntry, where, "evaluate the run again")
    facts(entry, where)
    return found


def steps_of(entry: LogEntry, where: str) -> list[lineage.LineageStep]:
    """Return the lineage of an entry, which has the field. DataError if a step cannot be read."""
    return [lineage.LineageStep.from_json(step, where) for step in entry["lineage"]]


def facts(entry: Mapping[str, Any], where: str = "the entry of the log") -> Facts:
    """Return the versions, hardware and time of an evaluation; DataError if one of them is missing."""
    return decode(entry, Facts, where, "evaluate the run again")


def pick(spelling: str) -> LogEntry:
    """Return the entry 'scores.jsonl#2' (the first is 1); a log with one entry needs no number."""
    name, _, number = spelling.rpartition("#") if "#" in spelling else (spelling, "", "")
    entries = read(Path(name))
    if is_digits(number) and 1 <= int(number) <= len(entries):
        return entries[int(number) - 1]
    if not number and len(entries) == 1:
        return entries[0]
    raise UsageError(
        f"{name} has {len(entries)} entries: choose one, such as {name}#{len(entries)}"
    )


def setting(entry: LogEntry, name: str) -> Any:
    """Return the value of a flag such as 'gran' or 'ef-search' in the last step that has it, or None.

    The identity of a step has precedence over its operation, because it contains the value of 'auto'.
    """
    key = name.replace("-", "_")
    for step in reversed(entry.get("lineage", [])):
        for place in (step["identity"], step["facts"].get("operation", {})):
            value = _find(place, key)
            if value not in (None, ""):
                return value
    return None


def _find(value: Any, key: str) -> Any:
    """Return the first value of a key at any depth. In a recipe, the document side comes first."""
    if not isinstance(value, dict):
        return None
    if key in value:
        return value[key]
    return next((x for inner in value.values() if (x := _find(inner, key)) is not None), None)


def judged_by(entry: LogEntry) -> str:
    """Return the collection or the qrels file with the judgements of an entry."""
    steps = entry.get("lineage")
    collection = steps[-1]["facts"].get("collection", "") if steps else ""
    return str(entry.get("qrels") or collection)


def as_number(value: Any) -> float | None:
    """Return the number of a setting or of its text; None if it is not a number."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
