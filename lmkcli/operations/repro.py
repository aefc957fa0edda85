"""Repro: make a recorded result again from its sources and compare each step."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from lmkcli.errors import CheckFailed, DataError, LmkError, Stopped
from lmkcli.operations.update import Download
from lmkcli.progress import Report
from lmkcli.reading import file_digest
from lmkcli.settings import Flag, TrustRemoteCode
from lmkcli.spec.operation import Operation, named, operation_kind, options
from lmkcli.spec.result import Result, Table
from lmkcli.system import network

if TYPE_CHECKING:
    from lmkcli.provenance.lineage import Step
    from lmkcli.provenance.repro import Row

_SAME = {True: "yes", False: "NO", None: "-"}
# The operations that make an artifact. A record may name no other.
_MAKERS = ("tokenize", "encode", "import", "index", "search", "train", "pretrain")


@dataclass(frozen=True)
class Reproduced(Result):
    """The comparison of each step with its record, and the first difference, if any."""

    what: str
    rows: "tuple[Row, ...]"

    def as_json(self) -> Any:
        """A list of the rows."""
        return [row._asdict() for row in self.rows]

    def table(self) -> Table:
        """The rows without the reasons."""
        shown = [[row.what, row.recorded, row.now, _SAME[row.same]] for row in self.rows]
        return Table(["step", "recorded", "now", "same"], shown)

    @property
    def failure(self) -> CheckFailed | None:
        """The first difference with its reason; None if everything is reproduced."""
        from lmkcli.provenance.repro import first_difference

        odd = first_difference(self.rows)
        if odd is None:
            return None
        return CheckFailed(f"{self.what} is not reproduced. First to differ: {odd.what}. {odd.why}")


@dataclass(frozen=True)
class Repro(Operation[Reproduced]):
    """Make the recorded steps again from their sources and compare each; exit 4 if one differs.

    The operations that made the artifact, and all before it, run again in a temporary folder. The first
    difference is named with its reason: other documents, another model, other library versions.
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
        Flag("Keep what is made again in this new folder.", short="-o", role="output"),
    ] = None
    tolerance: Annotated[
        float, Flag("How far scores may differ, in runs and in measures.", min=0)
    ] = 1e-4
    trust_remote_code: TrustRemoteCode = False
    download: Download = False

    def execute(self, report: Report) -> Reproduced:
        """Run the recorded operations again and compare."""
        with network.restricted(not self.download):  # a stranger's record must not start downloads
            led, entry = _recorded(self.what)
            for step in led:
                _check(step, self.trust_remote_code)
            with _folder(self.output) as folder:
                again = _Again(self, folder, report)
                for step in led:
                    again.make(step)
                if entry is not None:
                    again.score(entry)
        for line in _other_versions(led, entry):
            report.note(f"another version: {line}")
        result = Reproduced(self.what, tuple(again.rows))
        if result.failure is None:
            report.note(f"{self.what} is reproduced")
        return result


def _recorded(what: str) -> "tuple[list[Step], dict[str, Any] | None]":
    """The steps that led to a result, sources first, and its entry if it is in a log."""
    from lmkcli.provenance import lineage, scorelog

    path = Path(what)
    if path.is_dir() or Path(what + ".json").is_file():
        return lineage.steps(path), None
    if not Path(what.rpartition("#")[0] or what).is_file():
        raise DataError(f"{what}: no such artifact, run or log")
    if path.is_file() and not path.read_bytes().lstrip().startswith(b"{"):
        raise DataError(f"{what} has no manifest {what}.json: lmk did not make it")
    entry = scorelog.pick(what)
    if "lineage" not in entry:
        raise DataError(f"{what} has no record of the steps before the run; evaluate it again")
    return scorelog.recorded(entry, what), entry


@contextlib.contextmanager
def _folder(output: Path | None) -> Iterator[Path]:
    if output is None:
        with tempfile.TemporaryDirectory(prefix="lmk-repro-") as name:
            yield Path(name)
        return
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise DataError(f"{output} exists already; choose a new folder")
    output.mkdir(parents=True, exist_ok=True)
    yield output.absolute()


