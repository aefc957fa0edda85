"""Tables, texts and records of a Python program as collections: DataFrames, lists, generators, datasets.

The name of such a collection is 'memory:' and a digest of its rows, so manifests and resumed jobs notice
other rows. Only the program that made the name can open it, as long as it keeps an operation or a collection
with that name.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from numbers import Real
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec
import pyarrow as pa

from lmkcli.data.collection import (
    FILE_SUFFIXES,
    WHOLE,
    Collection,
    CountedDocs,
    DocStream,
    Qrel,
    Query,
    Shard,
    check_options,
    spell,
)
from lmkcli.data.columns import ROW, SAMPLE, Typed, document_columns, note, query_columns
from lmkcli.data.fields import METADATA, Fields, Record, metadata_value
from lmkcli.data.metadata import Value, field_values
from lmkcli.data.pairs import (
    GRADE_NAMES,
    SCORE_NAMES,
    Pair,
    has_columns,
    nested_pairs,
    pairs_of,
)
from lmkcli.data.qrels import qrels_of
from lmkcli.data.run import Run, run_of
from lmkcli.errors import DataError, UsageError

PREFIX = "memory:"
OPTIONS = ("id", "title", "text", "fields", "map_ids", "context", "queries", "qrels")
_INDEX = "__index_level_0__"  # the column of pandas' index, if it has no name
_BLOCK = 1000  # rows
_HALF = (
    "half of a surrogate pair is no character; replace it: text.encode('utf-16', 'surrogatepass')"
    ".decode('utf-16', 'replace')"
)


class HeldRows:
    """The rows of a table, or the records of an iterable: they can be iterated several times."""

    def __init__(self, value: Any) -> None:
        self._rows = _read(value)

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self._rows)

    def __iter__(self) -> Iterator[Record]:
        if not isinstance(self._rows, pa.Table):
            return iter(self._rows)
        batches = self._rows.to_batches(_BLOCK)
        return (record for batch in batches for record in batch.to_pylist())

    def numbered(self, part: range) -> Iterator[tuple[int, Record]]:
        """Return the rows of a part with their numbers from 0."""
        return zip(part, islice(self, part.start, part.stop), strict=True)

    @cached_property
    def digest(self) -> str:
        """A digest of all rows, in 16 hexadecimal digits."""
        found = hashlib.sha256()
        for number, record in enumerate(self):
            try:
                found.update(msgspec.json.encode(record, enc_hook=repr) + b"\n")
            except UnicodeEncodeError:
                raise UsageError(f"row {number}: {_HALF}") from None
        return found.hexdigest()[:16]


class HeldName(str):
    """The name of a collection in memory. The rows can be opened as long as a name of them exists."""

    rows: tuple[HeldRows, ...]

    def __deepcopy__(self, memo: object) -> "HeldName":
        return self

    def __reduce__(self) -> Any:  # for the processes of several devices
        return _held, (str(self), self.rows)


_HELD: "WeakValueDictionary[str, HeldRows]" = WeakValueDictionary()


def held_name(value: object) -> str | None:
    """Return a name for rows, for a collection that was opened, or None for other objects.

    Raises UsageError for texts that are names of files.
    """
    if isinstance(value, MemoryCollection):
        return _held(value.name, value.rows)
    if isinstance(value, Collection):
        return value.name
    if not hasattr(value, "__arrow_c_stream__") and not isinstance(value, Iterable):
        return None
    if isinstance(value, str | bytes):
        return None
    rows = HeldRows(value)
    return _held(PREFIX + rows.digest, (rows,))


def held_run(value: Any) -> Run:
    """Return the run in {query id: {document id: score}}, or in a table with a row for each hit.

    Raises UsageError for other objects, and DataError for scores and ids that are none.
    """
    return run_of(_held_pairs("the run", value, "score", SCORE_NAMES))


def held_qrels(value: Any) -> Iterator[Qrel]:
    """Return the judgements in {query id: {document id: grade}}, in a table, or in tuples of three values.

    Raises UsageError for other objects, and DataError for grades and ids that are none.
    """
    return qrels_of(_held_pairs("the judgements", value, "grade", GRADE_NAMES), Fields())


def _held_pairs(what: str, value: Any, number: str, names: Sequence[str]) -> Iterator[Pair]:
    form = f"{{query id: {{document id: {number}}}}}"
    if isinstance(value, str | bytes) or not (
        hasattr(value, "__arrow_c_stream__") or isinstance(value, Iterable)
    ):
        raise UsageError(f"a {type(value).__name__} is not {what}; give {form}, or a table")
    if isinstance(value, Mapping):
        odd = next((key for key, each in value.items() if not isinstance(each, Mapping)), None)
        if odd is None:
            return nested_pairs(value, what)
        if not has_columns(value, names):
            kind = type(value[odd]).__name__
            raise UsageError(
                f"{what}: the value of {odd!r} has the type {kind}; give {form}, or a table"
            )
    elif not hasattr(value, "__arrow_c_stream__") and not _is_dataset(value):
        value = list(value)
        if value and all(isinstance(each, tuple) and len(each) == 3 for each in value):
            return (Pair(f"row {n}", *each) for n, each in enumerate(value))
    rows = ((f"row {n}", row) for n, row in enumerate(HeldRows(value)))
    return pairs_of(what, rows, names)


def _held(name: str, rows: tuple[HeldRows, ...]) -> HeldName:
    held = HeldName(name)
    held.rows = tuple(_HELD.setdefault(PREFIX + each.digest, each) for each in rows)
    return held


def open_memory(name: str, options: dict[str, str]) -> "MemoryCollection":
    """Open a name that `held_name` returned.

    Options: `id`, `title`, `text`, `fields`, `context` and `map_ids` as for files, and `queries` and `qrels`,
    which are names of this source.
    """
    check_options(name, options, OPTIONS)
    return MemoryCollection(name, options)


class _InPython(Typed):
    """The name of the collection in messages, which propose a call instead of an option of a name."""

    __slots__ = ()

    def with_option(self, key: str, value: str) -> str:
        """Return the call that opens the collection with another option."""
        return f"lmkcli.open_collection(…, {key}={value!r})"


class MemoryCollection(Collection):
    """Documents, queries and judgements in the memory of this program.

    A row without an id has its position as its id, counted from 0, or its label in the index of a pandas
    DataFrame.
    """

    def __init__(self, name: str, options: dict[str, str]) -> None:
        self.name = spell(name, options)
        self._docs = _rows_of(name)
        self._queries = _rows_of(options["queries"]) if "queries" in options else self._docs
        self._qrels = _rows_of(options["qrels"]) if "qrels" in options else None
        given = {key: value for key, value in options.items() if key not in ("queries", "qrels")}
        self._given = Fields.parse(given)
        self._typed = _InPython("the rows", given)
        self._notes: list[str] = []
        self._metadata: dict[str, dict[str, tuple[Value, ...]]] = {}  # name -> document -> values

    @property
    def rows(self) -> tuple[HeldRows, ...]:
        """All rows, which must be kept as long as the name is used."""
        return tuple(filter(None, (self._docs, self._queries, self._qrels)))

    @cached_property
    def settings(self) -> dict[str, str]:  # type: ignore[override]  # nobody sets it
        """The columns of the documents."""
        return self._fields.settings

    @cached_property
    def _fields(self) -> Fields:
        return self._found(self._docs, self._given, document_columns)

    @cached_property
    def _query_fields(self) -> Fields:
        shared = self._queries is self._docs
        given = self._given if shared else Fields(map_ids=self._given.map_ids)
        return self._found(self._queries, given, query_columns)

    def _found(
        self,
        rows: HeldRows,
        given: Fields,
        find: Callable[[Sequence[Record], Fields, Typed], Fields],
    ) -> Fields:
        """Return the fields, with the columns that the first rows show."""
        sample = list(islice(rows, SAMPLE))
        try:
            found = find(sample, given, self._typed)
        except DataError as error:
            raise _in_python(error) from None
        if found.id_name == ROW and sample and _INDEX in sample[0]:
            found = replace(found, id_name=_INDEX)
        if found.id_name not in (ROW, _INDEX) and found != given:
            advice = "choose others with open_collection(…, id=…, text=…)"
            line = note(found, given, "the rows")
            self._notes.append(line.replace("choose others with ,id=NAME or ,text=a+b", advice))
        return found

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        """Return the documents of the shard."""
        fields, part = self._fields, shard.rows(self._docs.count)
        return CountedDocs(
            lambda: (
                self._exactly(fields.doc, _row(number, record, fields), number)
                for number, record in self._docs.numbered(part)
            ),
            len(part),
        )

    def queries(self) -> Iterator[Query]:
        """Yield the queries: the table of queries, or the rows themselves."""
        fields = self._query_fields
        for number, record in self._queries.numbered(range(self._queries.count)):
            yield self._exactly(fields.query, _row(number, record, fields), number)

    def _exactly(self, read: Callable[[Record, str], Any], record: Record, number: int) -> Any:
        try:
            return read(record, f"row {number}")
        except DataError as error:
            raise _in_python(self._typed.exact(error)) from None

    def qrels(self) -> Iterator[Qrel]:
        """Return the judgements: the table of judgements, or the rows themselves."""
        rows = self._docs if self._qrels is None else self._qrels
        numbered = ((f"row {n}", row) for n, row in enumerate(rows))
        pairs = pairs_of("the judgements", numbered, GRADE_NAMES)
        return qrels_of(pairs, Fields(map_ids=self._given.map_ids))

    def has_qrels(self) -> bool:
        """Return whether judgements were given."""
        return self._qrels is not None

    def records(self) -> Iterator[tuple[str, Record]]:
        """Return the rows with their places."""
        return ((f"row {number}", record) for number, record in enumerate(self._docs))

    def query_metadata(self, name: str) -> dict[str, str | float]:
        """Query id -> value of a column of the queries."""
        fields, values = self._query_fields, {}
        for number, record in self._queries.numbered(range(self._queries.count)):
            row = _row(number, record, fields)
            value = metadata_value(row, name) if name in row or METADATA in row else None
            if value is not None:
                values[fields.query(row, f"row {number}").id] = value
        return values

    def metadata(self, doc_id: str, name: str) -> Sequence[Value]:
        """Return the values of a column in the row of a document. The first use of a name reads all rows."""
        return self._column(name).get(doc_id, ())

    def has_metadata(self, name: str) -> bool:
        """Return whether any row has a value in this column."""
        return bool(self._column(name))

    def _column(self, name: str) -> dict[str, tuple[Value, ...]]:
        """Document id -> values of a column; rows without a value are left out."""
        if name not in self._metadata:
            fields, values = self._fields, dict[str, tuple[Value, ...]]()
            for number, record in self._docs.numbered(range(self._docs.count)):
                if found := field_values(record, name):
                    doc = self._exactly(fields.doc, _row(number, record, fields), number)
                    values[doc.id] = found
            self._metadata[name] = values
        return self._metadata[name]

    def notes(self) -> list[str]:
        """Return the columns that were found, unless they have the usual names."""
        return self._notes


def _rows_of(name: str) -> HeldRows:
    if rows := _HELD.get(str(name)):
        return rows
    raise DataError(
        f"{name}: these rows were in the memory of a Python program, which has ended or dropped them; give "
        "the rows again, or write them to a file and name it"
    )


def _row(number: int, record: Record, fields: Fields) -> Record:
    return {**record, ROW: number} if fields.id_name == ROW else record


def _in_python(error: DataError) -> DataError:
    """Return the error without advice about files."""
    text = (
        str(error).replace("name it after the file, ", "name it: ").replace(" after the file:", ":")
    )
    text = text.replace(
        "write ',map_ids=1' after the collection's name to replace white space by '_'",
        "open_collection(…, map_ids=True) replaces it by '_'",
    )
    return DataError(text.replace(", or with --fields a+b", ""))


def _read(value: Any) -> Any:
    """Return a table of Arrow, or a sequence of records. Raises UsageError for other objects."""
    if hasattr(value, "to_frame"):  # one column of pandas or polars
        if hasattr(value, "to_series"):  # an index of pandas: else its texts become the ids, too
            value = value.to_series(range(len(value)))
        value = value.to_frame(name="text")
    if hasattr(value, "__arrow_c_stream__"):
        return _of_arrow(value)
    if isinstance(value, Mapping):
        return _of_mapping(value)
    if _is_dataset(value):
        return value
    records = [_record(n, each) for n, each in enumerate(value)]
    if isinstance(value, Iterator) and not records:
        raise UsageError(
            f"the {type(value).__name__} yields nothing; if it was read before, make it again, or give a list"
        )
    return records


def _is_dataset(value: Any) -> bool:
    """Return whether an object is a datasets.Dataset: its rows stay where they are."""
    return hasattr(value, "column_names") and hasattr(value, "__len__")


def _of_arrow(value: Any) -> pa.Table:
    pandas = type(value).__module__.partition(".")[0] == "pandas"
    try:
        return pa.Table.from_pandas(value, preserve_index=True) if pandas else pa.table(value)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise UsageError(
            f"the {type(value).__name__} has a column with values of several types ({error}); convert the "
            "column, for instance with astype(str)"
        ) from None
    except UnicodeEncodeError:
        raise UsageError(f"the {type(value).__name__} has a text in which {_HALF}") from None


def _of_mapping(value: Mapping[Any, Any]) -> list[Record]:
    """{id: text}, {id: record}, judgements {query id: {document id: grade}}, or columns {name: values}."""
    if any(hasattr(each, "column_names") for each in value.values()):
        raise UsageError(f"give one split of the dataset: {', '.join(map(repr, value))}")
    values = list(value.values())
    if values and all(isinstance(each, list | tuple) for each in values):
        if len({*map(len, values)}) > 1:
            raise UsageError(f"the columns {', '.join(map(str, value))} have different lengths")
        return [dict(zip(value, row, strict=True)) for row in zip(*values, strict=True)]
    numbers = [number for each in values if isinstance(each, Mapping) for number in each.values()]
    judged = bool(numbers) or (bool(values) and values == [{}] * len(values))
    if judged and all(isinstance(each, Real) for each in numbers):
        return [dict(value)]
    return [
        {"id": name, **(each if isinstance(each, Mapping) else {"text": each})}
        for name, each in value.items()
    ]


def _record(number: int, value: Any) -> Record:
    """Return a text, a dictionary, or a Doc, Query or Qrel as a record. Raises UsageError
    for other objects.
    """
    if isinstance(value, str):
        if os.path.exists(value) or (Path(value).suffix in FILE_SUFFIXES and " " not in value):
            raise UsageError(
                f"a list of texts is expected, and '{value}' is the name of a file; run the operation for "
                "each file"
            )
        return {"id": str(number), "text": value}
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "_asdict"):
        fields: Record = value._asdict()
        optional = ("title", "context")
        return {key: each for key, each in fields.items() if each or key not in optional}
    raise UsageError(
        f"row {number} is a {type(value).__name__}; give texts, dictionaries, or Doc, Query and Qrel objects"
    )
