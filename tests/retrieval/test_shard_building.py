"""Indexes that are built in shards: joined on disk, they equal an index of one process."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import faiss
import numpy as np
import pytest

from lmkcli.artifact.shards import Shards, shards_folder
from lmkcli.data.collection import Shard
from lmkcli.errors import DataError, Mismatch, Stopped, UsageError
from lmkcli.retrieval import index_job
from lmkcli.retrieval.engines.faiss import faiss_engine as engine
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSettings
from lmkcli.retrieval.index_folder import IndexRecord, check_files, finished_index
from lmkcli.vectors.stored import Vectors
from tests.indexes import build_shard, files_of, join_shards, record_of
from tests.retrieval.test_sharding import Folder, opened, same, searched, sharded

Models = Callable[[str], Path]


@pytest.fixture
def folder(
    tiny_model: Models,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    part_bytes: Callable[[int], None],
) -> Folder:
    part_bytes(1500)
    return Folder(tmp_path / "v", tiny_model("bert"), monkeypatch)


def joined(
    vectors: Vectors, path: Path, kind: str, order: list[int], apart: bool = False
) -> IndexRecord:
    """Build shards in this order, in which a number may occur twice, and join them."""
    settings, count = FaissSettings(kind=kind), max(order) + 1
    for each in order:
        build_shard(vectors, path, settings, Shard(each, count))
    return join_shards(vectors, path, settings, apart)


def same_record(one: IndexRecord, other: IndexRecord) -> None:
    assert (one.digest, one.of) == (other.digest, other.of)
    for key in ("rows", "dim", "factory", "training_rows"):
        assert one.facts[key] == other.facts[key]


def lists(path: Path) -> list[tuple[list[int], bytes]]:
    """The numbers and codes of each list of an index, read with FAISS alone."""
    index = faiss.read_index(str(files_of(path) / "faiss.index"), faiss.IO_FLAG_ONDISK_SAME_DIR)
    ivf = faiss.extract_index_ivf(index)
    found = []
    for each in range(ivf.nlist):
        size = ivf.invlists.list_size(each)
        if not size:
            found.append(([], b""))
            continue
        numbers = faiss.rev_swig_ptr(ivf.invlists.get_ids(each), size).tolist()
        codes = faiss.rev_swig_ptr(ivf.invlists.get_codes(each), size * ivf.code_size)
        found.append((numbers, codes.tobytes()))
    return found


@pytest.mark.parametrize(
    ("unit", "kind", "order"),
    [
        ("doc", "ivf", [1, 0, 1]),
        ("doc", "PCA4,IVF2,SQ8", [*range(92)]),  # more shards than documents
        ("chunk", "IVF4,Flat", [2, 0, 4, 3, 1]),
        ("token", "IVF2,SQ8", [0, 1, 2]),
    ],
)
def test_joined_shards_are_the_index_of_one_process(
    folder: Folder, tmp_path: Path, unit: str, kind: str, order: list[int]
) -> None:
    folder.fill(unit)
    whole, joined_path = folder.index(kind), tmp_path / "joined"
    record = joined(Vectors(folder.path), joined_path, kind, order)
    assert lists(joined_path) == lists(whole)
    same_record(record, record_of(whole))
    assert len(check_files(finished_index(joined_path))) == 2
    assert not shards_folder(joined_path).exists()
    joined_path = joined_path.rename(
        tmp_path / "moved"
    )  # lists are found next to the index, also after it was moved
    run = searched(opened(joined_path, nprobe=1), 5)
    same(run, searched(opened(whole, nprobe=1), 5), 5)
    same(sharded(opened(joined_path, nprobe=1), tmp_path / "run", 3, 5), run, 5)


@pytest.mark.parametrize(
    ("unit", "kind", "order"),
    [("doc", "ivf", [1, 0]), ("token", "PCA4,IVF2,SQ8", [*range(12)]), ("chunk", "IVF4,Flat", [0])],
)
@pytest.mark.parametrize("links", [True, False])
def test_shards_that_stay_apart_are_searched_as_one_index(
    folder: Folder,
    tmp_path: Path,
    unit: str,
    kind: str,
    order: list[int],
    links: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", mock.Mock(side_effect=OSError(errno.EPERM, "not here")))
    folder.fill(unit)
    whole, joined_path = folder.index(kind), tmp_path / "joined"
    record = joined(Vectors(folder.path), joined_path, kind, order, apart=True)
    same_record(record, record_of(whole))
    files = sorted(files_of(joined_path).glob("faiss*.index"))
    assert len(check_files(finished_index(joined_path))) == len(files) == 1 + len(order)
    assert record.facts["bytes"] == sum(path.stat().st_size for path in files)
    assert not shards_folder(joined_path).exists()
    joined_path = joined_path.rename(tmp_path / "moved")
    run = searched(opened(joined_path, nprobe=1), 5)
    same(run, searched(opened(whole, nprobe=1), 5), 5)
    same(sharded(opened(joined_path, nprobe=1), tmp_path / "run", 3, 5), run, 5)


def test_files_of_a_killed_join_are_not_searched(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, path, kind = Vectors(folder.fill()), tmp_path / "i", "IVF2,Flat"
    with monkeypatch.context() as patch:
        patch.setattr(index_job, "write_record", mock.Mock(side_effect=Stopped))
        with pytest.raises(Stopped):
            joined(vectors, path, kind, [0, 1, 2], apart=True)
    assert (path / "1" / "faiss-00002.index").exists()
    Shards(shards_folder(path)).remove()
    joined(vectors, path, kind, [0, 1], apart=True)
    assert not [*path.rglob("faiss-00002.index")]
    expected = searched(opened(folder.index(kind)), 5)
    same(searched(opened(path), 5), expected, 5)


def test_a_full_disk_refuses_joining_but_not_apart(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, path, settings = Vectors(folder.fill()), tmp_path / "i", FaissSettings(kind="ivf")
    build_shard(vectors, path, settings, Shard(0, 1))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: mock.Mock(free=100))
    with pytest.raises(DataError, match=r"0.0001 MB .*--apart"):
        join_shards(vectors, path, settings)
    assert not path.exists()
    assert join_shards(vectors, path, settings, apart=True).facts["rows"] == 90


def test_missing_shards_are_named_and_others_refused(folder: Folder, tmp_path: Path) -> None:
    vectors, path = Vectors(folder.fill()), tmp_path / "i"
    build_shard(vectors, path, FaissSettings(kind="ivf"), Shard(1, 3))
    with pytest.raises(DataError, match=r"not finished: 0, 2"):
        join_shards(vectors, path, FaissSettings(kind="ivf"))
    assert not path.exists()
    with pytest.raises(Mismatch, match=r"settings.kind: 'ivf' \| 'IVF2,Flat'"):
        build_shard(vectors, path, FaissSettings(kind="IVF2,Flat"), Shard(0, 3))
    for kind in ("hnsw", "IVF2,PQ2x4fs", "IVF2,PQ2x4,RFlat"):
        with pytest.raises(UsageError, match="inverted lists"):
            build_shard(vectors, tmp_path / "j", FaissSettings(kind=kind), Shard(0, 3))
    assert not shards_folder(tmp_path / "j").exists()


def test_a_shard_beyond_the_memory_limit_is_refused(folder: Folder, tmp_path: Path) -> None:
    vectors = Vectors(folder.fill())
    small = FaissSettings(kind="IVF2,Flat", max_memory=2000)
    with pytest.raises(DataError, match=r"IVF2,Flat .*fewer lists"):
        build_shard(vectors, tmp_path / "i", small, Shard(0, 2))
    build_shard(vectors, tmp_path / "i", FaissSettings(kind="IVF2,Flat"), Shard(0, 2))
    with pytest.raises(DataError, match=r"more shards"):
        build_shard(vectors, tmp_path / "i", small, Shard(1, 2))


def test_a_process_that_ended_before_shards_were_removed(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, path, settings = Vectors(folder.fill()), tmp_path / "i", FaissSettings(kind="ivf")
    build_shard(vectors, path, settings, Shard(0, 1))
    with monkeypatch.context() as patch:
        patch.setattr(Shards, "remove", lambda _: os.kill(os.getpid(), 0))
        record = join_shards(vectors, path, settings)
    assert shards_folder(path).exists()
    assert join_shards(vectors, path, settings) == record_of(path) == record
    assert not shards_folder(path).exists()


def test_the_first_task_trains_for_all(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, settings = Vectors(folder.fill()), FaissSettings(kind="ivf")
    build_shard(vectors, tmp_path / "i", settings, Shard(1, 2))
    monkeypatch.setattr(engine.FaissIndex, "train", None)
    shards = build_shard(vectors, tmp_path / "i", settings, Shard(0, 2))
    assert shards.unfinished() == []
    np.testing.assert_equal(join_shards(vectors, tmp_path / "i", settings).facts["rows"], 90)
