"""Indexes in Milvus Lite, compared with exact search over the same vectors.

LMK_TEST_MILVUS is the address of a server to test instead, see test_milvus_server.py.
"""

import json
import multiprocessing
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import IndexManifest, Origin
from lmkcli.data.collection import Query
from lmkcli.data.run import Run
from lmkcli.encoding import vector_updates
from lmkcli.errors import DataError, Mismatch, UsageError
from lmkcli.plugins.milvus.milvus_collection import CollectionState
from lmkcli.plugins.milvus.milvus_engine import Milvus
from lmkcli.plugins.milvus.milvus_settings import MilvusSettings
from lmkcli.retrieval import index_job
from lmkcli.retrieval.index_folder import IndexRecord
from lmkcli.retrieval.index_job import IndexJob
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.pipeline import open_index
from lmkcli.retrieval.vectors import vector_index
from lmkcli.store.parts import Generation, PartSlice
from lmkcli.system import network
from lmkcli.vectors.rows import Ragged
from lmkcli.vectors.stored import Vectors
from tests.indexes import vector_job
from tests.retrieval.test_opening import FixedQueryEncoder, VectorsFolder

pytest.importorskip("milvus_lite")
pymilvus = pytest.importorskip("pymilvus")

from lmkcli.plugins.milvus import milvus_collection as collection  # noqa: E402

Models = Callable[[str], Path]
Floats = NDArray[np.float32]
CPU = OpenSettings(device="cpu", dtype="fp32")
QUERIES = 4
SERVER = os.environ.get("LMK_TEST_MILVUS", "")
COLLECTION = "docs_" + os.environ.get("PYTEST_XDIST_WORKER", "alone")  # workers share a server
lite_only = pytest.mark.skipif(bool(SERVER), reason="tests the file of Milvus Lite")

ORIGIN = Origin(name="given")


class Service:
    """A vectors folder, its index in Milvus, and searches of both."""

    def __init__(self, root: Path, model: Path) -> None:
        self.root, self.model = root, model
        self.vectors, self.index = root / "vectors", root / "index"
        self.settings = MilvusSettings(
            uri=SERVER or str(root / "milvus.db"), collection=COLLECTION, index_type="FLAT"
        )

    def fill(self, vectors: Floats | Ragged, unit: str = "doc") -> "Service":
        rows = len(vectors.counts) if isinstance(vectors, Ragged) else len(vectors)
        ids = [f"d{number:03d}" for number in np.random.default_rng(1).permutation(rows)]
        VectorsFolder(self.vectors, self.model, "fp16").unit(unit).fill(ids, vectors)
        return self

    def build(self) -> IndexRecord:
        return self.job().build()

    def update(self) -> str:
        return self.job().update().how

    def job(self, **settings: Any) -> IndexJob[Any]:
        """The job of `lmk index`, which first checks the collection."""
        more = {"overwrite": True} if settings.pop("overwrite", False) else {}
        engine = Milvus(replace(self.settings, **settings))
        job = vector_job(Vectors(self.vectors), self.index, engine, **more)
        job.check()
        return job

    def client(self) -> Any:
        return pymilvus.MilvusClient(self.settings.uri)

    def contents(self) -> dict[int, dict[str, Any]]:
        """The rows of the collection by number, read without lmk. Fails for a repeated number."""
        client = self.client()
        client.load_collection(COLLECTION)
        found = client.query(COLLECTION, filter="number >= 0", output_fields=["*"])
        assert len({row["number"] for row in found}) == len(found)
        return {row["number"]: dict(row) for row in found}

    def same(self, k: int, **settings: Any) -> None:
        """Check that a search in the collection equals exact search."""
        assert self.search(self.index, k, **settings) == self.search(self.vectors, k, **settings)

    def search(self, folder: Path, k: int, **settings: Any) -> dict[str, Any]:
        queries = [Query(f"q{number}", str(number)) for number in range(QUERIES)]
        run: Run = open_index(folder, replace(CPU, **settings)).search(queries, k)
        return {name: (each.doc_ids, each.scores.tolist()) for name, each in run.rankings.items()}

    def drop(self, deleted: Sequence[int], kept: Sequence[int] = ()) -> None:
        """Delete rows as an update does. With `kept`, only these parts remain."""
        now = Vectors(self.vectors)
        slices, first = [], 0
        for number, piece in enumerate(now.slices):
            alive = ~np.isin(np.arange(first, first + piece.rows), deleted)
            first += piece.rows
            if alive.any() and (not kept or number in kept):
                slices.append(PartSlice.of(piece.name, alive))
        vector_updates.publish_generation(
            self.vectors, Generation(0, ORIGIN, now.slices, 0), Generation(0, ORIGIN, slices, 0)
        )


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, part_bytes: Callable[[int], None]) -> None:
    """Parts and batches of a few documents."""
    part_bytes(400)
    monkeypatch.setattr(collection, "BATCH_BYTES", 4000)


