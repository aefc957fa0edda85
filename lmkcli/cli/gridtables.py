"""What lmk grid and lmk show print of a grid: its plan, its state, its scores."""

from typing import TYPE_CHECKING, Any

from lmkcli.cli import console, tables
from lmkcli.cli.tables import Cell, Format

if TYPE_CHECKING:
    from lmkcli.experiments.plan import Plan
    from lmkcli.experiments.running import Results
    from lmkcli.experiments.scores import Scored
    from lmkcli.experiments.table import Table

_PROGRAMS = (Format.csv, Format.json)


def refused(plan: "Plan") -> None:
    """The cells that are left out, a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for each in plan.refused:
        reasons.setdefault(each.why, []).append(each.cell)
    for why, names in reasons.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        console.note(f"left out: {names[0]}{more}: {why}")


def planned(plan: "Plan", results: "Results", form: Format) -> None:
    """Cells and steps, and which of them are to run."""
    missing, uses = results.missing(plan), plan.uses()
    if form is Format.json:
        return console.plain_json(_commands(plan, results))
    rows = [[cell.name, _state(plan, results, cell.name)] for cell in plan.cells]
    tables.table(["cell", "state"], rows, form)
    console.say()
    verbs = list(dict.fromkeys(step.verb for step in plan.steps.values()))
    counted: list[list[Any]] = []
    for verb in verbs:
        keys = [key for key, step in plan.steps.items() if step.verb == verb]
        shared = sum(uses[key] > 1 for key in keys)
        asked = sum(uses[key] for key in keys)
        counted.append([verb, asked, len(keys), shared, sum(key in missing for key in keys)])
    tables.table(["step", "in cells", "steps", "shared", "to run"], counted, form)


def _commands(plan: "Plan", results: "Results") -> dict[str, Any]:
    """The plan for programs: cells with the keys of their steps, and every step with its command."""
    import shlex

    missing, uses = results.missing(plan), plan.uses()
    steps = [
        {
            "key": key,
            "command": shlex.join(["lmk", *step.words]),
            "cells": uses[key],
            "to run": key in missing,
        }
        for key, step in plan.steps.items()
    ]
    cells = [{"cell": cell.name, "steps": plan.chains[cell.name]} for cell in plan.cells]
    return {"cells": cells, "steps": steps}


def _state(plan: "Plan", results: "Results", name: str) -> str:
    chain = plan.chains[name]
    if results.is_done(chain[-1]):
        return "done"
    left = [key for key in chain if not results.is_done(key)]
    return f"{len(left)} of {len(chain)} steps to run"


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
    if form in _PROGRAMS:
        return _long(scored, compared, form)
    _wide(compared, form)
    if compared.tests:
        from lmkcli.cli import scoretables

        scoretables.legend(compared.tests, {}, correction, form)
    if len(scored) < len(plan.cells):
        console.note(f"{len(plan.cells) - len(scored)} of {len(plan.cells)} cells are not finished")


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
