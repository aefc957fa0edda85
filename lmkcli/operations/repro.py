"""Repro: reproduce a recorded result from its sources and compare each step."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from lmkcli import catalog
from lmkcli.errors import CheckFailed, DataError, LmkError, Stopped
from lmkcli.operations.update import Download
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation, named, operation_kind
from lmkcli.spec.option import options
from lmkcli.spec.result import Result, Table
from lmkcli.spec.settings import Flag, TrustRemoteCode
from lmkcli.system import network
from lmkcli.system.atomic import temporary_folder
from lmkcli.system.input_files import file_digest, not_a_file

if TYPE_CHECKING:
    from lmkcli.provenance.lineage import LineageStep
    from lmkcli.provenance.reproduction import ReproRow
    from lmkcli.provenance.scorelog import RepeatableEntry

_SAME = {True: "yes", False: "NO", None: "-"}
_UNFINISHED = ".unfinished"  # in the folder of a reproduction that has not ended


@dataclass(frozen=True)
class Reproduced(Result):
    """The comparison of each step with its record."""

    what: str
    rows: "tuple[ReproRow, ...]"

    def as_json(self) -> Any:
        """Return a list of the rows."""
        return [row._asdict() for row in self.rows]

    def blocks(self) -> Iterator[Table | str]:
        """Yield the rows without the reasons."""
        shown = [[row.what, row.recorded, row.now, _SAME[row.same]] for row in self.rows]
        yield Table(["step", "recorded", "now", "same"], shown)

    @property
    def failure(self) -> CheckFailed | None:
        """The first difference with its reason; None if everything is reproduced."""
        from lmkcli.provenance.reproduction import first_difference

        first = first_difference(self.rows)
        if first is None:
            return None
        return CheckFailed(
            f"{self.what} is not reproduced. First difference: {first.what}. {first.why}"
        )


@dataclass(frozen=True)
class Repro(Operation[Reproduced]):
    """Repeat the recorded steps from their sources and compare each result; exit code 4 if one differs.

    lmk runs the operations that made the artifact and its inputs again, in a temporary folder. The error
    names the first difference and its reason: other documents, another model, other library versions.
    """

    verb: ClassVar[str] = "repro"

    what: Annotated[
        str,
        Flag(
            "An entry of a score log, a run, or an artifact's folder.",
            argument=True,
            metavar="LOG#N|ARTIFACT",
        ),
    ]
    output: Annotated[
        Path | None,
        Flag(
            "Keep the reproduced artifacts in this new folder.",
            short="-o",
            role="output",
            suggest_for="--output-dir --output-file --output-path --save-to",
        ),
    ] = None
    tolerance: Annotated[
        float, Flag("Maximum difference of scores, in runs and in measures.", min=0)
    ] = 1e-4
    trust_remote_code: TrustRemoteCode = False
    download: Download = False

    def execute(self, report: Report) -> Reproduced:
        """Run the recorded operations again and compare."""
        with network.restricted(
            not self.download
        ):  # the record of another person must not start downloads
            steps, entry = _recorded(self.what)
            for step in steps:
                _check(step, self.trust_remote_code)
            with _folder(self.output) as folder:
                reproduction = _Reproduction(self, folder, report)
                for step in steps:
                    reproduction.repeat(step)
                if entry is not None:
                    reproduction.score(entry)
        for line in _other_versions(steps, entry):
            report.note(f"other version: {line}")
        result = Reproduced(self.what, tuple(reproduction.rows))
        if result.failure is None:
            report.note(f"{self.what} is reproduced")
        return result


def _recorded(what: str) -> "tuple[list[LineageStep], RepeatableEntry | None]":
    """Return the steps that made a result, sources first, and its entry if it is in a log."""
    from lmkcli.provenance import lineage, scorelog

    path = Path(what)
    if path.is_dir() or Path(what + ".json").is_file():
        return lineage.steps(path), None
    if not Path(what.rpartition("#")[0] or what).is_file():
        raise DataError(f"{what}: {not_a_file(path) or 'no such artifact, run or log'}")
    if path.is_file():
        with path.open("rb") as file:
            if not file.read(1 << 16).lstrip().startswith(b"{"):
                raise DataError(f"{what} has no manifest {what}.json, so it was not made by lmk")
    entry = scorelog.pick(what)
    if "lineage" not in entry:
        raise DataError(f"{what} has no record of the steps before the run; evaluate the run again")
    repeatable = scorelog.repeatable(entry, what)
    return scorelog.steps_of(entry, what), repeatable


@contextlib.contextmanager
def _folder(output: Path | None) -> Iterator[Path]:
    if output is None:
        with temporary_folder("repro") as name:
            yield Path(name)
        return
    unfinished = output / _UNFINISHED
    taken = output.exists() and (not output.is_dir() or any(output.iterdir()))
    if taken and not unfinished.is_file():
        raise DataError(f"{output} exists; choose a new folder")
    output.mkdir(parents=True, exist_ok=True)
    unfinished.touch()
    yield output.absolute()
    unfinished.unlink()


class _Reproduction:
    """Repeats steps in a new folder, and collects the rows of their comparison."""

    def __init__(self, settings: Repro, folder: Path, report: Report) -> None:
        self._settings, self._folder, self._report = settings, folder, report
        self._new_paths: dict[str, str] = {}  # path of a recorded artifact -> path of the new one
        self.rows: list[ReproRow] = []

    def repeat(self, step: "LineageStep") -> None:
        """Run the operation of a step on the new versions of its inputs."""
        from lmkcli.provenance import lineage
        from lmkcli.provenance import reproduction as repro

        path = self._folder / f"{len(self._new_paths) + 1}-{Path(step.path).name}"
        record = step.operation
        kind = operation_kind(record)
        several = {o.name for o in options(kind) if isinstance(record.get(o.name), list)}
        changes: dict[str, Any] = {"output": path}
        for name, texts in named(record, *lineage.INPUTS).items():
            moved = [self._new_paths.get(step.resolved(text), text) for text in texts]
            changes[name] = moved if name in several else moved[0]
        if any(option.name == "trust_remote_code" for option in options(kind)):
            changes["trust_remote_code"] = self._settings.trust_remote_code and _runs_code(step)
        with _in_folder(step.made.facts.directory, step.path):
            self._run(kind.from_json(record, **changes), step.path)
        self._new_paths[step.path] = str(path)
        rows = repro.compare(step, lineage.read(path), self._settings.tolerance)
        self.rows += [
            row for row in rows if row not in self.rows
        ]  # a collection has one row, even if two steps read it

    def score(self, entry: "RepeatableEntry") -> None:
        """Evaluate the new run with the settings of the log entry."""
        from lmkcli.provenance import reproduction as repro
        from lmkcli.provenance import scorelog

        run, log = self._new_paths.get(entry["run"], entry["run"]), self._folder / "scores.jsonl"
        log.unlink(missing_ok=True)  # from an interrupted reproduction
        if not self._new_paths:
            self.rows.append(_same_run(entry))
        kind = operation_kind({"operation": "eval"})
        drop_self = entry.get("operation", {}).get("drop_self", "auto")
        evaluation = kind.from_json(
            {"operation": "eval", "version": kind.version, "drop_self": drop_self},
            runs=[run],
            measure=list(entry["scores"]),
            log=log,
            **({"qrels": [entry["qrels"]]} if entry["qrels"] else {}),
        )
        with _in_folder(entry["directory"], entry["run"]):
            self._run(evaluation, "the scores")
        again = scorelog.repeatable(scorelog.read(log)[-1], str(log))
        self.rows += repro.scores(entry, again, self._settings.tolerance)

    def _run(self, operation: Operation[Any], what: str) -> None:
        self._report.note(f"$ {operation.command_line()}")
        try:
            operation.run(self._report)
        except Stopped:
            raise
        except LmkError as error:
            raise DataError(f"{what} cannot be reproduced: {error}") from error


def _same_run(entry: "RepeatableEntry") -> "ReproRow":
    """Compare a run that another tool made. Such a run is a source: lmk compares only its file."""
    from lmkcli.provenance.reproduction import ReproRow

    path = Path(entry["run"])
    if not path.is_file():
        raise DataError(f"{path} is missing, and it was not made by lmk")
    before, now = entry["run_sha256"], file_digest(path)
    same = before == now
    return ReproRow(
        f"run {path.name}", before[:12], now[:12], same, "" if same else "the run has changed"
    )


def _runs_code(step: "LineageStep") -> bool:
    """Return whether a model of the step contains code to run. True if the identity does not record this."""
    from lmkcli.artifact.kinds import recorded_recipe

    recipe = recorded_recipe(step.made)
    return recipe is None or any(side.trust_remote_code for side in recipe.sides)


def _check(step: "LineageStep", trust: bool) -> None:
    """Raise DataError for a step that cannot be repeated, or for a record that must not be run."""
    from lmkcli.artifact.kinds import recorded_recipe
    from lmkcli.encoding.encoder import refuse_code

    record = step.operation
    if not record:
        raise DataError(
            f"{step.path} does not record which operation of lmk made it, so it cannot be reproduced"
        )
    maker = catalog.VERBS.get(str(record.get("operation")))
    if maker is None or not maker.makes:
        raise DataError(
            f"{step.path} records 'lmk {str(record.get('operation'))[:40]}', which makes no artifact; its "
            "manifest was changed"
        )
    engine = catalog.ENGINES.get(str(record.get("kind")))
    if engine and engine.variant == "database":
        raise DataError(
            f"the vectors of {step.path} are in a database outside of its folder (--kind {engine.name}), to "
            "which lmk repro does not write; search the vectors folder itself, and reproduce that run"
        )
    recipe = recorded_recipe(step.made)
    if not trust and recipe and any(side.trust_remote_code for side in recipe.sides):
        refuse_code(step.path, ", ".join(named(record, "model").get("model", [])))
    if any(_is_piped(text) for texts in named(record, "collection").values() for text in texts):
        raise DataError(f"{step.path} was made from stdin, which cannot be read again")


@contextlib.contextmanager
def _in_folder(directory: str, what: str) -> Iterator[None]:
    """Work in the folder of the recorded operation, because its relative paths start there."""
    if not os.path.isdir(directory):
        raise DataError(f"{what} was made in {directory}, which is missing")
    with contextlib.chdir(directory):
        yield


def _other_versions(steps: "list[LineageStep]", entry: "RepeatableEntry | None") -> list[str]:
    """Return the libraries with other versions than in the recorded steps."""
    from lmkcli.artifact import manifest
    from lmkcli.artifact.kinds import Facts
    from lmkcli.provenance import scorelog
    from lmkcli.provenance.reproduction import versions

    now = Facts(**manifest.environment())
    recorded = [step.made.facts for step in steps] + ([scorelog.facts(entry)] if entry else [])
    return list(dict.fromkeys(line for then in recorded for line in versions(then, now)))


def _is_piped(collection: str) -> bool:
    """Return whether a collection is standard input, with or without options."""
    return collection.partition(",")[0] == "-"
