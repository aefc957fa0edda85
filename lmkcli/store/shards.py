"""Shards of a run or an index: what the tasks of an array make of it, in a folder beside it.

`run.trec.shards/` belongs to `run.trec`: `manifest.json` says of what the shards are and which pieces
each has, and `<shard>of<shards>-<piece>` is such a piece, whole or not there. What all tasks share, and
the first of them makes, has a name of its own. The folder goes once the output is there.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmkcli import manifest
from lmkcli.errors import DataError, Mismatch
from lmkcli.manifest import Manifest
from lmkcli.progress import Call, Note
from lmkcli.store import outputs
from lmkcli.system.atomic import atomic_file
from lmkcli.system.locking import locked

KIND, SUFFIX = "shards", ".shards"


def beside(output: Path) -> Path:
    """Where the shards of an output are."""
    return output.with_name(output.name + SUFFIX)


class Shards:
    """The shards of one output, as far as they are there."""

    def __init__(self, folder: Path) -> None:
        described = manifest.read(folder, KIND)
        self.folder = folder
        self.count = int(described.execution["shards"])
        self._pieces: list[str] = described.execution["pieces"]

    @classmethod
    def claim(
        cls,
        output: Path,
        identity: dict[str, Any],
        count: int,
        pieces: list[str],
        call: Call,
    ) -> "Shards":
        """Begin the shards of an output, or join them; Mismatch where they are those of another one."""
        folder = beside(output)
        execution = {"shards": count, "pieces": pieces}
        try:
            manifest.claim(folder, Manifest(KIND, identity, execution, manifest.environment(call)))
        except Mismatch as error:
            lines = str(error).splitlines()[:-1]
            raise Mismatch("\n".join([*lines, _remove(folder)])) from None
        return cls(folder)

    @classmethod
    def find(cls, output: Path, identity: dict[str, Any]) -> "Shards | None":
        """The shards of an output, where some were begun; Mismatch where they are those of another one."""
        folder = beside(output)
        if not (folder / manifest.NAME).exists():
            return None
        lines = manifest.json_differences(manifest.read(folder, KIND).identity, identity)
        if lines:
            said = f"{folder} has shards of something else (there | asked for):\n  "
            raise Mismatch(said + "\n  ".join(lines) + f"\n{_remove(folder)}")
        return cls(folder)

    def path(self, shard: int, piece: str) -> Path:
        """Where a piece of a shard is, or will be."""
        return self.folder / f"{shard:05d}of{self.count:05d}-{piece}"

    def unfinished(self) -> list[int]:
        """The shards that lack a piece."""
        return [
            number
            for number in range(self.count)
            if not all(self.path(number, piece).exists() for piece in self._pieces)
        ]

    def check_whole(self) -> None:
        """DataError, with the numbers, where shards are missing."""
        if missing := self.unfinished():
            numbers = ", ".join(map(str, missing[:20])) + (", …" if len(missing) > 20 else "")
            raise DataError(
                f"{self.folder} is not complete: of {self.count} shards (numbered from 0), not finished: "
                f"{numbers}; run the same command with --shard for each of them, or remove the folder "
                "to do without shards"
            )

    def once(self, name: str, make: Callable[[Path], None], note: Note) -> Path:
        """The file of a name, which the first task to come here makes while the others wait for it."""
        path = self.folder / name
        if not path.exists():
            with locked(self.folder, waiting=note):
                if not path.exists():
                    with atomic_file(path) as temporary:
                        make(temporary)
        return path

    def remove(self) -> None:
        """Remove what lmk wrote into the folder, and the folder if nothing else is in it."""
        outputs.clear(self.folder)


def _remove(folder: Path) -> str:
    return f"choose another output, or remove {folder} and run every shard again"
