"""Immutable parts: names, ranges, atomic writing, shards.

An artifact's `parts/` holds folders named `<shard>of<shards>-<first>-<stop>`: the rows of that
shard's slice of the source, counted from zero. A part is written under a temporary name, synced and
renamed, so it is whole or it is not there; nobody ever edits one.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.collection import Shard
from lmkcli.errors import DataError

PARTS, DONE = "parts", "done"
ABANDONED_SECONDS = 3600.0
_NAME = re.compile(r"(\d{5})of(\d{5})-(\d{12})-(\d{12})")


class PartName(NamedTuple):
    """Which rows of which shard a part holds: rows `start` to `stop` (exclusive) of shard i of n."""

    shard: Shard
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.shard.number:05d}of{self.shard.count:05d}-{self.start:012d}-{self.stop:012d}"

    @classmethod
    def parse(cls, text: str) -> "PartName | None":
        """The name, or None for a folder that is no part (such as a temporary one)."""
        match = _NAME.fullmatch(text)
        if not match:
            return None
        number, count, start, stop = map(int, match.groups())
        return cls(Shard(number, count), start, stop)


class PartSlice(NamedTuple):
    """The rows that count of one part: `skip` leading rows belong to an earlier part."""

    name: PartName
    skip: int

    @property
    def rows(self) -> int:
        """How many rows count."""
        return self.name.stop - self.name.start - self.skip

    def as_json(self) -> list[Any]:
        """[name, skipped rows], as an index records it."""
        return [str(self.name), self.skip]

    @classmethod
    def from_json(cls, item: list[Any]) -> "PartSlice":
        """The slice that `as_json` wrote."""
        name = PartName.parse(item[0])
        if name is None:
            raise DataError(f"'{item[0]}' is not the name of a part; build the index again")
        return cls(name, int(item[1]))


def list_parts(folder: Path) -> list[PartName]:
    """All parts of an artifact, sorted by shard and first row."""
    if not (folder / PARTS).is_dir():
        return []
    names = [PartName.parse(entry.name) for entry in os.scandir(folder / PARTS)]
    return sorted(name for name in names if name)


def cover(names: list[PartName], shard: Shard) -> list[PartSlice]:
    """The parts of one shard that follow each other from row 0 without a gap.

    Where ranges overlap (a task that was requeued while its first life still ran), the part that
    reaches farthest goes on, less the rows that are covered already: a rule on names alone, so every
    reader chooses the same.
    """
    chosen: list[PartSlice] = []
    covered = 0
    mine = [name for name in names if name.shard == shard]
    while True:
        usable = [name for name in mine if name.start <= covered < name.stop]
        if not usable:
            return chosen
        best = max(usable, key=lambda name: (name.stop, -name.start))
        chosen.append(PartSlice(best, covered - best.start))
        covered = best.stop


def covered_rows(slices: list[PartSlice]) -> int:
    """How many rows from the start of the shard are there."""
    return slices[-1].name.stop if slices else 0


class State(NamedTuple):
    """What an artifact folder holds: the rows that count, and which shards are not complete."""

    slices: list[PartSlice]
    unfinished: list[int]


def state(folder: Path, shards: int) -> State:
    """Reads the names of parts and done files; DataError when a finished shard has lost a part."""
    names = list_parts(folder)
    slices: list[PartSlice] = []
    unfinished = []
    for number in range(shards):
        shard = Shard(number, shards)
        done = _done(folder, shard)
        mine = cover([n for n in names if str(n) in done["parts"]] if done else names, shard)
        slices += mine
        if done is None:
            unfinished.append(number)
        elif covered_rows(mine) != done["rows"]:
            raise DataError(
                f"{folder}: shard {number}/{shards} should have {done['rows']} rows and has "
                f"{covered_rows(mine)}; "
                f"a part is missing: delete {done_path(folder, shard)} and run the same command again"
            )
    return State(slices, unfinished)


def done_path(folder: Path, shard: Shard) -> Path:
    """The file that says that a shard is complete."""
    return folder / DONE / f"{shard.number}of{shard.count}.json"


def done_rows(folder: Path, shard: Shard) -> int | None:
    """How many rows a finished shard has; None while it is not finished."""
    done = _done(folder, shard)
    return int(done["rows"]) if done else None


def _done(folder: Path, shard: Shard) -> dict[str, Any] | None:
    try:
        return dict(json.loads(done_path(folder, shard).read_text()))
    except FileNotFoundError:
        return None


def finish(folder: Path, shard: Shard, rows: int) -> None:
    """Record that a shard is complete (empty shards too) and which parts it is made of.

    The first life of a task to get here decides: what another one publishes later changes nothing.
    """
    path = done_path(folder, shard)
    if path.exists():
        return
    path.parent.mkdir(exist_ok=True)
    made = [str(piece.name) for piece in cover(list_parts(folder), shard)]
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps({"rows": rows, "parts": made}))


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`; synced and renamed onto it when the block ends well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path`; synced, and put in its place when the block ends well."""
    growing = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    growing.mkdir(parents=True)
    try:
        yield growing
        for entry in [*growing.iterdir(), growing]:
            _sync(entry)
        shutil.rmtree(path, ignore_errors=True)  # left by a build that was killed before its end
        os.rename(growing, path)
        _sync(path.parent)
    finally:
        shutil.rmtree(growing, ignore_errors=True)


