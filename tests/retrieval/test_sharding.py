"""Sharded searches: joined, they equal the run of one process, line by line."""

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lmkcli.artifact.shards import Shards
from lmkcli.data.collection import Query, Shard
from lmkcli.data.run import Run
from lmkcli.errors import DataError, Mismatch, UsageError
from lmkcli.progress import Call, Report
from lmkcli.retrieval import searching
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSettings
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.pipeline import open_index
from lmkcli.retrieval.searching import MemoryBudget
from lmkcli.retrieval.sharding import sharded_search
from lmkcli.retrieval.vectors import vector_index
from lmkcli.vectors.rows import Ragged
from lmkcli.vectors.stored import Vectors
from tests.indexes import build_faiss
from tests.retrieval.test_opening import FixedQueryEncoder, VectorsFolder

Models = Callable[[str], Path]
ROWS, K = 90, 25
IDS = [f"d{number:03d}" for number in np.random.default_rng(5).permutation(ROWS)]
QUERIES = [Query(f"q{number}", str(number)) for number in range(7)]
Arrays = dict[str, NDArray[Any]]
IDENTITY: dict[str, Any] = {"index": "this"}


def tied(rows: int, dim: int, seed: int) -> NDArray[np.float32]:
    """Vectors of few values, so that many rows have equal scores."""
    return np.random.default_rng(seed).integers(-1, 2, (rows, dim)).astype(np.float32)


def several(rows: int, seed: int) -> Ragged:
    counts = np.random.default_rng(seed).integers(1, 6, rows)
    return Ragged.of(tied(int(counts.sum()), 6, seed), counts)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, part_bytes: Callable[[int], None]) -> None:
    """Parts of a few documents, and one piece per three queries."""
    part_bytes(1500)
    monkeypatch.setattr(searching, "QUERIES_AT_ONCE", 3)


class Folder:
    """A vectors folder of a unit, and the vectors of its queries."""

    def __init__(self, path: Path, model: Path, patch: pytest.MonkeyPatch) -> None:
        self.path, self._model, self._patch = path, model, patch

    def fill(self, unit: str = "doc") -> Path:
        docs = tied(ROWS, 6, 0) if unit == "doc" else several(ROWS, 0)
        query_vectors: Any = tied(7, 6, 1) if unit != "token" else several(7, 1)
        VectorsFolder(self.path, self._model, shards=2).unit(unit).fill(IDS, docs)
        self._patch.setattr(
            vector_index, "open_query_encoder", lambda *_: FixedQueryEncoder(query_vectors)
        )
        return self.path

    def index(self, kind: str) -> Path:
        build_faiss(Vectors(self.path), self.path.with_name("index"), FaissSettings(kind=kind))
        return self.path.with_name("index")


