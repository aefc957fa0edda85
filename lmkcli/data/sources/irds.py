"""Any ir_datasets id, such as 'beir/scifact/test'; and collections of ours under ids of their own."""

import difflib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import ir_datasets
from filelock import FileLock
from ir_datasets import lazy_libs
from ir_datasets.datasets.base import Dataset
from ir_datasets.formats import BaseDocs, BaseQrels, BaseQueries, GenericQuery, TrecQrel
from ir_datasets.indices import PickleLz4FullStore

from lmkcli.data import known
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
    spell,
)
from lmkcli.data.formats import Fields
from lmkcli.errors import DataError, UnknownName
from lmkcli.system import network

BLOCK = 1000
OPTIONS = ("fields", "map_ids")


class _Gate:
    """Stands before the two ways in which ir_datasets begins something: requests and building.

    It has no offline mode, and many jobs that build one docstore at a time would spoil it.
    """

    def __init__(self) -> None:
        self.shut = False
        self.refused = ""
        self._requests, self._build = lazy_libs.requests, PickleLz4FullStore.build

    def install(self) -> None:
        lazy_libs.requests = self.requests
        PickleLz4FullStore.build = lambda store: self.build(store)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Nothing new begins meanwhile."""
        self.shut = True
        try:
            yield
        finally:
            self.shut = False

    def requests(self) -> Any:
        if self.shut or network.forbidden():
            self._refuse("it is not downloaded")
        return self._requests()

    def build(self, store: Any) -> None:
        if self.shut and not store.built():
            self._refuse("its docstore is not built")
        self._build(store)

    def _refuse(self, why: str) -> None:
        self.refused = why
        raise DataError(why)


_gate = _Gate()
_gate.install()


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
    if os.path.exists(name.rsplit(":", 1)[0]):
        return UnknownName(
            "collection", name, [], f"there is a folder of that name: write ./{name}"
        )
    if name in known.names():
        return UnknownName("collection of ir_datasets", name, [], "leave out 'irds:'")
    ids = sorted({*ir_datasets.registry, *known.names(), *known.groups()})
    parts_of = sorted((each for each in ids if name in each.split("/")), key=len)
    near = parts_of[:3] or difflib.get_close_matches(name, ids, n=3, cutoff=0.6)
    hint = "no file or folder has that name either; 'lmk show sources' lists known ones"
    return UnknownName("collection", name, near, f"({hint})" if near else hint)


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
        if shard.count > 1:
            with _gate.closed():
                self._begin()
        with _lock(self._id.split("/")[0]):  # a docstore that is being begun cannot even be opened
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

    def fetch(self) -> None:
        with _lock(self._id.split("/")[0]):
            if self._dataset.has_docs():
                self._begin()
            if self._dataset.has_queries():
                next(self.queries(), None)
            if self.has_qrels():
                next(self.qrels(), None)

    def _docs(self, start: Callable[[], Iterable[Any]]) -> Iterator[Doc]:
        with _lock(self._id.split("/")[0]):
            self._begin()
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

    def _begin(self) -> None:
        """Let ir_datasets download and build what the first document needs."""
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
        _gate.refused = ""
        try:
            yield from start()
        except Exception as error:  # each dataset has its own ways to fail
            raise self._unreadable(what, error) from error

    def _unreadable(self, what: str, error: Exception) -> DataError:
        if _gate.refused:
            who = "an offline job" if network.forbidden() else "one shard of many"
            return DataError(
                f"{self.name}: its {what} cannot be read yet: {_gate.refused}, and {who} does not "
                f"do that. Run 'lmk fetch {self._id}' once, on a machine with a network"
            )
        family = self._id.split("/")[0]
        return DataError(
            f"{self.name}: ir_datasets could not read its {what} "
            f"({type(error).__name__}: {str(error)[:300]}). Without a network, copy "
            f"{ir_datasets.util.home_path() / family} from a machine that has it; "
            f"https://ir-datasets.com/{family}.html says which collections need a licence"
        )


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


class TitledDoc(NamedTuple):
    """A document as ir_datasets gives it out."""

    doc_id: str
    text: str
    title: str

    def default_text(self) -> str:
        """What is encoded: title and text, joined as everywhere here."""
        return Doc(*self).content


class _Store(PickleLz4FullStore):  # type: ignore[misc]
    """A docstore that one process builds while the others wait."""

    def build(self) -> None:
        with FileLock(f"{self.path}.lock"):
            super().build()


Opening = Callable[[], Collection]


class _Docs(BaseDocs):  # type: ignore[misc]
    """Documents of ours; the docstore, and slices, are built on first use in ir_datasets' home."""

    def __init__(self, name: str, opening: Opening) -> None:
        self._name = name
        self._opening = opening

    def docs_iter(self) -> Any:
        return ir_datasets.util.DocstoreSplitter(self._records(), self.docs_store())

    def docs_store(self, **options: Any) -> _Store:
        stamp = json.dumps(self._opening().stamp(), sort_keys=True).encode()
        path = self.docs_path() / f"{hashlib.sha256(stamp).hexdigest()[:16]}.pklz4"
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):  # a docstore that is being begun cannot even be opened
            return _Store(str(path), self._records, TitledDoc, "doc_id", ["doc_id"], **options)

    def docs_path(self, force: bool = True) -> Path:
        return Path(ir_datasets.util.home_path(), self._name, "docs")

    def docs_cls(self) -> type[TitledDoc]:
        return TitledDoc

    def docs_count(self) -> int:
        store = self.docs_store()
        store.build()
        return int(store.count())

    def _records(self) -> Iterator[TitledDoc]:
        return (TitledDoc(doc.id, doc.text, doc.title) for doc in self._opening().docs())


class _Queries(BaseQueries):  # type: ignore[misc]
    """The queries of ours that are judged."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening

    def queries_iter(self) -> Iterator[GenericQuery]:
        return (GenericQuery(*query) for query in self._opening().judged_queries())


class _Qrels(BaseQrels):  # type: ignore[misc]
    """The judgements of ours."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening

    def qrels_iter(self) -> Iterator[TrecQrel]:
        for query_id, doc_id, grade in self._opening().qrels():
            yield TrecQrel(query_id, doc_id, grade, "0")

    def qrels_cls(self) -> Any:
        return TrecQrel

    def qrels_defs(self) -> dict[int, str]:
        return {}


def offer(names: Iterable[str], opening: Callable[[str], Collection]) -> list[str]:
    """Register names with ir_datasets that it does not have yet; which they were.

    `opening` opens the collection of a name, when something of it is asked for.
    """
    free = [name for name in names if name not in ir_datasets.registry]
    for name in free:
        mine = partial(opening, name)
        ir_datasets.registry.register(
            name, Dataset(_Docs(name, mine), _Queries(mine), _Qrels(mine))
        )
    return free
