"""Shards of a run or an index: the results of the tasks of an array, in a folder next to the output.

`run.trec.shards/` belongs to `run.trec`. Its `manifest.json` identifies the output, and lists the pieces of
each shard. A piece is the file `<shard>of<shards>-<piece>`; it is complete or does not exist. The first task
creates the files that all tasks share; their names start with `shared-`. When the output is complete, lmk
removes the folder.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lmkcli.artifact import manifest, outputs
from lmkcli.artifact.kinds import (
    Facts,
    OpenMapping,
    Section,
    ShardsExecution,
    ShardsManifest,
    plain,
)
from lmkcli.errors import DataError, Mismatch
from lmkcli.progress import Call, Note
from lmkcli.system.atomic import atomic_file, locked

SUFFIX = ".shards"


def shards_folder(output: Path) -> Path:
    """Return the folder of the shards of an output."""
    return output.with_name(output.name + SUFFIX)


class Shards:
    """The shards of one output."""

    def __init__(self, folder: Path) -> None:
        described = manifest.read(folder, ShardsManifest)
        self.folder = folder
        self.count = described.execution.shards
        self._pieces = described.execution.pieces

    @classmethod
    def claim(
        cls,
        output: Path,
        identity: Section | OpenMapping,
        count: int,
        pieces: list[str],
        call: Call,
    ) -> "Shards":
        """Create the folder for the shards of an output, or join it. Raises Mismatch for another identity."""
        folder = shards_folder(output)
        _finish_removal(folder)
        wanted = ShardsManifest(
            identity=plain(identity),
            execution=ShardsExecution(shards=count, pieces=pieces),
            facts=Facts(**manifest.environment(call)),
        )
        try:
            manifest.claim(folder, wanted)
        except Mismatch as error:
            lines = str(error).splitlines()[:-1]
            raise Mismatch("\n".join([*lines, _advice(folder)])) from None
        return cls(folder)

    @classmethod
    def find(cls, output: Path, identity: Section | OpenMapping) -> "Shards | None":
        """Return the shards of an output if they exist. Raises Mismatch for another identity."""
        folder = shards_folder(output)
        _finish_removal(folder)
        if not (folder / manifest.NAME).exists():
            with suppress(OSError):
                folder.rmdir()  # empty after a killed removal
            return None
        lines = manifest.json_differences(manifest.read(folder, ShardsManifest).identity, identity)
        if lines:
            found = f"{folder} contains the shards of another output (existing | requested):\n  "
            raise Mismatch(found + "\n  ".join(lines) + f"\n{_advice(folder)}")
        return cls(folder)

    def path(self, shard: int, piece: str) -> Path:
        """Return the path of a piece of a shard."""
        return self.folder / self._name(shard, piece)

    def _name(self, shard: int, piece: str) -> str:
        return f"{shard:05d}of{self.count:05d}-{piece}"

    def unfinished(self) -> list[int]:
        """Return the numbers of the shards that lack a piece."""
        names = {*os.listdir(self.folder)}  # faster than a question for each of many pieces
        return [
            number
            for number in range(self.count)
            if not all(self._name(number, piece) in names for piece in self._pieces)
        ]

    def check_whole(self) -> None:
        """Raise DataError with the numbers of missing shards."""
        if missing := self.unfinished():
            numbers = ", ".join(map(str, missing[:20])) + (", …" if len(missing) > 20 else "")
            raise DataError(
                f"{self.folder} is not complete: of {self.count} shards (numbered from 0), not finished: "
                f"{numbers}; run the same command with --shard for each of them, or remove the folder "
                "to run without shards"
            )

    def shared(self, name: str) -> Path:
        """Return the path of a file that all tasks share."""
        return self.folder / f"shared-{name}"

    def once(self, name: str, make: Callable[[Path], None], note: Note) -> Path:
        """Return a shared file. The first task creates it with `make`; the other tasks wait for it."""
        path = self.shared(name)
        if not path.exists():
            with locked(self.folder, waiting=note):
                if not path.exists():
                    with atomic_file(path) as temporary:
                        make(temporary)
        return path

    def remove(self) -> None:
        """Remove the files of lmk in the folder, and the folder if it is empty then.

        After a kill, there are no shards any more; the next process that looks for them removes the rest.
        """
        outputs.retire(self.folder)


def _finish_removal(folder: Path) -> None:
    if outputs.is_cleared(folder):
        outputs.clear(folder)


def _advice(folder: Path) -> str:
    return f"choose another output, or remove {folder} and run every shard again"
