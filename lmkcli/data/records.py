"""Files of records: jsonl, JSON, csv, tsv, lines, parquet, mailboxes, Stack Exchange, TREC topics.

All but parquet may be compressed (gzip, Zstandard, a zip archive of one file). Standard input has the same
formats.

A record is a dictionary from field name to value. It comes with its place in the file, for error messages.
Reading starts at once and takes constant memory for files of any size (topics are small and are read at
once). A line ends with a line feed, optionally after a carriage return. A text may contain Unicode's own
line separators. A byte order mark and empty lines are skipped.
"""

import csv
import json
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
from pyarrow.parquet import ParquetFile

from lmkcli.data.byte_streams import (
    COMPRESSED,
    ByteSource,
    FileInput,
    PipeInput,
    inner_name,
    wrong_byte,
)
from lmkcli.data.collection import WHOLE, Shard, check_text
from lmkcli.data.columns import ID_NAMES, USUAL_NAMES, plain_name
from lmkcli.data.fields import ID_FIELDS, QUERY_ID_FIELDS, Record
from lmkcli.data.filetext import wide_encoding
from lmkcli.data.mbox import read_mailbox
from lmkcli.data.parquet import Decoder, open_parquet
from lmkcli.data.stackexchange import is_dump, parse_post
from lmkcli.data.trec import read_topics
from lmkcli.errors import DataError
from lmkcli.system.input_files import (
    LFS_POINTER,
    MAX_FILE,
    MAX_RECORD_LINE,
    bounded_lines,
    check_not_pointer,
    not_a_file,
    parse_json,
)

BLOCK = 1000  # consecutive records of a stream that one shard reads
BOM = b"\xef\xbb\xbf"
MAX_ROW_LINES = 1 << 20  # of a csv file
BATCH_BYTES = 64 << 20  # of the rows that are read at once from a parquet file
JQ_BY_ID = (
    "'to_entries[] | {_id: .key} + (.value | if type == \"string\" then {text: .} else . end)'"
)
_SHOWN = 60  # characters of a key in a message
HEAD = 1 << 12  # bytes of an XML file that show its kind
JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
DELIMITERS = ",;\t|"  # of csv files
_DECLARED = re.compile("[sS]ep=([,;\t|])")
NAMED_COLUMNS = (
    "the option columns= is for csv and tsv files, and this file names its own fields; drop it"
)
ONE_PER_LINE = "jq -c . FILE > FILE.jsonl"
FORMATS = (
    *("csv", "json", "jsonl", "lines", "mbox", "parquet", "stackexchange"),
    *("topics", "tsv"),
)
Parse = Callable[[bytes, str], Record | None]
Columns = tuple[tuple[str, ...], ...]
PLAIN_COLUMNS: Columns = (("id", "text"), ("id", "title", "text"))  # of tsv files without a header
QUERY_COLUMNS: Columns = (("id", "text"),)  # of tsv files of queries without a header


class FileFormat(NamedTuple):
    """What a file does not contain itself, given by the options of a collection."""

    delimiter: str = ""
    """Of csv; '': found in the header."""
    encoding: str = ""
    """'': UTF-8."""
    kind: str = ""
    """One of FORMATS; '': found by the suffix, else by the first line."""
    columns: frozenset[str] = frozenset()
    """Names of columns that must exist, so a first line that contains one is a header."""
    names: tuple[str, ...] = ()
    """The names of all columns of a csv or tsv file without a header."""
    numbered: bool = False
    """Whether ids are the numbers of rows, which byte ranges cannot count."""


class FileRow(NamedTuple):
    """A row of a file: its place, its number from 1 (without headers), and its record or the error in it."""

    where: str
    number: int
    found: Record | DataError

    def record(self) -> Record:
        """Return the record. Raises DataError if the row is invalid; the next rows can still be read."""
        if isinstance(self.found, DataError):
            raise self.found
        return self.found


