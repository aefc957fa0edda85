"""Grid: many encode, index, search and eval chains from one file, and their table."""

import os
import sys
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from lmkcli import catalog
from lmkcli.errors import CheckFailed, LmkError, Stopped, UsageError
from lmkcli.operations.eval import CORRECTION, Correction
from lmkcli.progress import Report
from lmkcli.settings import Flag, Offline, Settings
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Format, Result

if TYPE_CHECKING:
    from lmkcli.experiments.gridfile import GridFile
    from lmkcli.experiments.plan import Plan
    from lmkcli.experiments.running import Outcome, Results
    from lmkcli.operations.gridresults import Submitted

_PROGRAM = (sys.executable, "-m", "lmkcli.cli.main")
# Modules that a command imports, which takes most of the time of a short one.
_PRELOADED = {
    "tokenize": ["lmkcli.encoding.jobs"],
    "encode": ["lmkcli.encoding.jobs", "lmkcli.models.transformer"],
    "search": ["lmkcli.retrieval.pipeline", "lmkcli.models.transformer"],
    "eval": ["lmkcli.evaluation.scoring"],
}


@dataclass(frozen=True, kw_only=True)
class RunOptions(Settings):
    """Which cells are run, where, and how many steps at a time."""

    output: Annotated[
        Path | None, Flag("Where the result goes.", short="-o", often=True, role="output")
    ] = None
    only: Annotated[
        list[str] | None,
        Flag("Run the cells of this name alone, in which '*' stands for anything; repeat it."),
    ] = None
    jobs: Annotated[int, Flag("Commands that run at a time.", short="-j", min=1, role="speed")] = 1
    dry_run: Annotated[
        bool,
        Flag(
            "Print cells, the steps that they share, disk and time; run and write nothing.",
            role="mode",
        ),
    ] = False
    slurm: Annotated[
        bool,
        Flag(
            "Submit what is missing to SLURM, as arrays with dependencies; see [slurm].",
            role="mode",
        ),
    ] = False
    offline: Offline = False


@dataclass(frozen=True, kw_only=True)
class LayoutOptions(Settings):
    """Which table is printed, and how; defaults are in the file's [table]."""

    rows: Annotated[
        str,
        Flag(
            "Axes that make rows, such as pool,gran; else all that vary and are no columns.",
            role="layout",
        ),
    ] = ""
    columns: Annotated[
        str,
        Flag("Axes that make columns, or 'benchmark'.", shown="collection", role="layout"),
    ] = ""
    baseline: Annotated[
        list[str] | None,
        Flag(
            "The row that others are tested against, such as pool=cls; repeat it.",
            metavar="AXIS=VALUE",
            role="layout",
        ),
    ] = None
    correction: Annotated[
        Correction, Flag("Correction of the p-values for multiple tests.", role="layout")
    ] = CORRECTION
    form: Annotated[
        Format, Flag("How the table is printed.", short="-f", long="--format", role="mode")
    ] = Format.table

    def laid_out(self, grid: "GridFile") -> "GridFile":
        """The grid with the table that these options choose."""
        from lmkcli.experiments.gridfile import TableChoice, check_axes

        table = TableChoice(
            tuple(self.rows.split(",")) if self.rows else grid.table.rows,
            tuple(self.columns.split(",")) if self.columns else grid.table.columns,
            dict(map(_condition, self.baseline)) if self.baseline else grid.table.baseline,
        )
        check_axes(table, grid.axes)
        return replace(grid, table=table)


def _condition(text: str) -> tuple[str, str]:
    axis, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--baseline {text}: write AXIS=VALUE, such as pool=cls")
    return axis, value


