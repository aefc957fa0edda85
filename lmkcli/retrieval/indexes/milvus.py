"""Milvus: vectors, and what they are of, in a collection of a server or of a file (Milvus Lite).

A vector's primary key is its number, and vectors are upserted, so that what is written twice is there
once. The collection's property `lmk` says what it holds; one without it is not lmk's and stays as it is.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymilvus import DataType, MilvusClient, MilvusException

from lmkcli.errors import DataError
from lmkcli.retrieval.kinds import Candidates, DatabaseKind, Mark, StoredVector
from lmkcli.settings import MilvusSettings
from lmkcli.system.streams import batched

for _name in ("pymilvus", "milvus_lite", "grpc"):  # what they log is raised as well
    logging.getLogger(_name).setLevel(logging.CRITICAL)

PROPERTY = "lmk"
TEXT_BYTES = 65535  # the longest VARCHAR of Milvus
BATCH_BYTES = 8 << 20  # of a request; servers refuse those above 64 MB
MOST = 16384  # vectors that a server returns for a query vector
HITS_AT_ONCE = 1 << 18  # of all query vectors of a request
NUMBERS_AT_ONCE = 1000  # of a request to delete
CONNECT_SECONDS = 10.0
LITE_PING_MS = (
    3_600_000  # Milvus Lite ends a connection on which the client pings as often as pymilvus
)


class Milvus(DatabaseKind):
    """A collection in Milvus."""

    overfetch, divisible = 1, False

    def __init__(self, settings: MilvusSettings, client: Any) -> None:
        self._settings, self._client = settings, client
        self._name = settings.collection
        self.rows = self.most = self._ef_search = 0

    @classmethod
    def connect(cls, settings: MilvusSettings, token: str) -> "Milvus":
        """The collection that the settings name, which need not be there yet; `uri` is absolute.

        DataError when nobody answers.
        """
        alive = {} if "://" in settings.uri else {"grpc.keepalive_time_ms": LITE_PING_MS}
        try:
            client = MilvusClient(
                settings.uri, token=token, timeout=CONNECT_SECONDS, grpc_options=alive
            )
        except (MilvusException, OSError) as error:
            raise DataError(f"{settings.uri}: {_unreachable(settings.uri, error)}") from None
        return cls(settings, client)

    def mark(self) -> Mark | None:
        """What the collection says of itself; None without one, DataError for one that is not lmk's."""
        with self._asking():
            if not self._client.has_collection(self._name):
                return None
            properties = self._client.describe_collection(self._name)["properties"]
        try:
            return Mark(**json.loads(properties[PROPERTY]))
        except (KeyError, ValueError, TypeError):
            raise DataError(
                f"{self._settings.uri}: lmk did not make the collection {self._name}, so nothing in it was "
                "touched; choose another --collection"
            ) from None

    def create(self, dim: int, mark: Mark) -> None:
        """Make the collection, without vectors."""
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
        index.add_index("vector", index_type=kind, metric_type="IP", params=params)
        with self._asking():
            self._client.create_collection(
                self._name,
                schema=schema,
                index_params=index,
                consistency_level="Strong",
                properties=_property(mark),
            )

    def drop(self) -> None:
        """Remove the collection; DataError if lmk did not make it."""
        if self.mark():
            with self._asking():
                self._client.drop_collection(self._name)

    def write_mark(self, mark: Mark) -> None:
        """Replace what the collection says of itself."""
        with self._asking():
            self._client.alter_collection_properties(self._name, _property(mark))

    def count(self, first: int = 0) -> int:
        """How many vectors have a number of `first` or above."""
        above = f"number >= {first}" if first else ""
        with self._asking():
            self._client.load_collection(self._name)
            found = self._client.query(self._name, filter=above, output_fields=["count(*)"])
        return int(found[0]["count(*)"])

    def write(
        self, vectors: Iterable[StoredVector], first: int, progress: Callable[[int], None]
    ) -> None:
        """Write vectors in batches, numbered from `first` without a gap; `progress` hears how many are there.

        Batches follow each other, so an earlier life wrote the first ones: those are left out.
        """
        there = self.count(first)
        for batch in batched(map(_row, vectors), _size, BATCH_BYTES):
            done = batch[-1]["number"] + 1 - first
            if done > there:
                with self._asking():
                    self._client.upsert(self._name, batch)
            progress(done)
        with self._asking():
            self._client.flush(self._name)

    def delete(self, numbers: NDArray[np.int64]) -> None:
        """Remove some vectors; numbers that are gone already are passed over."""
        for begin in range(0, len(numbers), NUMBERS_AT_ONCE):
            some = numbers[begin : begin + NUMBERS_AT_ONCE].tolist()
            with self._asking():
                self._client.delete(self._name, ids=some)

    def delete_from(self, first: int) -> None:
        """Remove the vectors whose number is `first` or above."""
        with self._asking():
            self._client.delete(self._name, filter=f"number >= {first}")

    def open(self, rows: int, ef_search: int) -> None:
        """Get ready to search the numbers below `rows`."""
        self.rows, self.most, self._ef_search = rows, min(rows, MOST), ef_search

    def candidates(
        self, queries: NDArray[np.float32], k: int, among: range | None = None
    ) -> Candidates:
        """The k best vectors for each query vector [n, dim], `most` at most, of all or of a range."""
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
        with self._asking():
            return self._client.search(
                self._name,
                data=list(queries),
                anns_field="vector",
                limit=k,
                # an update writes its vectors before they count
                filter=f"number >= {among.start} and number < {among.stop}",
                output_fields=["number"],
                search_params={"metric_type": "IP", "params": params},
            )

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """DataError, with what Milvus says, for a request that fails."""
        try:
            yield
        except MilvusException as error:
            raise DataError(
                f"{self._settings.uri}: Milvus refused a request about the collection {self._name}: "
                f"{error.message}; run the same command again once that is mended"
            ) from None


def _unreachable(uri: str, error: Exception) -> str:
    if "://" in uri:
        return (
            "no Milvus answers there; start it, or correct --uri (a server that wants a token finds it in "
            "the environment variable LMK_MILVUS_TOKEN)"
        )
    if not Path(uri).parent.is_dir():
        return "there is no such folder; make it, or correct --uri"
    return (
        "Milvus Lite cannot open it: it was made by another version, or another process has it open, and "
        f"only one can at a time ({error})"
    )


def _property(mark: Mark) -> dict[str, str]:
    return {PROPERTY: json.dumps(mark._asdict())}


def _row(stored: StoredVector) -> dict[str, Any]:
    begin, end = stored.span or (-1, -1)
    texts = {name: _cut(getattr(stored, name)) for name in ("id", "title", "text")}
    spans = {"chunk": stored.chunk, "begin": begin, "end": end}
    return {"number": stored.number, "vector": stored.vector, **texts, **spans}


def _cut(text: str) -> str:
    """As much of a text as a VARCHAR holds."""
    if len(text) * 4 <= TEXT_BYTES and text.isascii():
        return text
    return text.encode("utf-8", "replace")[:TEXT_BYTES].decode("utf-8", "ignore")


def _size(row: dict[str, Any]) -> int:
    return int(row["vector"].nbytes) + 4 * (len(row["text"]) + len(row["title"])) + 256