class Records(ABC):
    """The records of one shard of a file; iterating yields (where, record).

    `fraction` is the share of this shard that has been read, or None if it is unknown.
    """

    named = False
    """Whether the format defines the names of the fields: id, title and text."""
    unnamed = False
    """Whether the columns have no names, and their number defines them."""
    tabs = False
    """Whether tabs separate the columns, and quotes are characters of the text."""

    @property
    def header(self) -> list[str]:
        """The names of columns that a first line gives, which might be a record instead; else empty."""
        return []

    @abstractmethod
    def rows(self) -> Iterator[FileRow]:
        """Return the rows. Raises DataError for a file that cannot be read to its end."""

    def __iter__(self) -> Iterator[tuple[str, Record]]:
        return ((row.where, row.record()) for row in self.rows())

    @property
    @abstractmethod
    def fraction(self) -> float | None: ...

    @property
    def total(self) -> int | None:
        """The number of rows of this shard; None if only reading them shows it."""
        return None


def open_records(
    source: str | PipeInput,
    shard: Shard = WHOLE,
    wanted: frozenset[str] = frozenset(),
    columns: Columns = PLAIN_COLUMNS,
    given: FileFormat = FileFormat(),  # noqa: B008 (immutable)
) -> Records:
    """Open the records of a file or of a pipe.

    The format is the given one, else that of the suffix, else that of the first line.

    `wanted` are the fields that will be used: only these columns of a parquet file are read, and a tsv
    header is recognised by them. `columns` are the columns of tsv files without a header. Shards of plain
    lines are byte ranges, and shards of parquet are ranges of rows. Compressed files and csv cannot seek,
    so their records are dealt to the shards in blocks of 1,000. Raises DataError for other formats.
    """
    request = _Request(shard, wanted, columns, given)
    if isinstance(source, PipeInput):
        return _open_pipe(source, request)
    file = Path(os.path.expanduser(source))
    if not file.is_file():
        raise DataError(f"{source}: {not_a_file(file) or 'no such file'}")
    name = inner_name(file)
    kind = given.kind or _kind_by_name(name, given)
    if given.names and kind in ("parquet", "mbox"):
        raise DataError(f"{source}: {NAMED_COLUMNS}")
    if kind == "parquet":
        if file.suffix in COMPRESSED:
            raise DataError(f"{source}: parquet compresses its own columns; unpack it first")
        return ParquetRecords(file, shard, wanted)
    if kind == "mbox":
        if file.suffix in COMPRESSED:
            raise DataError(f"{source}: a compressed mailbox cannot be read; unpack it first")
        return Mailbox(file, shard)
    opened = FileInput(file)
    kind, first = _kind_and_first(opened, kind, name, given)
    records = _open_stream(opened, first, request._replace(given=given._replace(kind=kind)))
    return records or TopicRecords(file, shard, given.encoding)


class _Request(NamedTuple):
    """The arguments of `open_records`."""

    shard: Shard
    wanted: frozenset[str]
    columns: Columns
    given: FileFormat


def is_text(path: Path, kind: str = "") -> bool:
    """Return whether a file of records, compressed or not, has lines of text in one encoding."""
    suffix = Path(inner_name(path)).suffix
    return kind not in ("parquet", "mbox") and (bool(kind) or suffix not in (".parquet", ".mbox"))


