"""What lmk grid and lmk show print of a grid: its plan, its state, its scores."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmkcli.cli import console, gridforecast, tables
from lmkcli.cli.gridforecast import Estimates
from lmkcli.cli.tables import Cell
from lmkcli.spec.result import PROGRAMS, Format

if TYPE_CHECKING:
    from lmkcli.experiments.plan import Plan
    from lmkcli.experiments.running import Results
    from lmkcli.experiments.scores import Scored
    from lmkcli.experiments.table import Table


def refused(plan: "Plan") -> None:
    """The cells that are left out, a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for each in plan.refused:
        reasons.setdefault(each.why, []).append(each.cell)
    for why, names in reasons.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        console.note(f"left out: {names[0]}{more}: {why}")


def planned(
    plan: "Plan", results: "Results", form: Format, estimates: Estimates | None = None
) -> None:
    """Cells and steps, which of them are to run, and what that takes where it was estimated."""
    if form is Format.json:
        return console.plain_json(_commands(plan, results, estimates or {}))
    rows = [[cell.name, _state(plan, results, cell.name)] for cell in plan.cells]
    tables.table(["cell", "state"], rows, form)
    console.say()
    heads = ["step", "in cells", "steps", "shared", "to run"]
    counted = _counted(plan, results)
    if estimates is not None:
        heads += ["disk", "time"]
        for row in counted:
            row += gridforecast.summed(estimates) if row[0] == "encode" else ("-", "-")
        gridforecast.unknown(estimates)
    tables.table(heads, counted, form)


def _counted(plan: "Plan", results: "Results") -> list[list[Any]]:
    """A row for each command: in how many cells, how many steps, how many of them shared and missing."""
    missing, uses = results.missing(plan), plan.uses()
    counted = []
    for verb in dict.fromkeys(step.verb for step in plan.steps.values()):
        keys = [key for key, step in plan.steps.items() if step.verb == verb]
        shared = sum(uses[key] > 1 for key in keys)
        asked = sum(uses[key] for key in keys)
        counted.append([verb, asked, len(keys), shared, sum(key in missing for key in keys)])
    return counted


def _commands(plan: "Plan", results: "Results", estimates: Estimates) -> dict[str, Any]:
    """The plan for programs: cells with the keys of their steps, and every step with its command."""
    import shlex

    missing, uses = results.missing(plan), plan.uses()
    steps = [
        {
            "key": key,
            "command": shlex.join(["lmk", *step.words]),
            "cells": uses[key],
            "to run": key in missing,
            **gridforecast.as_json(estimates.get(key)),
        }
        for key, step in plan.steps.items()
    ]
    cells = [{"cell": cell.name, "steps": plan.chains[cell.name]} for cell in plan.cells]
    return {"cells": cells, "steps": steps}


def _state(plan: "Plan", results: "Results", name: str) -> str:
    chain = plan.chains[name]
    if results.is_done(plan.steps[chain[-1]]):
        return "done"
    left = [key for key in chain if not results.is_done(plan.steps[key])]
    said = next(filter(None, map(results.error, left)), "")
    return f"{len(left)} of {len(chain)} steps to run" + (f"; last words: {said}" if said else "")


def state(folder: Path, json: bool) -> None:
    """What lmk show says of a folder of results: which cells are done, and how to go on."""
    from lmkcli.experiments import plan
    from lmkcli.experiments.running import Results

    stored, results = plan.read(folder), Results(folder)
    planned(stored, results, Format.json if json else Format.table)
    missing = results.missing(stored)
    if missing and not json:
        console.note(f"finish with: lmk grid {stored.file} -o {folder}")
    kept = {path.name for path in results.of("").glob("*")} - stored.steps.keys()
    if kept:
        console.note(f"{len(kept)} steps in {results.of('')} belong to no cell of this plan")


def lineage(folder: Path, name: str, json: bool) -> None:
    """How one cell came to be: its settings, its commands, how long each took, its scores."""
    import shlex

    from lmkcli.experiments import plan, scores
    from lmkcli.experiments.running import Results

    stored, results = plan.read(folder).only([name]), Results(folder)
    cell = stored.cells[0]
    steps = [stored.steps[key] for key in stored.chains[cell.name]]
    measured = scores.scored(stored, results)
    facts = {
        "cell": cell.name,
        "axes": {axis: " ".join(value) for axis, value in cell.values.items() if value},
        "steps": [
            {
                "key": step.key,
                "done": results.is_done(step),
                "seconds": results.seconds(step.key),
                "command": shlex.join(["lmk", *step.words]),
            }
            for step in steps
        ],
        "scores": measured[0].entry["scores"] if measured else {},
    }
    if json:
        return console.plain_json(facts)
    rows = [
        [f["key"], "yes" if f["done"] else "no", f["seconds"], f["command"]] for f in facts["steps"]
    ]
    tables.table(["step", "done", "seconds", "command"], rows, Format.table, cell.name)
    for measure, score in facts["scores"].items():
        console.say(f"{measure} {score:.4f}")


def scores(plan: "Plan", results: "Results", correction: str, form: Format) -> None:
    """The table of the cells that are finished, which also go to the log of the results."""
    from lmkcli.experiments import scores as measured
    from lmkcli.experiments.table import TableLayout, table

    scored = measured.scored(plan, results)
    if not scored:
        return None
    measured.write_log(scored, results.folder)
    with console.progress("comparing") as progress:
        compared = table(scored, TableLayout.of(plan.cells, plan.table), correction, progress)
    _report(compared, scored, plan, results)
    if form in PROGRAMS:
        return _long(scored, compared, form)
    _wide(compared, form)
    if compared.tests:
        from lmkcli.cli import scoretables

        scoretables.legend(compared.tests, {}, correction, form)
    if len(scored) < len(plan.cells):
        console.note(f"{len(plan.cells) - len(scored)} of {len(plan.cells)} cells are not finished")


def _report(compared: "Table", scored: "list[Scored]", plan: "Plan", results: "Results") -> None:
    """The HTML file, with a curve over each axis of numbers where plots can be drawn."""
    from lmkcli.experiments import report

    path = report.write(compared, scored, plan, results, dict(_figures(scored)))
    console.note(f"{path} has the tables, their plots and all commands")


def _figures(scored: "list[Scored]") -> Iterator[tuple[str, str]]:
    """Caption and SVG of each collection and axis that has numbers."""
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


def _wide(compared: "Table", form: Format) -> None:
    one = len({row.measure for row in compared.rows}) == 1
    heads = [*compared.heads, *([] if one else ["measure"])]
    rows: list[list[Any]] = [
        [*row.system, *([] if one else [row.measure]), *(Cell(*entry) for entry in row.entries)]
        for row in compared.rows
    ]
    if one:
        heads[-1] += f" ({compared.rows[0].measure})"
    tables.table([*heads, *compared.columns], rows, form)


def _long(scored: "list[Scored]", compared: "Table", form: Format) -> None:
    """One value a row: a cell with its axes, a measure, its score, and its test if there is one."""
    from lmkcli.experiments.cells import varying
    from lmkcli.experiments.gridfile import MEASURES

    axes = [axis for axis in varying([each.cell.values for each in scored]) if axis != MEASURES]
    rows = [
        [each.cell.name, *(each.cell.shown(axis) for axis in axes), name, each.result.value(name)]
        for each in scored
        for name in each.result.measures
    ]
    tables.table(["cell", *axes, "measure", "score"], rows, form)
