"""A collection of Milvus with vectors, ids and texts, on a server or in a file (Milvus Lite).

The primary key of a vector is its number. Vectors are upserted, so writing a vector twice stores it once. The
property `lmk` of the collection stores its state. lmk never changes a collection without this property.
"""

import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pymilvus import DataType, MilvusClient, MilvusException

from lmkcli.errors import DataError
from lmkcli.plugins.milvus.milvus_settings import MilvusSettings
from lmkcli.retrieval.vectors.vector_search import Candidates
from lmkcli.system.item_streams import batched

for _name in ("pymilvus", "milvus_lite", "grpc"):  # their errors are raised as exceptions too
    logging.getLogger(_name).setLevel(logging.CRITICAL)

PROPERTY = "lmk"
TEXT_BYTES = 65535  # the longest VARCHAR of Milvus
BATCH_BYTES = 8 << 20  # size of a write request; servers refuse requests above 64 MB
MOST = 16384  # the maximum number of hits per query vector on a server
HITS_AT_ONCE = 1 << 18  # hits of all query vectors of a search request
NUMBERS_AT_ONCE = 1000  # numbers in a delete request
CONNECT_SECONDS = 10.0
LITE_PING_MS = (
    3_600_000  # Milvus Lite closes connections with keepalive pings as frequent as pymilvus sends
)


class StoredVector(NamedTuple):
    """A vector with its number, its document and its text.

    The vector belongs to chunk number `chunk` (from 0) of document `id`. `span` is the range of characters
    of the chunk in the document's content, for unit chunk.
    """

    number: int
    vector: NDArray[np.float32]
    id: str
    chunk: int
    span: tuple[int, int] | None
    title: str
    text: str


class CollectionState(NamedTuple):
    """The state of a collection, stored in its own properties.

    made: a digest of the settings that make and index its vectors. holds: a digest of its vectors, empty
    until all are written. becomes: a digest of the vectors that are being written.
    """

    made: str
    holds: str
    becomes: str


