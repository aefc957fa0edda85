"""Any ir_datasets id, such as 'beir/scifact/test'."""

import difflib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import ir_datasets
from filelock import FileLock

from lmkcli.collection import (
    WHOLE,
    Collection,
    CountedDocs,
    Doc,
    DocStream,
    Qrel,
    Query,
    Shard,
    check_options,
    spell,
)
from lmkcli.errors import DataError, UnknownName
from lmkcli.formats import Fields

BLOCK = 1000
OPTIONS = ("fields", "map_ids")


def open_irds(name: str, options: dict[str, str]) -> "IrdsCollection":
    """The dataset with this id; nothing is downloaded before it is read.

    Options: `fields` (text fields of a document joined by '+'), `map_ids` (1: white space in ids
    becomes '_'). UnknownName with the nearest registered ids.
    """
    check_options(name, options, OPTIONS)
    try:
        dataset = ir_datasets.load(name)
    except KeyError:
        raise _unknown(name) from None
    return IrdsCollection(spell(name, options), dataset, Fields.parse(options))


def _unknown(name: str) -> UnknownName:
    ids = list(ir_datasets.registry)
    near = difflib.get_close_matches(name, ids, n=3, cutoff=0.5)
    families = sorted({identifier.split("/")[0] for identifier in ids})
    path = name.rsplit(":", 1)[0]
    here = f"there is a folder of that name: write ./{name}" if Path(path).exists() else ""
    hint = here or "(ir_datasets ids; no file or folder has that name either)"
    return UnknownName("collection", name, near or families, hint)


class IrdsCollection(Collection):
    """A dataset of ir_datasets. `dataset` has its docs_iter, queries_iter and qrels_iter."""

    def __init__(self, name: str, dataset: Any, fields: Fields) -> None:
        self.name = name
        self.settings = fields.settings
        self._dataset = dataset
        self._fields = fields
        self._id = name.split(",")[0]

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        if not self._dataset.has_docs():
            raise DataError(f"{self.name}: this dataset has no documents, only parts of it do")
        total = self._dataset.docs_count()
        if total is None:
            return CountedDocs(lambda: self._docs(lambda: self._dealt(shard)), None)
        mine = shard.rows(total)
        # The count comes from metadata and may be off by what a newer release added.
        last = None if shard.number + 1 == shard.count else mine.stop
        return CountedDocs(lambda: self._docs(lambda: self._slice(mine.start, last)), len(mine))

    def queries(self) -> Iterator[Query]:
        if not self._dataset.has_queries():
            raise DataError(f"{self.name}: this dataset has no queries; a longer id may have some")
        for record in self._guarded("queries", self._dataset.queries_iter):
            yield Query(self._fields.id(record.query_id, self.name, "query"), _content(record))

    def qrels(self) -> Iterator[Qrel]:
        if not self.has_qrels():
            raise DataError(f"{self.name}: this dataset has no qrels; a longer id may have some")
        for record in self._guarded("qrels", self._dataset.qrels_iter):
            query_id = self._fields.id(record.query_id, self.name, "query")
            doc_id = self._fields.id(record.doc_id, self.name, "document")
            yield Qrel(query_id, doc_id, int(record.relevance))

    def has_qrels(self) -> bool:
        return bool(self._dataset.has_qrels())

    def _docs(self, start: Callable[[], Iterable[Any]]) -> Iterator[Doc]:
        self._prepare()
        for record in self._guarded("documents", start):
            yield self._doc(record)

    def _doc(self, record: Any) -> Doc:
        if self._fields.names:
            return self._fields.doc(record._asdict(), f"{self.name} document {record.doc_id}")
        name = self._fields.id(record.doc_id, self.name, "document")
        title = getattr(record, "title", "") or ""
        text = _content(record)
        if isinstance(title, str) and text.startswith(f"{title} "):
            return Doc(name, text[len(title) + 1 :], title)
        return Doc(name, text)

    def _prepare(self) -> None:
        """Let ir_datasets download and build what the first document needs, one job at a time.

        Two jobs that build one docstore together would write every document twice into it.
        """
        with _lock(self._id.split("/")[0]):
            for _ in self._guarded("documents", lambda: islice(self._dataset.docs_iter(), 1)):
                break

    def _slice(self, start: int, stop: int | None) -> Iterable[Any]:
        docs = self._dataset.docs_iter()
        # Slicing a DocstoreSplitter builds a docstore; counting past documents is cheaper.
        if hasattr(docs, "__getitem__") and not isinstance(docs, ir_datasets.util.DocstoreSplitter):
            return docs[start:stop]  # type: ignore[no-any-return]
        return islice(docs, start, stop)

    def _dealt(self, shard: Shard) -> Iterable[Any]:
        for row, record in enumerate(self._dataset.docs_iter()):
            if (row // BLOCK) % shard.count == shard.number:
                yield record

    def _guarded(self, what: str, start: Callable[[], Iterable[Any]]) -> Iterator[Any]:
        try:
            yield from start()
        except Exception as error:  # each dataset has its own ways to fail
            family = self._id.split("/")[0]
            raise DataError(
                f"{self.name}: ir_datasets could not read its {what} "
                f"({type(error).__name__}: {str(error)[:300]}). Without a network, copy "
                f"{ir_datasets.util.home_path() / family} from a machine that has it; "
                f"https://ir-datasets.com/{family}.html says which collections need a licence"
            ) from error


def _content(record: Any) -> str:
    """All of a record's text: what ir_datasets calls its default text, else every text field."""
    if hasattr(record, "default_text"):
        return record.default_text() or ""
    values = (value for value in record[1:] if isinstance(value, str))
    return " ".join(value for value in values if value)


def _lock(family: str) -> AbstractContextManager[object]:
    home = ir_datasets.util.home_path()
    # A shared home that cannot be written holds finished collections only.
    return FileLock(home / f".lmk-{family}.lock") if os.access(home, os.W_OK) else nullcontext()
