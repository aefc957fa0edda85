"""Grid: run all combinations of settings from one file, show their states, and print a table of scores."""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from lmkcli import catalog
from lmkcli.errors import CheckFailed, LmkError, Stopped, UsageError
from lmkcli.operations.eval import CORRECTION, Correction
from lmkcli.plugins.grid import estimates
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import PROGRAMS, Cell, Format, Result, Table, columns_of
from lmkcli.spec.settings import Flag, Offline, Settings
from lmkcli.text.formatting import counted, shell_line, size

if TYPE_CHECKING:
    from lmkcli.plugins.grid.estimates import Estimates
    from lmkcli.plugins.grid.execution import Outcome, ResultsFolder
    from lmkcli.plugins.grid.gridfile import GridFile
    from lmkcli.plugins.grid.plan import Plan
    from lmkcli.plugins.grid.scores import GridTable, ScoredCell

_PROGRAM = (sys.executable, "-P", "-m", "lmkcli.cli.main")
_COSTS = ("ms per document", "peak memory", "stored")
_MODEL = "transformers.modeling_layers"  # what models of all architectures import
# Modules that commands import. Importing them takes most of the time of a short command.
_PRELOADED = {
    "tokenize": ["lmkcli.encoding.shard_run"],
    "encode": ["lmkcli.encoding.shard_run", "lmkcli.models.transformer", _MODEL],
    "search": ["lmkcli.retrieval.pipeline", "lmkcli.retrieval.vectors.vector_index", _MODEL],
    "eval": ["lmkcli.evaluation.scoring", "lmkcli.evaluation.compare"],
}


@dataclass(frozen=True, repr=False)
class GridPlan(Result):
    """The cells and steps of a grid, the missing steps, and estimates of disk and time."""

    plan: "Plan"
    results: "ResultsFolder"
    form: Format = Format.table
    estimates: "Estimates | None" = None
    remarks: tuple[str, ...] = ()

    @cached_property
    def _done(self) -> set[str]:
        """The keys of the finished steps."""
        return {key for key, step in self.plan.steps.items() if self.results.is_done(step)}

    @cached_property
    def _missing(self) -> dict[str, Any]:
        return self.results.missing(self.plan)

    def as_json(self) -> Any:
        """Cells with the keys of their steps, and all steps with their commands."""
        missing, uses = self._missing, self.plan.uses()
        steps = [
            {
                "key": key,
                "command": step.operation.command_line(),
                "cells": uses[key],
                "to run": key in missing,
                **estimates.as_json((self.estimates or {}).get(key)),
            }
            for key, step in self.plan.steps.items()
        ]
        cells = [
            {"cell": cell.name, "steps": self.plan.chains[cell.name]} for cell in self.plan.cells
        ]
        return {"cells": cells, "steps": steps}

    def as_columns(self) -> Mapping[str, Any]:
        """Return one row per cell, with its state."""
        return {
            "cell": [cell.name for cell in self.plan.cells],
            "state": [self._state(cell.name) for cell in self.plan.cells],
        }

    def blocks(self) -> Iterator[Table | str]:
        """Yield one row per cell, then one row per command."""
        rows = [[cell.name, self._state(cell.name)] for cell in self.plan.cells]
        yield Table(["cell", "state"], rows)
        yield ""
        heads = ["step", "in cells", "steps", "shared", "to run"]
        commands = self._commands()
        if self.estimates is not None:
            heads += ["disk", "time"]
            for row in commands:
                row += estimates.summed(self.estimates) if row[0] == "encode" else ("-", "-")
        yield Table(heads, commands)

    def notes(self) -> Iterator[str]:
        """Missing estimates, and the command that finishes the grid."""
        yield from estimates.unknown(self.estimates or {})
        yield from self.remarks

    def _commands(self) -> list[list[Any]]:
        """Return one row per command: how many cells use it, and how many steps it has,
        shared and missing.
        """
        missing, uses = self._missing, self.plan.uses()
        rows: list[list[Any]] = []
        for verb in dict.fromkeys(step.verb for step in self.plan.steps.values()):
            keys = [key for key, step in self.plan.steps.items() if step.verb == verb]
            shared = sum(uses[key] > 1 for key in keys)
            in_cells = sum(uses[key] for key in keys)
            rows.append([verb, in_cells, len(keys), shared, sum(key in missing for key in keys)])
        return rows

    def _state(self, name: str) -> str:
        chain = self.plan.chains[name]
        if chain[-1] in self._done:
            return "done"
        left = [key for key in chain if key not in self._done]
        error = next(filter(None, map(self.results.error, left)), "")
        return f"{len(left)} of {len(chain)} steps to run" + (
            f"; last error: {error}" if error else ""
        )