@pytest.fixture
def service(tiny_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    query_vectors = np.random.default_rng(9).standard_normal((QUERIES, 6)).astype(np.float32)
    monkeypatch.setattr(
        vector_index, "open_query_encoder", lambda *_: FixedQueryEncoder(query_vectors)
    )
    service = Service(tmp_path, tiny_model("bert"))
    if SERVER:
        service.client().drop_collection(COLLECTION)
    return service


def singles(rows: int = 120) -> Floats:
    """Vectors, a third of them equal, so that many documents tie."""
    vectors = np.random.default_rng(0).standard_normal((rows, 6)).astype(np.float32)
    vectors[rows // 3 : 2 * rows // 3] = vectors[0]
    return vectors


def several(rows: int = 60) -> Ragged:
    generator = np.random.default_rng(2)
    counts = generator.integers(1, 12, rows)
    return Ragged.of(generator.standard_normal((counts.sum(), 6)).astype(np.float32), counts)


def test_runs_are_those_of_exact_search_ties_and_all(service: Service) -> None:
    service.fill(singles()).build()
    for k in (1, 7, 50, 120, 1000):
        service.same(k)


@pytest.mark.parametrize("unit", ["chunk", "token"])
def test_documents_are_counted_and_scored_by_their_best_vectors(
    service: Service, unit: str
) -> None:
    service.fill(several(), unit).build()
    for k in (1, 7, 60):
        service.same(k)
    service.same(20, aggregate="sum")
    if unit == "chunk":
        service.same(30, level="chunk")


@pytest.mark.parametrize("kind", ["HNSW", "AUTOINDEX"])
def test_scores_of_approximate_kinds_are_exact(service: Service, kind: Any) -> None:
    service.settings = replace(service.settings, index_type=kind)
    service.fill(singles()).build()
    service.same(120)
    if kind == "HNSW":
        found = service.search(service.index, 5, ef_search=200)
        assert found == service.search(service.vectors, 5)


def test_a_tie_beyond_the_limit_of_milvus_is_searched_exactly(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "MOST", 40)
    vectors = singles(240)
    vectors[:] = vectors[0]  # all 240 tie, and the run has those with the last ids
    service.fill(vectors).build()
    service.same(5)


def test_a_vector_is_stored_with_its_document_and_chunk(service: Service) -> None:
    service.fill(several(8), "chunk").build()
    rows_by_number, vectors = service.contents(), Vectors(service.vectors)
    rows = range(vectors.rows)
    wanted = []
    for row, doc in zip(rows, vectors.docs(np.array(rows)), strict=True):
        docs_vectors = vectors.at(np.array([row])).vectors
        for chunk, (begin, end) in enumerate(vectors.spans(row).tolist()):
            wanted.append(
                (doc.id, chunk, begin, end, doc.content[begin:end], docs_vectors[chunk].tolist())
            )
    names = ("id", "chunk", "begin", "end", "text", "vector")
    assert [
        tuple(rows_by_number[n][name] for name in names) for n in sorted(rows_by_number)
    ] == wanted
    assert sorted(rows_by_number) == list(range(vectors.total))


def test_long_texts_are_cut_between_characters() -> None:
    assert collection._cut("short") == "short"
    assert collection._cut("a" * 70_000) == "a" * 65_535
    assert collection._cut("é" * 40_000) == "é" * 32_767
    assert collection._cut("\ud800") == "?"


def test_the_same_command_again_writes_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = service.fill(singles()).build()
    monkeypatch.setattr(collection.MilvusCollection, "write", None)
    assert service.build() == built
    assert service.update() == "already up to date"
    assert (built.facts["rows"], built.facts["dim"]) == (120, 6)


def _load(root: Path, model: Path, batches: int, after: float) -> None:
    """Build the index in this process, which is killed `after` seconds into the batch after `batches`.

    It records the number of vectors that it finds in the collection. Batches are counted instead of seconds,
    so that a busy machine comes equally far.
    """
    collection.BATCH_BYTES = 2000
    write, upsert, left = (
        collection.MilvusCollection.write,
        pymilvus.MilvusClient.upsert,
        iter(range(batches)),
    )

    def recorded_write(self: Any, *given: Any) -> None:
        with open(root / "found", "a") as file:
            file.write(f"{self.count()}\n")
        write(self, *given)

    def killed_upsert(self: Any, *given: Any, **more: Any) -> Any:
        if next(left, None) is None:
            threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return upsert(self, *given, **more)

    collection.MilvusCollection.write = recorded_write  # type: ignore[method-assign]
    pymilvus.MilvusClient.upsert = killed_upsert
    Service(root, model).build()
    os._exit(0)


@pytest.mark.slow
def test_a_build_that_is_killed_ten_times_loses_and_repeats_no_vector(
    service: Service, tiny_model: Models
) -> None:
    vectors = np.random.default_rng(0).standard_normal((4000, 6)).astype(np.float32)
    service.fill(vectors)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "lmkcli.retrieval.vectors.vector_index"])
    rng = random.Random(0)
    kills = [(rng.randint(0, 6), rng.uniform(0, 0.02)) for _ in range(10)]
    for batches, after in [*kills, (sys.maxsize, 0.0)]:
        words = (service.root, tiny_model("bert"), batches, after)
        child = context.Process(target=_load, args=words)
        child.start()
        child.join()
        assert child.exitcode == (0 if batches == sys.maxsize else -signal.SIGKILL)
    found = [int(line) for line in (service.root / "found").read_text().split()]
    assert found == sorted(found)
    assert len({count for count in found if 0 < count < 4000}) >= 5
    rows_by_number = service.contents()
    assert sorted(rows_by_number) == list(range(4000))
    wanted = Vectors(service.vectors).at(np.arange(4000)).vectors
    np.testing.assert_array_equal(
        [rows_by_number[number]["vector"] for number in range(4000)], wanted
    )
    service.same(10)