class _Again:
    """Steps that run again in a folder of their own, and the rows of their comparison."""

    def __init__(self, asked: Repro, folder: Path, report: Report) -> None:
        self._asked, self._folder, self._report = asked, folder, report
        self._made: dict[str, str] = {}  # path of a recorded artifact -> path of the new one
        self.rows: list[Row] = []

    def make(self, step: "Step") -> None:
        """Run a step's operation on the new versions of its inputs."""
        from lmkcli.provenance import lineage, repro

        path = self._folder / f"{len(self._made) + 1}-{Path(step.path).name}"
        record = step.operation
        kind = operation_kind(record)
        several = {o.name for o in options(kind) if isinstance(record.get(o.name), list)}
        changes: dict[str, Any] = {"output": path}
        for name, texts in named(record, *lineage.INPUTS).items():
            moved = [self._made.get(step.resolved(text), text) for text in texts]
            changes[name] = moved if name in several else moved[0]
        if any(option.name == "trust_remote_code" for option in options(kind)):
            changes["trust_remote_code"] = self._asked.trust_remote_code and _runs_code(step)
        with _from(step.facts.get("directory", ""), step.path):
            self._run(kind.from_json(record, **changes), step.path)
        self._made[step.path] = str(path)
        rows = repro.compare(step, lineage.read(path), self._asked.tolerance)
        self.rows += [row for row in rows if row not in self.rows]  # one collection, read twice

    def score(self, entry: dict[str, Any]) -> None:
        """Evaluate the new run as the entry of the log was."""
        from lmkcli.provenance import repro, scorelog

        run, log = self._made.get(entry["run"], entry["run"]), self._folder / "scores.jsonl"
        if not self._made:
            self.rows.append(_same_run(entry))
        kind = operation_kind({"operation": "eval"})
        drop_self = entry["operation"].get("drop_self", "auto")
        evaluation = kind.from_json(
            {"operation": "eval", "version": kind.version, "drop_self": drop_self},
            runs=[run],
            measure=list(entry["scores"]),
            log=log,
            **({"qrels": [entry["qrels"]]} if entry["qrels"] else {}),
        )
        with _from(entry["directory"], entry["run"]):
            self._run(evaluation, "the scores")
        self.rows += repro.scores(entry, scorelog.read(log)[-1], self._asked.tolerance)

    def _run(self, operation: Operation[Any], what: str) -> None:
        self._report.note(f"$ {operation.command_line()}")
        try:
            operation.run(self._report)
        except Stopped:
            raise
        except LmkError as error:
            raise DataError(f"{what} cannot be made again: {error}") from error


def _same_run(entry: dict[str, Any]) -> "Row":
    """A run that lmk did not make is a source itself."""
    from lmkcli.provenance.repro import Row

    path = Path(entry["run"])
    if not path.is_file():
        raise DataError(f"{path} is missing, and lmk did not make it")
    before, now = entry["run_sha256"], file_digest(path)
    same = before == now
    return Row(
        f"run {path.name}", before[:12], now[:12], same, "" if same else "the run has changed"
    )


def _runs_code(step: "Step") -> bool:
    """Whether a step's models run code of their own, as far as its identity records it."""
    sides = step.identity.get("recipe", {})
    recorded = [side for side in sides.values() if isinstance(side, dict)]
    return not recorded or any(side.get("trust_remote_code") for side in recorded)


def _check(step: "Step", trust: bool) -> None:
    """DataError for a step that cannot run again, or that might do more than that."""
    from lmkcli.encoding.recorded import refuse_code

    record = step.operation
    if not record:
        raise DataError(
            f"{step.path} does not record which operation of lmk made it, so it cannot be made again"
        )
    if record.get("operation") not in _MAKERS:
        raise DataError(
            f"{step.path} records that 'lmk {str(record.get('operation'))[:40]}' made it, which makes no "
            "artifact; its manifest was changed"
        )
    if record.get("uri"):
        raise DataError(
            f"the vectors of {step.path} are in a Milvus ({record['uri']}), which is not filled again; "
            "search the vectors folder itself, and reproduce that run"
        )
    sides = step.identity.get("recipe", {})
    if not trust and any(s.get("trust_remote_code") for s in sides.values() if isinstance(s, dict)):
        refuse_code(step.path, ", ".join(named(record, "model").get("model", [])))
    if any("-" in texts for texts in named(record, "collection").values()):
        raise DataError(f"{step.path} was made from stdin, which cannot be read again")


@contextlib.contextmanager
def _from(directory: str, what: str) -> Iterator[None]:
    """Work in the folder in which an operation ran: its relative paths start there."""
    if not os.path.isdir(directory):
        raise DataError(f"{what} was made in {directory}, which is missing")
    with contextlib.chdir(directory):
        yield


def _other_versions(led: "list[Step]", entry: dict[str, Any] | None) -> list[str]:
    """The libraries whose versions differ from those that made any step."""
    from lmkcli import manifest
    from lmkcli.provenance.repro import versions

    now = manifest.environment()
    recorded = [step.facts for step in led] + ([entry] if entry else [])
    return list(dict.fromkeys(line for then in recorded for line in versions(then, now)))
