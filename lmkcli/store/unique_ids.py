"""Document ids are unique within an artifact: duplicates are found in 8 bytes a document."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmkcli.errors import DataError
from lmkcli.store import parts
from lmkcli.store.parts import PartSlice
from lmkcli.store.summary import doc_table


class UniqueIds:
    """Finds duplicate ids in 8 bytes a document: sorted runs of hashes, merged as they grow."""

    def __init__(self) -> None:
        self._runs: list[NDArray[np.uint64]] = []

    def add(self, ids: Iterable[str], where: str) -> None:
        """DataError when one of the ids was added before, or stands twice among these."""
        ids = list(ids)
        run = np.fromiter((_hash(i) for i in ids), dtype=np.uint64, count=len(ids))
        fresh = np.unique(run)
        repeated = len(fresh) != len(run) or any(_common(fresh, old) for old in self._runs)
        if repeated:
            raise DataError(
                f"{where}: the document id {self._name(ids, run)!r} occurs twice; ids must be unique"
            )
        self._runs.append(fresh)
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            self._runs[-2:] = [np.sort(np.concatenate(self._runs[-2:]))]

    def _name(self, ids: list[str], run: NDArray[np.uint64]) -> str:
        seen: set[int] = set()
        for identifier, value in zip(ids, run.tolist(), strict=True):
            if value in seen or any(
                _common(np.array([value], np.uint64), old) for old in self._runs
            ):
                return identifier
            seen.add(value)
        return ids[0]


def _hash(identifier: str) -> int:
    data = identifier.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _common(values: NDArray[np.uint64], run: NDArray[np.uint64]) -> bool:
    if not len(run) or not len(values):
        return False
    at = np.searchsorted(run, values)
    return bool((run[np.minimum(at, len(run) - 1)] == values).any())


def ids_of(folder: Path, slices: list[PartSlice]) -> UniqueIds:
    """The ids of the parts that a resumed shard has already written."""
    seen = UniqueIds()
    for piece in slices:
        ids = doc_table(folder, piece.name).ids()
        seen.add(ids.slice(piece.skip).to_pylist(), str(folder))
    return seen


def check_across(folder: Path, shards: int) -> None:
    """DataError for a document id that occurs in two shards; reads all ids unless there is one shard."""
    if shards == 1:
        return  # its own writer has seen them all
    seen = UniqueIds()
    for piece in parts.state(folder, shards).slices:
        ids = doc_table(folder, piece.name).ids()
        where = f"{folder}, shard {piece.name.shard.number}/{shards} and an earlier one"
        seen.add(ids.slice(piece.skip).to_pylist(), where)
