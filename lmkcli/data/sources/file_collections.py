"""Collections in files: a BEIR folder, or one file in the formats of `records.py`, or stdin."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path

from lmkcli.data.beir_folder import SUFFIXES
from lmkcli.data.byte_streams import ONCE, PipeInput, Undecodable, find_undecodable
from lmkcli.data.collection import (
    WHOLE,
    Collection,
    Doc,
    DocStream,
    Qrel,
    Query,
    Shard,
    check_options,
    spell,
)
from lmkcli.data.columns import (
    ROW,
    SAMPLE,
    Typed,
    check_first_row,
    check_header,
    check_names,
    check_quotes,
    document_columns,
    is_own_layout,
    note,
    query_columns,
)
from lmkcli.data.fields import METADATA, Fields, Record, metadata_value
from lmkcli.data.filetext import SAVE_AS
from lmkcli.data.metadata import OF_FILES, Value, field_values, of_file
from lmkcli.data.qrels import SUFFIXES as QREL_SUFFIXES
from lmkcli.data.qrels import read_qrels
from lmkcli.data.records import (
    FORMATS,
    PLAIN_COLUMNS,
    QUERY_COLUMNS,
    Columns,
    FileFormat,
    FileRow,
    Records,
    is_text,
    open_records,
)
from lmkcli.errors import DataError, UnknownName, UsageError
from lmkcli.system.input_files import is_descriptor, not_a_file
from lmkcli.text.formatting import counted, shell_line

COLUMNS = ("id", "title", "text", "fields")  # options that name columns
OPTIONS = (
    *COLUMNS,
    *(
        "columns",
        "context",
        "delimiter",
        "encoding",
        "format",
        "like",
        "map_ids",
        "qrels",
        "queries",
    ),
    "unreadable",
)
DELIMITERS = {"tab": "\t", "comma": ",", "semicolon": ";"}  # names for a shell
DEFAULT_SPLIT = "test"
MAX_EXAMPLES = 20  # rows that are left out and kept as examples
# Suffix of a compressed file that lmk does not read -> the command that unpacks it.
_UNPACK = {
    ".7z": "7z x",
    ".bz2": "bunzip2 -k",
    ".rar": "unrar x",
    ".tar": "tar xf",
    ".tgz": "tar xzf",
    ".xz": "unxz -k",
}


def open_files(name: str, options: dict[str, str]) -> "FileCollection":
    """Open the collection at a path: 'folder', 'folder:split', a file, or '-' for stdin.

    A file can contain documents or queries, depending on its use. Options: `id`, `title` and `text` (columns;
    those of the text joined by '+'), `columns` (the names of all columns of a csv or tsv file without a
    header), `context` (the field with the contexts of chunks), `map_ids` (1: white space in ids becomes '_'),
    `format`, `delimiter` and `encoding` of the file, `unreadable=skip` (leave out
    rows that cannot be read), `queries` and `qrels` (files that replace those of the folder, or complement a
    single file), `like` (the known collection of which this is a copy). Raises DataError for a missing path,
    UnknownName for a missing split of a folder.
    """
    check_options(name, options, OPTIONS)
    given = _file_format(name, options)
    if options.get("unreadable", "skip") != "skip":
        raise UsageError(
            f"{spell(name, options)}: write unreadable=skip, or remove the option to refuse such rows"
        )
    path, split = name, ""
    if name != "-" and ":" in name and not Path(os.path.expanduser(name)).exists():
        path, _, split = name.rpartition(":")
    place = Path(os.path.expanduser(path))
    if place.is_dir():
        paths = _folder_paths(place, split)
    elif split:
        raise UsageError(f"'{name}': only a folder has splits; name the file and add ',qrels=path'")
    elif unpack := place.is_file() and _UNPACK.get(_archive_suffix(place)):
        raise DataError(
            f"{name}: lmk does not read {_archive_suffix(place)}; type {unpack} {shell_line(path)}, and name "
            "the file inside"
        )
    elif save := not given.kind and place.is_file() and SAVE_AS.get(place.suffix.lower()):
        raise DataError(
            f"{name}: lmk does not read {place.suffix}; save it as {save}, and name that file"
        )
    elif path == "-" or place.is_file():
        paths = {"docs": path, "queries": path}
    else:
        raise DataError(f"{name}: {_unreadable(place)}")
    for key in {"queries", "qrels"} & options.keys():
        file = Path(os.path.expanduser(options[key]))
        if options[key] != "-" and not file.is_file():
            raise DataError(f"{key}={options[key]}: {not_a_file(file) or 'no such file'}")
        paths[key] = options[key]
    # Absolute paths open the collection from any folder.
    absolute = {key: _absolute(value) if key in paths else value for key, value in options.items()}
    absolute_name = _absolute(path) + (f":{split}" if split else "")
    typed, fields = Typed(name, options), Fields.parse(options)
    return FileCollection(spell(absolute_name, absolute), paths, fields, given, typed)


def _archive_suffix(path: Path) -> str:
    """Return the suffix of a file; '.tar' for .tar.gz and the like, which contain several files."""
    return ".tar" if ".tar" in path.suffixes[-2:-1] else path.suffix


def _file_format(name: str, options: dict[str, str]) -> FileFormat:
    """Return the format that the options describe. Raises UsageError for unknown encodings and delimiters."""
    delimiter = options.get("delimiter", "")
    delimiter = DELIMITERS.get(delimiter, delimiter)
    if len(delimiter) > 1 or delimiter in ('"', "\n", "\r"):
        known = ", ".join(DELIMITERS)
        raise UsageError(f"{name},delimiter={delimiter}: write one character, or {known}")
    encoding = options.get("encoding", "")
    try:
        " ".encode(encoding or "utf-8")
    except (LookupError, ValueError) as error:
        raise UsageError(
            f"{name},encoding={encoding}: {error}; such as latin-1 or utf-16"
        ) from None
    kind = options.get("format", "")
    if kind not in ("", *FORMATS):
        raise UnknownName(f"format in '{spell(name, options)}'", kind, FORMATS)
    columns = {options[key] for key in ("id", "title") if key in options}
    columns |= {
        each for key in ("text", "fields") for each in options.get(key, "").split("+") if each
    }
    names = tuple(options["columns"].split("+")) if "columns" in options else ()
    if len({*names, ""}) <= len(names):
        raise UsageError(
            f"{spell(name, options)}: columns= needs a different name for each column, such as "
            "columns=id+title+text"
        )
    return FileFormat(delimiter, encoding, kind, frozenset(columns), names)


def _unreadable(path: Path) -> str:
    """Return why a path is no collection."""
    if path.is_fifo():
        return f"a pipe; write - instead, and connect standard input (lmk … - < {path})"
    return not_a_file(path) or "no such file or folder"


def _absolute(path: str) -> str:
    return path if path == "-" else os.path.abspath(os.path.expanduser(path))


def _folder_paths(folder: Path, split: str) -> dict[str, str]:
    """Return the paths of docs, queries, qrels and the folder itself, for a BEIR folder."""
    paths = {
        key: str(path)
        for key, stem in (("docs", "corpus"), ("queries", "queries"))
        for path in (folder / f"{stem}{suffix}" for suffix in reversed(SUFFIXES))
        if path.is_file()
    }
    if not paths:
        raise DataError(
            f"{folder}: neither a corpus nor queries in it; expected BEIR's corpus.jsonl, queries.jsonl and "
            "qrels/<split>.tsv (or .jsonl.gz, .tsv, .parquet); to read every file of the folder as a "
            f"document, write folder:{folder}"
        )
    splits = _splits(folder)
    chosen = split or DEFAULT_SPLIT
    if split and split not in splits:
        raise UnknownName(f"split of {folder}", split, splits or ["(no qrels/*.tsv)"])
    qrels = splits.get(chosen, folder / "qrels" / f"{chosen}.tsv")
    return paths | {"folder": str(folder), "qrels": str(qrels)}


def _splits(folder: Path) -> dict[str, Path]:
    """Split -> its file of judgements, sorted by split."""
    found: dict[str, Path] = {}
    for suffix in reversed(QREL_SUFFIXES):  # the first one wins
        for path in (folder / "qrels").glob(f"*{suffix}"):
            found[path.name.removesuffix(suffix)] = path
    return dict(sorted(found.items()))


class LeftOut:
    """The rows that `unreadable=skip` left out: their number, and the first ones with their errors."""

    def __init__(self, typed: Typed) -> None:
        self.typed = typed
        self._skip = "unreadable" in typed.options
        self.clear()

    def clear(self) -> None:
        """Start again."""
        self.count = 0
        self.examples: dict[str, str] = {}
        self._ids: set[str] = set()

    def add(self, where: str, error: DataError) -> None:
        """Count a row. Raises its error, with the option that leaves it out, unless that option is given."""
        if not self._skip:
            advice = self.typed.with_option("unreadable", "skip")
            message = f"{self.typed.exact(error)}; to go on without such rows: {advice}"
            raise DataError(message) from error
        self.count += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples[f"{where}:"] = (
                str(self.typed.exact(error)).removeprefix(where).lstrip(": ")
            )

    def check_new(self, doc_id: str, where: str) -> None:
        """Raise DataError for an id of an earlier row, if rows may be left out."""
        if self._skip:
            if doc_id in self._ids:
                raise DataError(f"{where}: the document id {doc_id!r} occurs twice")
            self._ids.add(doc_id)


class FileDocs(DocStream):
    """The documents of records; at the end, `check_unchanged` raises an error if the file has changed."""

    def __init__(
        self,
        records: Records,
        fields: Fields,
        left_out: LeftOut,
        check_unchanged: Callable[[], None],
    ) -> None:
        self._records = records
        self._fields = fields
        self._left_out = left_out
        self._check_unchanged = check_unchanged

    def __iter__(self) -> Iterator[Doc]:
        left_out, kept = self._left_out, 0
        left_out.clear()
        for row in self._rows():
            try:
                doc = self._fields.doc(_record(row, self._fields), row.where)
                left_out.check_new(doc.id, row.where)
            except DataError as error:
                left_out.add(row.where, error)
                continue
            kept += 1
            yield doc
        self._check_unchanged()
        if left_out.count and not kept:
            where, reason = next(iter(left_out.examples.items()))
            raise DataError(
                f"{where} {reason}; {counted(left_out.count, 'row')} cannot be read, and no row is left"
            )

    def _rows(self) -> Iterator[FileRow]:
        try:
            yield from self._records.rows()
        except DataError as error:  # of the file, not of a row
            raise self._left_out.typed.exact(error) from error

    @property
    def fraction(self) -> float | None:
        return self._records.fraction

    @property
    def total(self) -> int | None:
        return self._records.total


def _sample(records: Records, skip: bool, own: Fields | None) -> list[Record]:
    """Return the first records that can be read; of documents in lmk's own layout, the first one alone."""
    sample: list[Record] = []
    for row in islice(records.rows(), SAMPLE):
        if not isinstance(row.found, DataError):
            sample.append(row.found)
            if own and is_own_layout(row.found, own):
                break
        elif not skip:
            break  # reading the documents raises it
    return sample


