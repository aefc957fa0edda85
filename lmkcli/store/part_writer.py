"""How a part grows: arrays and documents are appended, then the whole is published at once."""

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import CollectionDigest, Shard
from lmkcli.errors import DataError
from lmkcli.manifest import digest
from lmkcli.store import parts
from lmkcli.store.doctable import DocRow, DocTable, DocTableWriter
from lmkcli.store.parts import PartName, PartSlice

Arrays = Mapping[str, tuple[str, tuple[int, ...]]]  # stem -> (dtype, width after the first axis)
PART_BYTES = 256 << 20
PART_SECONDS = 300.0  # what a killed job can lose at most, besides the bytes above


@dataclass
class Counts:
    """What is in a part or in a whole artifact; summed when it is read."""

    docs: int = 0
    tokens: int = 0  # content tokens before anything was cut
    lost: int = 0  # content tokens that were cut
    cut: int = 0  # documents that lost tokens
    empty: int = 0  # documents without content tokens
    vectors: int = 0

    def add(self, row: DocRow) -> None:
        """Count one document in."""
        self.docs += 1
        self.tokens += row.tokens
        self.lost += row.lost
        self.cut += row.lost > 0
        self.empty += row.tokens == 0
        self.vectors += row.vectors


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


class Builder:
    """One part in the making."""

    def __init__(
        self,
        folder: Path,
        shard: Shard,
        start: int,
        arrays: Arrays,
        store_text: bool,
    ) -> None:
        self._folder, self._shard, self._start = folder, shard, start
        self._growing = parts.new_part_folder(folder, shard)
        self._arrays = {
            stem: NpyAppender(self._growing / f"{stem}.npy", dtype, width)
            for stem, (dtype, width) in arrays.items()
        }
        self._hashes = {stem: hashlib.sha256() for stem in arrays}
        self._docs = DocTableWriter(self._growing / "docs.parquet", store_text)
        self._counts = Counts()
        self._collection = CollectionDigest()
        self._bytes = 0
        self._born = time.monotonic()

    def add_doc(self, row: DocRow) -> None:
        """Append one document, in source order."""
        self._docs.append(row)
        self._counts.add(row)
        self._collection.add(row.hash)
        self._bytes += len(row.doc.text) + len(row.doc.title)

    def add_array(self, stem: str, array: NDArray[Any]) -> None:
        """Append rows to an array."""
        self._hashes[stem].update(self._arrays[stem].append(array))
        self._bytes += array.nbytes

    def rows(self, stem: str) -> int:
        """Rows of an array so far."""
        return self._arrays[stem].rows

    @property
    def full(self) -> bool:
        """Whether it is time to publish: enough bytes, or enough minutes of work at stake."""
        return self._bytes >= PART_BYTES or time.monotonic() - self._born > PART_SECONDS

    def publish(self) -> int:
        """Give the part its name; returns the row of the shard at which the next one starts."""
        for appender in self._arrays.values():
            appender.close()
        self._docs.close()
        stop = self._start + self._counts.docs
        summary = {**asdict(self._counts), "collection": str(self._collection)}
        summary["bytes"] = self._bytes
        hashes = {stem: value.hexdigest() for stem, value in self._hashes.items()}
        summary["digest"] = digest({"arrays": hashes, "collection": str(self._collection)})
        (self._growing / "part.json").write_text(json.dumps(summary, indent=1))
        parts.publish(self._growing, PartName(self._shard, self._start, stop))
        return stop

    @property
    def empty(self) -> bool:
        """Whether nothing was added."""
        return self._counts.docs == 0

    def abandon(self) -> None:
        """Close and remove what has grown so far, also when the disk could not take it."""
        for appender in self._arrays.values():
            appender.abandon()
        parts.remove(self._growing)
        self._docs.abandon()


