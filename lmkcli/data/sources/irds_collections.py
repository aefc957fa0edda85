"""Collections of ir_datasets, such as 'beir/scifact/test'; and lmk's collections for ir_datasets.

ir_datasets downloads a dataset at the first reading, and builds its docstore at the first use. It has no
offline mode and no locks. This module adds both: `_guard` forbids downloads and building, and with `_lock`
only one process at a time starts them.
"""

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

from lmkcli.data import known_collections
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
    check_text,
    open_collection,
    spell,
)
from lmkcli.data.fields import Fields
from lmkcli.errors import DataError, UnknownName
from lmkcli.system import network

BLOCK = 1000
OPTIONS = ("fields", "map_ids", "text")


class _Guard:
    """Forbids ir_datasets to download and to build docstores, by replacing two of its functions.

    Several processes that build the same docstore at once would damage it.
    """

    def __init__(self) -> None:
        self.active = False
        self.refused = ""
        """The reason of the last refusal."""
        self._requests, self._build = lazy_libs.requests, PickleLz4FullStore.build

    def install(self) -> None:
        lazy_libs.requests = self.requests
        PickleLz4FullStore.build = lambda store: self.build(store)

    @contextmanager
    def forbidding(self) -> Iterator[None]:
        """Forbid downloads and building inside the block."""
        self.active = True
        try:
            yield
        finally:
            self.active = False

    def requests(self) -> Any:
        if self.active or network.forbidden():
            self._refuse("it is not downloaded")
        return self._requests()

    def build(self, store: Any) -> None:
        if self.active and not store.built():
            self._refuse("its docstore is not built")
        self._build(store)

    def _refuse(self, reason: str) -> None:
        self.refused = reason
        raise DataError(reason)


_guard = _Guard()
_guard.install()


def open_irds(name: str, options: dict[str, str]) -> "IrdsCollection":
    """Open the dataset with this id. Nothing is downloaded before it is read.

    Options: `fields` (text fields of a document joined by '+'), `map_ids` (1: white space in ids
    becomes '_'). Raises UnknownName with similar ids.
    """
    check_options(name, options, OPTIONS)
    try:
        dataset = ir_datasets.load(name)
    except KeyError:
        raise _unknown(name) from None
    return IrdsCollection(spell(name, options), dataset, Fields.parse(options))


def _unknown(name: str) -> UnknownName:
    if os.path.exists(name.rsplit(":", 1)[0]):
        return UnknownName("collection", name, [], f"a folder has this name: write ./{name}")
    if name in known_collections.names():
        return UnknownName("collection of ir_datasets", name, [], "remove 'irds:'")
    ids = sorted({*ir_datasets.registry, *known_collections.names(), *known_collections.groups()})
    with_part = sorted((each for each in ids if name in each.split("/")), key=len)
    similar = with_part[:3] or difflib.get_close_matches(name, ids, n=3, cutoff=0.6)
    hint = "no file or folder has this name either; 'lmk show sources' lists known collections"
    return UnknownName("collection", name, similar, f"({hint})" if similar else hint)


