"""Known collections on the Hugging Face hub, such as 'mldr/en/test', or in a mirror of it.

Parquet and jsonl files are read directly; no dataset script runs. `hub_layouts.toml` contains the places of
the tables. The first part of this module finds the files of a table, the second part reads them.

The files of a table are the files that its layout names, that the repository's README declares, or that have
the conventional path of a split of a configuration. lmk never guesses from the content of files. The library
huggingface_hub caches, checks, locks and resumes downloads.
"""

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import HfApi, metadata_load, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from lmkcli.data import hub_layouts, known_collections
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
from lmkcli.data.fields import Fields, Record
from lmkcli.data.hub_layouts import MIRROR, ROW, HubLayout, HubTable, mirror
from lmkcli.data.qrels import read_qrels
from lmkcli.data.records import Records, open_records
from lmkcli.errors import DataError, UnknownName
from lmkcli.spec.values import is_digits
from lmkcli.system import network
from lmkcli.text.formatting import listed, shell_line

OPTIONS = ("fields", "map_ids", "text")
README = "README.md"
SUFFIXES = ("-*.parquet", ".parquet", "/*.parquet", ".jsonl.gz", ".jsonl", ".json", ".tsv")
SPLITS = {"dev": "validation", "validation": "dev", "val": "validation"}  # synonyms
PIECE = re.compile(r"-([0-9]{5})-of-([0-9]{5})")


class TableFiles(NamedTuple):
    """The files of a table, in order, below the folder of a repository."""

    root: Path
    names: list[str]
    commit: str
    """'' in a mirror."""

    @property
    def paths(self) -> list[Path]:
        """The paths of the files."""
        return [self.root / name for name in self.names]


class Selection(NamedTuple):
    """Patterns, and the names of the files that match them."""

    patterns: tuple[str, ...]
    names: list[str]


def find_files(table: HubTable, collection: str) -> TableFiles:
    """Find the files of a table, and download them if necessary. Files in the cache cause no request.

    `collection` is the name for `lmk fetch`. Raises DataError if there are no files, if parts of the table
    are missing, or if a necessary download is forbidden or fails.
    """
    if folder := mirror(table.repo):
        files = TableFiles(folder, _select(table, _listing(folder), folder).names, "")
    else:
        files = _cached(table) or _download(table, collection)
    place = f"{table.repo} in {files.root}"
    if not files.names:
        found = _listing(files.root)
        shown = (", ".join(found[:8]) + (" …" if len(found) > 8 else "")) or "nothing"
        raise DataError(
            f"{place}: no file of {_describe(table)}; expected {next(_candidates(table, {}))[0]} "
            f"with the columns {table.expected or 'of TREC qrels'}; found {shown}"
        )
    pieces = [match for name in files.names if (match := PIECE.search(name))]
    if pieces and len(pieces) < int(pieces[0][2]):
        raise DataError(
            f"{place}: only {len(pieces)} of {int(pieces[0][2])} files of {_describe(table)} exist "
            f"({files.names[0]} …); copy the others too"
        )
    return files


def _describe(table: HubTable) -> str:
    """Return the configuration and the split of a table, for error messages."""
    config = f"configuration '{table.config}'" if table.config else ""
    split = f"split '{table.split}'" if table.split else ""
    return ", ".join(filter(None, (config, split))) or "this table"


def _listing(root: Path) -> list[str]:
    """Return all files below a folder, sorted, without the hub's own hidden files."""
    files = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in files if not path.parts[0].startswith("."))


def _select(table: HubTable, names: list[str], root: Path) -> Selection:
    """Return the first candidate that matches any of the files; an empty selection if none does."""
    card = root / README
    metadata = metadata_load(card) if card.is_file() else None
    for patterns in _candidates(table, metadata or {}):
        matching = [name for name in names if any(fnmatchcase(name, each) for each in patterns)]
        if matching:
            return Selection(patterns, matching)
    return Selection((), [])


