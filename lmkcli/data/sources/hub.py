"""Known collections on the Hugging Face hub, such as 'mldr/en/test', or in a mirror of it.

Their files are read as they are, parquet or jsonl; no dataset script is run. `hub_layouts.toml` says where
the tables lie, `hubfiles` finds them.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import Any

from lmkcli.data import hub_layouts, known
from lmkcli.data.collection import (
    WHOLE,
    Collection,
    CountedDocs,
    Doc,
    DocStream,
    Qrel,
    Query,
    Shard,
    check_options,
    join_chunks,
    spell,
)
from lmkcli.data.formats import Fields, Record
from lmkcli.data.hub_layouts import ROW, HubLayout, Table
from lmkcli.data.records import Records, open_records
from lmkcli.data.sources.hubfiles import Found, find
from lmkcli.data.trec import read_qrels
from lmkcli.errors import DataError, UnknownName

OPTIONS = ("fields", "map_ids")


def open_hub(name: str, options: dict[str, str]) -> "HubCollection":
    """The known collection of this name; 'hf:' may stand before it. Nothing is read or downloaded yet.

    Options: `fields` (text columns of a document joined by '+'), `map_ids` (1: white space in ids
    becomes '_'). UnknownName with the nearest names that the hub has.
    """
    check_options(name, options, OPTIONS)
    plain = name.removeprefix("hf:")
    layout = hub_layouts.layout_of(plain) if known.facts_of(plain) else None
    if layout is None:
        raise UnknownName("collection of the hub", plain, known.near(plain))
    return HubCollection(spell(name, options), layout, Fields.parse(options))


class HubDocs(DocStream):
    """The documents of several files, one after the other."""

    def __init__(self, files: list[Records], read: "HubCollection") -> None:
        self._files = files
        self._read = read

    def __iter__(self) -> Iterator[Doc]:
        for file in self._files:
            for where, record in file:
                yield self._read.doc(record, where)

    @property
    def fraction(self) -> float | None:
        shares = [file.fraction or 0.0 for file in self._files]
        return sum(shares) / len(shares)


class HubCollection(Collection):
    """Three tables of the hub. Of several files, a shard takes its slice of each.

    Where chunks are judged (ConTEB), a document is its chunks in the order of the data set, joined by
    form feeds, and the judgements name '<document>#<position>', from zero.
    """

    def __init__(self, name: str, layout: HubLayout, fields: Fields) -> None:
        self.name = name
        self.settings = fields.settings
        self._layout = layout
        self._fields = fields

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        table = self._layout.docs
        if self._layout.chunked:
            docs = [self._joined(name, chunks) for name, chunks in self._chunks.items()]
            mine = shard.rows(len(docs))
            return CountedDocs(lambda: iter(docs[mine.start : mine.stop]), len(mine))
        if table.where:
            mine = shard.rows(sum(1 for _ in self._rows(table)))
            return CountedDocs(lambda: islice(self._docs(), mine.start, mine.stop), len(mine))
        return HubDocs([self._open(path, shard) for path in self._found(table).paths], self)

    def doc(self, record: Record, where: str) -> Doc:
        """The document in a row of the table. DataError naming `where` when it has no id or text."""
        table = self._layout.docs
        given = {"id": _value(table, "id", record, where)}
        if self._fields.names:
            return self._fields.doc(record | given, where)
        title = next((record[name] for name in table.names("title") if name in record), "")
        given |= {"title": title, "text": _value(table, "text", record, where)}
        return self._fields.doc(given, where)

    def queries(self) -> Iterator[Query]:
        table = self._layout.queries
        left_out = self._unanswerable
        for number, where, record in self._rows(table):
            name = self._row_id(table, "id", (number, where, record))
            if name not in left_out:
                text = _value(table, "text", record, where)
                yield Fields().query({"id": name, "text": text}, where)

    def qrels(self) -> Iterator[Qrel]:
        left_out = self._unanswerable
        return (qrel for qrel in self._judged() if qrel.query_id not in left_out)

    def stamp(self) -> dict[str, list[int]]:
        """As Collection says; a name carries the repository and, where it has one, the commit."""
        table = self._layout.docs
        files = self._found(table)
        repo = f"{table.repo}@{files.commit}" if files.commit else table.repo
        stats = zip(files.names, (path.stat() for path in files.paths), strict=True)
        # What a commit holds cannot change; the time of its download means nothing.
        return {
            f"{repo}/{name}": [stat.st_size, *([] if files.commit else [stat.st_mtime_ns])]
            for name, stat in stats
        }

    def fetch(self) -> None:
        for table in self._layout.tables:
            self._found(table)

    def _found(self, table: Table) -> Found:
        return find(table, self.name.split(",")[0])

    def _open(self, path: Any, shard: Shard = WHOLE, table: Table | None = None) -> Records:
        table = table or self._layout.docs
        columns = {name for column in table.columns for name in table.names(column)}
        return open_records(
            str(path), shard, frozenset({*columns, *table.where, *self._fields.names})
        )

    def _rows(self, table: Table, loose: bool = False) -> Iterator[tuple[int, str, Record]]:
        """Number in the table, place and content of the rows that belong to the collection.

        `loose` takes rows that lack a column of `where`; else that is a DataError.
        """
        number = 0
        for path in self._found(table).paths:
            for where, record in self._open(path, WHOLE, table):
                if _belongs(table, record, where, loose):
                    yield number, where, record
                number += 1

    def _docs(self) -> Iterator[Doc]:
        return (self.doc(record, where) for _, where, record in self._rows(self._layout.docs))

    def _row_id(self, table: Table, column: str, row: tuple[int, str, Record]) -> str:
        """A query's id; where the table has none, 'q' and the number of the row."""
        number, where, record = row
        if table.columns[column] == ROW:
            return f"q{number}"
        return self._fields.id(_value(table, column, record, where), where, "query")

    def _judged(self) -> Iterator[Qrel]:
        table = self._layout.qrels
        files = self._found(table)
        if files.names[0].endswith(".tsv"):
            for path in files.paths:
                yield from read_qrels(path, self._fields.map_ids)
            return
        asked = self._asked if table.where else None
        for number, where, record in self._rows(table, loose=True):
            query = self._row_id(table, "query", (number, where, record))
            answers = _value(table, "doc", record, where)
            for answer in answers if isinstance(answers, list) else [answers]:
                if asked is None or query in asked:
                    yield Qrel(query, self._answer(answer, where), _grade(table, record, where))

    def _answer(self, answer: object, where: str) -> str:
        if self._layout.chunked:
            return self._places.get(str(answer)) or "#".join(self._cut(answer, where))
        return self._fields.id(answer, where, "document")

    @cached_property
    def _asked(self) -> set[str]:
        """Ids of the queries: judgements of a part need not say to which part they belong."""
        table = self._layout.queries
        return {self._row_id(table, "id", row) for row in self._rows(table)}

    @cached_property
    def _unanswerable(self) -> set[str]:
        """Queries all of whose answers are texts with nothing in them, where such are left out."""
        if not self._layout.skip_empty:
            return set()
        empty = {doc.id for doc in self._docs() if not doc.text.strip()}
        judged = list(self._judged()) if empty else []
        answered = {qrel.query_id for qrel in judged if qrel.doc_id not in empty}
        return {qrel.query_id for qrel in judged} - answered

    @cached_property
    def _chunks(self) -> dict[str, list[tuple[str, str]]]:
        """Document -> its chunks' ids and texts, in the order of the data set; documents by id."""
        table = self._layout.docs
        chunks: dict[str, list[tuple[str, str]]] = {}
        for _, where, record in self._rows(table):
            chunk = _value(table, "id", record, where)
            text = _value(table, "text", record, where)
            chunks.setdefault(self._cut(chunk, where)[0], []).append((str(chunk), text or ""))
        return dict(sorted(chunks.items()))

    @cached_property
    def _places(self) -> dict[str, str]:
        """Chunk id -> '<document>#<position>'."""
        return {
            chunk: f"{name}#{position}"
            for name, chunks in self._chunks.items()
            for position, (chunk, _) in enumerate(chunks)
        }

    def _joined(self, name: str, chunks: list[tuple[str, str]]) -> Doc:
        return Doc(name, join_chunks(text for _, text in chunks))

    def _cut(self, chunk: object, where: str) -> tuple[str, str]:
        """Document and number of a chunk's id."""
        name, _, number = str(chunk).rpartition("_")
        if not name or not number.isdecimal():
            raise DataError(f"{where}: the chunk id {chunk!r} is not <document>_<number>")
        return self._fields.id(name, where, "document"), number


def _value(table: Table, column: str, record: Record, where: str) -> Any:
    for name in table.names(column):
        if name in record:
            return record[name]
    raise DataError(
        f"{where}: no column {' or '.join(table.names(column))}; expected {table.expected}; "
        f"found {', '.join(map(str, record)) or 'nothing'}"
    )


def _belongs(table: Table, record: Record, where: str, loose: bool) -> bool:
    missing = [name for name in table.where if name not in record]
    if missing and not loose:
        raise DataError(
            f"{where}: no column {missing[0]}; expected {table.expected}; "
            f"found {', '.join(map(str, record)) or 'nothing'}"
        )
    return all(str(record[name]) == value for name, value in table.where.items() if name in record)


def _grade(table: Table, record: Record, where: str) -> int:
    """1 where the table has no grades."""
    given = next((record[name] for name in table.names("score") if name in record), 1)
    try:
        return int(given)
    except (TypeError, ValueError):
        raise DataError(f"{where}: the grade {given!r} is not a whole number") from None
