"""Compact: merge the small parts of an updated vectors folder."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result, Table
from lmkcli.spec.settings import Flag
from lmkcli.text.formatting import counted


@dataclass(frozen=True)
class Compacted(Result):
    """The current generation, and how many parts were written, deleted, and kept for open readers."""

    output: Path
    generation: int
    written: int
    deleted: int
    kept: int

    def blocks(self) -> Iterator[Table | str]:
        """Yield the counts."""
        yield (
            f"{self.output}: generation {self.generation}, {counted(self.written, 'part')} written, "
            f"{self.deleted} deleted, {self.kept} kept for readers"
        )


@dataclass(frozen=True)
class Compact(Operation[Compacted]):
    """Merge small parts, and parts with deleted rows, into parts of about 256 MB.

    Old parts are deleted after --keep-hours. Until then, running searches, and indexes that were not updated
    yet, can read them.
    """

    verb: ClassVar[str] = "compact"

    vectors: Annotated[
        Path,
        Flag("An updated vectors folder.", argument=True, metavar="VECTORS", role="artifact"),
    ]
    keep_hours: Annotated[
        float, Flag("Hours to keep an old part after the last generation that contains it.", min=0)
    ] = 24.0

    def execute(self, report: Report) -> Compacted:
        """Compact the folder."""
        from lmkcli.encoding import vector_updates

        with report.job("compact") as job:
            compacted = vector_updates.compact(self.vectors, self.keep_hours, job)
        return Compacted(self.vectors, *compacted)
