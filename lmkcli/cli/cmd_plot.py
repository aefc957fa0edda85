"""lmk plot: a curve over a parameter, from a score log."""

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
        str,
        Flag(
            "The parameter along the axis, as its flag is called: gran, max-length, dim, k, "
            "ef-search, k1 …"
        ),
    ]
    measure: Annotated[
        list[str] | None, Flag("Which measures; repeat it. Default: all.", short="-m")
    ] = None
    by: Annotated[str | None, Flag("Another parameter; one line for each value that it has.")] = (
        None
    )
    output: Output = None


@with_flags
def plot(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="A score log (lmk eval --log).")],
    curve: CurveOptions,
) -> None:
    """Scores of a log over a parameter of the steps that made their runs, as a curve (extra `plot`).

    The parameter is looked up in what led to each run: in the recipe, the index and the search, then
    in the commands. The suffix of the output chooses PNG, SVG or PDF.
    """
    from lmkcli.provenance import scorelog

    path = need(curve.output, "-o/--output", "curve.svg")
    if not log.is_file():
        raise DataError(f"{log}: no such score log")
    draw = catalog.load(catalog.PLOTS, "curve", "plot")
    entries = scorelog.read(log)
    logged = list(dict.fromkeys(name for each in entries for name in each["scores"]))
    names = curve.measure or logged
    unknown = [name for name in names if name not in logged]
    if unknown:
        raise UsageError(f"{log} has no {', '.join(unknown)}: its measures are {', '.join(logged)}")
    if curve.by and all(scorelog.setting(each, curve.by) is None for each in entries):
        raise UsageError(
            f"no entry of {log} has a {curve.by}; drop --by, or name another parameter"
        )
    series = scorelog.series(entries, curve.x, curve.by, names)
    if not series.lines:
        raise UsageError(f"no entry of {log} has a numeric {curve.x} and one of {', '.join(names)}")
    draw(series.lines, curve.x, names[0] if len(names) == 1 else "score", path)
    if series.left_out:
        console.note(f"{series.left_out} entries without a numeric {curve.x} are left out")
    if series.replaced:
        console.note(f"{series.replaced} points were measured again later; the latest counts")
    console.say(f"{path}: {sum(map(len, series.lines.values()))} points, {len(series.lines)} lines")
