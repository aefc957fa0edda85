"""What a collection is: documents, queries and judgements as iterators of typed records.

A source (folder `sources/`) makes a Collection; `open_collection` finds the source for a spelling.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from lmkcli import catalog
from lmkcli.data import hub_layouts, known
from lmkcli.errors import DataError, UnknownName, UsageError
from lmkcli.manifest_types import MOST_SHARDS

FILE_SUFFIXES = frozenset({".jsonl", ".json", ".tsv", ".txt", ".parquet", ".gz"})


CHUNK = "\f"  # a form feed in a document's text ends a chunk that the collection itself gives


def join_chunks(chunks: Iterable[str]) -> str:
    """The text of a document that is given in chunks; `--gran given` cuts it there again."""
    return CHUNK.join(chunk.replace(CHUNK, " ") for chunk in chunks)


class Doc(NamedTuple):
    """One document. `title` may be empty; form feeds in the text are chunk boundaries (CHUNK).

    `context` is what stands before its chunks where they are embedded alone, and in none of them: one
    text for all, or one for each.
    """

    id: str
    """As in runs and judgements: no white space, unique in its collection."""
    text: str
    """Without the title."""
    title: str = ""
    context: str | tuple[str, ...] = ""

    @property
    def content(self) -> str:
        """What is encoded and indexed: title and text joined by one space (as BEIR does)."""
        return f"{self.title} {self.text}" if self.title else self.text


class Query(NamedTuple):
    """One query."""

    id: str
    """As in runs and judgements."""
    text: str
    """As it was asked, without a prompt."""


class Qrel(NamedTuple):
    """What somebody thought of one document as an answer to one query."""

    query_id: str
    """The `Query.id`."""
    doc_id: str
    """The `Doc.id`."""
    grade: int
    """0: not relevant; above: how much. May be negative (spam, in some tracks)."""


@dataclass(frozen=True, order=True)
class Shard:
    """Slice `number` of `count`, zero-based."""

    number: int = 0
    count: int = 1

    def rows(self, total: int) -> range:
        """Which of `total` rows are its: equal shares, in order, together all of them."""
        return range(total * self.number // self.count, total * (self.number + 1) // self.count)

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """'3/16' -> Shard(3, 16); UsageError when it is not 0 <= i < n <= 99,999."""
        number, _, count = text.partition("/")
        digits = number.isdecimal() and count.isdecimal() and max(len(number), len(count)) < 10
        if digits and int(number) < int(count) <= MOST_SHARDS:
            return cls(int(number), int(count))
        raise UsageError(
            f"--shard {text}: write i/n with 0 <= i < n, such as 0/16 … 15/16; n is at most {MOST_SHARDS}"
        )


WHOLE = Shard(0, 1)


class DocStream(ABC):
    """Documents in source order, with how far the reading has come.

    Iterating yields Doc. `fraction` is the share of this shard that has been read, between 0 and 1,
    or None when the end cannot be known (stdin).
    """

    @abstractmethod
    def __iter__(self) -> Iterator[Doc]: ...

    @property
    @abstractmethod
    def fraction(self) -> float | None: ...


class CountedDocs(DocStream):
    """A DocStream over what `start` opens anew; `total` is its count, None when unknown."""

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


class Collection(ABC):
    """Documents, queries and judgements under one name.

    `name` is the spelling that opens it again; `settings` is everything that decides the text of a
    document besides the data itself (fields, title join), and is compared between artifacts.
    """

    name: str
    settings: dict[str, str]

    @abstractmethod
    def docs(self, shard: Shard = WHOLE) -> DocStream:
        """The documents of one shard, in source order; shards in order make up the collection.

        What cannot seek (gzip, stdin, a collection of unknown size) is dealt in blocks of 1,000
        rows instead: shards together still hold every document once, each in source order.
        """

    @abstractmethod
    def queries(self) -> Iterator[Query]:
        """All queries, whether judged or not. DataError when the collection has none."""

    @abstractmethod
    def qrels(self) -> Iterator[Qrel]:
        """The judgements of the chosen split. DataError when there are none."""

    def stamp(self) -> dict[str, list[int]]:
        """Size and modification time (ns) of the files that docs() reads, by file name.

        A resumed job compares it. Empty where there are no such files.
        """
        return {}

    def left_out(self) -> dict[str, str]:
        """Files that are none of its documents, with the reasons: as far as they have been read."""
        return {}

    def fetch(self) -> None:  # noqa: B027 (what lies on this machine has nothing to fetch)
        """Bring everything into the cache of this machine, once for all jobs that ask for it."""

    def has_qrels(self) -> bool:
        """Whether the chosen split has judgements."""
        return True

    def query_facts(self, name: str) -> dict[str, str | float]:
        """Query id -> what the collection says of it under `name` ('position', 'language').

        Queries of which it says nothing are left out.
        """
        return {}

    def judged_queries(self) -> list[Query]:
        """The queries that the split judges, in their order; all if nothing is judged."""
        if not self.has_qrels():
            return list(self.queries())
        judged = {qrel.query_id for qrel in self.qrels()}
        return [query for query in self.queries() if query.id in judged]


class SourceOpener(Protocol):
    """What a row of the catalog's SOURCES is: a name and the options behind it to a collection."""

    def __call__(self, name: str, options: dict[str, str]) -> Collection: ...