def _other_encoding(
    wrong: Undecodable,
    given: FileFormat,
    typed: Typed,
    resolve: Callable[[FileFormat, Typed], Fields],
) -> DataError:
    """Return the error for a file that is not UTF-8, with all options to write: also those of the columns."""
    options = typed.options | {"encoding": wrong.guess}
    guessed = Typed(typed.name, options)
    what = (
        f"{typed.name} line {wrong.line}: not UTF-8 (byte {wrong.byte:#04x}), perhaps {wrong.guess}"
    )
    try:
        resolve(given._replace(encoding=wrong.guess), guessed)
    except DataError as error:
        return DataError(f"{what}; and {error}")
    advice = typed.with_option("encoding", wrong.guess)
    named = f"{what}; name the encoding after the file: {advice}"
    if wrong.guess.startswith("utf-"):  # every row is such a row
        return DataError(named)
    skip = typed.with_option("unreadable", "skip")
    return DataError(f"{named}; to go on without such rows: {skip}")


def _queries(records: Records, fields: Fields, typed: Typed) -> Iterator[Query]:
    try:
        for row in records.rows():
            yield fields.query(_record(row, fields), row.where)
    except DataError as error:
        raise typed.exact(error) from error


def _record(row: FileRow, fields: Fields) -> Record:
    """Return the record of a row, with its number if that is the id."""
    return {ROW: row.number} | row.record() if fields.id_name == ROW else row.record()


