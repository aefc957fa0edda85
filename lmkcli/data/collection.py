"""Collections: documents, queries and judgements as iterators of typed records.

A source (folder `sources/`) creates a Collection; `open_collection` finds the source for a name.
"""

import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import quote, unquote

from lmkcli import catalog
from lmkcli.data import hub_layouts, known_collections
from lmkcli.errors import DataError, UnknownName, UsageError
from lmkcli.spec.values import WHOLE as WHOLE
from lmkcli.spec.values import Shard as Shard
from lmkcli.spec.values import is_digits

FILE_SUFFIXES = frozenset(
    {
        ".jsonl",
        ".ndjson",
        ".json",
        ".csv",
        ".tsv",
        ".txt",
        ".mbox",
        ".xml",
        ".parquet",
        ".gz",
        ".zst",
        ".zip",
    }
)
CHUNK_BREAK = (
    "\f"  # a form feed in a document's text separates chunks that the collection itself defines
)
_ESCAPED = "./"  # in a run, the start of the id of a file with white space
_NEAR = 30  # characters of a text that a message shows on either side of a place
CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]|^\ufeff")  # not allowed in ids


class Doc(NamedTuple):
    """One document. `title` may be empty; form feeds in the text separate chunks (CHUNK_BREAK).

    `context` is text before a chunk that is encoded alone. It is not part of the chunks. It is one text for
    all chunks, or a text for each chunk.
    """

    id: str
    """The id in runs and judgements, unique in its collection. Only that of a file can have white space."""
    text: str
    """The text without the title."""
    title: str = ""
    context: str | tuple[str, ...] = ""

    @property
    def content(self) -> str:
        """The text that is encoded and indexed: title and text joined by one space (as in BEIR)."""
        return f"{self.title} {self.text}" if self.title else self.text


class Query(NamedTuple):
    """One query."""

    id: str
    """The id in runs and judgements."""
    text: str
    """The text without a prompt."""


class Qrel(NamedTuple):
    """One relevance judgement."""

    query_id: str
    """The `Query.id`."""
    doc_id: str
    """The `Doc.id`."""
    grade: int
    """0: not relevant; a higher grade means more relevant. Some tracks use negative grades for spam."""


def join_chunks(chunks: Iterable[str]) -> str:
    """Join chunks to the text of a document; `--gran given` splits it at the same places."""
    return CHUNK_BREAK.join(chunk.replace(CHUNK_BREAK, " ") for chunk in chunks)


class DocStream(ABC):
    """The documents of one shard in source order, with the progress of reading.

    Iterating yields Doc. `fraction` is the share of this shard that has been read, between 0 and 1,
    or None if the end is unknown (stdin).
    """

    @abstractmethod
    def __iter__(self) -> Iterator[Doc]: ...

    @property
    @abstractmethod
    def fraction(self) -> float | None: ...

    @property
    def total(self) -> int | None:
        """The number of rows of this shard, if it is known before they are read; some may be left out."""
        return None


class CountedDocs(DocStream):
    """The documents of an iterator that `start` opens; `total` is their number, or None if unknown."""

    def __init__(self, start: Callable[[], Iterator[Doc]], total: int | None) -> None:
        self._start = start
        self._total = total
        self._done = 0

    def __iter__(self) -> Iterator[Doc]:
        self._done = 0
        for doc in self._start():
            self._done += 1
            yield doc

    @property
    def fraction(self) -> float | None:
        if self._total is None:
            return None
        return min(1.0, self._done / self._total) if self._total else 1.0

    @property
    def total(self) -> int | None:
        return self._total


