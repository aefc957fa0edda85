"""lmk compact: small parts and dead rows of updated vectors rewritten into full parts."""

from pathlib import Path
from typing import Annotated

import typer

from lmkcli.cli import console, options
from lmkcli.cli.flags import with_flags


@with_flags
def compact(
    vectors: Annotated[Path, typer.Argument(metavar="VECTORS", help="An updated vectors folder.")],
    keep_hours: Annotated[
        float,
        typer.Option(min=0, help="Keep a part so long after the last generation that named it."),
    ] = 24.0,
    json: options.Json = False,
) -> None:
    """Rewrites what counts of small parts, and of parts with dead rows, into parts of about 256 MB.

    What is not needed any more is deleted after --keep-hours: a search that is running, or an index
    that was not refreshed yet, may still read it.
    """
    from lmkcli.encoding import updating

    with console.reporting("compact") as report:
        made = updating.compact(vectors, keep_hours, report)
    if json:
        return console.plain_json({"output": str(vectors), **made._asdict()})
    console.say(
        f"{vectors}: generation {made.generation}, {made.written} parts written, "
        f"{made.deleted} deleted, {made.kept} kept until {keep_hours:g} hours have passed"
    )
