"""Writing parts: the one loop that writes tokens and vectors.

Documents and rows of arrays are appended to a growing part. The part is published when it is full, when a
signal asks the process to stop, and at the end. Published parts are never edited, so a killed job loses at
most the part in progress, and the same command continues after the last published one.
"""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import plain
from lmkcli.artifact.manifest import digest
from lmkcli.artifact.outputs import PART_FILE
from lmkcli.data.collection import Collection, CollectionDigest, Shard
from lmkcli.errors import DataError, Stopped
from lmkcli.progress import Report
from lmkcli.store import parts
from lmkcli.store.doctable import COUNTS, DocRows, DocTableWriter
from lmkcli.store.part_reader import Counts, doc_table
from lmkcli.store.parts import (
    PARTS,
    SUMMARY,
    UPDATES,
    ArrayTypes,
    PartName,
    PartSlice,
    PartSummary,
)
from lmkcli.system.atomic import in_use, is_abandoned, make_folder, process_mark, sync, sync_tree

PART_BYTES = 256 << 20
PART_SECONDS = 300.0  # a killed job loses at most the work of this time, or PART_BYTES
ABANDONED_SECONDS = 3600.0  # a growing part of another machine without changes for so long
_FILES = re.compile(PART_FILE, re.ASCII)


# Folders of parts: created under a temporary name, published by a rename, removed in the end.


def create_part(folder: Path, shard: Shard) -> Path:
    """Create an empty temporary folder for a new part. Removes growing parts of killed jobs."""
    remove_abandoned_parts(folder, shard)
    path = folder / PARTS / _growing_name(shard)
    make_folder(path.parent)
    path.mkdir()
    return path


def _growing_name(shard: Shard) -> str:
    return f".growing-{shard.number}-{process_mark('-')}"


def remove_abandoned_parts(folder: Path, shard: Shard) -> None:
    """Remove growing parts of killed jobs.

    A process of the same shard may still be running on another machine (a task that was requeued). Its parts
    are removed only without changes for ABANDONED_SECONDS, therefore.
    """
    if (folder / PARTS).is_symlink():
        return
    for path in (folder / PARTS).glob(f".growing-{shard.number}-*"):
        if is_abandoned(path, ABANDONED_SECONDS):
            remove_part(path)


def publish_part(growing: Path, name: PartName) -> Path:
    """Sync a growing part and rename it. If a part of this name exists, drop the growing one."""
    final = growing.parent / str(name)
    sync_tree(growing)
    try:
        os.rename(growing, final)
    except OSError:
        if not final.is_dir():
            raise
        shutil.rmtree(growing)  # another process of the same task was faster
    sync(final.parent)
    return final


def retire_part(part: Path) -> list[str]:
    """Remove a published part. It first gets a temporary name, so no reader finds an incomplete part.

    Returns the names of files in it that lmk did not write. If there are any, the folder keeps its name and
    these files.
    """
    foreign = sorted(name for name in os.listdir(part) if not _FILES.fullmatch(name))
    if not foreign:
        hidden = part.with_name(_growing_name(UPDATES))
        os.rename(part, hidden)
        part = hidden
    remove_part(part)
    return foreign


def remove_part(folder: Path) -> None:
    """Remove the files of a part, and its folder if it is empty then. Nothing behind a link is removed."""
    with suppress(OSError):
        if folder.is_symlink():
            folder.unlink()
            return
        for name in filter(_FILES.fullmatch, os.listdir(folder)):
            os.unlink(folder / name)
        os.rmdir(folder)


class DuplicateId(DataError):
    """A document id that occurs twice; `doc_id` is the id."""

    def __init__(self, message: str, doc_id: str) -> None:
        super().__init__(message)
        self.doc_id = doc_id


@contextmanager
def duplicates_located(source: object) -> Iterator[None]:
    """Add to the error of a duplicate id the two places in the source, and the option that continues."""
    try:
        yield
    except DuplicateId as error:
        places = source.places(error.doc_id) if isinstance(source, Collection) else []
        if len(places) < 2:
            raise
        raise DataError(
            f"{places[1]}: the document id {error.doc_id!r} occurs twice (first in {places[0]}); ids must be "
            "unique; name another column with ,id=NAME, number the rows with ,id=row, or add "
            ",unreadable=skip to leave out the later rows"
        ) from None


