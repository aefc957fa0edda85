"""lmk plot: a curve over a parameter, from a score log; or the curves of a training."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from lmkcli import catalog
from lmkcli.cli import console
from lmkcli.cli.flags import with_flags
from lmkcli.cli.options import Output, need
from lmkcli.errors import DataError, UsageError
from lmkcli.settings import Flag


@dataclass(frozen=True)
class CurveOptions:
    """What is drawn, over what, and where."""

    x: Annotated[
        str | None,
        Flag(
            "The parameter along the axis, as its flag is called: gran, max-length, dim, k, "
            "ef-search, k1 …"
        ),
    ] = None
    measure: Annotated[
        list[str] | None, Flag("Which measures; repeat it. Default: all.", short="-m")
    ] = None
    by: Annotated[str | None, Flag("Another parameter; one line for each value that it has.")] = (
        None
    )
    output: Output = None


@with_flags
def plot(
    log: Annotated[
        Path,
        typer.Argument(
            metavar="LOG|MODEL",
            help="A score log (lmk eval --log), results of lmk grid, or a folder of lmk train.",
        ),
    ],
    curve: CurveOptions,
) -> None:
    """Scores of a log over a parameter of the steps that made their runs, as a curve (extra `plot`).

    The parameter is looked up in what led to each run: in the recipe, the index and the search, then
    in the commands. The suffix of the output chooses PNG, SVG or PDF. Of a model's folder the loss, the
    learning rate and the scores of development sets are drawn over the steps, also while it trains.
    """
    path = need(curve.output, "-o/--output", "curve.svg")
    if (log / "plan.json").is_file():  # of a grid
        log = log / "scores.jsonl"
    if log.is_dir():
        return _training(log, curve, path)
    if not log.is_file():
        raise DataError(f"{log}: no such score log")
    if curve.x is None:
        raise UsageError("--x is missing, for instance --x gran")
    _scores(log, curve, curve.x, path)


def _training(folder: Path, curve: CurveOptions, path: Path) -> None:
    from lmkcli.provenance import traininglog

    if useless := [name for name in ("x", "measure", "by") if getattr(curve, name)]:
        raise UsageError(f"--{useless[0]} has no effect on the curves of a training; drop it")
    draw = catalog.load(catalog.PLOTS, "panels", "plot")
    panels = traininglog.panels(folder)
    draw(panels, "step", path)
    lines = [points for panel in panels.values() for points in panel.values()]
    console.say(f"{path}: {sum(map(len, lines))} points, {len(lines)} lines")


def _scores(log: Path, curve: CurveOptions, x: str, path: Path) -> None:
    from lmkcli.provenance import scorelog, series

    draw = catalog.load(catalog.PLOTS, "curves", "plot")
    entries = scorelog.read(log)
    logged = list(dict.fromkeys(name for each in entries for name in each["scores"]))
    names = curve.measure or logged
    unknown = [name for name in names if name not in logged]
    if unknown:
        raise UsageError(f"{log} has no {', '.join(unknown)}: its measures are {', '.join(logged)}")
    if curve.by and all(series.setting(each, curve.by) is None for each in entries):
        known = ", ".join(series.parameters(entries))
        raise UsageError(f"no entry of {log} has a {curve.by}, for --by; there are: {known}")
    panels = {name: series.series(entries, x, curve.by, name) for name in names}
    lines = [line for panel in panels.values() for line in panel.lines.values()]
    if not lines:
        known = ", ".join(series.parameters(entries, numeric=True)) or "none"
        raise UsageError(
            f"no entry of {log} has a numeric {x}, for --x; with numbers there are: {known}"
        )
    draw({name: panel.drawn for name, panel in panels.items()}, x, path)
    if levels := dict.fromkeys(name for panel in panels.values() for name in panel.levels):
        flat = "; ".join(levels)
        console.note(f"without a numeric {x}, drawn from side to side: {flat}")
    if replaced := sum(panel.replaced for panel in panels.values()):
        console.note(f"{replaced} points were measured again later; the latest counts")
    console.say(f"{path}: {sum(map(len, lines))} points, {len(lines)} lines")
