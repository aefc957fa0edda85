"""Files into records: jsonl, tsv, parquet, TREC topics, gzip and stdin, as streams and in shards.

A record is a dict from field name to value, and comes with where it stands, for error messages.
Reading starts at once and takes constant memory, whatever the size (topics, which are small, are
read whole). Lines end with a line feed, after a carriage return or not, so that Unicode's own
separators may stand inside a text; a byte order mark is passed over, and so are empty lines.
"""

import gzip
import io
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from lmkcli.data.collection import WHOLE, Shard
from lmkcli.data.formats import BOM, PLAIN_COLUMNS, Columns, LineFormat, Record, line_format
from lmkcli.data.trec import read_topics
from lmkcli.errors import DataError
from lmkcli.reading import LONG_LINE, bounded_lines

BLOCK = 1000
ONCE = "stdin can be read only once, and was; save it to a file and name that instead of '-'"


class Records(ABC):
    """The records of one shard of a file; iterating yields (where, record).

    `fraction` is the share of this shard that has been read, or None when it cannot be known.
    """

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[str, Record]]: ...

    @property
    @abstractmethod
    def fraction(self) -> float | None: ...


def open_records(
    path: str,
    shard: Shard = WHOLE,
    wanted: frozenset[str] = frozenset(),
    columns: Columns = PLAIN_COLUMNS,
) -> Records:
    """The records of a file; the suffix says what it is, else its first line does.

    `wanted` names the fields that will be looked at: parquet reads only those columns, and a tsv
    header is recognised by them; `columns` names those of a tsv without one. Plain lines are cut into
    shards by bytes and parquet by rows; gzip cannot seek, so its lines are dealt in blocks of 1,000.
    DataError for what is none of these.
    """
    file = Path(os.path.expanduser(path))
    if not file.is_file():
        raise DataError(
            f"{path}: {'a folder' if file.is_dir() else 'no such file'}; expected a file"
        )
    if file.suffix == ".parquet":
        return ParquetRecords(file, shard, wanted)
    zipped = file.suffix == ".gz"
    with _whole_gzip(path), gzip.open(file) if zipped else file.open("rb") as handle:
        first = next(bounded_lines(handle, path, LONG_LINE), b"")
    layout = line_format(first, path, wanted, columns)
    if layout is None:
        return TopicRecords(file, shard)
    return ZippedLines(file, shard, layout) if zipped else PlainLines(file, shard, layout)


class PlainLines(Records):
    """Lines of a local file; a line belongs to the shard in which its first byte lies."""

    def __init__(self, path: Path, shard: Shard, layout: LineFormat) -> None:
        self._path = path
        self._layout = layout
        mine = shard.rows(path.stat().st_size)
        self._start, self._stop = mine.start, mine.stop
        self._position = self._start

    def __iter__(self) -> Iterator[tuple[str, Record]]:
        parse, header = self._layout
        with self._path.open("rb", buffering=1 << 20) as file:
            self._position = position = self._seek(file)
            lines = bounded_lines(file, self._path, LONG_LINE)
            for number, line in enumerate(lines, start=1):
                if position >= self._stop:
                    break
                # In the middle of a file nobody knows the number of a line.
                place = f"byte {position}" if self._start else f"line {number}"
                text = line if position else line.removeprefix(BOM)
                skip = not text or text.isspace() or (header and not position)
                self._position = position = position + len(line)
                if not skip:
                    where = f"{self._path} {place}"
                    yield where, parse(text, where)

    def _seek(self, file: BinaryIO) -> int:
        if self._start:
            file.seek(self._start - 1)
            file.readline()
        return file.tell()

    @property
    def fraction(self) -> float | None:
        if self._stop == self._start:
            return 1.0
        return min(1.0, (self._position - self._start) / (self._stop - self._start))