class Collection(ABC):
    """Documents, queries and judgements under one name.

    `name` opens the collection again. `settings` are all settings that affect the text of a document
    (fields, title join). lmk compares them between artifacts.
    """

    name: str
    settings: dict[str, str]

    @abstractmethod
    def docs(self, shard: Shard = WHOLE) -> DocStream:
        """Return the documents of one shard, in source order; the shards in order are the whole collection.

        Sources that cannot seek (gzip, stdin, a collection of unknown size) distribute their rows to the
        shards in blocks of 1,000. Each document is in exactly one shard, and each shard is in source order.
        """

    @abstractmethod
    def queries(self) -> Iterator[Query]:
        """Return all queries, judged or not. Raises DataError if the collection has none."""

    @abstractmethod
    def qrels(self) -> Iterator[Qrel]:
        """Return the judgements of the chosen split. Raises DataError if there are none."""

    def file_stats(self) -> dict[str, list[int]]:
        """Size and modification time (ns) of the files that docs() reads, by file name.

        A resumed job compares it. Empty for collections without such files.
        """
        return {}

    def can_move(self) -> bool:
        """Return whether a copy of this object can read the documents in another process, and with the same
        result.

        Not if they are in memory or in a pipe, or if reading them changes other objects.
        """
        return False

    def skipped_files(self) -> dict[str, str]:
        """Skipped file or row -> the reason, for what has been read so far; of many rows, the first ones."""
        return {}

    def skipped_count(self) -> int:
        """Return the number of files or rows that were skipped, because they cannot be read."""
        return 0

    def notes(self) -> list[str]:
        """Lines for people about how the collection is read, for what has been opened so far."""
        return []

    def summary(self) -> str:
        """Return one line for people about what has been left out so far; empty if the caller may list it."""
        return ""

    def guessed_encodings(self) -> dict[str, str]:
        """File -> its encoding, for the files read so far whose encoding lmk had to guess."""
        return {}

    def chosen_columns(self) -> dict[str, str]:
        """Table in a folder -> the columns that lmk chose for its ids, titles and texts, so far."""
        return {}

    def places(self, doc_id: str) -> list[str]:
        """Return the places of the documents with an id, for error messages; empty if
        they cannot be found.
        """
        return []

    def fetch(self) -> None:  # noqa: B027 (local collections have nothing to download)
        """Download all files of the collection into the cache of this machine, once for all jobs."""

    def has_qrels(self) -> bool:
        """Return whether the chosen split has judgements."""
        return True

    def records(self) -> Iterator[tuple[str, dict[str, Any]]] | None:
        """Return the rows of a table that may contain training examples, with their
        places; None for others.
        """
        return None

    def query_metadata(self, name: str) -> dict[str, str | float]:
        """Query id -> value of the metadata field `name` ('position', 'language').

        Queries without a value are omitted.
        """
        return {}

    def metadata(self, doc_id: str, name: str) -> Sequence[str | float]:
        """Return the values of a metadatum of a document, which filters compare; empty if it has none.

        `path`, `type` and `date` are those of its file, unless a record of the file has a field of that name.
        Other names are fields of its record. Raises UsageError if the collection keeps no metadata.
        """
        raise UsageError(
            "filters need documents in files or in memory: a folder, a file of records, or a table"
        )

    def has_metadata(self, name: str) -> bool:
        """Return whether any document may have a metadatum of this name, such as a field of a record."""
        return True

    def judged_queries(self) -> list[Query]:
        """Return the queries with judgements in this split, in order; all queries if
        there are no judgements.
        """
        if not self.has_qrels():
            return list(self.queries())
        judged = {qrel.query_id for qrel in self.qrels()}
        return [query for query in self.queries() if query.id in judged]


class PartOfCollection(Collection):
    """Some documents of a collection. Everything else is as in the whole collection.

    It has no training examples, which have no documents to choose from.
    """

    def __init__(self, whole: Collection) -> None:
        self._whole = whole
        self.name, self.settings = whole.name, whole.settings

    def queries(self) -> Iterator[Query]:
        """Return all queries of the collection."""
        return self._whole.queries()

    def qrels(self) -> Iterator[Qrel]:
        """Return the judgements of the collection."""
        return self._whole.qrels()

    def file_stats(self) -> dict[str, list[int]]:
        """Return the files of the collection; see `Collection.file_stats`."""
        return self._whole.file_stats()

    def can_move(self) -> bool:
        """Return whether another process can read the documents of the whole collection."""
        return self._whole.can_move()

    def skipped_files(self) -> dict[str, str]:
        """Return the skipped files of the collection."""
        return self._whole.skipped_files()

    def skipped_count(self) -> int:
        """Return the number of skipped files or rows of the collection."""
        return self._whole.skipped_count()

    def notes(self) -> list[str]:
        """Return the notes of the collection."""
        return self._whole.notes()

    def summary(self) -> str:
        """Return the line about files of the collection that were left out."""
        return self._whole.summary()

    def guessed_encodings(self) -> dict[str, str]:
        """Return the guessed encodings of the files of the collection."""
        return self._whole.guessed_encodings()

    def chosen_columns(self) -> dict[str, str]:
        return self._whole.chosen_columns()

    def places(self, doc_id: str) -> list[str]:
        """Return the places of the documents with an id."""
        return self._whole.places(doc_id)

    def fetch(self) -> None:
        """Download the collection."""
        self._whole.fetch()

    def has_qrels(self) -> bool:
        """Return whether the collection has judgements."""
        return self._whole.has_qrels()

    def query_metadata(self, name: str) -> dict[str, str | float]:
        """Return the metadata of the queries."""
        return self._whole.query_metadata(name)

    def metadata(self, doc_id: str, name: str) -> Sequence[str | float]:
        """Return the metadata of the documents."""
        return self._whole.metadata(doc_id, name)

    def has_metadata(self, name: str) -> bool:
        """Return whether any document of the whole collection may have this metadatum."""
        return self._whole.has_metadata(name)