@dataclass(frozen=True, repr=False)
class Lineage(Result):
    """The lineage of one cell: settings, commands, durations and scores."""

    facts: dict[str, Any]

    def as_json(self) -> Any:
        """Return the facts."""
        return self.facts

    def as_columns(self) -> Mapping[str, Any]:
        """Return one row per step."""
        return columns_of([{"step": each["key"], **each} for each in self.facts["steps"]])

    def blocks(self) -> Iterator[Table | str]:
        """Yield one row per step, then the scores."""
        rows = [
            [each["key"], "yes" if each["done"] else "no", each["seconds"], each["command"]]
            for each in self.facts["steps"]
        ]
        yield Table(["step", "done", "seconds", "command"], rows, self.facts["cell"])
        yield from (f"{measure} {score:.4f}" for measure, score in self.facts["scores"].items())


@dataclass(frozen=True)
class Submitted(Result):
    """The SLURM jobs of a grid."""

    jobs: Mapping[str, str] = field(default_factory=dict)  # verb -> job id
    steps: Mapping[str, int] = field(default_factory=dict)  # verb -> number of steps
    queued: tuple[str, ...] = ()  # tasks of an earlier submission; if any, nothing was submitted

    def blocks(self) -> Iterator[Table | str]:
        """Yield a line for each job."""
        if self.queued:
            few = " ".join(self.queued[:10])
            yield f"{len(self.queued)} tasks of this grid are in the queue: {few}"
        else:
            yield from (
                f"{verb}: job {job}, {self.steps[verb]} steps" for verb, job in self.jobs.items()
            )


@dataclass(frozen=True, repr=False)
class GridScores(Result):
    """The scores of the finished cells of a grid, and the errors of failed cells."""

    plan: "Plan"
    scored: "list[ScoredCell]"
    compared: "GridTable | None"
    correction: str
    report: Path | None = None  # the HTML page
    form: Format = Format.table
    failure: LmkError | None = None

    def as_json(self) -> Any:
        """Return one row per cell and measure."""
        return self._long().as_json()

    def blocks(self) -> Iterator[Table | str]:
        """Yield the table of scores and the legend of its marks."""
        if self.compared is None:
            return
        if self.form in PROGRAMS:
            yield self._long()
            return
        yield _wide(self.compared)
        yield from _legends(self.compared, self.correction)
        if self.compared.costs and self.form == Format.table:
            heads = [*self.compared.heads, *_COSTS]
            rows = [
                [*each.system, each.cost.milliseconds, *map(size, each.cost[1:])]
                for each in self.compared.costs
            ]
            yield Table(heads, rows)
            yield "The cost of encoding: means over the collections, and the peak memory of process or GPU."

    def notes(self) -> Iterator[str]:
        """Yield the path of the report, and the number of unfinished cells."""
        if self.report is not None:
            yield f"{self.report} contains the tables, their plots and all commands"
        if self.scored and len(self.scored) < len(self.plan.cells):
            left = len(self.plan.cells) - len(self.scored)
            yield f"unfinished cells: {left} of {len(self.plan.cells)}"

    def _long(self) -> Table:
        """Return one row per cell and measure: its axes, and the cost of its encodings,
        with sizes in bytes.
        """
        from lmkcli.plugins.grid.gridfile import MEASURES, varying
        from lmkcli.plugins.grid.scores import mean_cost

        cells = [each.cell for each in self.scored]
        axes = [axis for axis in varying([cell.values for cell in cells]) if axis != MEASURES]
        heads = _COSTS if any(each.costs for each in self.scored) else ()
        rows = [
            [
                each.cell.name,
                *(each.cell.shown(axis) for axis in axes),
                name,
                each.result.value(name),
                *(mean_cost(each.costs) if each.costs else [None] * len(heads)),
            ]
            for each in self.scored
            for name in each.result.measures
        ]
        return Table(["cell", *axes, "measure", "score", *heads], rows)


