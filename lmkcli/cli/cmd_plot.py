"""lmk plot: a curve over a parameter, from a score log."""

from pathlib import Path
from typing import Annotated

import typer

from lmkcli import catalog
from lmkcli.cli import console, options
from lmkcli.cli.flags import with_flags
from lmkcli.errors import DataError, UsageError


@with_flags
def plot(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="A score log (lmk eval --log).")],
    x: Annotated[
        str,
        typer.Option(
            help="The parameter along the axis, as its flag is called: gran, max-length, dim, "
            "k, ef-search, k1 …"
        ),
    ],
    output: options.Output = None,
    measure: Annotated[
        list[str] | None,
        typer.Option("--measure", "-m", help="Which measures; repeat it. Default: all."),
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="Another parameter; one line for each value that it has.")
    ] = None,
) -> None:
    """Scores of a log over a parameter of the steps that made their runs, as a curve (extra `plot`).

    The parameter is looked up in what led to each run: in the recipe, the index and the search, then
    in the commands. The suffix of the output chooses PNG, SVG or PDF.
    """
    from lmkcli.provenance import scorelog

    path = options.need(output, "-o/--output", "curve.svg")
    if not log.is_file():
        raise DataError(f"{log}: no such score log")
    curve = catalog.load(catalog.PLOTS, "curve", "plot")
    entries = scorelog.read(log)
    logged = list(dict.fromkeys(name for each in entries for name in each["scores"]))
    names = measure or logged
    unknown = [name for name in names if name not in logged]
    if unknown:
        raise UsageError(f"{log} has no {', '.join(unknown)}: its measures are {', '.join(logged)}")
    if by is not None and all(scorelog.setting(each, by) is None for each in entries):
        raise UsageError(f"no entry of {log} has a {by}; drop --by, or name another parameter")
    found = scorelog.series(entries, x, by, names)
    if not found.lines:
        raise UsageError(f"no entry of {log} has a numeric {x} and one of {', '.join(names)}")
    curve(found.lines, x, names[0] if len(names) == 1 else "score", path)
    if found.left_out:
        console.note(f"{found.left_out} entries without a numeric {x} are left out")
    if found.replaced:
        console.note(f"{found.replaced} points were measured again later; the latest counts")
    console.say(f"{path}: {sum(map(len, found.lines.values()))} points, {len(found.lines)} lines")
