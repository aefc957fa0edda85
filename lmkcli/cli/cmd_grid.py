"""lmk grid: many encode | search | eval chains from one file, and their table."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmkcli import catalog
from lmkcli.cli import console, recording
from lmkcli.cli.flags import with_flags
from lmkcli.cli.options import Json, Output, need
from lmkcli.cli.tables import form_of
from lmkcli.errors import CheckFailed, Stopped, UsageError
from lmkcli.operations.eval import CORRECTION, Correction
from lmkcli.settings import Flag, Offline
from lmkcli.spec.result import Format

if TYPE_CHECKING:
    from lmkcli.experiments.gridfile import GridFile
    from lmkcli.experiments.plan import Plan
    from lmkcli.experiments.running import Outcome, Results
    from lmkcli.experiments.steps import Step


@dataclass(frozen=True)
class RunOptions:
    """Which cells are run, where, and how many commands at a time."""

    output: Output = None
    only: Annotated[
        list[str] | None,
        Flag("Run the cells of this name alone, in which '*' stands for anything; repeat it."),
    ] = None
    jobs: Annotated[int, Flag("Commands that run at a time.", short="-j", min=1)] = 1
    dry_run: Annotated[
        bool, Flag("Print cells, the steps that they share, disk and time; run and write nothing.")
    ] = False
    slurm: Annotated[
        bool, Flag("Submit what is missing to SLURM, as arrays with dependencies; see [slurm].")
    ] = False
    offline: Offline = False


@dataclass(frozen=True)
class LayoutOptions:
    """Which table is printed, and how; what is not said here is as the file's [table] says."""

    rows: Annotated[
        str, Flag("Axes that make rows, such as pool,gran; else all that vary and are no columns.")
    ] = ""
    columns: Annotated[str, Flag("Axes that make columns, or 'benchmark'.", shown="collection")] = (
        ""
    )
    baseline: Annotated[
        list[str] | None,
        Flag(
            "The row that others are tested against, such as pool=cls; repeat it.",
            metavar="AXIS=VALUE",
        ),
    ] = None
    correction: Annotated[Correction, Flag("Correction of the p-values for multiple tests.")] = (
        CORRECTION
    )
    form: Annotated[Format, Flag("How the table is printed.", short="-f", long="--format")] = (
        Format.table
    )
    json: Json = False

    def __post_init__(self) -> None:
        form_of(self.form, self.json)

    @property
    def format(self) -> Format:
        """How the table is printed; --json is short for one of them."""
        return form_of(self.form, self.json)

    def of(self, grid: "GridFile") -> "GridFile":
        """The grid with the table that is asked for here."""
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


@with_flags
def grid(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A TOML file with a table [grid] of axes.")
    ],
    options: RunOptions,
    layout: LayoutOptions,
) -> None:
    """Run every combination of a file's settings, each shared step once, and print their table.

    Axes are the flags of encode, index, search, eval and train. Stop it at any moment, and the same
    command continues. A cell that fails does not stop the others; it is named at the end (exit 4).
    """
    from lmkcli.cli import checking, gridforecast, gridtables
    from lmkcli.experiments import claiming, gridfile, plan, table
    from lmkcli.experiments.running import Results
    from lmkcli.experiments.steps import OUTPUTS

    folder = need(options.output, "-o/--output", "results/")
    lmk = context.find_root().command
    flags = checking.spellings(lmk, list(OUTPUTS))
    asked = layout.of(gridfile.read(file, flags))
    if options.offline:
        asked.axes["offline"] = [("true",)]
    results = Results(folder)

    def check(step: "Step") -> None:
        if not results.is_done(step):
            checking.check(lmk, step)

    whole = replace(plan.plan(asked, flags, folder, check), file=str(file))
    gridtables.refused(whole)
    # what makes no table is refused before anything runs
    table.TableLayout.of(whole.cells, whole.table)
    part = whole.only(options.only) if options.only else whole
    if options.dry_run:
        expected = gridforecast.estimates(lmk, part, results)
        return gridtables.planned(part, results, layout.format, expected)
    claiming.check(folder)
    whole.write(folder)
    if options.slurm and results.missing(part):
        return _submit(part, results, asked.slurm)
    outcome = _run(part, results, options.jobs)
    gridtables.scores(whole, results, layout.correction, layout.format)
    _end(part, outcome)


def _submit(plan: "Plan", results: "Results", table: dict[str, dict[str, str]]) -> None:
    """Hand what is missing to SLURM, unless what was handed over before is still in its queue."""
    from lmkcli.experiments import slurm

    if queued := slurm.queued(results.folder):
        return console.say(
            f"{len(queued)} tasks of this grid are in the queue: {' '.join(queued[:10])}"
        )
    missing = results.missing(plan)
    scripts = slurm.write(missing, results, table, _PROGRAM)
    for verb, job in slurm.submit(scripts, results.folder).items():
        count = sum(step.verb == verb for step in missing.values())
        console.say(f"{verb}: job {job}, {count} steps")


_PROGRAM = (sys.executable, "-m", "lmkcli.cli.main")


def _run(plan: "Plan", results: "Results", jobs: int) -> "Outcome":
    from lmkcli.experiments import running

    missing = results.missing(plan)
    if not missing:
        return running.Outcome()
    done = len(plan.steps) - len(missing)
    console.note(f"{len(plan.cells)} cells, {len(missing)} steps to run ({done} need not)")
    # As in lmk encode; torch reads it when it is imported
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if jobs > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    preload = ["lmkcli.cli.main"]
    for verb in dict.fromkeys(step.verb for step in missing.values()):
        preload += [catalog.OPERATIONS[verb].home.partition(":")[0], *_PRELOADED.get(verb, ())]
    launcher = running.Launcher(_command, [__name__, *preload], jobs)
    with console.reporting("grid", recording.call()) as report:
        return running.run(plan, results, launcher, report)


# What a command imports, by far the most of the time that a short one takes.
_PRELOADED = {
    "tokenize": ["lmkcli.encoding.jobs"],
    "encode": ["lmkcli.encoding.jobs", "lmkcli.models.transformer"],
    "search": ["lmkcli.retrieval.pipeline", "lmkcli.models.transformer"],
    "eval": ["lmkcli.evaluation.scoring"],
}


def _command(words: Sequence[str]) -> None:
    """Run a command line as if it were this process's; variables for its flags do not count."""
    from lmkcli.cli.main import main

    sys.argv = ["lmk", *words]
    with recording.no_variables(words[0]):
        main()


def _end(plan: "Plan", outcome: "Outcome") -> None:
    """CheckFailed with the cells that failed, Stopped where a command of theirs was stopped alone."""
    lines = [
        f"{cell.name}: lmk {plan.steps[key].verb} ({key}): {outcome.failed[key]}"
        for cell in plan.cells
        for key in plan.chains[cell.name]
        if key in outcome.failed
    ]
    if lines:
        whole = f"{len(lines)} of {len(plan.cells)} cells failed; the same command tries them again"
        raise CheckFailed("\n  ".join([whole, *lines]))
    if outcome.stopped:
        raise Stopped(f"{len(outcome.stopped)} steps were stopped; run the same command again")
