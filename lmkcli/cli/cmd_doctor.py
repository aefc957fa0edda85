"""lmk doctor: what works on this machine, and the line that mends what does not."""

from typing import TYPE_CHECKING, Annotated

from lmkcli.cli import console, tables
from lmkcli.cli.flags import with_flags
from lmkcli.cli.options import Json
from lmkcli.errors import CheckFailed
from lmkcli.settings import Flag
from lmkcli.spec.result import Format

if TYPE_CHECKING:
    from lmkcli.cli.diagnosis import Check


@with_flags
def doctor(
    thorough: Annotated[
        bool, Flag("Import every library too, which takes seconds and finds broken ones.")
    ] = False,
    json: Json = False,
) -> None:
    """What works on this machine, and the line that mends what does not.

    Libraries, extras, threads, GPUs, caches, Java, SLURM. Nothing is downloaded, and no library is imported
    without need. Exit code 4 when something is broken; what is not installed is not broken.
    """
    from lmkcli.cli.diagnosis import State, checks

    found = list(checks(thorough))
    broken = [check.part for check in found if check.state == State.broken]
    if json:
        console.plain_json({"works": not broken, "parts": [check._asdict() for check in found]})
    else:
        rows = [[check.part, check.state, check.found] for check in found]
        tables.table(["part", "state", "found"], rows, Format.table)
        _lines("To mend:", [check for check in found if check.state in (State.broken, State.look)])
        _lines("To add:", [check for check in found if check.state == State.none])
    if broken:
        raise CheckFailed(f"broken: {', '.join(broken)}")


def _lines(title: str, found: "list[Check]") -> None:
    """The line of each check that has one."""
    lines = [f"  {check.part}: {check.mend}" for check in found if check.mend]
    if lines:
        console.say("\n".join(["", title, *lines]))
