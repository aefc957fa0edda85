"""The format of artifacts in parts: names, live rows, shards and generations.

The folder `parts/` of an artifact contains folders with names `<shard>of<shards>-<first>-<stop>`. Each folder
is a part: the rows first … stop - 1 of a shard, counted from zero. A part is written
under a temporary name, synced and renamed (`part_writer.py`). So it is complete or does not exist, and
nothing edits it afterwards.

    parts/00000of00002-000000000000-000000000512/     512 documents of shard 0
    parts/00000of00002-000000000512-000000000900/     its next 388 documents
    done/0of2.json                                    shard 0 is complete, and consists of these parts
    generation.json                                   after updates: the rows of each part that count

Without `generation.json` all rows of all shards count. If the file exists, only the rows in its list count.
The first `generation.json` replaces the files in `done/`. So a folder that loses its `generation.json` is
incomplete, and never appears to be what it was before its updates.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import Origin, Section, plain
from lmkcli.data.collection import Shard
from lmkcli.errors import DataError
from lmkcli.system.atomic import atomic_file, make_folder
from lmkcli.system.input_files import read_struct, text_like

# The arrays of a part by name: the dtype, and the shape after the first axis.
ArrayTypes = Mapping[str, tuple[str, tuple[int, ...]]]

PARTS, DONE, GENERATION, SUMMARY = "parts", "done", "generation.json", "part.json"
MAKE_AGAIN = "repeat the command that made its folder (lmk show prints it)"  # after damage

# the shard of parts that updates and compactions wrote; its row numbers always grow
UPDATES = Shard(0, 0)
_NAME = re.compile(r"(\d{5})of(\d{5})-(\d{12})-(\d{12})", re.ASCII)
_DONE_NAME = re.compile(r"\d+of\d+\.json", re.ASCII)


# A PartSlice in JSON: its name, and the ranges of deleted rows.
SliceJson = tuple[str, list[tuple[int, int]]]


class PartName(NamedTuple):
    """The name of a part: it contains the rows `start` to `stop` (exclusive) of a shard."""

    shard: Shard
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.shard.number:05d}of{self.shard.count:05d}-{self.start:012d}-{self.stop:012d}"

    @classmethod
    def parse(cls, text: str) -> "PartName | None":
        """Parse a name. Returns None for other folders, such as temporary ones."""
        match = _NAME.fullmatch(text)
        if not match:
            return None
        number, count, start, stop = map(int, match.groups())
        return cls(Shard(number, count), start, stop)


@dataclass(frozen=True)
class PartSlice:
    """The live rows of one part: all rows except `deleted`, which are ascending ranges (first, stop)."""

    name: PartName
    deleted: tuple[tuple[int, int], ...] = ()

    @property
    def rows(self) -> int:
        """How many rows are live."""
        return self.name.stop - self.name.start - sum(stop - first for first, stop in self.deleted)

    @property
    def skip(self) -> int:
        """How many leading rows are deleted, because an earlier part also contains them."""
        return self.deleted[0][1] if self.deleted and self.deleted[0][0] == 0 else 0

    @property
    def live(self) -> NDArray[np.bool_]:
        """Whether each row of the part is live, [rows of the part]."""
        mask = np.ones(self.name.stop - self.name.start, np.bool_)
        for first, stop in self.deleted:
            mask[first:stop] = False
        return mask

    def at(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions in the part of live rows, which are counted from 0 without the deleted ones.

        A live row is shifted by all deleted rows before it. The shift is constant between two deleted ranges,
        so one binary search in the starts of the ranges finds it.
        """
        starts, shifts = self._shifts
        return np.asarray(rows + shifts[np.searchsorted(starts, rows, side="right")])

    @cached_property
    def _shifts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return two arrays for r deleted ranges.

        [r]: how many live rows precede each range. [r + 1]: how many rows the first 0, 1, … r ranges delete.
        """
        ranges = np.array(self.deleted, np.int64).reshape(-1, 2)
        deleted = np.concatenate([[0], np.cumsum(ranges[:, 1] - ranges[:, 0])])
        return ranges[:, 0] - deleted[:-1], deleted

    def between(self, first: int, stop: int) -> "PartSlice":
        """Return only the live rows `first` to `stop` (exclusive), counted without the deleted ones."""
        mask = np.zeros(self.name.stop - self.name.start, np.bool_)
        mask[np.flatnonzero(self.live)[max(0, first) : max(0, stop)]] = True
        return PartSlice.of(self.name, mask)

    def as_json(self) -> SliceJson:
        """Return [name, deleted ranges], as generations and indexes record it."""
        return str(self.name), list(self.deleted)

    @classmethod
    def from_json(cls, item: SliceJson) -> "PartSlice":
        """Read the value of `as_json`. Raises DataError if it is invalid."""
        name = PartName.parse(item[0])
        if name is None or name.stop < name.start:
            raise DataError(f"'{item[0]}' is not the name of a part; make the artifact again")
        ends = np.array([0, *chain.from_iterable(item[1]), name.stop - name.start])
        if (np.diff(ends) < 0).any():
            raise DataError(
                f"the deleted rows of part {item[0]} are outside of it, or not in order; "
                "make the artifact again"
            )
        return cls(name, tuple((first, stop) for first, stop in item[1]))

    @classmethod
    def of(cls, name: PartName, live: NDArray[np.bool_]) -> "PartSlice":
        """Return the slice of the rows that are true in `live`, [rows of the part]."""
        edges = np.flatnonzero(np.diff(np.concatenate([[True], live, [True]])))
        return cls(name, tuple((int(first), int(stop)) for first, stop in edges.reshape(-1, 2)))


def list_parts(folder: Path) -> list[PartName]:
    """Return all parts of an artifact, sorted by shard and first row."""
    if not (folder / PARTS).is_dir():
        return []
    names = [PartName.parse(entry.name) for entry in os.scandir(folder / PARTS)]
    return sorted(name for name in names if name)


def cover(names: list[PartName], shard: Shard) -> list[PartSlice]:
    """Return the parts of one shard that follow each other from row 0 without a gap.

    Ranges overlap if a task was requeued while its first process still ran. Then the part with the highest
    stop continues, without the rows that are covered already. The rule uses only names, so all readers choose
    the same parts.
    """
    chosen: list[PartSlice] = []
    covered = 0
    mine = [name for name in names if name.shard == shard]
    while True:
        usable = [name for name in mine if name.start <= covered < name.stop]
        if not usable:
            return chosen
        best = max(usable, key=lambda name: (name.stop, -name.start))
        skip = covered - best.start
        chosen.append(PartSlice(best, ((0, skip),) if skip else ()))
        covered = best.stop


def covered_rows(slices: list[PartSlice]) -> int:
    """Return how many rows of a shard the slices cover, counted from its start."""
    return slices[-1].name.stop if slices else 0


class ArtifactState(NamedTuple):
    """The live rows of an artifact folder, and the numbers of its unfinished shards."""

    slices: list[PartSlice]
    unfinished: list[int]


def read_state(folder: Path, shards: int) -> ArtifactState:
    """Read the generation, or else the names of parts and the done files.

    Raises DataError if a part is missing.
    """
    if updated := read_generation(folder):
        return ArtifactState(updated.slices, [])
    state = _read_shards(folder, shards)
    if not state.unfinished or not (folder / GENERATION).exists():
        return state
    return read_state(folder, shards)  # an update published the generation in the meantime


def _read_shards(folder: Path, shards: int) -> ArtifactState:
    names = list_parts(folder)
    slices: list[PartSlice] = []
    unfinished = []
    for number in range(shards):
        shard = Shard(number, shards)
        done = _done(folder, shard)
        _check_digests(folder, done.parts if done else {})
        mine = cover([n for n in names if str(n) in done.parts] if done else names, shard)
        slices += mine
        if done is None:
            unfinished.append(number)
        elif covered_rows(mine) != done.rows:
            raise DataError(
                f"{folder}: shard {number}/{shards} should have {done.rows} rows and has "
                f"{covered_rows(mine)}, so a part is missing; delete {done_path(folder, shard)} and run the "
                "same command again"
            )
    return ArtifactState(slices, unfinished)


def done_path(folder: Path, shard: Shard) -> Path:
    """Return the path of the file that marks a shard as complete."""
    return folder / DONE / f"{shard.number}of{shard.count}.json"


def done_rows(folder: Path, shard: Shard) -> int | None:
    """Return the number of rows of a finished shard, or None if it is unfinished."""
    done = _done(folder, shard)
    return done.rows if done else None


def is_finished(folder: Path, shard: Shard) -> bool:
    """Return whether a shard is complete, or belongs to an artifact that was updated since."""
    return done_rows(folder, shard) is not None or (folder / GENERATION).exists()


def skipped_count(folder: Path, shards: int) -> int:
    """Return the number of files or rows that the finished shards left out."""
    done = (_done(folder, Shard(number, shards)) for number in range(shards))
    return sum(each.skipped for each in done if each)


class _Done(Section, frozen=True, kw_only=True):
    rows: int
    parts: dict[str, str]  # their digests by their names
    skipped: int = 0  # files or rows of the source that could not be read


def _done(folder: Path, shard: Shard) -> _Done | None:
    path = done_path(folder, shard)
    try:
        return read_struct(path, _Done, f"delete {path} and {MAKE_AGAIN}")
    except FileNotFoundError:
        return None


def mark_done(folder: Path, shard: Shard, rows: int, skipped: int = 0) -> None:
    """Record that a shard is complete, its parts, and the number of skipped files or rows.

    An empty shard has no parts.

    If a task runs twice, the first process to finish defines the shard. Later parts of the other process do
    not count.
    """
    path = done_path(folder, shard)
    if path.exists():
        return
    make_folder(path.parent)
    digests = _digests(folder, cover(list_parts(folder), shard))
    with atomic_file(path) as temporary:
        done = _Done(rows=rows, parts=digests, skipped=skipped)
        temporary.write_text(json.dumps(plain(done)))


class PartSummary(Section, frozen=True, kw_only=True):
    """The file part.json: how much a part contains, and what it is.

    docs … chunks_lost: the fields of Counts. collection: the digest of the documents. bytes: the size of its
    texts and arrays. arrays: the sha256 of the numbers of each array. digest: of arrays and collection.
    """

    docs: int
    tokens: int = 0
    lost: int = 0
    cut: int = 0
    empty: int = 0
    vectors: int = 0
    context_tokens: int = 0
    context_lost: int = 0
    chunks_lost: int = 0
    collection: Annotated[str, text_like(r"^[0-9]{1,18}:[0-9a-f]{1,64}$")]
    bytes: int
    arrays: dict[str, str]
    digest: str


def part_summary(folder: Path, name: PartName) -> PartSummary:
    """Return the part.json of a part. Raises DataError if it is missing, or belongs to other rows."""
    path = folder / PARTS / str(name) / SUMMARY
    fix = f"delete this part and {MAKE_AGAIN}"
    try:
        summary = read_struct(path, PartSummary, fix)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); {fix}") from None
    if summary.docs != name.stop - name.start:
        raise DataError(
            f"{path} records {summary.docs} documents, but its part has {name.stop - name.start}; {fix}"
        )
    return summary


def _digests(folder: Path, slices: list[PartSlice]) -> dict[str, str]:
    """Return the digest of each part by name, as its part.json records it."""
    return {str(piece.name): part_summary(folder, piece.name).digest for piece in slices}


def _check_digests(folder: Path, listed: dict[str, str]) -> None:
    """Raise DataError if a part was replaced by another part of the same name."""
    for name, digest in listed.items():
        part = PartName.parse(name)
        exists = part and (folder / PARTS / name).is_dir()
        if part and exists and part_summary(folder, part).digest != digest:
            raise DataError(
                f"{folder / PARTS / name} is not the part that was written into this folder; restore it, or "
                f"delete it and the file in done/, and {MAKE_AGAIN}"
            )


class Generation(NamedTuple):
    """The contents of an artifact since its last update."""

    number: int
    source: Origin  # the collection when it was read
    slices: list[PartSlice]  # the live rows, in order
    rows: int  # this and earlier generations have used the row numbers of UPDATES below it


class _Generation(Section, frozen=True, kw_only=True):
    number: int
    source: Origin
    parts: list[SliceJson]
    rows: int
    digests: dict[str, str]  # of the parts, by their names
    digest: str = ""  # of the other values


def read_generation(folder: Path) -> Generation | None:
    """Return the current generation, or None if the artifact was never updated.

    Raises DataError if the file has changed since it was written, or if a part is missing.
    """
    path = folder / GENERATION
    try:
        data = read_struct(path, _Generation, "make the artifact again")
    except FileNotFoundError:
        return None
    if data.digest != manifest.digest(plain(structs.replace(data, digest=""))):
        raise DataError(
            f"{path} has changed since it was written (its digest differs); restore it from a copy, or "
            f"delete it and {MAKE_AGAIN}"
        )
    slices = [PartSlice.from_json(item) for item in data.parts]
    current = Generation(data.number, data.source, slices, data.rows)
    missing = {piece.name for piece in slices} - set(list_parts(folder))
    if not missing:
        _check_digests(folder, data.digests)
        return current
    if data == read_struct(path, _Generation, "make the artifact again"):
        raise DataError(f"{folder}: part {min(missing)} is missing; make the artifact again")
    return read_generation(folder)  # an update replaced it in the meantime


def write_generation(folder: Path, generation: Generation) -> None:
    """Replace the current generation atomically. The first one also replaces the files in done/."""
    data = _Generation(
        number=generation.number,
        source=generation.source,
        parts=[(str(piece.name), list(piece.deleted)) for piece in generation.slices],
        rows=generation.rows,
        digests=_digests(folder, generation.slices),
    )
    data = structs.replace(data, digest=manifest.digest(plain(data)))
    with atomic_file(folder / GENERATION) as temporary:
        text = json.dumps(plain(data), ensure_ascii=False)
        temporary.write_text(text, "utf-8", "surrogatepass")
    # Only now: after a kill in between, the files are ignored, and the next update removes them.
    for path in (folder / DONE).glob("*.json"):
        if _DONE_NAME.fullmatch(path.name):
            path.unlink(missing_ok=True)