def _legends(compared: "GridTable", correction: str) -> Iterator[str]:
    """Yield the meaning of the marks."""
    from lmkcli.operations import score_tables
    from lmkcli.plugins.grid.scores import WINS

    if compared.compared:
        marks = "".join(entry.mark for row in compared.rows for entry in row.entries)
        mark = WINS * (WINS in marks)
        yield score_tables.winners_legend(mark, compared.compared, correction)
    if compared.tests:
        yield score_tables.legend(compared.tests, {}, correction)


def _wide(compared: "GridTable") -> Table:
    one = len({row.measure for row in compared.rows}) == 1
    heads = [*compared.heads, *([] if one else ["measure"])]
    rows: list[list[Any]] = [
        [
            *row.system,
            *([] if one else [row.measure]),
            *(Cell(each.value, each.best, each.mark) for each in row.entries),
        ]
        for row in compared.rows
    ]
    if one:
        heads[-1] += f" ({compared.rows[0].measure})"
    return Table([*heads, *compared.columns], rows)


@dataclass(frozen=True, kw_only=True)
class RunOptions(Settings):
    """The cells to run, the folder of the results, and the number of parallel commands."""

    output: Annotated[
        Path | None,
        Flag(
            "Folder for the results.",
            short="-o",
            often=True,
            role="output",
            suggest_for="--output-dir --output-file --output-path --save-to",
        ),
    ] = None
    only: Annotated[
        list[str] | None,
        Flag(
            "Run only the cells of this name, with '*' as a wildcard; repeatable.",
            suggest_for="--cell --filter",
        ),
    ] = None
    jobs: Annotated[
        int,
        Flag(
            "Number of commands to run at the same time.",
            short="-j",
            min=1,
            role="speed",
            suggest_for="--workers --parallel --processes",
        ),
    ] = 1
    dry_run: Annotated[
        bool,
        Flag(
            "Print the cells, their shared steps, disk and time; run and write nothing.",
            role="mode",
        ),
    ] = False
    slurm: Annotated[
        bool,
        Flag(
            "Submit the missing steps to SLURM, as job arrays with dependencies; see [slurm].",
            role="mode",
            suggest_for="--submit --sbatch",
        ),
    ] = False
    offline: Offline = False