def open_collection(spelling: str, fields: str = "", context: str = "") -> Collection:
    """The collection behind a spelling: 'data/scifact:test', 'x.jsonl', 'beir/scifact/test'.

    '-' is stdin; './x', an absolute path, an existing path with a slash and any file is read from
    disk; 'folder:x' is a folder whose files are the documents; 'irds:' forces ir_datasets and 'hf:' the
    hub; anything else is a known name, or else a folder that is called so. 'name,key=value' passes
    options to the source. `fields` are the record's text fields joined by '+', `context` the field that
    holds the contexts of its chunks. UnknownName carries the nearest names.
    """
    head, *pairs = [spelling] if os.path.exists(spelling) else spelling.split(",")
    options = dict(_pair(pair, spelling) for pair in pairs)
    if len(options) < len(set(pairs)):
        raise UsageError(f"'{spelling}' has an option with two values; leave one of them out")
    if fields:
        options["fields"] = fields
    kind, name = _kind(head)
    if context:
        _check_context(kind, context, spelling)
        options["context"] = context
    open_source: SourceOpener = catalog.load(catalog.SOURCES, kind, "source")
    return open_source(name, options)


def _check_context(kind: str, context: str, spelling: str) -> None:
    if kind != "files":
        raise UsageError(
            f"--context field:{context} reads a field of files, and {spelling} is none; write its "
            "documents with their contexts to a jsonl or parquet file"
        )


def _pair(pair: str, spelling: str) -> tuple[str, str]:
    key, equals, value = pair.partition("=")
    if not equals or not key:
        raise UsageError(
            f"'{spelling}': options are written name,key=value, and '{pair}' is not one"
        )
    return key, value


def _kind(head: str) -> tuple[str, str]:
    if head.startswith("irds:"):
        return "irds", head.removeprefix("irds:")
    if head.startswith("hf:"):
        return "hub", head
    if head.startswith("folder:"):
        return "folder", head
    if head.startswith(("stdlib/", "python/")):
        return head.partition("/")[0], head
    if head.startswith(("passkey/", "needle/")):
        return "synthetic", head
    if head == "haystack":
        return "haystack", head
    if head == "-" or head.startswith((".", "/", "~")):
        return "files", head
    path = head if os.path.exists(head) else head.rsplit(":", 1)[0]
    on_disk = os.path.isfile(path) or (os.path.exists(path) and "/" in path)
    if on_disk or Path(path).suffix in FILE_SUFFIXES:
        return "files", head
    if os.path.isdir(path) and not is_known(path):
        return "files", f"./{head}"
    return _source(head), head


def is_known(name: str) -> bool:
    """Whether a name without a slash is a known one, whatever folder has it too."""
    if known.facts_of(name) or known.group(name):
        return True
    try:
        catalog.load(catalog.SOURCES, "irds", "source")(name, {})
    except UnknownName:
        return False
    return True


def _source(name: str) -> str:
    """The hub's layout for what only the hub has, and for what the mirror folder has."""
    if members := known.group(name):
        raise UsageError(
            f"'{name}' is a group of {len(members)} collections: name one of them, such as {members[0]}"
        )
    facts = known.facts_of(name)
    layout = hub_layouts.layout_of(name) if facts else None
    return "hub" if facts and layout and (facts.source == "hub" or layout.mirrored) else "irds"


def check_options(name: str, options: dict[str, str], known: Iterable[str]) -> None:
    """UnknownName for an option of 'name,key=value' that the source does not have."""
    known = sorted(known)
    for key in options:
        if key not in known:
            raise UnknownName(f"option of '{name}'", key, known or ["(none)"])


def spell(name: str, options: dict[str, str]) -> str:
    """The spelling that opens a collection again: 'name,key=value,…'."""
    return ",".join([name, *(f"{key}={value}" for key, value in options.items())])


CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]|^\ufeff")  # what no id has


def check_id(identifier: str, where: str, what: str = "document") -> str:
    """The id itself if it can stand in a TREC run, else DataError: not empty, no white space, no control
    character (trec_eval ends an id at a NUL), no byte order mark before it.
    """
    if identifier.split() == [identifier]:
        if not CONTROL.search(identifier):
            return identifier
        raise DataError(
            f"{where}: the {what} id {identifier!r} has a control character or a byte order mark, with "
            "which tools read another id; remove it"
        )
    if not identifier:
        raise DataError(f"{where}: the {what} id is empty; every record needs one")
    raise DataError(
        f"{where}: the {what} id {identifier!r} cannot stand in a TREC run (white space); "
        "write ',map_ids=1' after the collection's name to replace white space by '_'"
    )


def map_id(identifier: str) -> str:
    """The id with every white space character replaced by '_'."""
    return "".join("_" if character.isspace() else character for character in identifier)
