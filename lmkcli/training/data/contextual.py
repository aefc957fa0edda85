"""Contextual examples: documents in chunks, with queries that one of their chunks answers.

This is the setting of ConTEB (Conti et al. 2025, §4): each chunk is encoded in the context of its
document, and a query must find its chunk. An example is a document; a batch is a few documents.

ConTEB's data sets are folders with the files of the Hugging Face hub. A table of chunks has the columns
`chunk_id` ('<document>_<number>') and `chunk`. A table of queries has `query`, and `chunk_id` or
`chunk_ids`. The columns identify a table, independent of its path.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from pyarrow import parquet

from lmkcli.data.collection import CHUNK_BREAK, WHOLE, Collection, open_collection
from lmkcli.data.fields import CHUNKS, QUERY_ID_FIELDS, Record
from lmkcli.data.records import open_records
from lmkcli.errors import DataError
from lmkcli.spec.values import is_digits
from lmkcli.training.data.examples import Ints, Keys, Tally
from lmkcli.training.data.sources import Source
from lmkcli.training.objectives.objective import BatchFacts

QUERIES = "queries"  # field of a record: a list of {"query": text, "chunk": number, from 0}


class ChunkQuery(NamedTuple):
    """A query, and the number of the chunk that answers it."""

    query: str
    chunk: int


class Document(NamedTuple):
    """A document in chunks with its queries. A query with several answers occurs several times."""

    id: str
    chunks: tuple[str, ...]
    queries: tuple[ChunkQuery, ...]


@dataclass(frozen=True)
class Documents:
    """n documents of one or more sources. `sources` [n] is the number of the source of each."""

    documents: Sequence[Document]
    sources: Ints

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.documents)

    def __getitem__(self, number: int) -> Document:
        """Return one document."""
        return self.documents[number]

    @cached_property
    def lengths(self) -> Ints:
        """The number of characters of each document, [n]."""
        return np.array([sum(map(len, each.chunks)) for each in self.documents], np.int64)

    def keys(self, numbers: Ints) -> Keys:
        """Return the keys that two documents of a batch must not share: the document and its queries.

        Keys of documents are negative, keys of queries are not.
        """
        places = range(len(numbers))
        queries = [{self._rows[each.query] for each in self[number].queries} for number in numbers]
        return Keys(
            np.concatenate([-1 - numbers, np.array([*chain(*queries)], np.int64)]),
            np.array([*places, *np.repeat(places, [len(each) for each in queries])], np.int64),
        )

    @property
    def digest(self) -> str:
        """The SHA-256 of the documents and their queries, in their order."""
        sha256 = hashlib.sha256()
        for document, source in zip(self.documents, self.sources.tolist(), strict=True):
            sha256.update(json.dumps([source, *document]).encode())
        return sha256.hexdigest()

    @cached_property
    def _rows(self) -> dict[str, int]:
        texts = (each.query for document in self.documents for each in document.queries)
        return {query: row for row, query in enumerate(dict.fromkeys(texts))}


def chunk_facts(documents: Sequence[Document]) -> BatchFacts:
    """Return the facts of a batch. Its passages are the N chunks; chunks and queries follow the documents.

    A query is not contrasted with other chunks that answer it, nor with chunks that have the same text as
    an answer.
    """
    chunks = [chunk for document in documents for chunk in document.chunks]
    starts = np.cumsum([0, *(len(document.chunks) for document in documents)])
    answers = [  # [Q]: each query, and the row of its gold chunk
        (each.query, int(starts[number]) + each.chunk)
        for number, document in enumerate(documents)
        for each in document.queries
    ]
    answer_texts: dict[str, set[str]] = {}
    for query, row in answers:
        answer_texts.setdefault(query, set()).add(chunks[row])
    excluded = [[chunk in answer_texts[query] for chunk in chunks] for query, _ in answers]
    gold = torch.tensor([row for _, row in answers])
    sequence = np.repeat(np.arange(len(documents)), np.diff(starts))
    return BatchFacts(
        gold.unsqueeze(1),
        excluded=torch.tensor(excluded).scatter(1, gold.unsqueeze(1), False),
        sequence=torch.from_numpy(sequence),
    )


def read_documents(sources: Sequence[Source]) -> tuple[Documents, list[Tally]]:
    """Return the usable documents of all sources, and the counts of each source.

    A source is a collection with judgements of chunks ('<document>#<number>'), a folder with the tables
    of ConTEB, or a file of records with `chunks` and `queries`. Raises DataError with the location of an
    invalid record or judgement.
    """
    tallies = [Tally() for _ in sources]
    documents: list[Document] = []
    numbers: list[int] = []
    for number, (source, tally) in enumerate(zip(sources, tallies, strict=True)):
        for document in _usable(_read(source), tally):
            documents.append(document)
            numbers.append(number)
    return Documents(documents, np.array(numbers, np.int64)), tallies


def _read(source: Source) -> Iterator[Document]:
    if source.is_file:
        wanted = frozenset({*QUERY_ID_FIELDS, CHUNKS, QUERIES})
        records = open_records(source.name, WHOLE, wanted)
        return (_document(record, where) for where, record in records)
    if files := conteb_files(source.name):
        return _tables(files)
    return _judged(open_collection(source.name))


def _document(record: Record, where: str) -> Document:
    chunks, queries = record.get(CHUNKS), record.get(QUERIES)
    if not isinstance(chunks, list) or not isinstance(queries, list):
        raise DataError(
            f"{where}: the record is not a document in chunks; it needs 'chunks', a list of texts, and "
            f"'queries', a list of records with 'query' and 'chunk', but has "
            f"{', '.join(record) or 'no fields'}"
        )
    name = next((record[key] for key in QUERY_ID_FIELDS if key in record), where)
    try:
        parsed = [ChunkQuery(str(each["query"]), int(each["chunk"])) for each in queries]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"{where}: each of 'queries' needs 'query', a text, and 'chunk', a number"
        ) from error
    return Document(str(name), tuple(map(str, chunks)), tuple(parsed))


def _tables(files: list[Path]) -> Iterator[Document]:
    """Yield the documents in tables of ConTEB; chunks are ordered by their numbers."""
    chunks, answers = read_conteb(files)
    places = {name: {number: i for i, number in enumerate(sorted(chunks[name]))} for name in chunks}
    queries: dict[str, list[ChunkQuery]] = {}
    for query, name, number in answers:
        place = places.get(name, {}).get(number, -1)
        queries.setdefault(name, []).append(ChunkQuery(query, place))
    for name, texts in sorted(chunks.items()):
        ordered = tuple(texts[number] for number in sorted(texts))
        yield Document(name, ordered, tuple(queries.get(name, ())))


def _judged(collection: Collection) -> Iterator[Document]:
    """Yield the documents of a collection that judges chunks."""
    texts = {query.id: query.text for query in collection.queries()}
    queries: dict[str, list[ChunkQuery]] = {}
    for query_id, chunk_id, grade in collection.qrels():
        name, _, number = chunk_id.rpartition("#")
        if not name or not is_digits(number):
            raise DataError(
                f"{collection.name}: the judgement of '{chunk_id}' does not name a chunk; write "
                "'<document>#<number>', with numbers from 0"
            )
        if grade > 0 and query_id in texts:
            queries.setdefault(name, []).append(ChunkQuery(texts[query_id], int(number)))
    for doc in collection.docs():
        yield Document(
            doc.id, tuple(doc.content.split(CHUNK_BREAK)), tuple(queries.get(doc.id, ()))
        )


def _usable(documents: Iterator[Document], tally: Tally) -> Iterator[Document]:
    """Yield the documents with at least one query that has a chunk. Drop other queries."""
    for document in documents:
        tally.read += 1
        kept = tuple(
            each
            for each in dict.fromkeys(document.queries)
            if each.query.strip()
            and 0 <= each.chunk < len(document.chunks)
            and document.chunks[each.chunk].strip()
        )
        tally.queries_without_chunk += len(set(document.queries)) - len(kept)
        tally.empty_examples += not kept
        if kept:
            yield document._replace(queries=kept)


COLUMNS = frozenset({"chunk_id", "chunk_ids", "chunk", "query"})
Chunks = dict[str, dict[int, str]]  # document -> number -> text
Answers = list[tuple[str, str, int]]  # query, document, number


def conteb_files(name: str) -> list[Path]:
    """Return the parquet files below a folder, or of one split with 'folder:split'; [] if none exist.

    A file belongs to a split if its name starts with the split's name.
    """
    folder, split = Path(os.path.expanduser(name)), ""
    if not folder.is_dir():
        path, _, split = name.rpartition(":")
        if not path:
            return []
        folder = Path(os.path.expanduser(path))
    beir = any(folder.glob("corpus.*"))
    return [] if beir or not folder.is_dir() else sorted(folder.rglob(f"{split}*.parquet"))


def conteb_tables(name: str) -> list[Path]:
    """Return the files of `conteb_files` if one is a table of chunks, else []."""
    files = conteb_files(name)
    return files if any("chunk" in parquet.read_schema(file).names for file in files) else []


def read_conteb(files: list[Path]) -> tuple[Chunks, Answers]:
    """Return the chunks of each document by number, and the answers: (query, document, number).

    Raises DataError with file and row if an id is not '<document>_<number>'.
    """
    chunks: Chunks = {}
    answers: Answers = []
    for where, record in _rows(files):
        if isinstance(record.get("query"), str):
            given = record.get("chunk_ids") or [record.get("chunk_id")]
            answers += [(record["query"], *_parse_id(each, where)) for each in given]
        else:
            document, number = _parse_id(record.get("chunk_id"), where)
            chunks.setdefault(document, {})[number] = str(record.get("chunk") or "")
    return chunks, answers


def _rows(files: list[Path]) -> Iterator[tuple[str, Record]]:
    for file in files:
        yield from open_records(str(file), WHOLE, COLUMNS)


def _parse_id(chunk_id: object, where: str) -> tuple[str, int]:
    document, _, number = str(chunk_id).rpartition("_")
    if not document or not is_digits(number):
        raise DataError(
            f"{where}: the chunk_id {chunk_id!r} is invalid; write it as '<document>_<number>'"
        )
    return document, int(number)
