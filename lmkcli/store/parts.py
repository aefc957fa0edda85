"""Immutable parts: names, ranges, shards, generations; part_folders.py puts them there.

An artifact's `parts/` holds folders named `<shard>of<shards>-<first>-<stop>`: the rows of that
shard's slice of the source, counted from zero. A part is written under a temporary name, synced and
renamed, so it is whole or it is not there; nobody ever edits one. Without `generation.json` all rows
of all shards count; with it, those that it names.
"""

import json
import os
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Shard
from lmkcli.errors import DataError
from lmkcli.reading import read_json
from lmkcli.system.atomic import atomic_file

PARTS, DONE, GENERATION = "parts", "done", "generation.json"
ADDED = Shard(0, 0)  # the parts that updates and compactions wrote, numbered on for ever
_NAME = re.compile(r"(\d{5})of(\d{5})-(\d{12})-(\d{12})")


SliceJson = tuple[
    str, list[tuple[int, int]]
]  # a PartSlice in JSON: its name, ranges of deleted rows


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


@dataclass(frozen=True)
class PartSlice:
    """The live rows of one part: all but those in `deleted`, ascending ranges (first, stop)."""

    name: PartName
    deleted: tuple[tuple[int, int], ...] = ()

    @property
    def rows(self) -> int:
        """How many rows count."""
        return self.name.stop - self.name.start - sum(stop - first for first, stop in self.deleted)

    @property
    def skip(self) -> int:
        """How many leading rows do not count (they belong to an earlier part)."""
        return self.deleted[0][1] if self.deleted and self.deleted[0][0] == 0 else 0

    @property
    def live(self) -> NDArray[np.bool_]:
        """For each row of the part, whether it counts."""
        mask = np.ones(self.name.stop - self.name.start, np.bool_)
        for first, stop in self.deleted:
            mask[first:stop] = False
        return mask

    def at(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where in the part the given live rows are."""
        before, shifts = self._shifts
        return np.asarray(rows + shifts[np.searchsorted(before, rows, side="right")])

    @cached_property
    def _shifts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """How many rows count before each deleted range; how many are deleted up to its end, from 0 on."""
        ranges = np.array(self.deleted, np.int64).reshape(-1, 2)
        gone = np.concatenate([[0], np.cumsum(ranges[:, 1] - ranges[:, 0])])
        return ranges[:, 0] - gone[:-1], gone

    def between(self, first: int, stop: int) -> "PartSlice":
        """The live rows `first` to `stop` (exclusive) alone, counted among the live ones."""
        mask = np.zeros(self.name.stop - self.name.start, np.bool_)
        mask[np.flatnonzero(self.live)[max(0, first) : max(0, stop)]] = True
        return PartSlice.of(self.name, mask)

    def as_json(self) -> list[Any]:
        """[name, deleted ranges], as generations and indexes record it."""
        return [str(self.name), [list(ends) for ends in self.deleted]]

    @classmethod
    def from_json(cls, item: SliceJson) -> "PartSlice":
        """The slice that `as_json` wrote; DataError for what cannot be one."""
        name = PartName.parse(item[0])
        if name is None or name.stop < name.start:
            raise DataError(f"'{item[0]}' is not the name of a part; make the artifact again")
        ends = np.array([0, *chain.from_iterable(item[1]), name.stop - name.start])
        if (np.diff(ends) < 0).any():
            raise DataError(
                f"the deleted rows of part {item[0]} are not in it, or not in order; make the artifact again"
            )
        return cls(name, tuple((first, stop) for first, stop in item[1]))

    @classmethod
    def of(cls, name: PartName, live: NDArray[np.bool_]) -> "PartSlice":
        """The slice in which the rows count for which `live` is true."""
        edges = np.flatnonzero(np.diff(np.concatenate([[True], live, [True]])))
        return cls(name, tuple((int(first), int(stop)) for first, stop in edges.reshape(-1, 2)))


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
        skip = covered - best.start
        chosen.append(PartSlice(best, ((0, skip),) if skip else ()))
        covered = best.stop


def covered_rows(slices: list[PartSlice]) -> int:
    """How many rows from the start of the shard are there."""
    return slices[-1].name.stop if slices else 0


class State(NamedTuple):
    """What an artifact folder holds: its live rows, and which shards are not complete."""

    slices: list[PartSlice]
    unfinished: list[int]


def state(folder: Path, shards: int) -> State:
    """Reads the generation, else the names of parts and done files; DataError when a part is lost."""
    if updated := generation(folder):
        return State(updated.slices, [])
    names = list_parts(folder)
    slices: list[PartSlice] = []
    unfinished = []
    for number in range(shards):
        shard = Shard(number, shards)
        done = _done(folder, shard)
        _check_digests(folder, done.get("digests", {}) if done else {})
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


class _Done(TypedDict):
    rows: int
    parts: list[str]
    digests: NotRequired[dict[str, str]]  # by the names of the parts


def _done(folder: Path, shard: Shard) -> _Done | None:
    path = done_path(folder, shard)
    try:
        return read_json(path, _Done, f"delete {path} and run the same command again")
    except FileNotFoundError:
        return None


def mark_done(folder: Path, shard: Shard, rows: int) -> None:
    """Record that a shard is complete (empty shards too) and which parts it is made of.

    The first life of a task to get here decides: what another one publishes later changes nothing.
    """
    path = done_path(folder, shard)
    if path.exists():
        return
    path.parent.mkdir(exist_ok=True)
    slices = cover(list_parts(folder), shard)
    names = [str(piece.name) for piece in slices]
    done = {"rows": rows, "parts": names, "digests": _digests(folder, slices)}
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(done))


class _Part(TypedDict):
    digest: str


def _digests(folder: Path, slices: list[PartSlice]) -> dict[str, str]:
    """What each part says is the digest of all that is in it."""
    return {str(piece.name): _digest(folder, str(piece.name)) for piece in slices}


def _digest(folder: Path, name: str) -> str:
    path = folder / PARTS / name / "part.json"
    fix = "delete this part and run the same command again"
    try:
        return read_json(path, _Part, fix)["digest"]
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); {fix}") from None


def _check_digests(folder: Path, listed: dict[str, str]) -> None:
    """DataError for a part that is another than the one of its name that was written into this folder."""
    for name, digest in listed.items():
        there = PartName.parse(name) and (folder / PARTS / name).is_dir()
        if there and _digest(folder, name) != digest:
            raise DataError(
                f"{folder / PARTS / name} is not the part that was written there: it is of another "
                "folder; restore it, or delete it and the file in done/ and run the same command again"
            )


class Generation(NamedTuple):
    """What counts since the last update: which rows of which parts, in order, made of which source."""

    number: int
    source: dict[str, Any]  # its name and stamp when it was read
    slices: list[PartSlice]
    rows: int  # numbers below it belong to parts of this or an earlier generation


class _Generation(TypedDict):
    number: int
    source: dict[str, Any]
    parts: list[SliceJson]
    rows: int
    digests: NotRequired[dict[str, str]]


def generation(folder: Path) -> Generation | None:
    """The one that counts now; None where nothing was ever updated. DataError when a part is lost."""
    path = folder / GENERATION
    try:
        data = read_json(path, _Generation, "make the artifact again")
    except FileNotFoundError:
        return None
    slices = [PartSlice.from_json(item) for item in data["parts"]]
    current = Generation(data["number"], data["source"], slices, data["rows"])
    lost = {piece.name for piece in slices} - set(list_parts(folder))
    if not lost:
        _check_digests(folder, data.get("digests", {}))
        return current
    if read_json(path, _Generation, "make the artifact again") == data:
        raise DataError(f"{folder}: part {min(lost)} is missing; make the artifact again")
    return generation(folder)  # it was replaced while this was looking


def write_generation(folder: Path, generation: Generation) -> None:
    """Let it count from this moment on."""
    data = {**generation._asdict(), "parts": [piece.as_json() for piece in generation.slices]}
    data["digests"] = _digests(folder, data.pop("slices"))
    with atomic_file(folder / GENERATION) as temporary:
        temporary.write_text(json.dumps(data, ensure_ascii=False), "utf-8", "surrogatepass")
