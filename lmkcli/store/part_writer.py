"""The one loop that writes artifacts: documents and arrays are appended, and come to lie in parts."""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Shard
from lmkcli.data.digest import CollectionDigest
from lmkcli.errors import DataError, Stopped
from lmkcli.manifest import digest
from lmkcli.progress import Report
from lmkcli.store import part_folders, parts
from lmkcli.store.arrays import ArrayTypes
from lmkcli.store.doctable import DocRow, DocTableWriter
from lmkcli.store.parts import PartName
from lmkcli.store.summary import Counts
from lmkcli.store.unique_ids import UniqueIds, check_across, ids_of

PART_BYTES = 256 << 20
PART_SECONDS = 300.0  # what a killed job can lose at most, besides the bytes above


class Target(NamedTuple):
    """Where parts go: a claimed folder and a shard of it; the arrays of a part; whether text is kept,
    and whether chunks stand behind contexts."""

    folder: Path
    shard: Shard
    arrays: ArrayTypes
    store_text: bool = True
    contexts: bool = False


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

    def abandon(self) -> None:
        """Close a file that nobody will read, whether or not it can still be written."""
        with suppress(OSError):
            self._file.close()

    def close(self) -> None:
        """Set the number of rows and close; nothing happens the second time."""
        if self._file.closed:
            return
        self._file.seek(0)
        self._write_header()
        self._file.close()


class PartBuilder:
    """One part in the making, which begins with row `start` of the shard."""

    def __init__(self, target: Target, start: int) -> None:
        self._shard, self._start = target.shard, start
        self._growing = part_folders.create(target.folder, target.shard)
        self._arrays = {
            stem: NpyAppender(self._growing / f"{stem}.npy", dtype, width)
            for stem, (dtype, width) in target.arrays.items()
        }
        self._hashes = {stem: hashlib.sha256() for stem in target.arrays}
        self._docs = DocTableWriter(
            self._growing / "docs.parquet", target.store_text, target.contexts
        )
        self._counts = Counts()
        self._collection = CollectionDigest()
        self.bytes = 0

    def add_doc(self, row: DocRow) -> None:
        """Append one document, in source order."""
        self._docs.append(row)
        self._counts.add(row)
        self._collection.add(row.hash)
        self.bytes += len(row.doc.text) + len(row.doc.title)

    def add_array(self, stem: str, array: NDArray[Any]) -> None:
        """Append rows to an array."""
        self._hashes[stem].update(self._arrays[stem].append(array))
        self.bytes += array.nbytes

    def rows(self, stem: str) -> int:
        """Rows of an array so far."""
        return self._arrays[stem].rows

    @property
    def stop(self) -> int:
        """The row of the shard after the last document."""
        return self._start + self._counts.docs

    def publish(self) -> None:
        """Give the part its name."""
        for appender in self._arrays.values():
            appender.close()
        self._docs.close()
        summary = {**self._counts.as_json(), "collection": str(self._collection)}
        summary["bytes"] = self.bytes
        hashes = {stem: value.hexdigest() for stem, value in self._hashes.items()}
        summary["digest"] = digest({"arrays": hashes, "collection": str(self._collection)})
        (self._growing / "part.json").write_text(json.dumps(summary, indent=1))
        part_folders.publish(self._growing, PartName(self._shard, self._start, self.stop))

    def abandon(self) -> None:
        """Close and remove what has grown so far, also when the disk could not take it."""
        for appender in self._arrays.values():
            appender.abandon()
        part_folders.remove(self._growing)
        self._docs.abandon()


class PartWriter:
    """Publishes what is appended in parts: when one is full, when a stop is asked for, and at the end.

    Used in a `with` statement. When the block is left by any other error than Stopped, what has grown
    since the last part is removed; the parts stay.
    """

    def __init__(
        self, target: Target, report: Report, row: int = 0, ids: UniqueIds | None = None
    ) -> None:
        """Begins with row `row` of the shard; `ids` are those of the documents before it."""
        self._target, self._report = target, report
        self._ids = UniqueIds() if ids is None else ids
        self._row = row  # where the growing part begins
        self._part: PartBuilder | None = None
        self._begun = time.monotonic()

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
        """The row of the shard that comes next."""
        return self._row if self._part is None else self._part.stop

    def array_rows(self, stem: str) -> int:
        """Rows that an array of the growing part has."""
        return 0 if self._part is None else self._part.rows(stem)

    def append(
        self,
        docs: list[DocRow],
        arrays: Mapping[str, NDArray[Any]],
        source: str = "this collection",
    ) -> None:
        """Add documents in source order, and rows to the arrays.

        DataError, which names `source`, for an id that was there before; Stopped, when all is
        published, if a signal asked for it.
        """
        self._ids.add((row.doc.id for row in docs), source)
        if self._part is None:
            self._part = PartBuilder(self._target, self._row)
        for row in docs:
            self._part.add_doc(row)
        for stem, array in arrays.items():
            self._part.add_array(stem, array)
        if self._is_full(self._part) or self._report.stopping():
            self._publish()
            self._report.check_stop()

    def _is_full(self, part: PartBuilder) -> bool:
        """Whether it is time to publish: enough bytes, or enough minutes of work at stake."""
        return part.bytes >= PART_BYTES or time.monotonic() - self._begun > PART_SECONDS

    def _publish(self) -> None:
        if self._part is not None and self._part.stop > self._row:
            self._part.publish()
            self._row, self._part = self._part.stop, None
        self._begun = time.monotonic()


@contextmanager
def shard_writer(target: Target, report: Report) -> Iterator[PartWriter]:
    """A writer that goes on after the parts of a shard, which is complete when the block ends well.

    DataError for an id that occurs in two shards, from whichever is completed last.
    """
    written = parts.cover(parts.list_parts(target.folder), target.shard)
    ids = ids_of(target.folder, written)
    with PartWriter(target, report, parts.covered_rows(written), ids) as writer:
        yield writer
    _complete(target.folder, target.shard, writer.row)


def _complete(folder: Path, shard: Shard, rows: int) -> None:
    """Say that a shard is complete; whoever completes the last looks for ids that occur in two."""
    last = _others_done(folder, shard)
    if last:
        check_across(folder, shard.count)
    parts.mark_done(folder, shard, rows)
    if not last and _others_done(folder, shard):  # two ended together, and neither was the last
        try:
            check_across(folder, shard.count)
        except DataError:
            parts.done_path(folder, shard).unlink()
            raise


def _others_done(folder: Path, shard: Shard) -> bool:
    others = (Shard(number, shard.count) for number in range(shard.count) if number != shard.number)
    return all(parts.done_rows(folder, other) is not None for other in others)