class MilvusCollection:
    """A collection in Milvus."""

    overfetch, divisible = 1, False

    def __init__(self, settings: MilvusSettings, client: Any) -> None:
        self._settings, self._client = settings, client
        self._name = settings.collection
        self.rows = self.most = self._ef_search = 0

    @classmethod
    def connect(cls, settings: MilvusSettings, token: str) -> "MilvusCollection":
        """Connect to the collection that the settings name. It may be missing; `uri` is absolute.

        Raises DataError if no server answers.
        """
        grpc_options = {} if "://" in settings.uri else {"grpc.keepalive_time_ms": LITE_PING_MS}
        try:
            client = MilvusClient(
                settings.uri, token=token, timeout=CONNECT_SECONDS, grpc_options=grpc_options
            )
        except (MilvusException, OSError) as error:
            raise DataError(f"{settings.uri}: {_unreachable(settings.uri, error)}") from None
        return cls(settings, client)

    def state(self) -> CollectionState | None:
        """Return the state of the collection; None if it does not exist.

        Raises DataError if lmk did not make it.
        """
        with self._request_errors():
            if not self._client.has_collection(self._name):
                return None
            properties = self._client.describe_collection(self._name)["properties"]
        try:
            return CollectionState(**json.loads(properties[PROPERTY]))
        except (KeyError, ValueError, TypeError):
            raise DataError(
                f"{self._settings.uri}: lmk did not make the collection {self._name}, so nothing in it was "
                "changed; choose another --collection"
            ) from None

    def create(self, dim: int, state: CollectionState) -> None:
        """Create the collection, without vectors."""
        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("number", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
        for name in ("id", "title", "text"):
            schema.add_field(name, DataType.VARCHAR, max_length=TEXT_BYTES)
        for name in ("chunk", "begin", "end"):
            schema.add_field(name, DataType.INT64)
        kind = self._settings.index_type
        hnsw = {"M": self._settings.m, "efConstruction": self._settings.ef_construction}
        index = MilvusClient.prepare_index_params()
        params = hnsw if kind == "HNSW" else {}
        self._remove_fragment()
        index.add_index("vector", index_type=kind, metric_type="IP", params=params)
        with self._request_errors():
            self._client.create_collection(
                self._name,
                schema=schema,
                index_params=index,
                consistency_level="Strong",
                properties=_property(state),
            )

    def _remove_fragment(self) -> None:
        """Remove the folder that Milvus Lite leaves if the disk is full before it has written the schema.

        Milvus Lite takes the collection for missing, but cannot create it because of this folder.
        """
        folder = self._lite_folder()
        if folder and {each.name for each in folder.iterdir()} <= {"schema.json.tmp"}:
            shutil.rmtree(folder)

    def _lite_folder(self) -> Path | None:
        """Return the folder of the collection in a file of Milvus Lite, which is a folder itself."""
        folder = Path(self._settings.uri) / "collections" / self._name
        if "://" in self._settings.uri or not folder.is_dir() or folder.is_symlink():
            return None
        return folder

    def _load(self) -> None:
        """Load the collection, as every query and search needs.

        Milvus Lite writes the index of a segment in place. If it is killed, half of the file remains, and
        every later load fails. Without the file, it builds the index again from the vectors.
        """
        try:
            self._client.load_collection(self._name)
        except MilvusException:
            folder = self._lite_folder()
            indexes = list(folder.glob("partitions/*/indexes/*.idx")) if folder else []
            if not folder or not indexes:
                raise
            for path in indexes:
                if path.parent.resolve().is_relative_to(folder.resolve()):  # nothing behind a link
                    path.unlink()
            self._client.load_collection(self._name)

    def drop(self) -> None:
        """Remove the collection. Raises DataError if lmk did not make it."""
        if self.state():
            with self._request_errors():
                self._client.drop_collection(self._name)

    def write_state(self, state: CollectionState) -> None:
        """Replace the state of the collection."""
        with self._request_errors():
            self._client.alter_collection_properties(self._name, _property(state))

    def count(self, first: int = 0) -> int:
        """Return the number of vectors with a number of at least `first`."""
        condition = f"number >= {first}" if first else ""
        with self._request_errors():
            self._load()
            found = self._client.query(self._name, filter=condition, output_fields=["count(*)"])
        return int(found[0]["count(*)"])

    def write(
        self, vectors: Iterable[StoredVector], first: int, progress: Callable[[int], None]
    ) -> None:
        """Write vectors in batches, numbered from `first` without a gap, and report their number.

        Batches are written in order, so an interrupted process wrote the first ones. They are skipped.
        """
        existing = self.count(first)
        for batch in batched(map(_row, vectors), _size, BATCH_BYTES):
            done = batch[-1]["number"] + 1 - first
            if done > existing:
                with self._request_errors():
                    self._client.upsert(self._name, batch)
            progress(done)
        with self._request_errors():
            self._client.flush(self._name)

    def delete(self, numbers: NDArray[np.int64]) -> None:
        """Remove vectors. Numbers without a vector are ignored."""
        for begin in range(0, len(numbers), NUMBERS_AT_ONCE):
            batch = numbers[begin : begin + NUMBERS_AT_ONCE].tolist()
            with self._request_errors():
                self._client.delete(self._name, ids=batch)

    def delete_from(self, first: int) -> None:
        """Remove the vectors with a number of at least `first`."""
        with self._request_errors():
            self._client.delete(self._name, filter=f"number >= {first}")

    def open(self, rows: int, ef_search: int) -> None:
        """Prepare a search of the vectors with numbers below `rows`."""
        self.rows, self.most, self._ef_search = rows, min(rows, MOST), ef_search

    def candidates(
        self, queries: NDArray[np.float32], k: int, among: range | None = None
    ) -> Candidates:
        """Return the best k vectors (at most `most`) of each query vector [n, dim], of all or of a range."""
        k, among = min(k, self.most), among or range(self.rows)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        rows = np.full((len(queries), k), -1, np.int64)
        step = max(1, HITS_AT_ONCE // max(1, k))
        for first in range(0, len(queries), step):
            found = self._search(queries[first : first + step], k, among)
            for query, hits in enumerate(found, first):
                scores[query, : len(hits)] = hits.distances
                rows[query, : len(hits)] = hits.ids
        return Candidates(scores, rows)

    def _search(self, queries: NDArray[np.float32], k: int, among: range) -> Any:
        breadth = {"ef": max(self._ef_search or max(128, 2 * k), k)}
        params = breadth if self._settings.index_type == "HNSW" else {}
        with self._request_errors():
            return self._client.search(
                self._name,
                data=list(queries),
                anns_field="vector",
                limit=k,
                # An unfinished update has written vectors with higher numbers, which are not searched yet.
                filter=f"number >= {among.start} and number < {among.stop}",
                output_fields=["number"],
                search_params={"metric_type": "IP", "params": params},
            )

    @contextmanager
    def _request_errors(self) -> Iterator[None]:
        """Turn a failed request into a DataError with the message of Milvus."""
        try:
            yield
        except MilvusException as error:
            raise DataError(
                f"{self._settings.uri}: Milvus refused a request about the collection {self._name}: "
                f"{error.message}; fix that and run the same command again"
            ) from None


def _unreachable(uri: str, error: Exception) -> str:
    if "://" in uri:
        return (
            "no Milvus answers at this address; start it, or correct --uri (for a server with a token, set "
            "the environment variable LMK_MILVUS_TOKEN)"
        )
    if not Path(uri).parent.is_dir():
        return "its folder does not exist; create it, or correct --uri"
    return (
        "Milvus Lite cannot open it: another version made it, or another process has it open, and only one "
        f"can at a time ({error})"
    )


def _property(state: CollectionState) -> dict[str, str]:
    return {PROPERTY: json.dumps(state._asdict())}


def _row(stored: StoredVector) -> dict[str, Any]:
    begin, end = stored.span or (-1, -1)
    texts = {name: _cut(getattr(stored, name)) for name in ("id", "title", "text")}
    spans = {"chunk": stored.chunk, "begin": begin, "end": end}
    return {"number": stored.number, "vector": stored.vector, **texts, **spans}


def _cut(text: str) -> str:
    """Return the start of a text that fits in a VARCHAR."""
    if len(text) * 4 <= TEXT_BYTES and text.isascii():
        return text
    return text.encode("utf-8", "replace")[:TEXT_BYTES].decode("utf-8", "ignore")


def _size(row: dict[str, Any]) -> int:
    return int(row["vector"].nbytes) + 4 * (len(row["text"]) + len(row["title"])) + 256