class UniqueIds:
    """Finds duplicate document ids in 8 bytes for each id.

    The ids are hashed to 64 bits. The hashes are in sorted runs; a new run is merged with the runs before it
    while these are at most twice as long. So there are about log2(n) runs, and n additions cost n log n.
    """

    def __init__(self) -> None:
        self._runs: list[NDArray[np.uint64]] = []

    def add(self, ids: Iterable[str], where: str) -> None:
        """Add ids. Raises DataError, which names `where`, for an id that was added before or occurs twice."""
        ids = list(ids)
        # Python's own hash has 64 bits, too, and a random key in each process, so that nobody can choose ids
        # with equal hashes
        run = np.fromiter(map(hash, ids), dtype=np.int64, count=len(ids)).view(np.uint64)
        fresh = np.unique(run)
        repeated = len(fresh) != len(run) or any(_intersect(fresh, old) for old in self._runs)
        if repeated:
            name = self._duplicate(ids, run)
            raise DuplicateId(
                f"{where}: the document id {name!r} occurs twice; ids must be unique", name
            )
        self._runs.append(fresh)
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            self._runs[-2:] = [np.sort(np.concatenate(self._runs[-2:]))]

    def _duplicate(self, ids: list[str], run: NDArray[np.uint64]) -> str:
        """Return the first id that occurred before."""
        repeated = np.ones(len(run), np.bool_)
        repeated[np.unique(run, return_index=True)[1]] = False  # the first of each value
        for old in self._runs:
            repeated |= np.isin(run, old, kind="sort")
        return ids[int(repeated.argmax())]


def _intersect(values: NDArray[np.uint64], run: NDArray[np.uint64]) -> bool:
    """Return whether some values occur in a sorted run."""
    if not len(run) or not len(values):
        return False
    positions = np.searchsorted(run, values)
    return bool((run[np.minimum(positions, len(run) - 1)] == values).any())


def ids_of(folder: Path, slices: list[PartSlice]) -> UniqueIds:
    """Return the ids of the parts that a shard has already written, to continue it."""
    seen = UniqueIds()
    for piece in slices:
        ids = doc_table(folder, piece.name).ids()
        seen.add(ids.slice(piece.skip).to_pylist(), str(folder))
    return seen


class PartTarget(NamedTuple):
    """The destination of parts.

    folder: an artifact folder that is claimed by its manifest. shard: the task's share of the source.
    arrays: the arrays of a part. store_text: whether titles and texts are stored.
    contexts: whether chunks follow contexts.
    """

    folder: Path
    shard: Shard
    arrays: ArrayTypes
    store_text: bool = True
    contexts: bool = False


class NpyAppender:
    """A .npy file that grows along its first axis. Its header is corrected when the file is closed."""

    def __init__(self, path: Path, dtype: str, width: tuple[int, ...] = ()) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 (open until close())
        self._dtype = np.dtype(dtype)
        self._width = width
        self.rows = 0
        self._write_header()

    def _write_header(self) -> None:
        # NumPy pads headers, so a header with more rows has the same length
        np.lib.format.write_array_header_1_0(
            self._file,
            {
                "descr": np.lib.format.dtype_to_descr(self._dtype),
                "fortran_order": False,
                "shape": (self.rows, *self._width),
            },
        )

    def append(self, array: NDArray[Any]) -> bytes:
        """Add rows, converted to the dtype of the file. Returns the written bytes."""
        data = np.ascontiguousarray(array, dtype=self._dtype).tobytes()
        self._file.write(data)
        self.rows += len(array)
        return data

    def abandon(self) -> None:
        """Close a file that nothing will read, even if the disk is full."""
        with suppress(OSError):
            self._file.close()

    def close(self) -> None:
        """Write the number of rows and close the file. A second call does nothing."""
        if self._file.closed:
            return
        self._file.seek(0)
        self._write_header()
        self._file.close()


class PartBuilder:
    """A growing part that starts with row `start` of its shard."""

    def __init__(self, target: PartTarget, start: int) -> None:
        self._shard, self._start = target.shard, start
        self._growing = create_part(target.folder, target.shard)
        try:
            self._arrays = {
                stem: NpyAppender(self._growing / f"{stem}.npy", dtype, width)
                for stem, (dtype, width) in target.arrays.items()
            }
            self._docs = DocTableWriter(
                self._growing / "docs.parquet",
                target.store_text,
                target.contexts,
                chunks="spans" in target.arrays,
            )
        except OSError:  # the disk is full
            remove_part(self._growing)
            raise
        self._hashes = {stem: hashlib.sha256() for stem in target.arrays}
        self._counts = Counts()
        self._collection = CollectionDigest()
        self.bytes = 0

    def add_docs(self, rows: DocRows) -> None:
        """Append documents, in source order."""
        self._docs.append(rows)
        self._counts.add({name: rows.count(name) for name in COUNTS})
        self._collection.add(*rows.hashes)
        self.bytes += sum(len(doc.text) + len(doc.title) for doc in rows.docs)

    def add_array(self, stem: str, array: NDArray[Any]) -> None:
        """Append rows to an array."""
        self._hashes[stem].update(self._arrays[stem].append(array))
        self.bytes += array.nbytes

    def rows(self, stem: str) -> int:
        """Return the current number of rows of an array."""
        return self._arrays[stem].rows

    @property
    def stop(self) -> int:
        """The row of the shard after the last document."""
        return self._start + self._counts.docs

    def publish(self) -> None:
        """Close all files, write part.json and publish the part under its name."""
        for appender in self._arrays.values():
            appender.close()
        self._docs.close()
        hashes = {stem: value.hexdigest() for stem, value in self._hashes.items()}
        summary = PartSummary(
            **vars(self._counts),
            collection=str(self._collection),
            bytes=self.bytes,
            arrays=hashes,
            digest=digest({"arrays": hashes, "collection": str(self._collection)}),
        )
        (self._growing / SUMMARY).write_text(json.dumps(plain(summary), indent=1))
        publish_part(self._growing, PartName(self._shard, self._start, self.stop))

    def abandon(self) -> None:
        """Close and remove the growing part, even if the disk is full."""
        for appender in self._arrays.values():
            appender.abandon()
        remove_part(self._growing)
        self._docs.abandon()