@dataclass(frozen=True)
class Grid(Operation[Result], LayoutOptions, RunOptions):
    """Run every combination of a file's settings, each shared step once, and print their table.

    Axes are the flags of encode, index, search, eval and train. Stop it at any moment, and the same
    command continues. A cell that fails does not stop the others; it is named at the end (exit 4).
    """

    verb: ClassVar[str] = "grid"

    file: Annotated[
        Path,
        Flag(
            "A TOML file with a table [grid] of axes.", argument=True, metavar="FILE", role="file"
        ),
    ] = field()

    def execute(self, report: Report) -> Result:
        """Plan the grid, then estimate it, submit it, or run it and compare the scores."""
        from lmkcli.experiments import checks, claiming, forecasts, gridfile, plan, table
        from lmkcli.experiments.running import Results
        from lmkcli.operations import gridresults

        if self.output is None:
            raise UsageError("-o/--output is missing, for instance -o results/")
        folder = self.output
        asked = self.laid_out(gridfile.read(self.file))
        if self.offline:
            asked.axes["offline"] = [("true",)]
        results = Results(folder)

        def check(step: Any) -> None:
            if not results.is_done(step):
                checks.check(step)

        whole = replace(plan.plan(asked, folder, check), file=str(self.file))
        _note_refused(whole, report)
        # refuse a table that cannot be made before anything runs
        table.TableLayout.of(whole.cells, whole.table)
        part = whole.only(self.only) if self.only else whole
        if self.dry_run:
            expected = forecasts.estimates(part, results, report)
            return gridresults.GridPlan(part, results, self.form, expected)
        claiming.check(folder)
        whole.write(folder)
        if self.slurm and results.missing(part):
            return _submit(part, results, asked.slurm)
        outcome = _run(part, results, self.jobs, report)
        made = gridresults.scores(whole, results, self.correction, self.form, report)
        return replace(made, failure=_failure(part, outcome))


def _note_refused(plan: "Plan", report: Report) -> None:
    """The cells that are left out, a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for each in plan.refused:
        reasons.setdefault(each.why, []).append(each.cell)
    for why, names in reasons.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        report.note(f"left out: {names[0]}{more}: {why}")


def _submit(plan: "Plan", results: "Results", table: dict[str, dict[str, str]]) -> "Submitted":
    """Submit the missing steps to SLURM, unless an earlier submission is still in its queue."""
    from lmkcli.experiments import slurm
    from lmkcli.operations.gridresults import Submitted

    if queued := slurm.queued(results.folder):
        return Submitted(queued=tuple(queued))
    missing = results.missing(plan)
    jobs = slurm.submit(slurm.write(missing, results, table, _PROGRAM), results.folder)
    counts = {verb: sum(step.verb == verb for step in missing.values()) for verb in jobs}
    return Submitted(jobs, counts)


def _run(plan: "Plan", results: "Results", jobs: int, report: Report) -> "Outcome":
    from lmkcli.experiments import running

    missing = results.missing(plan)
    if not missing:
        return running.Outcome()
    done = len(plan.steps) - len(missing)
    report.note(f"{len(plan.cells)} cells, {len(missing)} steps to run ({done} need not)")
    # As in lmk encode; torch reads it when it is imported
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if jobs > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    preload = ["lmkcli.cli.adapter"]
    for verb in dict.fromkeys(step.verb for step in missing.values()):
        preload += [catalog.OPERATIONS[verb].home.partition(":")[0], *_PRELOADED.get(verb, ())]
    launcher = running.Launcher(_execute, [__name__, *preload], jobs)
    with report.job("grid") as job:
        return running.run(plan, results, launcher, job)


def _execute(operation: Operation[Any]) -> None:
    """Run an operation as the program `lmk` would, in a process of its own."""
    import_module("lmkcli.cli.adapter").run_alone(operation)


def _failure(plan: "Plan", outcome: "Outcome") -> LmkError | None:
    """CheckFailed with the cells that failed; Stopped if a step was stopped and none failed."""
    lines = [
        f"{cell.name}: lmk {plan.steps[key].verb} ({key}): {outcome.failed[key]}"
        for cell in plan.cells
        for key in plan.chains[cell.name]
        if key in outcome.failed
    ]
    if lines:
        whole = f"{len(lines)} of {len(plan.cells)} cells failed; the same command tries them again"
        return CheckFailed("\n  ".join([whole, *lines]))
    if outcome.stopped:
        return Stopped(f"{len(outcome.stopped)} steps were stopped; run the same command again")
    return None