class DealtLines(Records):
    """Lines of a stream that cannot seek, dealt to the shards in blocks of 1,000."""

    def __init__(self, name: str, shard: Shard, layout: LineFormat) -> None:
        self._name = name
        self._shard = shard
        self._layout = layout

    @abstractmethod
    def _lines(self) -> Iterator[bytes]: ...

    def __iter__(self) -> Iterator[tuple[str, Record]]:
        parse, header = self._layout
        for number, line in enumerate(self._lines()):
            text = line if number else line.removeprefix(BOM)
            mine = (number // BLOCK) % self._shard.count == self._shard.number
            if mine and text and not text.isspace() and not (header and not number):
                where = f"{self._name} line {number + 1}"
                yield where, parse(text, where)


class ZippedLines(DealtLines):
    """Lines of a gzip file; `fraction` goes by compressed bytes, of the whole file."""

    def __init__(self, path: Path, shard: Shard, layout: LineFormat) -> None:
        super().__init__(str(path), shard, layout)
        self._path = path
        self._size = path.stat().st_size
        self._read = 0

    def _lines(self) -> Iterator[bytes]:
        with _whole_gzip(self._name), self._path.open("rb") as raw, gzip.open(raw) as file:
            for line in bounded_lines(io.BufferedReader(file, 1 << 17), self._name, LONG_LINE):
                self._read = raw.tell()
                yield line

    @property
    def fraction(self) -> float | None:
        return self._read / self._size if self._size else 1.0


class PipedLines(DealtLines):
    """Lines of standard input, which can be read once."""

    def __init__(
        self,
        stream: BinaryIO,
        shard: Shard,
        wanted: frozenset[str],
        columns: Columns = PLAIN_COLUMNS,
    ) -> None:
        self._stream: BinaryIO | None = stream
        self._first = next(bounded_lines(stream, "stdin", LONG_LINE), b"")
        layout = line_format(self._first, "-", wanted, columns)
        if layout is None:
            raise DataError("stdin: topics cannot be piped in; save them and name the file")
        super().__init__("stdin", shard, layout)

    def _lines(self) -> Iterator[bytes]:
        stream, self._stream = self._stream, None
        if stream is None:
            raise DataError(ONCE)
        yield self._first
        yield from bounded_lines(stream, "stdin", LONG_LINE)

    @property
    def fraction(self) -> float | None:
        return None


@contextmanager
def _whole_gzip(name: str) -> Iterator[None]:
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{name}: damaged or cut gzip ({error}); fetch it again") from error


@contextmanager
def _whole_parquet(path: Path) -> Iterator[None]:
    """What Arrow says of a damaged file, in many classes, as one DataError."""
    try:
        yield
    except (OSError, pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"{path}: not a parquet file, or a damaged one ({first})") from error


class ParquetRecords(Records):
    """Rows of a parquet file; a shard reads only the row groups that hold its rows."""

    def __init__(self, path: Path, shard: Shard, wanted: frozenset[str]) -> None:
        self._path = path
        with _whole_parquet(path), pq.ParquetFile(path) as file:
            rows, names = file.metadata.num_rows, file.schema_arrow.names
        chosen = [name for name in names if name in wanted]
        # With less than an id and a text all are read, so that the error can name what there is.
        self._columns = chosen if len(chosen) > 1 else names
        mine = shard.rows(rows)
        self._start, self._stop = mine.start, mine.stop
        self._row = self._start

    def __iter__(self) -> Iterator[tuple[str, Record]]:
        self._row = self._start
        for record in self._records():
            self._row += 1
            yield f"{self._path} row {self._row}", record

    def _records(self) -> Iterator[Record]:
        with _whole_parquet(self._path):
            file = pq.ParquetFile(self._path)
        with file:
            batches = self._batches(file)
            while True:
                with _whole_parquet(self._path):
                    batch = next(batches, None)
                    records = [] if batch is None else batch.to_pylist()
                if batch is None:
                    return
                yield from records

    def _batches(self, file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
        row = 0
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if row + size <= self._start or row >= self._stop:
                row += size
                continue
            for batch in file.iter_batches(BLOCK, row_groups=[group], columns=self._columns):
                first, last = max(self._start - row, 0), min(self._stop - row, len(batch))
                if first < last:
                    yield batch.slice(first, last - first)
                row += len(batch)

    @property
    def fraction(self) -> float | None:
        total = self._stop - self._start
        return (self._row - self._start) / total if total else 1.0


class TopicRecords(Records):
    """TREC topics: the classic <top> <num> <title> form, or XML with <topic number="…">.

    Fields: id, title, description, narrative; in XML, id and the names of the elements.
    """

    def __init__(self, path: Path, shard: Shard) -> None:
        self._path = path
        self._shard = shard

    def __iter__(self) -> Iterator[tuple[str, Record]]:
        topics = read_topics(self._path)
        for row in self._shard.rows(len(topics)):
            yield f"{self._path} topic {row + 1}", topics[row]

    @property
    def fraction(self) -> float | None:
        return None