class SeenIds:
    """Finds duplicate ids in 8 bytes a document: sorted runs of hashes, merged as they grow."""

    def __init__(self) -> None:
        self._runs: list[NDArray[np.uint64]] = []

    def add(self, ids: Iterable[str], where: str) -> None:
        """DataError when one of the ids was added before, or stands twice among these."""
        ids = list(ids)
        run = np.fromiter((_hash(i) for i in ids), dtype=np.uint64, count=len(ids))
        fresh = np.unique(run)
        repeated = len(fresh) != len(run) or any(_common(fresh, old) for old in self._runs)
        if repeated:
            raise DataError(
                f"{where}: the document id {self._name(ids, run)!r} occurs twice; ids must be unique"
            )
        self._runs.append(fresh)
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            self._runs[-2:] = [np.sort(np.concatenate(self._runs[-2:]))]

    def _name(self, ids: list[str], run: NDArray[np.uint64]) -> str:
        seen: set[int] = set()
        for identifier, value in zip(ids, run.tolist(), strict=True):
            if value in seen or any(
                _common(np.array([value], np.uint64), old) for old in self._runs
            ):
                return identifier
            seen.add(value)
        return ids[0]


def _hash(identifier: str) -> int:
    data = identifier.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _common(values: NDArray[np.uint64], run: NDArray[np.uint64]) -> bool:
    if not len(run) or not len(values):
        return False
    at = np.searchsorted(run, values)
    return bool((run[np.minimum(at, len(run) - 1)] == values).any())


def seen_ids(folder: Path, slices: list[PartSlice]) -> SeenIds:
    """The ids of the parts that a resumed shard has already written."""
    seen = SeenIds()
    for piece in slices:
        ids = DocTable(folder / parts.PARTS / str(piece.name) / "docs.parquet").ids()
        seen.add(ids.slice(piece.skip).to_pylist(), str(folder))
    return seen


def finish(folder: Path, shard: Shard, rows: int) -> None:
    """Say that a shard is complete; whoever finishes last looks for ids that occur in two shards."""
    last = _others_done(folder, shard)
    if last:
        check_across(folder, shard.count)
    parts.finish(folder, shard, rows)
    if not last and _others_done(folder, shard):  # two finished together, and neither was the last
        try:
            check_across(folder, shard.count)
        except DataError:
            parts.done_path(folder, shard).unlink()
            raise


def _others_done(folder: Path, shard: Shard) -> bool:
    others = (Shard(number, shard.count) for number in range(shard.count) if number != shard.number)
    return all(parts.done_rows(folder, other) is not None for other in others)


def check_across(folder: Path, shards: int) -> None:
    """DataError for a document id that occurs in two shards; reads all ids unless there is one shard."""
    if shards == 1:
        return  # its own writer has seen them all
    seen = SeenIds()
    for piece in parts.state(folder, shards).slices:
        ids = DocTable(folder / parts.PARTS / str(piece.name) / "docs.parquet").ids()
        where = f"{folder}, shard {piece.name.shard.number}/{shards} and an earlier one"
        seen.add(ids.slice(piece.skip).to_pylist(), where)


def part_summary(folder: Path, name: PartName) -> dict[str, Any]:
    """The part.json of one part."""
    path = folder / parts.PARTS / str(name) / "part.json"
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({error}); delete this part and run the same command again"
        ) from None


def collection_digest(folder: Path, slices: list[PartSlice]) -> str:
    """The order-free digest of the documents that count."""
    return str(CollectionDigest.sum(_collection(folder, piece) for piece in slices))


def _collection(folder: Path, piece: PartSlice) -> str:
    if not piece.dead:
        return str(part_summary(folder, piece.name)["collection"])
    made = CollectionDigest()
    hashes = DocTable(folder / parts.PARTS / str(piece.name) / "docs.parquet").hashes()
    for doc_hash, counts in zip(hashes, piece.alive, strict=True):
        if counts:
            made.add(doc_hash)
    return str(made)
