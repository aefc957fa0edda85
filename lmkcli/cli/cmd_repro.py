"""lmk repro: what was recorded, made again from its sources and compared."""

import contextlib
import os
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmkcli.cli import console, tables
from lmkcli.cli.flags import with_flags
from lmkcli.cli.options import Json
from lmkcli.cli.tables import Format
from lmkcli.errors import CheckFailed, DataError, LmkError, Stopped
from lmkcli.reading import file_digest
from lmkcli.settings import Flag, TrustRemoteCode
from lmkcli.system import network

if TYPE_CHECKING:
    from lmkcli.provenance.lineage import Step
    from lmkcli.provenance.repro import Row

_SAME = {True: "yes", False: "NO", None: "-"}
# What a step is not asked again: where it wrote, which share of it, how it was shown.
_DROPPED = ("output", "if_exists", "shard", "json", "dry_run", "log")
# The verbs that make an artifact: a record may ask for no other.
_MAKERS = ("tokenize", "encode", "import", "index", "search", "train", "pretrain")
_KEPT_OF_EVAL = ("verb", "qrels", "drop_self", "offline")


@dataclass(frozen=True)
class ReproOptions:
    """What is allowed, and where what is made again goes."""

    output: Annotated[
        Path | None, Flag("Keep what is made again in this new folder.", short="-o")
    ] = None
    tolerance: Annotated[
        float, Flag("How far scores may differ, in runs and in measures.", min=0)
    ] = 1e-4
    trust_remote_code: TrustRemoteCode = False
    download: Annotated[bool, Flag("Allow downloading missing models and collections.")] = False


@with_flags
def repro(
    context: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="LOG#N|ARTIFACT",
            help="An entry of a score log, a run, or an artifact's folder.",
        ),
    ],
    settings: ReproOptions,
    json: Json = False,
) -> None:
    """Make the recorded steps again from their sources and compare each; exit 4 if one differs.

    The commands that made the artifact, and all before it, run again in a temporary folder. The first
    difference is named with its reason: other documents, another model, other library versions.
    """
    if not settings.download:
        network.forbid()
    from lmkcli.provenance.repro import first_difference

    led, entry = _recorded(what)
    for step in led:
        _check(step, settings.trust_remote_code)
    with _folder(settings.output) as folder:
        again = _Again(context.find_root().command, folder, settings.tolerance)
        for step in led:
            again.make(step)
        if entry is not None:
            again.score(entry)
    if json:
        console.plain_json([row._asdict() for row in again.rows])
    else:
        shown = [[row.what, row.recorded, row.now, _SAME[row.same]] for row in again.rows]
        tables.table(["step", "recorded", "now", "same"], shown, Format.table)
    _versions(led, entry)
    odd = first_difference(again.rows)
    if odd is not None:
        raise CheckFailed(f"{what} is not reproduced. First to differ: {odd.what}. {odd.why}")
    console.note(f"{what} is reproduced")


def _recorded(what: str) -> "tuple[list[Step], dict[str, Any] | None]":
    """The steps that led to it, sources first, and its entry if it is one of a log."""
    from lmkcli.provenance import lineage, scorelog

    path = Path(what)
    if path.is_dir() or Path(what + ".json").is_file():
        return lineage.steps(path), None
    if not Path(what.rpartition("#")[0] or what).is_file():
        raise DataError(f"{what}: no such artifact, run or log")
    if path.is_file() and not path.read_bytes().lstrip().startswith(b"{"):
        raise DataError(f"{what} has no manifest beside it ({what}.json): lmk did not make it")
    entry = scorelog.pick(what)
    if "lineage" not in entry:
        raise DataError(f"{what} was written before logs held what led to a run; evaluate it again")
    return scorelog.recorded(entry, what), entry


@contextlib.contextmanager
def _folder(output: Path | None) -> Iterator[Path]:
    if output is None:
        with tempfile.TemporaryDirectory(prefix="lmk-repro-") as name:
            yield Path(name)
        return
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise DataError(f"{output} is there already; choose a new folder")
    output.mkdir(parents=True, exist_ok=True)
    yield output.absolute()