class PartWriter:
    """Appends documents and arrays, and publishes them in parts.

    Use it in a `with` statement. If the block ends with an error other than Stopped, the growing part is
    removed. Published parts stay.
    """

    def __init__(
        self, target: PartTarget, report: Report, row: int = 0, ids: UniqueIds | None = None
    ) -> None:
        """Start with row `row` of the shard; `ids` are the ids of the documents before it."""
        self._target, self._report = target, report
        self._ids = UniqueIds() if ids is None else ids
        self._row = row  # the first row of the growing part
        self._part: PartBuilder | None = None
        self._started = time.monotonic()
        self.skipped = 0  # files or rows of the source that could not be read

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None or issubclass(kind, Stopped):
                self._publish()
        finally:
            if self._part is not None:
                self._part.abandon()

    @property
    def row(self) -> int:
        """The next row of the shard."""
        return self._row if self._part is None else self._part.stop

    def array_rows(self, stem: str) -> int:
        """Return the number of rows of an array of the growing part."""
        return 0 if self._part is None else self._part.rows(stem)

    def append(
        self,
        rows: DocRows,
        arrays: Mapping[str, NDArray[Any]],
        source: str = "this collection",
    ) -> None:
        """Add documents in source order, and rows to the arrays.

        Raises DataError, which names `source`, for a duplicate id. Raises Stopped if a signal asked for it,
        after the part is published.
        """
        self._ids.add((doc.id for doc in rows.docs), source)
        if self._part is None:
            self._part = PartBuilder(self._target, self._row)
        self._part.add_docs(rows)
        for stem, array in arrays.items():
            self._part.add_array(stem, array)
        is_full = self._part.bytes >= PART_BYTES or time.monotonic() - self._started > PART_SECONDS
        if is_full or self._report.stopping():
            self._publish()
            self._report.check_stop()

    def _publish(self) -> None:
        if self._part is not None and self._part.stop > self._row:
            self._part.publish()
            self._row, self._part = self._part.stop, None
        self._started = time.monotonic()


@contextmanager
def shard_writer(target: PartTarget, report: Report) -> Iterator[PartWriter]:
    """Continue after the existing parts of a shard, and mark it as complete if the block succeeds.

    Ids must be unique across shards, but each task knows only the ids of its shard. So the task that
    completes the last shard compares the ids of all shards, and raises DataError for a duplicate.
    """
    folder, shard = target.folder, target.shard
    with in_use(folder / manifest.NAME):  # nobody removes the folder in the meantime
        remove_abandoned_parts(folder, shard)
        written = parts.cover(parts.list_parts(folder), shard)
        ids = ids_of(folder, written)
        with PartWriter(target, report, parts.covered_rows(written), ids) as writer:
            yield writer
        _finish(folder, shard, writer.row, writer.skipped)


def _finish(folder: Path, shard: Shard, rows: int, skipped: int) -> None:
    is_last = _others_done(folder, shard)
    if is_last:
        _check_ids_across_shards(folder, shard.count)
    parts.mark_done(folder, shard, rows, skipped)
    if not is_last and _others_done(folder, shard):  # two ended at the same time
        try:
            _check_ids_across_shards(folder, shard.count)
        except DataError:
            parts.done_path(folder, shard).unlink()
            raise


def _others_done(folder: Path, shard: Shard) -> bool:
    others = (Shard(number, shard.count) for number in range(shard.count) if number != shard.number)
    return all(parts.done_rows(folder, other) is not None for other in others)


def _check_ids_across_shards(folder: Path, shards: int) -> None:
    """Raise DataError for a document id that occurs in two shards. Reads all ids of several shards."""
    if shards == 1:
        return  # the writer of a single shard has already checked all ids
    seen = UniqueIds()
    for piece in parts.read_state(folder, shards).slices:
        ids = doc_table(folder, piece.name).ids()
        where = f"{folder}, shard {piece.name.shard.number}/{shards} and an earlier one"
        seen.add(ids.slice(piece.skip).to_pylist(), where)