def new_part_folder(folder: Path, shard: Shard) -> Path:
    """An empty temporary folder in which a part can grow; sweeps up what killed jobs left."""
    _sweep(folder, f".growing-{shard.number}-")
    path = folder / PARTS / f".growing-{shard.number}-{os.getpid()}-{time.monotonic_ns()}"
    path.mkdir(parents=True)
    return path


def _sweep(folder: Path, prefix: str) -> None:
    """Remove growing parts that nobody has touched for long: an earlier life may still be running."""
    for path in (folder / PARTS).glob(f"{prefix}*"):
        try:
            newest = max(
                (entry.stat().st_mtime for entry in os.scandir(path)), default=path.stat().st_mtime
            )
        except FileNotFoundError:
            continue
        if time.time() - newest > ABANDONED_SECONDS:
            remove(path)


def publish(growing: Path, name: PartName) -> Path:
    """Sync a grown part and give it its name; if that part is already there, drop this one."""
    final = growing.parent / str(name)
    for entry in os.scandir(growing):
        _sync(Path(entry.path))
    _sync(growing)
    try:
        os.rename(growing, final)
    except OSError:
        if not final.is_dir():
            raise
        shutil.rmtree(growing)  # another life of the same task was quicker
    _sync(final.parent)
    return final


def remove(growing: Path) -> None:
    """Remove a part that will not be published."""
    shutil.rmtree(growing, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class NpyAppender:
    """A .npy file that grows along its first axis; its header is set right when it is closed."""

    def __init__(self, path: Path, dtype: str, width: tuple[int, ...] = ()) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 (open until close())
        self._dtype = np.dtype(dtype)
        self._width = width
        self.rows = 0
        self._write_header()

    def _write_header(self) -> None:
        # NumPy pads headers so that the first axis can grow in place
        np.lib.format.write_array_header_1_0(
            self._file,
            {
                "descr": np.lib.format.dtype_to_descr(self._dtype),
                "fortran_order": False,
                "shape": (self.rows, *self._width),
            },
        )

    def append(self, array: NDArray[Any]) -> bytes:
        """Add rows, converted to the file's dtype; returns the bytes that were written."""
        data = np.ascontiguousarray(array, dtype=self._dtype).tobytes()
        self._file.write(data)
        self.rows += len(array)
        return data

    def close(self) -> None:
        """Set the number of rows and close; nothing happens the second time."""
        if self._file.closed:
            return
        self._file.seek(0)
        self._write_header()
        self._file.close()
