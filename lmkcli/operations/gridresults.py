"""Results of grids: plans, states, lineages of cells, and tables of scores."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmkcli.experiments import forecasts
from lmkcli.progress import Report
from lmkcli.spec.result import PROGRAMS, Cell, Format, Result, Table

if TYPE_CHECKING:
    from lmkcli.errors import LmkError
    from lmkcli.experiments.forecasts import Estimates
    from lmkcli.experiments.plan import Plan
    from lmkcli.experiments.running import Results
    from lmkcli.experiments.scores import Scored
    from lmkcli.experiments.table import Table as Compared


@dataclass(frozen=True)
class GridPlan(Result):
    """The cells and steps of a grid, which of them are to run, and what that takes."""

    plan: "Plan"
    results: "Results"
    form: Format = Format.table
    estimates: "Estimates | None" = None
    remarks: tuple[str, ...] = ()

    def as_json(self) -> Any:
        """Cells with the keys of their steps, and every step with its command."""
        missing, uses = self.results.missing(self.plan), self.plan.uses()
        steps = [
            {
                "key": key,
                "command": step.operation.command_line(),
                "cells": uses[key],
                "to run": key in missing,
                **forecasts.as_json((self.estimates or {}).get(key)),
            }
            for key, step in self.plan.steps.items()
        ]
        cells = [
            {"cell": cell.name, "steps": self.plan.chains[cell.name]} for cell in self.plan.cells
        ]
        return {"cells": cells, "steps": steps}

    def blocks(self) -> Iterator[Table | str]:
        """A row per cell, then a row per command."""
        rows = [[cell.name, self._state(cell.name)] for cell in self.plan.cells]
        yield Table(["cell", "state"], rows)
        yield ""
        heads = ["step", "in cells", "steps", "shared", "to run"]
        counted = self._counted()
        if self.estimates is not None:
            heads += ["disk", "time"]
            for row in counted:
                row += forecasts.summed(self.estimates) if row[0] == "encode" else ("-", "-")
        yield Table(heads, counted)

    def notes(self) -> Iterator[str]:
        """Estimates that are missing, and how to go on."""
        yield from forecasts.unknown(self.estimates or {})
        yield from self.remarks

    def _counted(self) -> list[list[Any]]:
        """A row per command: its uses, its steps, and how many of them are shared and missing."""
        missing, uses = self.results.missing(self.plan), self.plan.uses()
        counted = []
        for verb in dict.fromkeys(step.verb for step in self.plan.steps.values()):
            keys = [key for key, step in self.plan.steps.items() if step.verb == verb]
            shared = sum(uses[key] > 1 for key in keys)
            asked = sum(uses[key] for key in keys)
            counted.append([verb, asked, len(keys), shared, sum(key in missing for key in keys)])
        return counted

    def _state(self, name: str) -> str:
        chain, steps = self.plan.chains[name], self.plan.steps
        if self.results.is_done(steps[chain[-1]]):
            return "done"
        left = [key for key in chain if not self.results.is_done(steps[key])]
        error = next(filter(None, map(self.results.error, left)), "")
        return f"{len(left)} of {len(chain)} steps to run" + (
            f"; last error: {error}" if error else ""
        )


@dataclass(frozen=True)
class Lineage(Result):
    """How the scores of one cell were made: settings, commands, durations."""

    facts: dict[str, Any]

    def as_json(self) -> Any:
        """The facts."""
        return self.facts

    def blocks(self) -> Iterator[Table | str]:
        """A row per step, then the scores."""
        rows = [
            [each["key"], "yes" if each["done"] else "no", each["seconds"], each["command"]]
            for each in self.facts["steps"]
        ]
        yield Table(["step", "done", "seconds", "command"], rows, self.facts["cell"])
        yield from (f"{measure} {score:.4f}" for measure, score in self.facts["scores"].items())


@dataclass(frozen=True)
class Submitted(Result):
    """The jobs that SLURM runs for a grid."""

    jobs: Mapping[str, str] = field(default_factory=dict)  # command -> job id
    steps: Mapping[str, int] = field(default_factory=dict)  # command -> number of steps
    queued: tuple[str, ...] = ()  # tasks of an earlier submission; then nothing was submitted

    def __str__(self) -> str:
        if self.queued:
            few = " ".join(self.queued[:10])
            return f"{len(self.queued)} tasks of this grid are in the queue: {few}"
        return "\n".join(
            f"{verb}: job {job}, {self.steps[verb]} steps" for verb, job in self.jobs.items()
        )


@dataclass(frozen=True)
class GridScores(Result):
    """The scores of the finished cells of a grid, and the errors of those that failed."""

    plan: "Plan"
    scored: "list[Scored]"
    compared: "Compared | None"
    correction: str
    report: Path | None = None  # the HTML page
    form: Format = Format.table
    failure: "LmkError | None" = None

    def as_json(self) -> Any:
        """A row per cell and measure."""
        return self._long().as_json()

    def blocks(self) -> Iterator[Table | str]:
        """The table of scores, and lines that explain its marks."""
        if self.compared is None:
            return
        if self.form in PROGRAMS:
            yield self._long()
            return
        yield _wide(self.compared)
        if self.compared.tests:
            from lmkcli.operations import score_tables

            yield score_tables.legend(self.compared.tests, {}, self.correction)

    def notes(self) -> Iterator[str]:
        """Where the report is, and how many cells are not finished."""
        if self.report is not None:
            yield f"{self.report} has the tables, their plots and all commands"
        if self.scored and len(self.scored) < len(self.plan.cells):
            left = len(self.plan.cells) - len(self.scored)
            yield f"{left} of {len(self.plan.cells)} cells are not finished"

    def _long(self) -> Table:
        """A row per cell and measure, with the axes of the cell."""
        from lmkcli.experiments.cells import varying
        from lmkcli.experiments.gridfile import MEASURES

        cells = [each.cell for each in self.scored]
        axes = [axis for axis in varying([cell.values for cell in cells]) if axis != MEASURES]
        rows = [
            [
                each.cell.name,
                *(each.cell.shown(axis) for axis in axes),
                name,
                each.result.value(name),
            ]
            for each in self.scored
            for name in each.result.measures
        ]
        return Table(["cell", *axes, "measure", "score"], rows)


def _wide(compared: "Compared") -> Table:
    one = len({row.measure for row in compared.rows}) == 1
    heads = [*compared.heads, *([] if one else ["measure"])]
    rows: list[list[Any]] = [
        [*row.system, *([] if one else [row.measure]), *(Cell(*entry) for entry in row.entries)]
        for row in compared.rows
    ]
    if one:
        heads[-1] += f" ({compared.rows[0].measure})"
    return Table([*heads, *compared.columns], rows)


def state(folder: Path) -> GridPlan:
    """Which cells of a folder of results are done, and how to go on."""
    from lmkcli.experiments import plan
    from lmkcli.experiments.running import Results

    stored, results = plan.read(folder), Results(folder)
    remarks = []
    if results.missing(stored):
        remarks.append(f"finish with: lmk grid {stored.file} -o {folder}")
    unused = {path.name for path in results.of("").glob("*")} - stored.steps.keys()
    if unused:
        remarks.append(f"{len(unused)} steps in {results.of('')} belong to no cell of this plan")
    return GridPlan(stored, results, remarks=tuple(remarks))


def lineage(folder: Path, name: str) -> Lineage:
    """How the scores of one cell were made."""
    from lmkcli.experiments import plan, scores
    from lmkcli.experiments.running import Results

    stored, results = plan.read(folder).only([name]), Results(folder)
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
    plan: "Plan", results: "Results", correction: str, form: Format, report: Report
) -> GridScores:
    """The scores of the finished cells; they are also written to the log of the results."""
    from lmkcli.experiments import report as page
    from lmkcli.experiments import scores as measured
    from lmkcli.experiments.table import TableLayout, table

    scored = measured.scored(plan, results)
    if not scored:
        return GridScores(plan, [], None, correction, form=form)
    measured.write_log(scored, results.folder)
    with report.step("comparing") as job:
        layout = TableLayout.of(plan.cells, plan.table)
        compared = table(scored, layout, correction, job.progress)
    path = page.write(compared, scored, plan, results, dict(_figures(scored)))
    return GridScores(plan, scored, compared, correction, path, form)


def _figures(scored: "list[Scored]") -> Iterator[tuple[str, str]]:
    """Caption and SVG of each collection and axis that has numbers, if plots can be drawn."""
    import tempfile

    from lmkcli import catalog
    from lmkcli.errors import MissingExtra
    from lmkcli.experiments.figures import figures

    try:
        draw = catalog.load(catalog.PLOTS, "curves", "plot")
    except MissingExtra:
        return
    with tempfile.TemporaryDirectory() as folder:
        for number, (collection, axis, panels) in enumerate(figures(scored)):
            path = Path(folder) / f"{number}.svg"
            draw(panels, axis, path)
            yield f"{', '.join(panels)} over {axis}: {collection}", path.read_text("utf-8")
