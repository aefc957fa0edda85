"""lmk compact: the live rows of small parts rewritten into full parts."""

from pathlib import Path
from typing import Annotated

import typer

from lmkcli.cli import console, recording
from lmkcli.cli.flags import with_flags
from lmkcli.cli.options import Json
from lmkcli.settings import Flag


@with_flags
def compact(
    vectors: Annotated[Path, typer.Argument(metavar="VECTORS", help="An updated vectors folder.")],
    keep_hours: Annotated[
        float, Flag("Hours to keep a part after the last generation that listed it.", min=0)
    ] = 24.0,
    json: Json = False,
) -> None:
    """Rewrite the live rows of small parts, and of parts with deleted rows, into parts of about 256 MB.

    What is not needed any more is deleted after --keep-hours: a search that is running, or an index
    that was not refreshed yet, may still read it.
    """
    from lmkcli.encoding import updating

    with console.reporting("compact", recording.call()) as report:
        compacted = updating.compact(vectors, keep_hours, report)
    if json:
        return console.plain_json({"output": str(vectors), **compacted._asdict()})
    console.say(
        f"{vectors}: generation {compacted.generation}, {compacted.written} parts written, "
        f"{compacted.deleted} deleted, {compacted.kept} kept until {keep_hours:g} hours have passed"
    )
