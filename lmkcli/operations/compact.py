"""Compact: rewrite the small parts of an updated vectors folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from lmkcli.progress import Report
from lmkcli.settings import Flag
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result


@dataclass(frozen=True)
class Compacted(Result):
    """The current generation, and how many parts were written, deleted, and kept for open readers."""

    output: Path
    generation: int
    written: int
    deleted: int
    kept: int

    def __str__(self) -> str:
        return (
            f"{self.output}: generation {self.generation}, {self.written} parts written, {self.deleted} "
            f"deleted, {self.kept} kept for readers"
        )


@dataclass(frozen=True)
class Compact(Operation[Compacted]):
    """Rewrite the live rows of small parts, and of parts with deleted rows, into parts of about 256 MB.

    Old parts are deleted after --keep-hours. Until then, a running search or an index that was not
    updated yet may still read them.
    """

    verb: ClassVar[str] = "compact"

    vectors: Annotated[
        Path,
        Flag("An updated vectors folder.", argument=True, metavar="VECTORS", role="artifact"),
    ]
    keep_hours: Annotated[
        float, Flag("Hours to keep a part after the last generation that listed it.", min=0)
    ] = 24.0

    def execute(self, report: Report) -> Compacted:
        """Compact the folder."""
        from lmkcli.encoding import updating

        with report.job("compact") as job:
            done = updating.compact(self.vectors, self.keep_hours, job)
        return Compacted(self.vectors, *done)