@dataclass(frozen=True, kw_only=True)
class LayoutOptions(Settings):
    """The table to print, and its format. The file's [table] contains defaults."""

    rows: Annotated[
        str,
        Flag(
            "Axes that form the rows, such as pool,gran. Default: all varying axes that are not "
            "columns.",
            role="layout",
        ),
    ] = ""
    columns: Annotated[
        str,
        Flag("Axes that form the columns, or 'benchmark'.", shown="collection", role="layout"),
    ] = ""
    baseline: Annotated[
        list[str] | None,
        Flag(
            "The row to compare all other rows with, such as pool=cls; repeatable.",
            metavar="AXIS=VALUE",
            role="layout",
        ),
    ] = None
    correction: Annotated[
        Correction, Flag("Correction of the p-values for multiple tests.", role="layout")
    ] = CORRECTION
    form: Annotated[
        Format,
        Flag(
            "Format of the table.",
            short="-f",
            long="--format",
            role="mode",
            suggest_for="--markdown --latex --csv",
        ),
    ] = Format.table

    def laid_out(self, grid: "GridFile") -> "GridFile":
        """Return the grid with the table that these options select."""
        from lmkcli.plugins.grid.gridfile import TableChoice, check_axes

        table = TableChoice(
            tuple(self.rows.split(",")) if self.rows else grid.table.rows,
            tuple(self.columns.split(",")) if self.columns else grid.table.columns,
            dict(map(_condition, self.baseline)) if self.baseline else grid.table.baseline,
            {} if self.columns else grid.table.means,  # the means of the file are over its columns
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
    """Run all combinations of the settings in a file, each shared step once, and print a table of the scores.

    Axes are the flags of encode, index, search, eval and train. Stop it at any time; the same command
    continues. A failed cell does not stop the others; the final error lists the failed cells (exit code 4).
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
        from lmkcli.plugins.grid import gridfile, plan
        from lmkcli.plugins.grid.execution import ResultsFolder, check_folder
        from lmkcli.plugins.grid.scores import TableLayout

        if self.output is None:
            raise UsageError("-o/--output is missing; for instance -o results/")
        folder = self.output
        grid = self.laid_out(gridfile.read(self.file))
        if self.offline:
            grid.axes["offline"] = [("true",)]
        results = ResultsFolder(folder)

        def check(step: Any, before: Any) -> None:
            if not results.is_done(step):
                plan.check_step(step, before)

        whole = replace(plan.plan(grid, folder, check), file=str(self.file))
        _note_refused(whole, report)
        for note in plan.unfit_poolers(whole):
            report.note(note)
        # check the layout of the table before anything runs
        TableLayout.of(whole.cells, whole.table)
        part = whole.only(self.only) if self.only else whole
        if self.dry_run:
            expected = estimates.estimates(part, results, report)
            return GridPlan(part, results, self.form, expected)
        check_folder(folder)
        whole.write(folder)
        if self.slurm and results.missing(part):
            return _submit(part, results, grid.slurm)
        outcome = _run(part, results, self.jobs, report)
        scored = scores(whole, results, self.correction, self.form, report)
        return replace(scored, failure=_failure(part, outcome))


def _note_refused(plan: "Plan", report: Report) -> None:
    """Print the skipped cells, one note per reason."""
    reasons: dict[str, list[str]] = {}
    for each in plan.refused:
        reasons.setdefault(each.why, []).append(each.cell)
    for why, names in reasons.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        report.note(f"skipped: {names[0]}{more}: {why}")


def _submit(plan: "Plan", results: "ResultsFolder", table: dict[str, dict[str, str]]) -> Submitted:
    """Submit the missing steps to SLURM, unless an earlier submission is still in the queue."""
    from lmkcli.plugins.grid import execution

    if queued := execution.queued_tasks(results.folder):
        return Submitted(queued=tuple(queued))
    missing = results.missing(plan)
    jobs = execution.submit(
        execution.write_scripts(missing, results, table, _PROGRAM), results.folder
    )
    counts = {verb: sum(step.verb == verb for step in missing.values()) for verb in jobs}
    return Submitted(jobs, counts)


def _run(plan: "Plan", results: "ResultsFolder", jobs: int, report: Report) -> "Outcome":
    from lmkcli.plugins.grid import execution

    missing = results.missing(plan)
    if not missing:
        return execution.Outcome()
    done = len(plan.steps) - len(missing)
    report.note(f"{len(plan.cells)} cells, {len(missing)} steps to run ({done} are finished)")
    # As in lmk encode. torch reads this variable when it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if jobs > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    preload = ["lmkcli.cli.adapter"]
    for verb in dict.fromkeys(step.verb for step in missing.values()):
        preload += [catalog.VERBS[verb].target.partition(":")[0], *_PRELOADED.get(verb, ())]
    launcher = execution.Launcher(_execute, [__name__, *preload], jobs)
    with report.job("grid") as job:
        return execution.run(plan, results, launcher, job)


def _execute(operation: Operation[Any]) -> None:
    """Run an operation as the program `lmk` would, in a separate process."""
    import_module("lmkcli.cli.adapter").run_alone(operation)


def _failure(plan: "Plan", outcome: "Outcome") -> LmkError | None:
    """CheckFailed with the failed cells, or Stopped if steps were stopped and none failed."""
    lines = [
        f"{cell.name}: lmk {plan.steps[key].verb} ({key}): {outcome.failed[key]}"
        for cell in plan.cells
        for key in plan.chains[cell.name]
        if key in outcome.failed
    ]
    if lines:
        whole = f"{len(lines)} of {len(plan.cells)} cells failed; run the same command to try them again"
        return CheckFailed("\n  ".join([whole, *lines]))
    if outcome.stopped:
        return Stopped(
            f"{counted(len(outcome.stopped), 'step')} stopped; run the same command again"
        )
    return None


def described(results: Path, cell: str | None) -> Result:
    """Return the state of the results of a grid, or the steps of one cell, for `lmk show`."""
    return state(results) if cell is None else lineage(results, cell)


def state(folder: Path) -> GridPlan:
    """Return the states of the cells in a folder of results, and the command that finishes them."""
    from lmkcli.plugins.grid import plan
    from lmkcli.plugins.grid.execution import ResultsFolder

    stored, results = plan.read(folder), ResultsFolder(folder)
    remarks = []
    if results.missing(stored):
        remarks.append(f"finish with: {shell_line('lmk', 'grid', stored.file, '-o', str(folder))}")
    unused = {path.name for path in results.of("").glob("*")} - stored.steps.keys()
    if unused:
        remarks.append(
            f"{counted(len(unused), 'step')} in {results.of('')} without a cell in this plan"
        )
    return GridPlan(stored, results, remarks=tuple(remarks))


def lineage(folder: Path, name: str) -> Lineage:
    """Return the lineage of one cell."""
    from lmkcli.plugins.grid import plan, scores
    from lmkcli.plugins.grid.execution import ResultsFolder

    stored, results = plan.read(folder).only([name]), ResultsFolder(folder)
    cell = stored.cells[0]
    steps = [stored.steps[key] for key in stored.chains[cell.name]]
    measured = scores.scored(stored, results)
    return Lineage(
        {
            "cell": cell.name,
            "axes": {axis: " ".join(value) for axis, value in cell.values.items() if value},
            "steps": [
                {
                    "key": step.key,
                    "done": results.is_done(step),
                    "seconds": results.seconds(step.key),
                    "command": step.operation.command_line(),
                }
                for step in steps
            ],
            "scores": measured[0].entry["scores"] if measured else {},
        }
    )


def scores(
    plan: "Plan", results: "ResultsFolder", correction: str, form: Format, report: Report
) -> GridScores:
    """Return the scores of the finished cells. This also writes them to the log of the results."""
    from lmkcli.plugins.grid import html_report
    from lmkcli.plugins.grid import scores as measured
    from lmkcli.plugins.grid.scores import TableLayout, table

    scored = measured.scored(plan, results)
    if not scored:
        return GridScores(plan, [], None, correction, form=form)
    measured.write_log(scored, results.folder)
    with report.step("comparing") as job:
        layout = TableLayout.of(plan.cells, plan.table)
        compared = table(scored, layout, correction, job.progress)
    costs = measured.encoding_costs(scored, layout)
    compared = compared._replace(costs=costs)
    legends = list(_legends(compared, correction))
    path = html_report.write(results, plan, scored, compared, legends)
    return GridScores(plan, scored, compared, correction, path, form)