class SubsetCollection(PartOfCollection):
    """Some documents of a collection ('NAME,subset=100'), with the judgements of these and of their chunks.

    They have the smallest hashes of their ids. So a smaller subset is a part of a larger one (ConTEB, Conti
    et al. 2025, Figure 4), and adding documents to the collection changes few of them.
    """

    def __init__(self, whole: Collection, size: int) -> None:
        super().__init__(whole)
        self._size = size
        self.name = f"{whole.name},subset={size}"
        self.settings = {**whole.settings, "subset": str(size)}

    @cached_property
    def _ids(self) -> frozenset[str]:
        """The ids of the subset; all ids of the collection are read once."""
        ids = sorted((doc.id for doc in self._whole.docs()), key=_hash)
        return frozenset(ids[: self._size])

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        """Return the documents of the subset in one shard of the collection."""

        def chosen() -> Iterator[Doc]:
            return (doc for doc in self._whole.docs(shard) if doc.id in self._ids)

        total = len(self._ids) if shard == WHOLE else None
        return CountedDocs(chosen, total)

    def qrels(self) -> Iterator[Qrel]:
        """Yield the judgements of documents in the subset, and of their chunks ('d7#2')."""
        for qrel in self._whole.qrels():
            if qrel.doc_id in self._ids or qrel.doc_id.rpartition("#")[0] in self._ids:
                yield qrel


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()


class ArrowTable(Protocol):
    """A table with the interface of Arrow: of pandas, polars, pyarrow, duckdb and others."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


Source: TypeAlias = (
    str
    | Path
    | Collection
    | ArrowTable
    | Mapping[str, Any]
    | Iterable[str | Mapping[str, Any] | tuple[Any, ...]]
)
"""A collection: its name, or a table, texts or records of a Python program (`sources/memory.py`)."""


class SourceOpener(Protocol):
    """A function that opens a collection from its name and options; listed in the catalog's SOURCES."""

    def __call__(self, name: str, options: dict[str, str]) -> Collection: ...


def open_collection(
    source: Source, fields: str = "", context: str = "", **settings: Any
) -> Collection:
    """Open a collection by name: 'data/scifact:test', 'x.jsonl', 'beir/scifact/test'.

    `source` may also be a table (pandas, polars, Arrow, datasets), or an iterable of texts, dictionaries or
    Doc objects. Columns are found as in files. Without ids, the position is the id, counted from 0.
    `settings` are options of the source, such as text="body". `queries` and `qrels` may be tables too:
    open_collection(docs, queries=questions, qrels=judgements).

    '-' is stdin. './x', an absolute path, an existing path with a slash and any file name are read from
    disk. 'folder:x' is a folder with one document per file; a file that is a document, or an archive of
    documents, is opened in the same way. 'irds:' forces ir_datasets and 'hf:' the Hugging Face hub: a known
    collection, or any dataset 'hf:owner/name'. Any other name is a folder of that name with documents, or a
    known collection, or else a folder.
    'name,key=value' passes options to the source; 'name,subset=100' has some documents (SubsetCollection).
    `fields` are the text fields of a record joined by
    '+', `context` the field with the contexts of its chunks. Raises UnknownName with similar names.
    """
    if not isinstance(source, str | Path):
        source = catalog.source_name(source)
    spelling = str(source)
    head, options = _with_options(spelling)
    subset = whole_number(head, options, "subset", 0, 1)
    options.pop("subset", None)
    if subset:
        whole = open_collection(spell(head, options), fields, context, **settings)
        return SubsetCollection(whole, subset)
    if fields:
        options["fields"] = fields
    for key, value in settings.items():
        plain = isinstance(value, str | int | Path)
        options[key] = (
            str(int(value) if value is True else value) if plain else catalog.source_name(value)
        )
    kind, name = _source_of(head)
    if kind == "files" and "format" not in options:
        kind, name = _claimed(name) or (kind, name)
    if context:
        if kind not in ("files", "memory"):
            raise UsageError(
                f"--context field:{context} reads a field of files, and {spelling} is not a file; write "
                "its documents with their contexts to a jsonl or parquet file"
            )
        options["context"] = context
    open_source: SourceOpener = catalog.SOURCES.load(kind)
    return open_source(name, options)