def _candidates(table: HubTable, card: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Possible patterns of the files: from the layout, from the README, and by convention."""
    configs, splits = table.config.split("|"), table.split.split("|")
    splits += [SPLITS[split] for split in splits if split in SPLITS]
    yield from ((pattern,) for pattern in table.files)
    yield from _declared(card.get("configs") or [], configs, splits)
    if table.config:
        yield from ((pattern,) for pattern in _conventional(configs, splits))


def _declared(
    entries: Iterable[dict[str, Any]], configs: list[str], splits: list[str]
) -> Iterator[tuple[str, ...]]:
    """Yield the data files of configurations in a README. If there is one split, its name does not matter."""
    for entry in entries:
        if entry.get("config_name") not in configs:
            continue
        data_files = entry.get("data_files") or []
        parts = [part for part in data_files if isinstance(part, dict)]
        for split in splits if len(parts) > 1 else [part.get("split") for part in parts]:
            for part in parts:
                if part.get("split") == split:
                    yield _as_tuple(part.get("path", ()))
        if not parts:
            yield _as_tuple(data_files)


def _as_tuple(paths: str | Iterable[str]) -> tuple[str, ...]:
    return (paths,) if isinstance(paths, str) else tuple(paths)


def _conventional(configs: list[str], splits: list[str]) -> Iterator[str]:
    """Conventional paths: 'corpus/corpus-00000-of-00001.parquet', 'qrels/test.jsonl', 'corpus.jsonl'."""
    folders = [*configs, *(("data", "qrels", ".") if "default" in configs else ())]
    for folder, split, suffix in product(folders, splits, SUFFIXES):
        yield f"{folder}/{split}{suffix}".removeprefix("./")
    for config, suffix in product(configs, SUFFIXES):
        yield f"{config}{suffix}"


def _cached(table: HubTable) -> TableFiles | None:
    """Return the files of a table in the hub's cache; None if any are missing. Sends no request."""
    try:
        # This pattern matches no file, so the call only returns the folder of the repository.
        root = Path(_snapshot(table, ["/"], local_files_only=True))
        patterns, names = _select(table, _listing(root), root)
        if names:
            _snapshot(table, list(patterns), local_files_only=True)
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    return TableFiles(root, names, root.name) if names else None


def _download(table: HubTable, collection: str) -> TableFiles:
    if network.forbidden():
        raise DataError(
            f"{table.repo}: {_describe(table)} is not in the hub's cache, and an offline job does not "
            f"download it. Run lmk fetch {shell_line(collection)} once, on a machine with a network, or "
            f"name a mirror folder in {MIRROR}"
        )
    try:
        root = Path(_snapshot(table, [README]))
        names = HfApi().list_repo_files(table.repo, repo_type="dataset", revision=root.name)
        selected = _select(table, sorted(names), root).names
        if selected:
            _snapshot(table, selected, commit=root.name)
        return TableFiles(root, selected, root.name)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise DataError(
            f"{table.repo}: it cannot be downloaded ({type(error).__name__}: {str(error)[:300]}). "
            f"Copy it into a mirror folder, {MIRROR}=folder with folder/{table.repo}/…; gated "
            "repositories need an account (hf auth login)"
        ) from error


def _snapshot(
    table: HubTable, patterns: list[str], *, commit: str = "", local_files_only: bool = False
) -> str:
    return snapshot_download(
        table.repo,
        repo_type="dataset",
        revision=commit or table.revision or None,
        allow_patterns=patterns,
        local_files_only=local_files_only,
    )


def open_hub(name: str, options: dict[str, str]) -> "HubCollection":
    """Open the known collection of this name, with or without 'hf:'. Reads and downloads nothing yet.

    Options: `fields` (text columns of a document joined by '+'), `map_ids` (1: white space in ids
    becomes '_'). Raises UnknownName with similar names.
    """
    check_options(name, options, OPTIONS)
    plain = name.removeprefix("hf:")
    layout = hub_layouts.layout_of(plain) if known_collections.facts_of(plain) else None
    if layout is None:
        raise UnknownName("collection of the hub", plain, known_collections.similar_names(plain))
    return HubCollection(spell(name, options), layout, Fields.parse(options))


class HubDocs(DocStream):
    """The documents of several files in order."""

    def __init__(self, files: list[Records], collection: "HubCollection") -> None:
        self._files = files
        self._collection = collection

    def __iter__(self) -> Iterator[Doc]:
        for file in self._files:
            for where, record in file:
                yield self._collection.doc(record, where)

    @property
    def fraction(self) -> float | None:
        shares = [file.fraction or 0.0 for file in self._files]
        return sum(shares) / len(shares)

    @property
    def total(self) -> int | None:
        totals = [file.total for file in self._files]
        return None if None in totals else sum(filter(None, totals))


class HubRow(NamedTuple):
    """A row of a table, with its number and its place for error messages."""

    number: int
    where: str
    record: Record


class HubCollection(Collection):
    """Three tables of the hub. A shard reads its share of every file of the documents.

    If the judgements are of chunks (ConTEB), a document consists of its chunks in the order of the dataset,
    joined by form feeds, and the judgements name '<document>#<position>', counted from zero.
    """

    def __init__(self, name: str, layout: HubLayout, fields: Fields) -> None:
        self.name = name
        self.settings = fields.settings
        self._layout = layout
        self._fields = fields

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        table = self._layout.docs
        if self._layout.chunked:
            docs = [
                Doc(name, join_chunks(text for _, text in chunks))
                for name, chunks in self._chunks.items()
            ]
            rows = shard.rows(len(docs))
            return CountedDocs(lambda: iter(docs[rows.start : rows.stop]), len(rows))
        if table.where:
            rows = shard.rows(sum(1 for _ in self._rows(table)))
            return CountedDocs(lambda: islice(self._docs(), rows.start, rows.stop), len(rows))
        return HubDocs([self._open(path, table, shard) for path in self._files(table).paths], self)

    def doc(self, record: Record, where: str) -> Doc:
        """Return the document of a row. Raises DataError with `where` if the row has no id or text."""
        table = self._layout.docs
        fields = {"id": _value(table, "id", record, where)}
        if self._fields.names:
            return self._fields.doc(record | fields, where)
        title = next((record[name] for name in table.names("title") if name in record), "")
        fields |= {"title": title, "text": _value(table, "text", record, where)}
        return self._fields.doc(fields, where)

    def queries(self) -> Iterator[Query]:
        table = self._layout.queries
        unanswerable = self._unanswerable
        for row in self._rows(table):
            query_id = self._query_id(table, "id", row)
            if query_id not in unanswerable:
                text = _value(table, "text", row.record, row.where)
                yield Fields().query({"id": query_id, "text": text}, row.where)

    def qrels(self) -> Iterator[Qrel]:
        unanswerable = self._unanswerable
        return (qrel for qrel in self._judgements() if qrel.query_id not in unanswerable)

    def file_stats(self) -> dict[str, list[int]]:
        """Like `Collection.file_stats`; a name contains the repository and, if known, the commit."""
        table = self._layout.docs
        files = self._files(table)
        repo = f"{table.repo}@{files.commit}" if files.commit else table.repo
        stats = zip(files.names, (path.stat() for path in files.paths), strict=True)
        # The content of a commit cannot change, so the time of the download is left out.
        return {
            f"{repo}/{name}": [stat.st_size, *([] if files.commit else [stat.st_mtime_ns])]
            for name, stat in stats
        }

    def can_move(self) -> bool:
        return not self._layout.chunked  # those documents are held in memory

    def fetch(self) -> None:
        for table in self._layout.tables:
            self._files(table)

    def _files(self, table: HubTable) -> TableFiles:
        return find_files(table, self.name.split(",")[0])

    def _open(self, path: Path, table: HubTable, shard: Shard = WHOLE) -> Records:
        columns = {name for column in table.columns for name in table.names(column)}
        wanted = frozenset({*columns, *table.where, *self._fields.names})
        return open_records(str(path), shard, wanted)

    def _rows(self, table: HubTable, incomplete: bool = False) -> Iterator[HubRow]:
        """Yield the rows of a table that belong to the collection.

        Raises DataError if a row lacks a column of `table.where`, unless `incomplete` is true.
        """
        number = 0
        for path in self._files(table).paths:
            for where, record in self._open(path, table):
                if _belongs(table, record, where, incomplete):
                    yield HubRow(number, where, record)
                number += 1

    def _docs(self) -> Iterator[Doc]:
        return (self.doc(row.record, row.where) for row in self._rows(self._layout.docs))

    def _query_id(self, table: HubTable, column: str, row: HubRow) -> str:
        """Return the id of a query in `column`; 'q' and the number of the row if the table has no ids."""
        if table.columns[column] == ROW:
            return f"q{row.number}"
        return self._fields.id(_value(table, column, row.record, row.where), row.where, "query")

    def _judgements(self) -> Iterator[Qrel]:
        table = self._layout.qrels
        files = self._files(table)
        if files.names[0].endswith(".tsv"):
            for path in files.paths:
                yield from read_qrels(path, self._fields.map_ids)
            return
        # Judgements for a part of a benchmark may lack the name of the part: keep the judgements of its
        # queries.
        queries = self._query_ids if table.where else None
        for row in self._rows(table, incomplete=True):
            query_id = self._query_id(table, "query", row)
            answers = _value(table, "doc", row.record, row.where)
            for answer in answers if isinstance(answers, list) else [answers]:
                if queries is None or query_id in queries:
                    doc_id = self._judged_id(answer, row.where)
                    yield Qrel(query_id, doc_id, _grade(table, row))

    def _judged_id(self, answer: object, where: str) -> str:
        """Return the id of a judged document, or '<document>#<position>' of a judged chunk."""
        if not self._layout.chunked:
            return self._fields.id(answer, where, "document")
        return self._chunk_places.get(str(answer)) or "#".join(self._split_chunk_id(answer, where))

    @cached_property
    def _query_ids(self) -> set[str]:
        table = self._layout.queries
        return {self._query_id(table, "id", row) for row in self._rows(table)}

    @cached_property
    def _unanswerable(self) -> set[str]:
        """The queries that are skipped because the texts of all their judged documents are empty."""
        if not self._layout.skip_empty:
            return set()
        empty = {doc.id for doc in self._docs() if not doc.text.strip()}
        judged = list(self._judgements()) if empty else []
        answered = {qrel.query_id for qrel in judged if qrel.doc_id not in empty}
        return {qrel.query_id for qrel in judged} - answered

    @cached_property
    def _chunks(self) -> dict[str, list[tuple[str, str]]]:
        """Document -> (id, text) of its chunks in the order of the dataset; documents sorted by id."""
        table = self._layout.docs
        chunks: dict[str, list[tuple[str, str]]] = {}
        for _, where, record in self._rows(table):
            chunk = _value(table, "id", record, where)
            text = _value(table, "text", record, where)
            doc_id, _ = self._split_chunk_id(chunk, where)
            chunks.setdefault(doc_id, []).append((str(chunk), text or ""))
        return dict(sorted(chunks.items()))

    @cached_property
    def _chunk_places(self) -> dict[str, str]:
        """Chunk id -> '<document>#<position>'."""
        return {
            chunk: f"{name}#{position}"
            for name, chunks in self._chunks.items()
            for position, (chunk, _) in enumerate(chunks)
        }

    def _split_chunk_id(self, chunk: object, where: str) -> tuple[str, str]:
        """Return the document and the number in a chunk's id."""
        name, _, number = str(chunk).rpartition("_")
        if not name or not is_digits(number):
            raise DataError(f"{where}: the chunk id {chunk!r} is not <document>_<number>")
        return self._fields.id(name, where, "document"), number


def _value(table: HubTable, column: str, record: Record, where: str) -> Any:
    """Return the value of a row in a column of lmk, under any of its names."""
    for name in table.names(column):
        if name in record:
            return record[name]
    raise DataError(
        f"{where}: no column {' or '.join(table.names(column))}; expected {table.expected}; "
        f"found {listed(record) or 'nothing'}"
    )


def _belongs(table: HubTable, record: Record, where: str, incomplete: bool) -> bool:
    """Return whether a row belongs to the collection, by `table.where`."""
    missing = [name for name in table.where if name not in record]
    if missing and not incomplete:
        raise DataError(
            f"{where}: no column {missing[0]}; expected {table.expected}; "
            f"found {listed(record) or 'nothing'}"
        )
    return all(str(record[name]) == value for name, value in table.where.items() if name in record)


def _grade(table: HubTable, row: HubRow) -> int:
    """Return the grade of a judgement; 1 if the table has no grades."""
    record = row.record
    grade = next((record[name] for name in table.names("score") if name in record), 1)
    try:
        return int(grade)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{row.where}: the grade {grade!r} is not a whole number") from None