def _open_pipe(pipe: PipeInput, request: _Request) -> Records:
    kind = request.given.kind or ("csv" if request.given.delimiter else "")
    if kind in ("parquet", "mbox", "topics"):  # they are not read from start to end
        return open_records(str(pipe.saved(f".{kind}")), *request)
    kind, first = _kind_and_first(pipe, kind, "", request.given)
    if first.startswith(b"\x1f\x8b"):
        raise DataError("stdin: gzip; unpack it on the way: zcat FILE | lmk …")
    head = pipe.at(0)
    if not request.given.encoding and (wide := wide_encoding(head[: len(head) // 4 * 4])):
        raise DataError(f"stdin: not UTF-8, perhaps {wide}; name the encoding: -,encoding={wide}")
    records = _open_stream(pipe, first, request._replace(given=request.given._replace(kind=kind)))
    return records or TopicRecords(pipe.saved(".topics"), request.shard, request.given.encoding)


def _kind_by_name(name: str, given: FileFormat) -> str:
    """Return the format that a suffix or a delimiter defines; '' if the first line decides."""
    suffix = Path(name).suffix
    if suffix == ".csv" or (given.delimiter and suffix != ".parquet"):
        return "csv"
    return suffix[1:] if suffix in (".parquet", ".mbox", ".tsv") else ""


def _kind_and_first(
    opened: ByteSource, kind: str, name: str, given: FileFormat
) -> tuple[str, bytes]:
    """Return the format of text, if its start shows it, and its first line."""
    with opened.open(given.encoding) as stream:
        first = next(bounded_lines(stream.file, opened.name, MAX_RECORD_LINE), b"")
        start = first.removeprefix(BOM).lstrip()
        suffix = Path(name).suffix
        if not kind and start.startswith(b"[") and suffix in ("", ".json"):
            kind = "json"
        if not kind and start.startswith(b"{") and suffix in ("", *JSON_SUFFIXES):
            lines = bounded_lines(stream.file, opened.name, MAX_RECORD_LINE)
            kind = _kind_of_objects(start, lines, opened.name, suffix)
        if not kind and start.startswith((b"<?xml", b"<posts")):
            try:
                dump = is_dump(start[:HEAD] + stream.file.read(HEAD))
            except DataError as error:
                raise DataError(f"{opened.name}: {error}") from None
            kind = "stackexchange" if dump else kind
    if not kind and Path(name).suffix in JSON_SUFFIXES:
        kind = "jsonl"
    return kind, first


def _kind_of_objects(first: bytes, rest: Iterator[bytes], name: str, suffix: str) -> str:
    """Return the format of a text that starts with an object: one in each line, or one value in the whole
    file.
    """
    text = first.decode("utf-8", "replace").rstrip()
    try:
        value = parse_json(text)
    except json.JSONDecodeError as error:
        if error.pos < len(text):
            return "jsonl"  # a damaged line, which its reader reports
        if suffix in ("", ".json"):
            return "json"
        raise DataError(
            f"{name}: an object takes several lines; write one object per line: {ONE_PER_LINE}"
        ) from None
    except ValueError:
        return "jsonl"
    whole = isinstance(value, dict) and is_by_id(value) and not any(map(bytes.strip, rest))
    return "json" if whole else "jsonl"


def is_by_id(value: dict[str, Any]) -> bool:
    """Return whether an object contains many records by their ids, {id: record or text}, and is not itself
    one.

    A record has names of columns as keys, and its values are not all records.
    """
    kinds = set(map(type, value.values()))
    usual = [name for name in value if plain_name(name) in USUAL_NAMES]
    if not kinds or not kinds <= {dict, str}:
        return False
    if kinds == {str}:
        is_record = bool({*ID_NAMES} & {*usual} and len(usual) > 1)
        return not is_record and 2 * len(usual) < len(value)
    return not usual or (kinds == {dict} and len(value) > 2 * len(usual))


def _open_stream(opened: ByteSource, first: bytes, request: _Request) -> Records | None:
    """Return the records of a format that is read from start to end; None for TREC topics."""
    shard, wanted, columns, given = request
    if given.kind == "csv":
        return CsvRecords(opened, shard, given)
    if given.names and given.kind not in ("", "tsv"):
        raise DataError(f"{opened.name}: {NAMED_COLUMNS}")
    if given.kind == "json":
        return JsonRecords(opened, shard, given)
    layout = line_format(first, opened.name, wanted, columns, given)
    if layout is None:
        return None
    if isinstance(opened, FileInput) and opened.plain and not (given.encoding or given.numbered):
        return PlainLines(opened.path, shard, layout)
    return StreamLines(opened, shard, layout, given)


class LineFormat(NamedTuple):
    """The function that parses a line, and whether the first line is a header.

    The function returns None for a line without a record. `named`, `unnamed` and `tabs` are as for Records.
    """

    parse: Parse
    header: bool = False
    named: bool = False
    unnamed: bool = False
    tabs: bool = False


def line_format(
    first: bytes,
    name: str,
    wanted: frozenset[str],
    columns: Columns = PLAIN_COLUMNS,
    given: FileFormat = FileFormat(),  # noqa: B008 (immutable)
) -> LineFormat | None:
    """Return the format of a file of lines, given or from its first line; None for TREC topics.

    `columns` are the columns of a tsv file without a header, for each possible number of columns.
    """
    kind = given.kind
    start = first.removeprefix(BOM).strip(b"\r\n ")
    if kind == "jsonl" or (not kind and start.startswith(b"{")):
        return LineFormat(parse_json_line)
    if kind == "lines":
        return LineFormat(parse_text_line)
    if kind == "stackexchange":
        return LineFormat(parse_post, named=True)
    if kind == "topics" or (not kind and start.startswith(b"<")):
        return None
    if not kind and start and b"\t" not in start:
        raise DataError(_unknown_format(name, start))
    if given.names:
        return LineFormat(_tsv_parser((given.names,)), tabs=True)
    if b"\r" in start and not first.endswith(b"\n"):
        raise DataError(
            f"{name}: its lines end with carriage returns, as on old Macs; convert them: "
            r"tr '\r' '\n' < FILE > NEW"
        )
    names = start.decode("utf-8", "replace").split("\t")
    header = _is_header(names, wanted, columns, given.columns)
    names[0] = names[0].lstrip("# ")  # as some tools mark a header
    return LineFormat(
        _tsv_parser((tuple(names),) if header else columns), header, unnamed=not header, tabs=True
    )


def _is_header(
    names: list[str], wanted: frozenset[str], columns: Columns, given: frozenset[str]
) -> bool:
    """Return whether the first line of a tsv file names its columns."""
    if given.intersection(names):
        return True
    if columns in (PLAIN_COLUMNS, QUERY_COLUMNS):
        plain = [plain_name(name.lstrip("#")) for name in names]
        usual = [name in USUAL_NAMES for name in plain]
        return len(names) > 1 and (usual[0] or usual.count(True) > 1)
    first = names[0].lower() in {*QUERY_ID_FIELDS, *columns[0][:1]}
    return first and any(name in wanted for name in names[1:])


def _unknown_format(name: str, start: bytes) -> str:
    """Return what to write for a file of text without columns."""
    if name == PipeInput.name:
        return (
            f"stdin: neither jsonl nor tsv; the first line starts with {start[:40]!r}; name the format: "
            "-,format=csv, or -,format=lines to read each line as a document"
        )
    return (
        f"{name}: neither jsonl, tsv nor TREC topics; the first line starts with {start[:40]!r}; write "
        f"folder:{name} to read the file as one document, {name},format=lines to read each line as a "
        f"document, or {name},format=csv for a table"
    )


def parse_text_line(line: bytes, where: str) -> Record:
    """Return a line of text as a record. Raises DataError with `where` unless it is UTF-8."""
    try:
        return {"text": line.decode("utf-8").strip()}
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: {not_utf8(error)}") from error


def parse_json_line(line: bytes, where: str) -> Record:
    """Parse a line of jsonl. Raises DataError with `where` unless it is a JSON object in UTF-8."""
    try:
        record = parse_json(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not valid JSON: {not_utf8(error)}") from error
    except ValueError as error:
        raise DataError(f"{where}: not valid JSON ({error})") from error
    if not isinstance(record, dict):
        raise DataError(f"{where}: not a JSON object but a {type(record).__name__}")
    if _has_surrogates(line):
        check_text(json.dumps(record, ensure_ascii=False), where)
    return record


def _has_surrogates(data: bytes) -> bool:
    """Return whether JSON has escapes of surrogates, such as \\ud800."""
    return b"\\ud" in data or b"\\uD" in data


def _tsv_parser(layouts: Columns) -> Parse:
    """Return a parser of tsv lines. The number of columns selects the names of the columns."""
    by_length = {len(names): names for names in layouts}

    def parse(line: bytes, where: str) -> Record:
        try:
            columns = line.decode("utf-8").rstrip("\r\n").split("\t")
        except UnicodeDecodeError as error:
            raise DataError(f"{where}: {not_utf8(error)}") from error
        if len(columns) not in by_length:
            expected = " or ".join(", ".join(names) for names in layouts)
            raise DataError(
                f"{where}: {len(columns)} columns, expected {expected} separated by tabs "
                f"(a first line '{'⇥'.join(layouts[-1][:2])}⇥…' or the option FILE,columns=id+a+b defines "
                "other columns)"
            )
        return dict(zip(by_length[len(columns)], columns, strict=True))

    return parse


class PlainLines(Records):
    """Lines of a local file; a line belongs to the shard that contains its first byte."""

    def __init__(self, path: Path, shard: Shard, layout: LineFormat) -> None:
        self._path = path
        self._layout = layout
        self.named, self.unnamed, self.tabs = layout.named, layout.unnamed, layout.tabs
        mine = shard.rows(path.stat().st_size)
        self._start, self._stop = mine.start, mine.stop
        self._position = self._start

    def rows(self) -> Iterator[FileRow]:
        header = self._layout.header
        with self._path.open("rb", buffering=1 << 20) as file:
            if self._start:  # the shard starts with the first line that starts in it
                file.seek(self._start - 1)
                next(bounded_lines(file, self._path, MAX_RECORD_LINE), None)
            self._position = position = file.tell()
            lines = bounded_lines(file, self._path, MAX_RECORD_LINE)
            for number, line in enumerate(lines, start=1):
                if position >= self._stop:
                    break
                # The number of lines before a shard is unknown.
                place = f"byte {position}" if self._start else f"line {number}"
                text = line if position else line.removeprefix(BOM)
                skip = not text or text.isspace() or (header and not position)
                self._position = position = position + len(line)
                if not skip:
                    yield from _line_row(self._layout, text, f"{self._path} {place}", number)

    @property
    def fraction(self) -> float | None:
        if self._stop == self._start:
            return 1.0
        return min(1.0, (self._position - self._start) / (self._stop - self._start))


def _line_row(layout: LineFormat, text: bytes, where: str, number: int) -> Iterator[FileRow]:
    """Yield the row of a line, if it has a record."""
    try:
        found = layout.parse(text, where)
    except DataError as error:
        yield FileRow(where, number - layout.header, error)
    else:
        if found is not None:
            yield FileRow(where, number - layout.header, found)


class StreamLines(Records):
    """Lines of a stream that cannot seek, distributed to the shards in blocks of 1,000.

    `fraction` is the share of the bytes of the whole file.
    """

    def __init__(
        self,
        opened: ByteSource,
        shard: Shard,
        layout: LineFormat,
        given: FileFormat = FileFormat(),  # noqa: B008
    ) -> None:
        self._input, self._shard, self._layout = opened, shard, layout
        self._encoding = given.encoding
        self.named, self.unnamed, self.tabs = layout.named, layout.unnamed, layout.tabs
        self._read = 0

    def rows(self) -> Iterator[FileRow]:
        header = self._layout.header
        with self._input.open(self._encoding) as stream:
            lines = bounded_lines(stream.file, self._input.name, MAX_RECORD_LINE)
            for number, line in enumerate(lines):
                self._read = stream.position()
                text = line if number else line.removeprefix(BOM)
                mine = (number // BLOCK) % self._shard.count == self._shard.number
                if mine and text and not text.isspace() and not (header and not number):
                    where = f"{self._input.name} line {number + 1}"
                    yield from _line_row(self._layout, text, where, number + 1)
            self._read = self._input.size or 0

    @property
    def fraction(self) -> float | None:
        return _share(self._read, self._input.size)


def _share(read: int, size: int | None) -> float | None:
    """Return the share of a file that was read; None if its size is unknown."""
    if size is None:
        return None
    return min(1.0, read / size) if size else 1.0


class CsvRecords(Records):
    """Rows of a csv file with a header. A quoted field may contain delimiters, quotes and line ends.

    A row is dealt to a shard by its number, in blocks of 1,000.
    """

    def __init__(self, opened: ByteSource, shard: Shard, given: FileFormat) -> None:
        self._input, self._shard, self._given = opened, shard, given
        self._read = 0

    def rows(self) -> Iterator[FileRow]:
        csv.field_size_limit(MAX_RECORD_LINE)
        name = self._input.name
        with self._input.open(self._given.encoding) as stream:
            lines = decoded_lines(stream.file, name)
            first, delimiter, above = self._start(lines)
            bounded = _RowLines(chain([first], lines), name, above)
            table = csv.reader(bounded, delimiter=delimiter, strict=True)
            names = list(self._given.names) or self._names(table, above + 1)
            number = 0
            while True:
                bounded.start_row()
                row = self._next_row(table, bounded)
                if row is None:
                    break
                if isinstance(row, list) and not any(row):
                    continue
                number += 1
                if ((number - 1) // BLOCK) % self._shard.count == self._shard.number:
                    self._read = stream.position()
                    where = f"{name} line {bounded.number}"
                    yield FileRow(where, number, _csv_record(names, row, where))
            self._read = self._input.size or 0

    @property
    def header(self) -> list[str]:
        if self._given.names:
            return []
        with self._input.open(self._given.encoding) as stream:
            first, delimiter, _ = self._start(decoded_lines(stream.file, self._input.name))
            with suppress(csv.Error):  # reading the rows reports it
                return _column_names(next(csv.reader([first], delimiter=delimiter), []))
        return []

    def _start(self, lines: Iterator[str]) -> tuple[str, str, int]:
        """Return the first line of the table, its delimiter, and the number of lines above it.

        Excel writes and reads a line 'sep=;' above the table.
        """
        first = next(lines, "")
        declared = _DECLARED.fullmatch(first.strip("\r\n"))
        if declared:
            return next(lines, ""), self._given.delimiter or declared[1], 1
        return first, self._given.delimiter or max(DELIMITERS, key=_unquoted(first).count), 0

    def _next_row(self, table: Any, lines: "_RowLines") -> list[str] | DataError | None:
        """Return the next row, or the error in it; None at the end. Raises DataError for an open quote."""
        after = lines.number
        try:
            return list(next(table))
        except StopIteration:
            return None
        except csv.Error as error:
            wrong = f"{self._input.name} line {lines.number}: not valid csv ({_csv_fault(error)})"
            if "end of data" in str(error):  # all rows after this quote would be missing
                raise DataError(f"{wrong}; a quote after line {after} does not close") from error
            return DataError(wrong)

    def _names(self, table: Any, line: int) -> list[str]:
        """Return the columns. Raises DataError for an invalid header."""
        where = f"{self._input.name} line {line}"
        try:
            names = _column_names(next(table, []))
        except csv.Error as reason:
            raise DataError(f"{where}: not valid csv ({_csv_fault(reason)})") from reason
        if error := _encoding_error(names, where):
            raise error
        if repeated := [name for name, times in Counter(names).items() if times > 1]:
            raise DataError(f"{where}: the header has the column {repeated[0]!r} twice; rename one")
        return names

    @property
    def fraction(self) -> float | None:
        return _share(self._read, self._input.size)


def _column_names(row: list[str]) -> list[str]:
    """Return the names of columns in a header; some tools mark a header with '#'."""
    names = [name.strip() for name in row]
    return [name.lstrip("# ") if number == 0 else name for number, name in enumerate(names)]


class _RowLines:
    """The lines of a csv file; a row has a limited number of them, so that an open quote is found early."""

    def __init__(self, lines: Iterator[str], name: str, above: int) -> None:
        self._lines, self._name = enumerate(lines, 1 + above), name
        self.number = self._start = above

    def start_row(self) -> None:
        """The next line is the first one of a row."""
        self._start = self.number

    def __iter__(self) -> Iterator[str]:
        for number, line in self._lines:
            self.number = number
            if number - self._start > MAX_ROW_LINES:
                raise DataError(
                    f"{self._name} line {number}: a row of more than {MAX_ROW_LINES:,} lines; a quote "
                    f"after line {self._start} does not close"
                )
            yield line


def _csv_record(names: list[str], row: list[str] | DataError, where: str) -> Record | DataError:
    """Return the record of a row, or the error: too few or too many fields, or wrong bytes."""
    if isinstance(row, DataError):
        return row
    if error := _encoding_error(row, where):
        return error
    if len(row) != len(names):
        return DataError(
            f"{where}: {len(row)} fields, but the header has {len(names)} ({', '.join(names[:6])}); "
            "quote fields that contain the delimiter, or name it: FILE,delimiter=semicolon"
        )
    return dict(zip(names, row, strict=True))


def _csv_fault(error: csv.Error) -> str:
    """Return the message of the library; without its advice to programmers."""
    if "new-line character" not in str(error):
        return str(error)
    return (
        "a carriage return without quotes; if all lines end with one, as on old Macs, convert them: "
        r"tr '\r' '\n' < FILE > NEW"
    )


def _encoding_error(fields: list[str], where: str) -> DataError | None:
    """Return the error if some fields contain bytes that `decoded_lines` could not decode."""
    for text in fields:
        if not text.isascii():
            try:
                text.encode("utf-8", "surrogateescape").decode("utf-8")
            except UnicodeDecodeError as error:
                return DataError(f"{where}: {not_utf8(error)}")
    return None


def decoded_lines(file: BinaryIO, name: str) -> Iterator[str]:
    """Yield the lines of a file in UTF-8, without a byte order mark; wrong bytes become half surrogates."""
    for number, line in enumerate(bounded_lines(file, name, MAX_RECORD_LINE)):
        yield (line if number else line.removeprefix(BOM)).decode("utf-8", "surrogateescape")


def not_utf8(error: UnicodeDecodeError) -> str:
    """Return what is wrong with a text in another encoding, and what to do."""
    byte, given = wrong_byte(error)
    wrong = "has another encoding than the given one" if given else "not UTF-8"
    return f"{wrong} (byte {byte:#04x}); name the encoding after the file: FILE,encoding=latin-1"


def _unquoted(line: str) -> str:
    """Return a line without its quoted parts."""
    return "".join(line.split('"')[::2])


class JsonRecords(Records):
    """The records of one JSON value: an array of objects, an object of records by id, or one record.

    In {id: record}, the key becomes the field `_id`; in {id: text}, the text becomes the field `text`. The
    file is read at once; large ones should be jsonl.
    """

    def __init__(self, opened: ByteSource, shard: Shard, given: FileFormat) -> None:
        self._input, self._shard, self._given = opened, shard, given
        self._done = 0
        self._total: int | None = None

    def rows(self) -> Iterator[FileRow]:
        name = self._input.name
        with self._input.open(self._given.encoding) as stream:
            data = stream.file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            convert = "'.[]'" if data.lstrip()[:1] == b"[" else JQ_BY_ID
            raise DataError(
                f"{name}: one JSON value of more than {MAX_FILE:,} bytes; convert it to one object per "
                f"line: jq -c {convert} FILE > FILE.jsonl"
            )
        try:
            value = parse_json(data.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise DataError(f"{name}: {not_utf8(error)}") from error
        except ValueError as error:
            several = (
                "; write one object per line: " + ONE_PER_LINE if "Extra" in str(error) else ""
            )
            raise DataError(f"{name}: not valid JSON ({error}){several}") from error
        escaped = _has_surrogates(data)
        items = self._items(value)
        mine = self._shard.rows(len(items))
        self._total = len(mine)
        for self._done, number in enumerate(mine, 1):
            where, item = items[number]
            if escaped and isinstance(item, dict):
                check_text(json.dumps(item, ensure_ascii=False), where)
            yield FileRow(where, number + 1, item)

    def _items(self, value: Any) -> list[tuple[str, Record | DataError]]:
        """Return the records with their places, or the errors in them."""
        name = self._input.name
        if isinstance(value, dict) and is_by_id(value):
            places = ((f"{name} key {key[:_SHOWN]!r}", key) for key in value)
            return [(where, _keyed(key, value[key], where, self._given)) for where, key in places]
        if isinstance(value, dict):
            return [(name, value)]
        if not isinstance(value, list):
            raise DataError(
                f"{name}: neither a JSON array nor an object but {type(value).__name__}"
            )
        if value and all(isinstance(item, str) for item in value):
            raise DataError(
                f"{name}: a JSON array of texts without ids; number them: jq -c "
                f"'to_entries[] | {{id: .key, text: .value}}' {name} > NEW.jsonl"
            )
        numbered = ((f"{name} item {number}", item) for number, item in enumerate(value, 1))
        return [(where, _item(item, where)) for where, item in numbered]

    @property
    def fraction(self) -> float | None:
        if self._total is None:
            return 0.0
        return self._done / self._total if self._total else 1.0

    @property
    def total(self) -> int | None:
        return self._total


def _item(item: Any, where: str) -> Record | DataError:
    """Return an object of a JSON array, or the error for another value."""
    if isinstance(item, dict):
        return dict(item)
    return DataError(f"{where}: not a JSON object but a {type(item).__name__}")


def _keyed(key: str, value: Any, where: str, given: FileFormat) -> Record | DataError:
    """Return the record of an object by ids, with its key as the field `_id`; or the error in it."""
    if isinstance(value, str):
        return {ID_FIELDS[0]: key, "text": value}
    own = {name: value[name] for name in ID_FIELDS if name in value and name not in given.columns}
    if other := next((name for name, each in own.items() if str(each) != key), ""):
        return DataError(
            f"{where}: the record has another id than its key, {other} {own[other]!r:.{_SHOWN}}; remove one "
            f"of the two, or choose the field: FILE,id={other}"
        )
    return {ID_FIELDS[0]: key, **value}


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    """Raise the errors of a damaged parquet file, which have many classes, as DataError."""
    try:
        yield
    except (OSError, pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"{path}: not a parquet file, or a damaged one ({first})") from error


class ParquetRecords(Records):
    """Rows of a parquet file; a shard reads only the row groups that contain its rows."""

    def __init__(self, path: Path, shard: Shard, wanted: frozenset[str]) -> None:
        self._path = path
        with path.open("rb") as start:
            check_not_pointer(start.read(len(LFS_POINTER)), path)
        with _parquet_errors(path), open_parquet(path) as file:
            rows, names = file.metadata.num_rows, file.schema_arrow.names
        chosen = [name for name in names if name in wanted]
        # Without an id and a text, read all columns, so that the error message can list them.
        self._columns = chosen if len(chosen) > 1 else names
        mine = shard.rows(rows)
        self._start, self._stop = mine.start, mine.stop
        self._row = self._start

    def rows(self) -> Iterator[FileRow]:
        self._row = self._start
        for record in self._records():
            self._row += 1
            yield FileRow(f"{self._path} row {self._row}", self._row, record)

    def _records(self) -> Iterator[Record]:
        with _parquet_errors(self._path):
            file = open_parquet(self._path, dictionaries=True)
        decoder = Decoder(self._path)
        with file:
            batches = self._batches(file)
            while True:
                with _parquet_errors(self._path):
                    batch = next(batches, None)
                    pieces = () if batch is None else decoder.pieces(batch, BATCH_BYTES)
                    for piece in pieces:
                        yield from _decoded(piece).to_pylist()
                if batch is None:
                    return

    def _batches(self, file: ParquetFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows [start, stop) of the shard in batches of at most BLOCK rows."""
        row = 0  # the number of the next row of the file
        for group in range(file.num_row_groups):
            facts = file.metadata.row_group(group)
            size = facts.num_rows
            if row + size <= self._start or row >= self._stop:
                row += size
                continue
            fitting = BATCH_BYTES * size // max(1, facts.total_byte_size)
            at_once = max(1, min(BLOCK, fitting))
            for batch in file.iter_batches(at_once, row_groups=[group], columns=self._columns):
                first, last = max(self._start - row, 0), min(self._stop - row, len(batch))
                if first < last:
                    yield batch.slice(first, last - first)
                row += len(batch)

    @property
    def fraction(self) -> float | None:
        return (self._row - self._start) / self.total if self.total else 1.0

    @property
    def total(self) -> int:
        return self._stop - self._start


def _decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with text for each binary column in UTF-8; some programs do not mark texts as such."""
    columns = []
    for column in batch.columns:
        kind = column.type
        binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        if binary or pa.types.is_binary_view(kind):
            with suppress(pa.ArrowInvalid):  # other bytes stay
                column = column.cast(pa.large_binary()).cast(pa.large_string())
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


class Mailbox(Records):
    """The messages of a mailbox."""

    named = True

    def __init__(self, path: Path, shard: Shard) -> None:
        self._path, self._shard, self._ended = path, shard, False

    def rows(self) -> Iterator[FileRow]:
        for number, (where, found) in enumerate(read_mailbox(self._path, self._shard), 1):
            yield FileRow(where, number, found)
        self._ended = True

    @property
    def fraction(self) -> float | None:
        return 1.0 if self._ended else None


class TopicRecords(Records):
    """TREC topics: the classic form with <top> <num> <title>, or XML with <topic number="…">.

    Fields: id, title, description, narrative; for XML, id and the names of the elements.
    """

    named = True

    def __init__(self, path: Path, shard: Shard, encoding: str) -> None:
        self._path, self._shard, self._encoding = path, shard, encoding

    def rows(self) -> Iterator[FileRow]:
        topics = read_topics(self._path, self._encoding)
        for row in self._shard.rows(len(topics)):
            yield FileRow(f"{self._path} topic {row + 1}", row + 1, topics[row])

    @property
    def fraction(self) -> float | None:
        return None