def test_batches_of_an_interrupted_build_are_not_written_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.fill(singles())
    written = stop_after(4, monkeypatch)
    with pytest.raises(DataError, match="stopped"):
        service.build()
    first = list(written)
    monkeypatch.undo()
    monkeypatch.setattr(collection, "BATCH_BYTES", 4000)
    again = stop_after(10**9, monkeypatch)
    service.build()
    assert first + again == list(range(120))
    assert sorted(service.contents()) == list(range(120))


def stop_after(batches: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make writing fail after some batches. The returned list collects the numbers that are written."""
    written: list[int] = []
    upsert, left = pymilvus.MilvusClient.upsert, iter(range(batches))

    def counted(self: Any, name: str, rows: list[dict[str, Any]]) -> Any:
        if next(left, None) is None:
            raise pymilvus.MilvusException(message="stopped")
        written.extend(row["number"] for row in rows)
        return upsert(self, name, rows)

    monkeypatch.setattr(pymilvus.MilvusClient, "upsert", counted)
    return written


def test_removed_vectors_are_noticed_and_written_again(service: Service) -> None:
    service.fill(singles()).build()
    service.client().delete(COLLECTION, ids=[3, 50])
    with pytest.raises(Mismatch, match=r"118 of 120 .* --if-exists update"):
        service.search(service.index, 5)
    assert service.update().startswith("built again")
    service.same(120)


# --- updates --------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["doc", "chunk"])
def test_an_update_writes_new_vectors_and_removes_deleted_ones(service: Service, unit: str) -> None:
    service.fill(singles() if unit == "doc" else several(), unit)
    parts = len(Vectors(service.vectors).slices)
    everything = Vectors(service.vectors).slices
    service.drop([], kept=range(parts - 2))
    service.build()
    before = Vectors(service.vectors)
    now = [*before.slices[1:], *everything[parts - 2 :]]  # one part is removed, two are added
    vector_updates.publish_generation(
        service.vectors, Generation(0, ORIGIN, before.slices, 0), Generation(0, ORIGIN, now, 0)
    )
    service.drop([0, 5])
    vectors = Vectors(service.vectors)
    fresh = sum(vectors.part_totals()[-2:])
    deleted = before.total + fresh - vectors.total
    assert service.update() == f"{fresh} vectors written, {deleted} are deleted"
    assert len(service.contents()) == vectors.total
    assert service.update() == "already up to date"
    for k in (1, 20, 200):
        service.same(k)


@pytest.mark.parametrize("step", ["delete", "write_state"])
def test_an_interrupted_update_can_be_searched_and_continued(
    service: Service, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    service.fill(singles()).build()
    service.drop([4, 44, 100])

    def stopped(*_: Any) -> None:
        raise DataError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(collection.MilvusCollection, step, stopped)
        with pytest.raises(DataError, match="stopped"):
            service.update()
    if step == "delete":  # the index has the update already
        service.same(120)
    service.update()
    service.same(120)
    assert len(service.contents()) == 117


def test_vectors_of_an_abandoned_update_are_removed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.fill(singles())
    everything = Vectors(service.vectors).slices
    service.drop([], kept=range(len(everything) - 3))
    service.build()
    before = Vectors(service.vectors).slices
    last = everything[-1:]

    def publish(slices: list[PartSlice]) -> None:
        then = Vectors(service.vectors).slices
        vector_updates.publish_generation(
            service.vectors, Generation(0, ORIGIN, then, 0), Generation(0, ORIGIN, slices, 0)
        )

    publish([*before, *everything[-3:-1]])
    with monkeypatch.context() as patch:
        patch.setattr(index_job, "write_record", None)
        with pytest.raises(TypeError):
            service.update()
    publish([*before, *last])
    service.update()
    vectors = Vectors(service.vectors)
    assert sorted(service.contents()) == list(range(vectors.total))
    service.same(200)


# --- errors ------------------------------------------------------------------------------


def test_a_collection_of_another_program_is_not_changed(service: Service) -> None:
    service.client().create_collection(COLLECTION, dimension=3)
    service.client().insert(COLLECTION, [{"id": 1, "vector": [1.0, 2.0, 3.0]}])
    service.fill(singles())
    with pytest.raises(DataError, match=f"collection {COLLECTION}"):
        service.build()
    with pytest.raises(DataError, match=f"collection {COLLECTION}"):
        service.job(overwrite=True)
    assert service.client().get(COLLECTION, [1], consistency_level="Strong")
    assert not service.index.exists()


def test_a_collection_of_other_vectors_is_replaced_only_on_request(
    service: Service, tmp_path: Path
) -> None:
    service.fill(singles()).build()
    other = Service(tmp_path / "other", service.model)
    other.settings = service.settings
    other.fill(singles(30))
    with pytest.raises(Mismatch, match=r"other vectors than .*--if-exists overwrite"):
        other.build()
    with pytest.raises(Mismatch, match="another way"):
        other.job(index_type="HNSW")
    other.job(overwrite=True).build()
    other.same(30)
    with pytest.raises(Mismatch, match=r"index was built from"):
        service.search(service.index, 5)
    service.drop([1])
    with pytest.raises(Mismatch, match=r"other vectors .*index"):
        service.update()


def test_a_missing_collection_is_named_and_built_again(service: Service) -> None:
    service.fill(singles()).build()
    service.client().drop_collection(COLLECTION)
    with pytest.raises(Mismatch, match=rf"collection {COLLECTION} .*index command"):
        service.search(service.index, 5)
    assert service.update().startswith("built again")
    service.same(120)


def open_moved(service: Service, uri: str, settings: OpenSettings) -> None:
    """Open the index with another address in its manifest."""
    recorded = manifest.read(service.index, IndexManifest).identity.settings
    moved = Milvus.recorded({**recorded, "uri": uri}, service.index)
    moved.open(service.index, Vectors(service.vectors), 120, settings)


@lite_only
@pytest.mark.parametrize("kind", ["FLAT", "HNSW"])
def test_half_of_an_index_of_milvus_lite_is_built_again(service: Service, kind: str) -> None:
    """Milvus Lite leaves such a file when it is killed."""
    service.settings = replace(service.settings, index_type=kind)
    service.fill(singles()).build()
    service.same(120)
    (path,) = Path(service.settings.uri).glob("collections/*/partitions/*/indexes/*.idx")
    whole = path.read_bytes()
    for left in (b"", whole[: len(whole) // 2]):
        service.client().release_collection(COLLECTION)
        path.write_bytes(left)
        service.same(120)
        assert len(path.read_bytes()) == len(whole)


@lite_only
def test_no_index_behind_a_link_is_removed(service: Service) -> None:
    service.fill(singles()).build()
    (path,) = Path(service.settings.uri).glob("collections/*/partitions/*/indexes/*.idx")
    service.client().release_collection(COLLECTION)
    path.write_bytes(b"")
    path.parent.rename(service.root / "elsewhere")
    path.parent.symlink_to(service.root / "elsewhere")
    with pytest.raises(DataError, match="refused a request"):
        service.search(service.index, 10)
    assert path.exists()


@lite_only
def test_a_creation_that_a_full_disk_interrupted_is_repeated(service: Service) -> None:
    service.fill(singles())
    fragment = Path(service.settings.uri) / "collections" / COLLECTION
    fragment.mkdir(parents=True)
    (fragment / "schema.json.tmp").write_text("{")
    service.build()
    service.same(10)


def test_a_file_that_was_moved_is_found_with_uri(service: Service) -> None:
    service.fill(singles()).build()
    with pytest.raises(DataError, match=r"gone.db; .*--uri"):
        open_moved(service, "../gone.db", CPU)
    assert not (service.root / "gone.db").exists()
    open_moved(service, "../gone.db", replace(CPU, uri=service.settings.uri))


@pytest.mark.parametrize(
    ("uri", "local"),
    [
        ("./milvus.db", True),
        ("http://localhost:19530", True),
        ("http://127.0.0.1:19530", True),
        ("http://[::1]:19530", True),
        ("http://127.0.0.1.example.org", False),
        ("https://example.org", False),
        ("http://10.0.0.1:19530", False),
    ],
)
def test_local_addresses(uri: str, local: bool) -> None:
    assert network.is_local(uri) == local


def test_another_server_is_contacted_only_if_the_user_names_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.fill(singles()).build()
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    connections: list[tuple[str, str]] = []

    def connect(settings: MilvusSettings, token: str) -> Any:
        connections.append((settings.uri, token))
        raise DataError("no server")

    monkeypatch.setenv("LMK_MILVUS_TOKEN", "secret")
    monkeypatch.setattr(collection.MilvusCollection, "connect", connect)
    far = "http://far.example:19530"
    with pytest.raises(DataError, match=r"--uri http://far.example:19530"):
        open_moved(service, far, CPU)
    assert connections == []
    with pytest.raises(DataError, match="no server"):
        open_moved(service, far, replace(CPU, uri=far))
    with pytest.raises(DataError, match="no server"):
        open_moved(service, "http://localhost:1", CPU)
    assert connections == [("http://far.example:19530", "secret"), ("http://localhost:1", "")]


def test_offline_contacts_no_other_machine(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    service.fill(singles(5))
    with pytest.raises(DataError, match="forbids the network"):
        service.job(uri="http://far.example:19530")


@pytest.mark.parametrize(
    ("uri", "message"),
    [("http://127.0.0.1:9", "no Milvus answers"), ("no/folder/milvus.db", "folder does not exist")],
)
def test_a_milvus_that_cannot_be_reached(service: Service, uri: str, message: str) -> None:
    service.settings = replace(service.settings, uri=uri)
    with pytest.raises(DataError, match=message):
        service.fill(singles(5)).build()
    assert not service.index.exists()


@lite_only
def test_a_file_of_another_format(service: Service, tmp_path: Path) -> None:
    (tmp_path / "milvus.db").write_text("something else")
    with pytest.raises(DataError, match="Milvus Lite cannot open it"):
        service.fill(singles(5)).build()


@pytest.mark.parametrize(
    "value",
    ["null", *(pytest.param(each, marks=lite_only) for each in ("[]", "{}", '{"made": 1}', "x"))],
)
def test_a_collection_with_an_invalid_mark_is_of_another_program(
    service: Service, value: str
) -> None:
    service.fill(singles(5)).build()
    service.client().alter_collection_properties(COLLECTION, {"lmk": value})
    with pytest.raises(DataError, match="lmk did not make"):
        service.search(service.index, 5)


def test_the_mark_identifies_the_vectors(service: Service) -> None:
    service.fill(singles(5)).build()
    properties = service.client().describe_collection(COLLECTION)["properties"]
    mark = CollectionState(**json.loads(properties["lmk"]))
    assert (mark.holds, mark.becomes) == (Vectors(service.vectors).digest(), "")


@pytest.mark.parametrize("name", ["1st", "a-b", "a b", "x" * 256, "é"])
def test_names_that_milvus_refuses(name: str) -> None:
    with pytest.raises(UsageError, match="letters, digits and underscores"):
        MilvusSettings(uri="x.db", collection=name)


@lite_only
@pytest.mark.parametrize("setting", [{"nprobe": 3}, {"ef_search": 3}])
def test_settings_without_an_effect(service: Service, setting: dict[str, int]) -> None:
    service.fill(singles(5)).build()
    with pytest.raises(UsageError, match="no effect"):
        service.search(service.index, 5, **setting)