class FileCollection(Collection):
    """Documents, queries and judgements in files; `paths` has the paths of docs, queries and qrels."""

    def __init__(
        self,
        name: str,
        paths: dict[str, str],
        fields: Fields,
        given: FileFormat,
        typed: Typed,
    ) -> None:
        self.name = name
        self._format = given
        self._paths = paths
        self._fields = fields
        self._typed = typed
        self._left_out = LeftOut(typed)
        self._notes: list[str] = []
        self._metadata: dict[str, dict[str, tuple[Value, ...]]] = {}  # name -> document -> values
        piped = "-" in paths.values()
        self._pipe: PipeInput | None = PipeInput(sys.stdin.buffer) if piped else None
        self._stdin_read = False
        self._file_stats = self._current_file_stats()

    @cached_property
    def settings(self) -> dict[str, str]:  # type: ignore[override]  # nobody sets it
        """The columns of the documents, which the first rows may have to show."""
        return self._doc_fields.settings

    @cached_property
    def _doc_fields(self) -> Fields:
        path = self._paths.get("docs")
        return (
            self._fields if path is None else self._resolved(path, self._fields, document_columns)
        )

    @cached_property
    def _query_fields(self) -> Fields:
        # The options for columns select those of documents; a separate file of queries has other fields.
        path = self._paths["queries"]
        shared = path == self._paths.get("docs")
        fields = self._fields if shared else Fields(map_ids=self._fields.map_ids)
        return self._resolved(path, fields, query_columns)

    def _resolved(
        self, path: str, fields: Fields, find: Callable[[Sequence[Record], Fields, Typed], Fields]
    ) -> Fields:
        """Return the fields, with the columns that the first rows of a file show."""
        if self._typed.options.get("like"):
            return fields
        typed = self._typed if path == self._paths.get("docs") else Typed(path, {})
        skip = "unreadable" in typed.options
        own = fields if find is document_columns else None
        columns = PLAIN_COLUMNS if own else QUERY_COLUMNS

        def resolve(given: FileFormat, typed: Typed) -> Fields:
            try:
                records = self._records(path, WHOLE, frozenset(), given, columns)
                if records.named:
                    return fields
                check_header(records.header, fields, typed)
                unnamed = (records.unnamed or given.names) and path != "-"
                sample = _sample(records, skip, None if unnamed or records.tabs else own)
            except DataError as error:
                raise typed.exact(error) from error
            if given.names and sample:
                check_names(sample[0], typed)
            elif unnamed:
                check_first_row(sample, typed)
            if records.tabs and sample and not given.kind:
                check_quotes(sample, typed)
            return find(sample, fields, typed)

        given = self._format_of(path)
        file = Path(os.path.expanduser(path))
        checked = path != "-" and not given.encoding and is_text(file, given.kind)
        wrong = find_undecodable(file) if checked else None
        # no row of a file in UTF-16 or UTF-32 can be read as UTF-8
        if wrong and (not skip or wrong.guess.startswith("utf-")):
            raise _other_encoding(wrong, given, typed, resolve)
        resolved = resolve(given, typed)
        if resolved != fields:
            self._notes.append(note(resolved, fields, typed.name))
        return resolved

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        if "docs" not in self._paths:
            raise DataError(f"{self.name}: no corpus.jsonl in it, only queries")
        fields = self._doc_fields
        records = self._open(self._paths["docs"], shard, fields)
        return FileDocs(records, fields, self._left_out, self._check_unchanged)

    def queries(self) -> Iterator[Query]:
        path = self._paths.get("queries")
        if path is None:
            raise DataError(f"{self.name}: no queries.jsonl in it; add ',queries=path'")
        fields = self._query_fields
        records = self._open(path, WHOLE, fields, QUERY_COLUMNS)
        typed = self._typed if path == self._paths.get("docs") else Typed(path, {})
        return _queries(records, fields, typed)

    def qrels(self) -> Iterator[Qrel]:
        if not self.has_qrels():
            folder = self._paths.get("folder")
            splits = [f"{folder}:{split}" for split in _splits(Path(folder))] if folder else []
            advice = (
                f"name a split: {', '.join(splits)}" if splits else "name a file with ',qrels=path'"
            )
            raise DataError(f"{self.name}: no judgements; {advice}")
        return read_qrels(self._paths["qrels"], self._fields.map_ids)

    def has_qrels(self) -> bool:
        return Path(os.path.expanduser(self._paths.get("qrels", "-"))).is_file()

    def query_metadata(self, name: str) -> dict[str, str | float]:
        path = self._paths.get("queries", "-")
        if path == "-":
            return {}
        fields = self._query_fields
        values = {}
        wanted = fields.known | {name, METADATA}
        given = self._given(path, fields)
        for row in self._records(path, WHOLE, wanted, given, QUERY_COLUMNS).rows():
            record = _record(row, fields)
            value = metadata_value(record, name)
            if value is not None:
                values[fields.query(record, row.where).id] = value
        return values

    def _document_metadata(self, name: str) -> dict[str, tuple[Value, ...]]:
        """Document id -> values of the field `name`, or of that field of the metadata.

        Documents without a value, and rows that cannot be read, are omitted.
        """
        path, values = self._paths.get("docs", "-"), dict[str, tuple[Value, ...]]()
        if path == "-":
            return values
        fields = self._doc_fields
        given = self._given(path, fields)
        given = given._replace(columns=given.columns | {name} if given.columns else given.columns)
        wanted = fields.known | {name, name.partition(".")[0], METADATA}
        for row in self._records(path, WHOLE, wanted, given).rows():
            with suppress(DataError):
                record = _record(row, fields)
                if found := field_values(record, name):
                    values[fields.doc(record, row.where).id] = found
        return values

    def metadata(self, doc_id: str, name: str) -> Sequence[str | float]:
        path = self._paths.get("docs", "-")
        if path == "-":
            return super().metadata(doc_id, name)
        own = self.field_of(doc_id, name)
        file = Path(os.path.expanduser(path))
        return of_file(file, name, file.name) if own is None else own

    def field_of(self, doc_id: str, name: str) -> Sequence[Value] | None:
        """Return the values of a field of a record, by the id of its document; empty if this record has none.

        None if no record has such a field. The first use of a name reads the whole file.
        """
        values = self._fields_of(name)
        return values.get(doc_id, ()) if values else None

    def has_metadata(self, name: str) -> bool:
        return name in OF_FILES or bool(self._fields_of(name))

    def _fields_of(self, name: str) -> dict[str, tuple[Value, ...]]:
        if name not in self._metadata:
            self._metadata[name] = self._document_metadata(name)
        return self._metadata[name]

    def file_stats(self) -> dict[str, list[int]]:
        return self._file_stats

    def can_move(self) -> bool:
        # pipes have no stats; a descriptor, such as /dev/stdin, is another file in another process
        return bool(self._file_stats) and not is_descriptor(self._paths["docs"])

    def notes(self) -> list[str]:
        return self._notes

    def skipped_files(self) -> dict[str, str]:
        return self._left_out.examples

    def skipped_count(self) -> int:
        return self._left_out.count

    def places(self, doc_id: str) -> list[str]:
        if self._paths.get("docs", "-") == "-":
            return []
        fields, places = self._doc_fields, []
        for row in self._open(self._paths["docs"], WHOLE, fields).rows():
            with suppress(DataError):
                if fields.doc(_record(row, fields), row.where).id == doc_id:
                    places.append(row.where)
        return places

    def _check_unchanged(self) -> None:
        if self._current_file_stats() != self._file_stats:
            raise DataError(
                f"{self._paths['docs']} changed while lmk read it: run the command again with "
                "--if-exists overwrite (or update) when nothing writes into it any more"
            )

    def _current_file_stats(self) -> dict[str, list[int]]:
        path = Path(os.path.expanduser(self._paths.get("docs", "-")))
        if not path.is_file():
            return {}
        stat = path.stat()
        return {path.name: [stat.st_size, stat.st_mtime_ns]}

    def _format_of(self, path: str) -> FileFormat:
        """Return the given format, which is that of the documents."""
        return self._format if path == self._paths.get("docs") else FileFormat()

    def _given(self, path: str, fields: Fields) -> FileFormat:
        """Return the given format, with the columns of the fields, which are in a header."""
        given = self._format_of(path)
        columns = given.columns | {fields.id_name, fields.title_name, *fields.names} - {"", ROW}
        return given._replace(columns=columns, numbered=fields.id_name == ROW)

    def _open(
        self, path: str, shard: Shard, fields: Fields, columns: Columns = PLAIN_COLUMNS
    ) -> Records:
        """Open records to read them to their end; stdin only once."""
        records = self._records(path, shard, fields.known, self._given(path, fields), columns)
        if path == "-" and self._pipe is not None:
            self._pipe.close_head()
            self._stdin_read = True
        return records

    def _records(
        self,
        path: str,
        shard: Shard,
        wanted: frozenset[str],
        given: FileFormat,
        columns: Columns = PLAIN_COLUMNS,
    ) -> Records:
        """Open records of a file, or of stdin before it is read."""
        if path != "-":
            return open_records(path, shard, wanted, columns, given)
        if self._pipe is None or self._stdin_read:
            raise DataError(ONCE)
        return open_records(self._pipe, shard, wanted, columns, given)