class IrdsCollection(Collection):
    """A dataset of ir_datasets; `dataset` has the methods docs_iter, queries_iter and qrels_iter."""

    def __init__(self, name: str, dataset: Any, fields: Fields) -> None:
        self.name = name
        self.settings = fields.settings
        self._dataset = dataset
        self._fields = fields
        self._id = name.split(",")[0]
        self._family = self._id.split("/")[0]

    def __reduce__(self) -> tuple[Any, ...]:
        """Open the dataset again in another process."""
        return open_collection, (f"irds:{self.name}",)

    def can_move(self) -> bool:
        """Return whether it is a dataset of ir_datasets itself; one that a program registers is in no other
        process.

        The program's may consist of a dataset of ir_datasets, and has its facts and its id.
        """
        facts = getattr(self._dataset, "docs_metadata", dict)
        return bool(facts()) and self._dataset.dataset_id() == self._id

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        if not self._dataset.has_docs():
            raise DataError(f"{self.name}: this dataset has no documents, only its parts have")
        if shard.count > 1:
            with _guard.forbidding():
                self._prepare_docs()
        with _lock(self._family):  # a docstore cannot be opened while another process creates it
            total = self._dataset.docs_count()
        if total is None:
            return CountedDocs(lambda: self._docs(lambda: self._dealt(shard)), None)
        rows = shard.rows(total)
        # The count comes from metadata. A newer release can have more documents: the last shard reads them.
        stop = None if shard.number + 1 == shard.count else rows.stop
        return CountedDocs(lambda: self._docs(lambda: self._range(rows.start, stop)), len(rows))

    def queries(self) -> Iterator[Query]:
        if not self._dataset.has_queries():
            raise DataError(f"{self.name}: this dataset has no queries; a longer id may have them")
        for record in self._guarded("queries", self._dataset.queries_iter):
            query_id = self._fields.id(record.query_id, self.name, "query")
            text = _content(record)
            check_text(text, f"{self.name} query {query_id}")
            yield Query(query_id, text)

    def qrels(self) -> Iterator[Qrel]:
        if not self.has_qrels():
            raise DataError(f"{self.name}: this dataset has no qrels; a longer id may have them")
        for record in self._guarded("qrels", self._dataset.qrels_iter):
            query_id = self._fields.id(record.query_id, self.name, "query")
            doc_id = self._fields.id(record.doc_id, self.name, "document")
            yield Qrel(query_id, doc_id, int(record.relevance))

    def has_qrels(self) -> bool:
        return bool(self._dataset.has_qrels())

    def fetch(self) -> None:
        with _lock(self._family):
            if self._dataset.has_docs():
                self._prepare_docs()
            if self._dataset.has_queries():
                next(self.queries(), None)
            if self.has_qrels():
                next(self.qrels(), None)

    def _docs(self, start: Callable[[], Iterable[Any]]) -> Iterator[Doc]:
        with _lock(self._family):
            self._prepare_docs()
        for record in self._guarded("documents", start):
            yield self._doc(record)

    def _doc(self, record: Any) -> Doc:
        if self._fields.names:
            return self._fields.doc(record._asdict(), f"{self.name} document {record.doc_id}")
        name = self._fields.id(record.doc_id, self.name, "document")
        title = getattr(record, "title", "") or ""
        text = _content(record)
        check_text(text, f"{self.name} document {name}")
        if isinstance(title, str) and text.startswith(f"{title} "):
            return Doc(name, text[len(title) + 1 :], title)
        return Doc(name, text)

    def _prepare_docs(self) -> None:
        """Read the first document, so that ir_datasets downloads the dataset and builds its docstore."""
        for _ in self._guarded("documents", lambda: islice(self._dataset.docs_iter(), 1)):
            break

    def _range(self, start: int, stop: int | None) -> Iterable[Any]:
        docs = self._dataset.docs_iter()
        # Slicing a DocstoreSplitter builds a docstore; skipping documents is cheaper.
        if hasattr(docs, "__getitem__") and not isinstance(docs, ir_datasets.util.DocstoreSplitter):
            return docs[start:stop]  # type: ignore[no-any-return]
        return islice(docs, start, stop)

    def _dealt(self, shard: Shard) -> Iterable[Any]:
        for row, record in enumerate(self._dataset.docs_iter()):
            if (row // BLOCK) % shard.count == shard.number:
                yield record

    def _guarded(self, what: str, start: Callable[[], Iterable[Any]]) -> Iterator[Any]:
        """Iterate over records; any error of ir_datasets becomes a DataError."""
        _guard.refused = ""
        try:
            yield from start()
        except Exception as error:  # datasets raise errors of many classes
            if _guard.refused:
                job = "an offline job" if network.forbidden() else "one shard of many"
                raise DataError(
                    f"{self.name}: its {what} cannot be read: {_guard.refused}, and {job} does not "
                    f"download or build anything. Run 'lmk fetch {self._id}' once, on a machine with a "
                    "network"
                ) from error
            raise DataError(
                f"{self.name}: ir_datasets could not read its {what} "
                f"({type(error).__name__}: {str(error)[:300]}). Without a network, copy "
                f"{ir_datasets.util.home_path() / self._family} from a machine that has it; "
                f"https://ir-datasets.com/{self._family}.html lists collections that need a licence"
            ) from error


def _content(record: Any) -> str:
    """Return the text of a record: its default text by ir_datasets, else all its text fields."""
    if hasattr(record, "default_text"):
        return record.default_text() or ""
    values = (value for value in record[1:] if isinstance(value, str))
    return " ".join(value for value in values if value)


def _lock(family: str) -> AbstractContextManager[object]:
    """Return a lock on the datasets of a family ('beir') in ir_datasets' home."""
    home = ir_datasets.util.home_path()
    # A home without write permission contains only finished collections.
    return FileLock(home / f".lmk-{family}.lock") if os.access(home, os.W_OK) else nullcontext()


class TitledDoc(NamedTuple):
    """A document in the form of ir_datasets."""

    doc_id: str
    text: str
    title: str

    def default_text(self) -> str:
        """Title and text, joined as in `Doc.content`."""
        return Doc(*self).content


class _Store(PickleLz4FullStore):  # type: ignore[misc]
    """A docstore; only one process at a time can build it."""

    def build(self) -> None:
        with FileLock(f"{self.path}.lock"):
            super().build()


OpenCollection = Callable[[], Collection]


class _Docs(BaseDocs):  # type: ignore[misc]
    """The documents of a collection of lmk; the first use builds their docstore in ir_datasets' home."""

    def __init__(self, name: str, open_collection: OpenCollection) -> None:
        self._name = name
        self._open = open_collection

    def docs_iter(self) -> Any:
        return ir_datasets.util.DocstoreSplitter(self._records(), self.docs_store())

    def docs_store(self, **options: Any) -> _Store:
        stats = json.dumps(self._open().file_stats(), sort_keys=True).encode()
        path = self.docs_path() / f"{hashlib.sha256(stats).hexdigest()[:16]}.pklz4"
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(
            f"{path}.lock"
        ):  # a docstore cannot be opened while another process creates it
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
        return (TitledDoc(doc.id, doc.text, doc.title) for doc in self._open().docs())


class _Queries(BaseQueries):  # type: ignore[misc]
    """The judged queries of a collection of lmk."""

    def __init__(self, open_collection: OpenCollection) -> None:
        self._open = open_collection

    def queries_iter(self) -> Iterator[GenericQuery]:
        return (GenericQuery(*query) for query in self._open().judged_queries())


class _Qrels(BaseQrels):  # type: ignore[misc]
    """The judgements of a collection of lmk."""

    def __init__(self, open_collection: OpenCollection) -> None:
        self._open = open_collection

    def qrels_iter(self) -> Iterator[TrecQrel]:
        for query_id, doc_id, grade in self._open().qrels():
            yield TrecQrel(query_id, doc_id, grade, "0")

    def qrels_cls(self) -> Any:
        return TrecQrel

    def qrels_defs(self) -> dict[int, str]:
        return {}


def register(names: Iterable[str], open_collection: Callable[[str], Collection]) -> list[str]:
    """Register the names that ir_datasets does not have yet, and return them.

    `open_collection` opens the collection of a name when it is used.
    """
    free = [name for name in names if name not in ir_datasets.registry]
    for name in free:
        own = partial(open_collection, name)
        ir_datasets.registry.register(name, Dataset(_Docs(name, own), _Queries(own), _Qrels(own)))
    return free