def divided(spelling: str) -> list[str]:
    """Divide 'name,key=value' at its commas, but not within a path on disk or a glob."""
    parts = spelling.split(",")
    for number in range(len(parts), 1, -1):
        path = ",".join(parts[:number])
        source, _, rest = path.partition(":")
        without_source = rest if "," not in source else ""  # else of an option: from=mini:test
        if any(os.path.exists(os.path.expanduser(p)) for p in (path, without_source) if p):
            parts = [path, *parts[number:]]
            break
    found = parts[:1]
    for part in parts[1:]:
        if found[-1].startswith("glob=") and not _OPTION.match(part):
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def _with_options(spelling: str) -> tuple[str, dict[str, str]]:
    """Divide 'name,key=value' into the name and its options."""
    head, *pairs = divided(spelling)
    options: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(
                f"'{spelling}': '{pair}' is not an option; write options as name,key=value"
            )
        if options.get(key, value) != value:
            raise UsageError(f"'{spelling}': the option '{key}' has two values; remove one of them")
        options[key] = value
    return head, options


_OPTION = re.compile(r"\w+=")
HUB_REPOSITORY = re.compile(r"hf:([\w.-]+/[\w.-]+|[./~].*)")


def _claimed(name: str) -> tuple[str, str] | None:
    """Return the name of the source that claims a file (`SourceRow.claims`), and the file's name in it.

    None if no source claims it.
    """
    for row in catalog.SOURCES.values():
        if row.claims and (own := catalog.load(row, f"source '{row.name}'", row.claims)(name)):
            return row.name, own
    return None


def is_held(name: str) -> bool:
    """Return whether a name is that of rows in the memory of a Python program, which its
    digest identifies.
    """
    head, _ = _with_options(name)
    kind, _ = _source_of(head)
    return bool(catalog.SOURCES[kind].holds)


def _source_of(head: str) -> tuple[str, str]:
    """Return the source of a name without options, and the name to open in that source."""
    if HUB_REPOSITORY.fullmatch(head) and not known_collections.facts_of(head):
        return "dataset", head
    for row in catalog.SOURCES.values():
        if head.startswith(row.prefixes) or head in row.names:
            return row.name, head.removeprefix("irds:")
    if head == "-" or head.startswith((".", "/", "~")):
        return "files", head
    path = head if os.path.exists(head) else head.rsplit(":", 1)[0]
    on_disk = os.path.isfile(path) or (os.path.exists(path) and "/" in path)
    if on_disk or Path(path).suffix in FILE_SUFFIXES:
        return "files", head
    if os.path.isdir(path) and (has_documents(path) or not is_known(path)):
        return "files", f"./{head}"
    if members := known_collections.members(head):
        raise UsageError(
            f"'{head}' is a group of {len(members)} collections: name one of them, such as {members[0]}"
        )
    # The hub provides collections that ir_datasets lacks, and those in the mirror folder.
    facts = known_collections.facts_of(head)
    layout = hub_layouts.layout_of(head) if facts else None
    if facts and layout and (facts.source == "hub" or layout.mirrored):
        return "hub", head
    return "irds", head


def has_documents(folder: str) -> bool:
    """Return whether a folder itself contains a corpus, queries or documents.

    Its name then refers to it, even if it is also the name of a known collection. A folder with artifacts
    alone, which may be named after their collection, contains no documents.
    """
    names = [] if os.path.exists(os.path.join(folder, "manifest.json")) else os.listdir(folder)
    suffixes = {suffix for row in catalog.READERS.values() for suffix in row.suffixes}
    return any(
        not name.startswith(".")
        and (name.split(".")[0] in ("corpus", "queries") or Path(name).suffix.lower() in suffixes)
        for name in names
    )


def is_known(name: str) -> bool:
    """Return whether a name without a slash is a known collection, even if a folder has the same name."""
    if known_collections.facts_of(name) or known_collections.members(name):
        return True
    try:
        catalog.SOURCES.load("irds")(name, {})
    except UnknownName:
        return False
    return True


def check_options(name: str, options: dict[str, str], known: Iterable[str]) -> None:
    """Raise UnknownName for an option of 'name,key=value' that the source does not have."""
    known = sorted(known)
    for key in options:
        if key not in known:
            raise UnknownName(f"option of '{name}'", key, known or ["(none)"])


