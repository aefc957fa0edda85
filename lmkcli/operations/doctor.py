"""Doctor: what works on this machine, and how to fix what does not."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from lmkcli.errors import CheckFailed
from lmkcli.progress import Report
from lmkcli.settings import Flag
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result, Table

if TYPE_CHECKING:
    from lmkcli.operations.diagnosis import Check


@dataclass(frozen=True)
class Diagnosed(Result):
    """The state of each part of this machine: libraries, extras, threads, GPUs, caches, Java, SLURM."""

    parts: "tuple[Check, ...]"

    @property
    def broken(self) -> list[str]:
        """The names of parts that are installed and do not work."""
        return [check.part for check in self.parts if check.state == "broken"]

    def as_json(self) -> Any:
        """Whether everything works, and the parts with their facts."""
        return {"works": not self.broken, "parts": [check._asdict() for check in self.parts]}

    def table(self) -> Table:
        """A row per part."""
        rows = [[check.part, check.state, check.found] for check in self.parts]
        return Table(["part", "state", "found"], rows)

    def blocks(self) -> Iterator[Table | str]:
        """The table, then how to fix broken parts and how to add missing ones."""
        yield self.table()
        fixes = [check for check in self.parts if check.state in ("broken", "look")]
        additions = [check for check in self.parts if check.state == "none"]
        for title, found in (("To fix:", fixes), ("To add:", additions)):
            commands = [f"  {check.part}: {check.fix}" for check in found if check.fix]
            if commands:
                yield "\n".join(["", title, *commands])

    @property
    def failure(self) -> CheckFailed | None:
        """The error if a part is broken."""
        return CheckFailed(f"broken: {', '.join(self.broken)}") if self.broken else None


@dataclass(frozen=True)
class Doctor(Operation[Diagnosed]):
    """Check what works on this machine, and print how to fix what does not.

    Libraries, extras, threads, GPUs, caches, Java, SLURM. Nothing is downloaded, and no library is imported
    without need. Exit code 4 when something is broken; a missing optional part is not broken.
    """

    verb: ClassVar[str] = "doctor"

    thorough: Annotated[
        bool, Flag("Import every library too, which takes seconds and finds broken ones.")
    ] = False

    def execute(self, report: Report) -> Diagnosed:
        """Run the checks."""
        from lmkcli.operations.diagnosis import checks

        return Diagnosed(tuple(checks(self.thorough, report)))