@pytest.fixture
def folder(tiny_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    return Folder(tmp_path / "v", tiny_model("bert"), monkeypatch)


def opened(path: Path, **settings: Any) -> Any:
    return open_index(path, OpenSettings(device="cpu", dtype="fp32", **settings))


class Narrow(MemoryBudget):
    """A budget for at most two queries, though a piece has three."""

    def queries(self, k: int) -> int:
        return 2


def sharded(
    index: Any, output: Path, count: int, k: int = K, budget: MemoryBudget | None = None
) -> Run:
    """The joined run of `count` tasks, in random order, some of them twice."""
    tasks = [*range(count), *range(0, count, 2)]
    random.Random(count).shuffle(tasks)
    for task in tasks:
        search = sharded_search(index, QUERIES, k)
        search.search(
            Shard(task, count), search.claim(output, IDENTITY, count, Call()), Report(), budget
        )
    shards = Shards.find(output, IDENTITY)
    assert shards is not None
    return together(sharded_search(index, QUERIES, k).joined("tag", shards, Report(), budget))


def searched(index: Any, k: int) -> Run:
    """The run of one process."""
    return together(searching.search(index, QUERIES, k, "tag", Report().progress))


def together(pieces: Iterable[Run]) -> Run:
    return Run(
        {name: ranking for piece in pieces for name, ranking in piece.rankings.items()}, "tag"
    )


def same(run: Run, expected: Run, lines: int) -> None:
    assert list(run.rankings) == list(expected.rankings)
    for name, ranking in expected.rankings.items():
        assert run.rankings[name].doc_ids == ranking.doc_ids
        assert run.rankings[name].scores.tolist() == ranking.scores.tolist()
        assert len(ranking.doc_ids) == lines
    scores = [ranking.scores for ranking in expected.rankings.values()]
    assert lines == 1 or any((each[:-1] == each[1:]).any() for each in scores)  # there are ties


CASES = [
    ("doc", {}),
    ("chunk", {}),
    ("chunk", {"aggregate": "avg"}),
    ("chunk", {"level": "chunk"}),
    ("token", {}),
]


@pytest.mark.parametrize(("unit", "settings"), CASES)
def test_exact_search_in_any_number_of_shards(
    folder: Folder, tmp_path: Path, unit: str, settings: dict[str, str]
) -> None:
    index = opened(folder.fill(unit), **settings)
    whole = searched(index, K)
    for count in (2, 7):
        same(sharded(index, tmp_path / f"{count}.trec", count), whole, K)
    same(sharded(index, tmp_path / "narrow.trec", 3, budget=Narrow(0)), whole, K)


@pytest.mark.parametrize(("k", "count"), [(1, 3), (1000, 3), (10, ROWS + 2)])
def test_any_depth_and_more_shards_than_documents(
    folder: Folder, tmp_path: Path, k: int, count: int
) -> None:
    index = opened(folder.fill())
    whole = searched(index, k)
    same(sharded(index, tmp_path / "a.trec", count, k), whole, min(k, ROWS))


@pytest.mark.parametrize(
    ("unit", "settings", "kind"),
    [*((*case, "ivf") for case in CASES), ("doc", {}, "IVF2,SQ8"), ("chunk", {}, "PCA4,IVF2,Flat")],
)
def test_lists_in_any_number_of_shards(
    folder: Folder, tmp_path: Path, unit: str, settings: dict[str, str], kind: str
) -> None:
    folder.fill(unit)
    index = opened(folder.index(kind), nprobe=1, **settings)
    whole = searched(index, 5)
    for count in (1, 8):
        same(sharded(index, tmp_path / f"{count}.trec", count, 5), whole, 5)
    same(sharded(index, tmp_path / "narrow.trec", 3, 5, Narrow(0)), whole, 5)


def test_a_graph_cannot_be_divided(folder: Folder, tmp_path: Path) -> None:
    folder.fill()
    with pytest.raises(UsageError, match=r"hnsw.* whole"):
        sharded_search(opened(folder.index("hnsw")), QUERIES, K)


def test_missing_and_other_shards_are_named(folder: Folder, tmp_path: Path) -> None:
    output = tmp_path / "a.trec"
    search = sharded_search(opened(folder.fill()), QUERIES, K)
    shards = search.claim(output, IDENTITY, 4, Call())
    search.search(Shard(2, 4), shards, Report())
    shards.path(1, "0.npz").write_bytes(
        shards.path(2, "0.npz").read_bytes()
    )  # only one of its pieces
    with pytest.raises(DataError, match=r"not finished: 0, 1, 3;"):
        list(search.joined("tag", shards, Report()))
    with pytest.raises(Mismatch, match=r"shards: 4 \| 5(.|\n)*remove .*a.trec.shards"):
        search.claim(output, IDENTITY, 5, Call())
    with pytest.raises(Mismatch, match=r"index: 'this' \| 'that'"):
        Shards.find(output, {"index": "that"})


def test_a_damaged_piece_is_named(folder: Folder, tmp_path: Path) -> None:
    search = sharded_search(opened(folder.fill()), QUERIES, K)
    shards = search.claim(tmp_path / "a.trec", IDENTITY, 1, Call())
    search.search(Shard(0, 1), shards, Report())
    piece = shards.path(0, "3.npz")
    piece.write_bytes(piece.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"00000of00001-3.npz .*; remove it"):
        list(search.joined("tag", shards, Report()))


def rewritten(piece: Path, change: Callable[[Arrays], Arrays]) -> None:
    with np.load(piece) as file:
        whole = dict(file)
    with open(piece, "wb") as file:
        np.savez(file, **whole | change(whole))


IMPOSSIBLE: dict[str, Callable[[Arrays], Arrays]] = {
    "no such row": lambda found: {"rows": np.full_like(found["rows"], ROWS)},
    "a row before the first": lambda found: {"rows": np.full_like(found["rows"], -1)},
    "rows of another type": lambda found: {"rows": found["rows"].astype(np.float64)},
    "too few rows": lambda found: {"rows": found["rows"][:-1]},
    "of fewer queries": lambda found: {"counts": found["counts"].sum(keepdims=True)},
    "less than none": lambda found: {"counts": found["counts"] * [-1, 2, 2]},
    "no scores": lambda found: {"scores": np.full_like(found["scores"], np.nan)},
    "one score": lambda found: {"scores": np.array(1.0)},
    "an axis more": lambda found: {name: each[:, None] for name, each in found.items()},
}


@pytest.mark.parametrize("damage", IMPOSSIBLE)
def test_an_impossible_piece_is_named(folder: Folder, tmp_path: Path, damage: str) -> None:
    search = sharded_search(opened(folder.fill()), QUERIES, K)
    shards = search.claim(tmp_path / "a.trec", IDENTITY, 1, Call())
    search.search(Shard(0, 1), shards, Report())
    piece = shards.path(0, "3.npz")
    rewritten(piece, lambda found: {})
    list(search.joined("tag", shards, Report()))  # as it was written
    rewritten(piece, IMPOSSIBLE[damage])
    with pytest.raises(DataError, match=r"00000of00001-3.npz .*; remove it"):
        list(search.joined("tag", shards, Report()))


@pytest.mark.parametrize("data", [b"", b"PK\x05\x06" + bytes(18), b"\x93NUMPY\x01\x00"])
def test_a_piece_that_is_no_archive_of_arrays_is_named(
    folder: Folder, tmp_path: Path, data: bytes
) -> None:
    search = sharded_search(opened(folder.fill()), QUERIES, K)
    shards = search.claim(tmp_path / "a.trec", IDENTITY, 1, Call())
    search.search(Shard(0, 1), shards, Report())
    shards.path(0, "3.npz").write_bytes(data)
    with pytest.raises(DataError, match=r"00000of00001-3.npz .*; remove it"):
        list(search.joined("tag", shards, Report()))


@pytest.mark.parametrize(
    "wrong",
    [
        {"vectors": np.zeros((3, 5), np.float32)},
        {"vectors": np.full((3, 6), np.nan, np.float32)},
        {"counts": np.array([1, 2])},
    ],
)
def test_damaged_query_vectors_are_named(folder: Folder, tmp_path: Path, wrong: Arrays) -> None:
    search = sharded_search(opened(folder.fill()), QUERIES, K)
    shards = search.claim(tmp_path / "a.trec", IDENTITY, 1, Call())
    search.search(Shard(0, 1), shards, Report())
    rewritten(shards.folder / "shared-queries-3.npz", lambda found: wrong)
    with pytest.raises(DataError, match=r"queries-3.npz .*; remove it"):
        list(search.joined("tag", shards, Report()))


def test_finished_pieces_are_not_searched_again(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that was killed after its first piece continues with the second, and encodes no query again."""
    index = opened(folder.fill())
    search = sharded_search(index, QUERIES, K)
    shards = search.claim(tmp_path / "a.trec", IDENTITY, 1, Call())
    search.search(Shard(0, 1), shards, Report())
    before = {path.name: path.stat().st_mtime_ns for path in shards.folder.glob("*.npz")}
    shards.path(0, "3.npz").unlink()
    monkeypatch.setattr(index, "encoded", None)  # encoding would raise an error
    search.search(Shard(0, 1), shards, Report())
    after = {path.name: path.stat().st_mtime_ns for path in shards.folder.glob("*.npz")}
    assert {name for name in before if before[name] != after[name]} == {"00000of00001-3.npz"}