class _Again:
    """Steps made again in a folder, and the rows of their comparison."""

    def __init__(self, lmk: Any, folder: Path, tolerance: float) -> None:
        self._lmk, self._folder, self._tolerance = lmk, folder, tolerance
        self._made: dict[str, str] = {}  # where a step was -> where it is made again
        self.rows: list[Row] = []

    def make(self, step: "Step") -> None:
        """Run a step's command on what was made again before it."""
        from lmkcli.provenance import lineage, repro

        name = f"{len(self._made) + 1}-{Path(step.path).name}"
        call = {key: value for key, value in step.call.items() if key not in _DROPPED}
        call |= {key: self._moved(step, call[key]) for key in lineage.INPUTS if key in call}
        path = self._folder / name
        with _from(step.facts.get("directory", ""), step.path):
            self._run({**call, "output": str(path)}, step.path)
        self._made[step.path] = str(path)
        rows = repro.compare(step, lineage.read(path), self._tolerance)
        self.rows += [row for row in rows if row not in self.rows]  # one collection, read by two

    def _moved(self, step: "Step", value: Any) -> Any:
        if isinstance(value, list):
            return [self._moved(step, item) for item in value]
        return self._made.get(step.resolved(value), value) if value else value

    def score(self, entry: dict[str, Any]) -> None:
        """Evaluate the run that was made again, as the entry was."""
        from lmkcli.provenance import repro, scorelog

        run, log = self._made.get(entry["run"], entry["run"]), self._folder / "scores.jsonl"
        call = {key: value for key, value in entry["call"].items() if key in _KEPT_OF_EVAL}
        call |= {"verb": "eval", "runs": [run], "measure": list(entry["scores"]), "log": str(log)}
        if not self._made:
            self.rows.append(_same_run(entry))
        with _from(entry["directory"], entry["run"]):
            self._run({**call, **_qrels(entry)}, "the scores")
        self.rows += repro.scores(entry, scorelog.read(log)[-1], self._tolerance)

    def _run(self, call: dict[str, Any], what: str) -> None:
        from lmkcli.cli import recording

        line = recording.words(self._lmk, call)
        console.note("$ lmk " + shlex.join(line))
        try:
            recording.run(self._lmk, line)
        except Stopped:
            raise
        except (LmkError, typer.BadParameter) as error:
            raise DataError(f"{what} cannot be made again: {error}") from error


def _qrels(entry: dict[str, Any]) -> dict[str, str]:
    return {"qrels": entry["qrels"]} if entry["qrels"] else {}


def _same_run(entry: dict[str, Any]) -> "Row":
    """A run that lmk did not make is a source itself."""
    from lmkcli.provenance.repro import Row

    path = Path(entry["run"])
    if not path.is_file():
        raise DataError(f"{path}, which lmk did not make, is not there any more")
    before, now = entry["run_sha256"], file_digest(path)
    same = before == now
    return Row(
        f"run {path.name}", before[:12], now[:12], same, "" if same else "the run has changed"
    )


def _check(step: "Step", trust: bool) -> None:
    """DataError for a step that cannot be made again, or that might do more than make it again."""
    from lmkcli.encoding.recorded import refuse_code

    if not step.call:
        raise DataError(
            f"{step.path} does not say which command of lmk made it (it was made from Python, or by an "
            "older lmk), so it cannot be made again"
        )
    if step.call.get("verb") not in _MAKERS:
        raise DataError(
            f"{step.path} says that 'lmk {step.call.get('verb')}' made it, which makes no artifact; its "
            "manifest was changed"
        )
    if step.call.get("uri"):
        raise DataError(
            f"{step.path} has its vectors in a Milvus ({step.call['uri']}), which is not filled again; "
            "search the vectors folder itself, and reproduce that run"
        )
    if step.call.get("trust_remote_code") and not trust:
        refuse_code(step.path, str(step.call.get("model", "")))
    examples = step.call.get("sources")
    read = [*examples] if isinstance(examples, list) else []
    if "-" in (step.call.get("source"), step.call.get("queries"), *read):
        raise DataError(f"{step.path} was made from stdin, which cannot be read again")


@contextlib.contextmanager
def _from(directory: str, what: str) -> Iterator[None]:
    """Inside the folder from which a command ran: its relative paths mean what they meant."""
    if not os.path.isdir(directory):
        raise DataError(f"{what} was made in {directory}, which is not there any more")
    with contextlib.chdir(directory):
        yield


def _versions(led: "list[Step]", entry: dict[str, Any] | None) -> None:
    """Say which libraries are others than those that made any step."""
    from lmkcli import manifest
    from lmkcli.provenance.repro import versions

    now = manifest.environment({})
    recorded = [step.facts for step in led] + ([entry] if entry else [])
    for line in dict.fromkeys(line for then in recorded for line in versions(then, now)):
        console.note(f"another version: {line}")
