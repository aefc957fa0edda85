"""Contextual examples: documents in chunks, with queries that a chunk of them answers.

This is the layout of ConTEB (Conti et al. 2025, §4): a chunk is embedded within its document, and the
query looks for the chunk. An example is a document, and a batch a few of them.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from lmkcli.data.collection import CHUNK, WHOLE, Collection, open_collection
from lmkcli.data.formats import CHUNKS, QUERY_ID_FIELDS, Record
from lmkcli.data.records import open_records
from lmkcli.errors import DataError
from lmkcli.training.conteb import conteb_files, read_conteb
from lmkcli.training.examples import Ints, Keys, Tally
from lmkcli.training.objective import BatchFacts
from lmkcli.training.sources import Source

QUERIES = "queries"  # of a record: a list of {"query": text, "chunk": number, from 0}


class ChunkQuery(NamedTuple):
    """A query, and the number of the chunk that answers it."""

    query: str
    chunk: int


class Document(NamedTuple):
    """A document in chunks, and what is asked of it; a query with several answers comes several times."""

    id: str
    chunks: tuple[str, ...]
    queries: tuple[ChunkQuery, ...]


@dataclass(frozen=True)
class Documents:
    """The documents of one or more sources; sources: [n], the number of the source of each."""

    documents: Sequence[Document]
    sources: Ints

    def __len__(self) -> int:
        """How many there are."""
        return len(self.documents)

    def __getitem__(self, number: int) -> Document:
        """One of them."""
        return self.documents[number]

    @cached_property
    def lengths(self) -> Ints:
        """[n]: characters of each document."""
        return np.array([sum(map(len, each.chunks)) for each in self.documents], np.int64)

    def keys(self, numbers: Ints) -> Keys:
        """What documents of a batch should not share: themselves and their queries."""
        places = range(len(numbers))
        asked = [{self._rows[asked.query] for asked in self[number].queries} for number in numbers]
        return Keys(
            np.concatenate([-1 - numbers, np.array([*chain(*asked)], np.int64)]),
            np.array([*places, *np.repeat(places, [len(each) for each in asked])], np.int64),
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the documents and what is asked of them, in their order."""
        sha256 = hashlib.sha256()
        for document, source in zip(self.documents, self.sources.tolist(), strict=True):
            sha256.update(json.dumps([source, *document]).encode())
        return sha256.hexdigest()

    @cached_property
    def _rows(self) -> dict[str, int]:
        texts = (asked.query for document in self.documents for asked in document.queries)
        return {query: row for row, query in enumerate(dict.fromkeys(texts))}


def facts(documents: Sequence[Document]) -> BatchFacts:
    """What is known of a batch: its passages are the chunks, document by document, as are its queries.

    A query is not contrasted with the other chunks that answer it, nor with the answer's own words.
    """
    chunks = [chunk for document in documents for chunk in document.chunks]
    starts = np.cumsum([0, *(len(document.chunks) for document in documents)])
    answers = [
        (asked.query, int(starts[number]) + asked.chunk)
        for number, document in enumerate(documents)
        for asked in document.queries
    ]
    known: dict[str, set[str]] = {}
    for query, row in answers:
        known.setdefault(query, set()).add(chunks[row])
    excluded = [[chunk in known[query] for chunk in chunks] for query, _ in answers]
    gold = torch.tensor([row for _, row in answers])
    sequence = np.repeat(np.arange(len(documents)), np.diff(starts))
    return BatchFacts(
        gold.unsqueeze(1),
        excluded=torch.tensor(excluded).scatter(1, gold.unsqueeze(1), False),
        sequence=torch.from_numpy(sequence),
    )


def read_documents(sources: Sequence[Source]) -> tuple[Documents, list[Tally]]:
    """The documents of all sources that can be learned from, and what was found in each source.

    A source is a collection that judges chunks, as '<document>#<number>', a folder with the tables of
    ConTEB, or a file of records with `chunks` and `queries`. DataError with the place of what is none.
    """
    tallies = [Tally() for _ in sources]
    documents: list[Document] = []
    numbers: list[int] = []
    for number, (source, tally) in enumerate(zip(sources, tallies, strict=True)):
        for document in _answerable(_read(source), tally):
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
            f"{where}: not a document in chunks; it needs 'chunks', a list of texts, and 'queries', a "
            f"list of records with 'query' and 'chunk'; found {', '.join(record) or 'nothing'}"
        )
    name = next((record[key] for key in QUERY_ID_FIELDS if key in record), where)
    try:
        asked = [ChunkQuery(str(each["query"]), int(each["chunk"])) for each in queries]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{where}: a query needs 'query' and the number of its 'chunk'") from error
    return Document(str(name), tuple(map(str, chunks)), tuple(asked))


def _tables(files: list[Path]) -> Iterator[Document]:
    """The documents in tables of ConTEB, their chunks in the order of their numbers."""
    chunks, answers = read_conteb(files)
    places = {name: {number: i for i, number in enumerate(sorted(chunks[name]))} for name in chunks}
    asked: dict[str, list[ChunkQuery]] = {}
    for query, name, number in answers:
        place = places.get(name, {}).get(number, -1)
        asked.setdefault(name, []).append(ChunkQuery(query, place))
    for name, texts in sorted(chunks.items()):
        ordered = tuple(texts[number] for number in sorted(texts))
        yield Document(name, ordered, tuple(asked.get(name, ())))


def _judged(collection: Collection) -> Iterator[Document]:
    """The documents of a collection whose judgements name chunks."""
    texts = {query.id: query.text for query in collection.queries()}
    asked: dict[str, list[ChunkQuery]] = {}
    for query_id, chunk_id, grade in collection.qrels():
        name, _, number = chunk_id.rpartition("#")
        if not name or not number.isdecimal():
            raise DataError(
                f"{collection.name} judges '{chunk_id}', which is no chunk: '<document>#<number>' is "
                "needed, counted from 0"
            )
        if grade > 0 and query_id in texts:
            asked.setdefault(name, []).append(ChunkQuery(texts[query_id], int(number)))
    for doc in collection.docs():
        yield Document(doc.id, tuple(doc.content.split(CHUNK)), tuple(asked.get(doc.id, ())))


def _answerable(documents: Iterator[Document], tally: Tally) -> Iterator[Document]:
    """Documents of which something is asked that they have a chunk for."""
    for document in documents:
        tally.read += 1
        kept = tuple(
            asked
            for asked in dict.fromkeys(document.queries)
            if asked.query.strip()
            and 0 <= asked.chunk < len(document.chunks)
            and document.chunks[asked.chunk].strip()
        )
        tally.queries_without_chunk += len(set(document.queries)) - len(kept)
        tally.empty_examples += not kept
        if kept:
            yield document._replace(queries=kept)