def whole_number(name: str, options: dict[str, str], key: str, default: int, least: int = 0) -> int:
    """Return the option `key` of 'name,key=value' as a number. Raises UsageError unless it is >= `least`."""
    text = options.get(key)
    if text is None:
        return default
    if not is_digits(text) or int(text) < least:
        raise UsageError(f"{name},{key}={text}: write a whole number, {least} or more")
    return int(text)


def spell(name: str, options: dict[str, str]) -> str:
    """Write a name with its options as 'name,key=value,…', which opens the collection again."""
    return ",".join([name, *(f"{key}={value}" for key, value in options.items())])


def check_id(identifier: str, where: str, what: str = "document") -> str:
    """Return the id if a TREC run can contain it; raise DataError otherwise.

    An id is not empty and has no white space, no control character (trec_eval ends an id at a NUL) and
    no byte order mark at its start.
    """
    if not identifier:
        raise DataError(f"{where}: the {what} id is empty; every record needs one")
    if identifier.split() != [identifier]:
        raise DataError(
            f"{where}: the {what} id {identifier!r} contains white space, which a TREC run cannot represent; "
            "write ',map_ids=1' after the collection's name to replace white space by '_'"
        )
    if CONTROL_CHARACTERS.search(identifier):
        raise DataError(
            f"{where}: the {what} id {identifier!r} contains a control character or a byte order mark, "
            "which other tools would read differently; remove it"
        )
    return identifier


def escaped_id(identifier: str) -> str:
    """Return the id of a document as a TREC run contains it, without white space.

    Only the id of a file can contain white space. It is written as './' and the id with percent escapes:
    './my%20notes.txt'. Other ids are unchanged. `unescaped_id` returns the id again.
    """
    if identifier.split() == [identifier] and not _is_escaped(identifier):
        return identifier
    return _ESCAPED + "".join(
        quote(each, safe="") if each.isspace() or each == "%" else each for each in identifier
    )


def unescaped_id(identifier: str) -> str:
    """Return the id of a document that a TREC run contains."""
    return unquote(identifier.removeprefix(_ESCAPED)) if _is_escaped(identifier) else identifier


def _is_escaped(identifier: str) -> bool:
    return identifier.startswith(_ESCAPED) and "%" in identifier


def check_text(text: str, where: str = "") -> None:
    """Raise DataError with `where` for half of a surrogate pair, which is no character.

    An escape of JSON can represent one, for instance if a program cut a text in an emoji. No file
    in UTF-8 can, and no tokenizer accepts one.
    """
    try:
        if not text.isascii():
            text.encode("utf-8")
    except UnicodeEncodeError as error:
        near = text[max(0, error.start - _NEAR) : error.start + _NEAR]
        raise DataError(
            f"{where}{': ' * bool(where)}half of a surrogate pair is no character ({near!r}); replace it: "
            "jq -c . FILE > NEW"
        ) from None


def map_id(identifier: str) -> str:
    """Return the id with every white space character replaced by '_'."""
    return "".join("_" if character.isspace() else character for character in identifier)


def doc_hash(doc: Doc) -> bytes:
    """Return the SHA-256 (32 bytes) of id, title, text and contexts, each preceded by its length."""
    contexts = [json.dumps(doc.context)] if doc.context else []
    hashed = bytearray()
    for field in (doc.id, doc.title, doc.text, *contexts):
        data = field.encode("utf-8", "surrogatepass")
        hashed += len(data).to_bytes(8, "little")
        hashed += data
    return hashlib.sha256(hashed).digest()


class CollectionDigest:
    """A digest of a set of documents that does not depend on their order.

    It consists of their number and the sum of their hashes modulo 2**256. The digests of parts therefore
    add up to the digest of the whole.
    """

    def __init__(self, count: int = 0, total: int = 0) -> None:
        self.count = count
        self.total = total

    def add(self, *doc_hashes: bytes) -> None:
        """Add documents."""
        self.count += len(doc_hashes)
        added = sum(int.from_bytes(each, "little") for each in doc_hashes)
        self.total = (self.total + added) % (1 << 256)

    def __str__(self) -> str:
        return f"{self.count}:{self.total:064x}"

    @classmethod
    def sum(cls, digests: Iterable[str]) -> "CollectionDigest":
        """Return the digest of the union of parts, from the texts of their digests."""
        whole = cls()
        for text in digests:
            count, total = text.split(":")
            whole.count += int(count)
            whole.total = (whole.total + int(total, 16)) % (1 << 256)
        return whole
