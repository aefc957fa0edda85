"""Indexes in a vector database: Milvus Lite for real, compared with exact search over the same vectors.

With LMK_TEST_MILVUS a server at that address is asked instead, see test_milvus_server.py.
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

from lmkcli import manifest
from lmkcli.data.collection import Query
from lmkcli.data.run import Run
from lmkcli.encoding import updating
from lmkcli.errors import DataError, Mismatch, UsageError
from lmkcli.manifest import Manifest
from lmkcli.retrieval import database, dense
from lmkcli.retrieval.database import build_database, is_local, reserve, update_database
from lmkcli.retrieval.kinds import Mark
from lmkcli.retrieval.opening import open_index
from lmkcli.settings import MilvusSettings, OpenSettings
from lmkcli.store import part_writer
from lmkcli.store.parts import Generation, PartSlice
from lmkcli.store.ragged import Ragged
from lmkcli.store.vectors import Vectors
from tests.retrieval.test_opening import Asked, Made

pytest.importorskip("milvus_lite")
pymilvus = pytest.importorskip("pymilvus")

from lmkcli.retrieval.indexes import milvus  # noqa: E402

Models = Callable[[str], Path]
Floats = NDArray[np.float32]
CPU = OpenSettings(device="cpu", dtype="fp32")
ASKED = 4
SERVER = os.environ.get("LMK_TEST_MILVUS", "")
of_a_file = pytest.mark.skipif(bool(SERVER), reason="it is about the file of Milvus Lite")


class Service:
    """A vectors folder, an index of it in Milvus, and queries to both."""

    def __init__(self, root: Path, model: Path) -> None:
        self.root, self.model = root, model
        self.vectors, self.index = root / "vectors", root / "index"
        self.settings = MilvusSettings(
            uri=SERVER or str(root / "milvus.db"), collection="docs", index_type="FLAT"
        )

    def fill(self, vectors: Floats | Ragged, unit: str = "doc") -> "Service":
        rows = len(vectors.counts) if isinstance(vectors, Ragged) else len(vectors)
        ids = [f"d{number:03d}" for number in np.random.default_rng(1).permutation(rows)]
        Made(self.vectors, self.model, "fp16").unit(unit).fill(ids, vectors)
        return self

    def build(self) -> dict[str, Any]:
        return build_database(Vectors(self.vectors), self.index, self.settings)

    def update(self) -> str:
        return update_database(Vectors(self.vectors), self.index, self.settings).how

    def client(self) -> Any:
        return pymilvus.MilvusClient(self.settings.uri)

    def held(self) -> dict[int, dict[str, Any]]:
        """All that the collection holds, by number, read without lmk; a number that is there twice fails."""
        client = self.client()
        client.load_collection("docs")
        found = client.query("docs", filter="number >= 0", output_fields=["*"])
        assert len({row["number"] for row in found}) == len(found)
        return {row["number"]: dict(row) for row in found}

    def same(self, k: int, **settings: Any) -> None:
        """A search through the collection makes the run that exact search makes."""
        assert self.search(self.index, k, **settings) == self.search(self.vectors, k, **settings)

    def search(self, folder: Path, k: int, **settings: Any) -> dict[str, Any]:
        queries = [Query(f"q{number}", str(number)) for number in range(ASKED)]
        run: Run = open_index(folder, replace(CPU, **settings)).search(queries, k)
        return {name: (each.doc_ids, each.scores.tolist()) for name, each in run.rankings.items()}

    def drop(self, dead: Sequence[int], kept: Sequence[int] = ()) -> None:
        """Let rows be dead as an update does; with `kept`, these parts alone are there."""
        now = Vectors(self.vectors)
        slices, first = [], 0
        for number, piece in enumerate(now.slices):
            alive = ~np.isin(np.arange(first, first + piece.rows), dead)
            first += piece.rows
            if alive.any() and (not kept or number in kept):
                slices.append(PartSlice.of(piece.name, alive))
        updating._publish(
            self.vectors, Generation(0, {}, now.slices, 0), Generation(0, {}, slices, 0)
        )


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts and batches of a few documents."""
    monkeypatch.setattr(part_writer, "PART_BYTES", 400)
    monkeypatch.setattr(milvus, "BATCH_BYTES", 4000)


@pytest.fixture
def service(tiny_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    asked = np.random.default_rng(9).standard_normal((ASKED, 6)).astype(np.float32)
    monkeypatch.setattr(dense, "open_query_encoder", lambda *_: Asked(asked))
    service = Service(tmp_path, tiny_model("bert"))
    if SERVER:
        service.client().drop_collection("docs")
    return service


def singles(rows: int = 120) -> Floats:
    """Vectors of which a third are the same, so that many documents tie."""
    made = np.random.default_rng(0).standard_normal((rows, 6)).astype(np.float32)
    made[rows // 3 : 2 * rows // 3] = made[0]
    return made


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


def test_a_tie_that_goes_on_beyond_what_is_fetched_is_followed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus, "MOST", 40)
    made = singles(240)
    made[:] = made[0]  # any 5 of 240 are as good, and the run wants those with the last ids
    service.fill(made).build()
    service.same(5)


def test_what_a_vector_is_of_stands_beside_it(service: Service) -> None:
    service.fill(several(8), "chunk").build()
    held, vectors = service.held(), Vectors(service.vectors)
    rows = range(vectors.rows)
    wanted = []
    for row, doc in zip(rows, vectors.docs(np.array(rows)), strict=True):
        of = vectors.at(np.array([row])).vectors
        for chunk, (begin, end) in enumerate(vectors.spans(row).tolist()):
            wanted.append((doc.id, chunk, begin, end, doc.content[begin:end], of[chunk].tolist()))
    names = ("id", "chunk", "begin", "end", "text", "vector")
    assert [tuple(held[n][name] for name in names) for n in sorted(held)] == wanted
    assert sorted(held) == list(range(vectors.total))


def test_texts_longer_than_milvus_holds_are_cut_between_characters() -> None:
    assert milvus._cut("short") == "short"
    assert milvus._cut("a" * 70_000) == "a" * 65_535
    assert milvus._cut("é" * 40_000) == "é" * 32_767
    assert milvus._cut("\ud800") == "?"


def test_the_same_command_again_writes_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = service.fill(singles()).build()
    monkeypatch.setattr(milvus.Milvus, "write", None)
    assert service.build() == built
    assert service.update() == "it is up to date already"
    assert (built["rows"], built["dim"]) == (120, 6)


def _load(root: Path, model: Path, batches: int, after: float) -> None:
    """Load in this process, which is killed some seconds after it began to write its next batch.

    What it finds in the collection is written down. It counts batches and not seconds from the start, so
    that it comes as far on a busy machine as on any other.
    """
    milvus.BATCH_BYTES = 2000
    write, upsert, left = milvus.Milvus.write, pymilvus.MilvusClient.upsert, iter(range(batches))

    def noted(self: Any, *given: Any) -> None:
        with open(root / "found", "a") as file:
            file.write(f"{self.count()}\n")
        write(self, *given)

    def killed(self: Any, *given: Any, **more: Any) -> Any:
        if next(left, None) is None:
            threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return upsert(self, *given, **more)

    milvus.Milvus.write = noted  # type: ignore[method-assign]
    pymilvus.MilvusClient.upsert = killed
    Service(root, model).build()
    os._exit(0)


@pytest.mark.slow
def test_a_loader_that_is_killed_ten_times_loses_and_doubles_nothing(
    service: Service, tiny_model: Models
) -> None:
    made = np.random.default_rng(0).standard_normal((4000, 6)).astype(np.float32)
    service.fill(made)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "lmkcli.retrieval.dense"])
    drawn = random.Random(0)
    lives = [(drawn.randint(0, 6), drawn.uniform(0, 0.02)) for _ in range(10)]
    for batches, after in [*lives, (sys.maxsize, 0.0)]:
        words = (service.root, tiny_model("bert"), batches, after)
        child = context.Process(target=_load, args=words)
        child.start()
        child.join()
        assert child.exitcode == (0 if batches == sys.maxsize else -signal.SIGKILL)
    found = [int(line) for line in (service.root / "found").read_text().split()]
    assert found == sorted(found)
    assert len({count for count in found if 0 < count < 4000}) >= 5
    held = service.held()
    assert sorted(held) == list(range(4000))
    wanted = Vectors(service.vectors).at(np.arange(4000)).vectors
    np.testing.assert_array_equal([held[number]["vector"] for number in range(4000)], wanted)
    service.same(10)


def test_what_an_earlier_life_wrote_is_left_out(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.fill(singles())
    written = stop_after(4, monkeypatch)
    with pytest.raises(DataError, match="stopped"):
        service.build()
    first = list(written)
    monkeypatch.undo()
    monkeypatch.setattr(milvus, "BATCH_BYTES", 4000)
    again = stop_after(10**9, monkeypatch)
    service.build()
    assert first + again == list(range(120))
    assert sorted(service.held()) == list(range(120))


def stop_after(batches: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let writing fail after some batches; returns the numbers that were written, as they come."""
    written: list[int] = []
    upsert, left = pymilvus.MilvusClient.upsert, iter(range(batches))

    def counted(self: Any, name: str, rows: list[dict[str, Any]]) -> Any:
        if next(left, None) is None:
            raise pymilvus.MilvusException(message="stopped")
        written.extend(row["number"] for row in rows)
        return upsert(self, name, rows)

    monkeypatch.setattr(pymilvus.MilvusClient, "upsert", counted)
    return written


def test_vectors_that_somebody_removed_are_noticed_and_written_again(service: Service) -> None:
    service.fill(singles()).build()
    service.client().delete("docs", ids=[3, 50])
    with pytest.raises(Mismatch, match=r"holds 118 of 120 vectors; bring .* --if-exists update"):
        service.search(service.index, 5)
    assert service.update() == "built again: vectors were missing from the collection"
    service.same(120)


# --- updates --------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["doc", "chunk"])
def test_an_update_writes_what_is_new_and_removes_what_is_gone(service: Service, unit: str) -> None:
    service.fill(singles() if unit == "doc" else several(), unit)
    parts = len(Vectors(service.vectors).slices)
    everything = Vectors(service.vectors).slices
    service.drop([], kept=range(parts - 2))
    service.build()
    before = Vectors(service.vectors)
    now = [*before.slices[1:], *everything[parts - 2 :]]  # a part goes, two come
    updating._publish(
        service.vectors, Generation(0, {}, before.slices, 0), Generation(0, {}, now, 0)
    )
    service.drop([0, 5])
    vectors = Vectors(service.vectors)
    fresh = sum(vectors.part_totals()[-2:])
    gone = before.total + fresh - vectors.total
    assert service.update() == f"{fresh} vectors written, {gone} are deleted"
    assert len(service.held()) == vectors.total
    assert service.update() == "it is up to date already"
    for k in (1, 20, 200):
        service.same(k)


@pytest.mark.parametrize("step", ["delete", "write_mark"])
def test_an_update_that_is_stopped_is_searched_and_goes_on(
    service: Service, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    service.fill(singles()).build()
    service.drop([4, 44, 100])

    def stopped(*_: Any) -> None:
        raise DataError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(milvus.Milvus, step, stopped)
        with pytest.raises(DataError, match="stopped"):
            service.update()
    if step == "delete":  # it counts already
        service.same(120)
    service.update()
    service.same(120)
    assert len(service.held()) == 117


def test_an_update_that_was_given_up_leaves_nothing_behind(
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
        updating._publish(service.vectors, Generation(0, {}, then, 0), Generation(0, {}, slices, 0))

    publish([*before, *everything[-3:-1]])
    with monkeypatch.context() as patch:
        patch.setattr(database, "write_built", None)
        with pytest.raises(TypeError):
            service.update()
    publish([*before, *last])
    service.update()
    vectors = Vectors(service.vectors)
    assert sorted(service.held()) == list(range(vectors.total))
    service.same(200)


# --- what is refused ------------------------------------------------------------------------------


def test_a_collection_that_lmk_did_not_make_stays(service: Service) -> None:
    service.client().create_collection("docs", dimension=3)
    service.client().insert("docs", [{"id": 1, "vector": [1.0, 2.0, 3.0]}])
    service.fill(singles())
    with pytest.raises(DataError, match="lmk did not make the collection docs"):
        service.build()
    with pytest.raises(DataError, match="lmk did not make the collection docs"):
        reserve(Vectors(service.vectors), service.settings, replaces=True)
    assert service.client().get("docs", [1], consistency_level="Strong")
    assert not service.index.exists()


def test_a_collection_of_other_vectors_is_replaced_only_when_asked(
    service: Service, tmp_path: Path
) -> None:
    service.fill(singles()).build()
    other = Service(tmp_path / "other", service.model)
    other.settings = service.settings
    other.fill(singles(30))
    with pytest.raises(Mismatch, match=r"other vectors than .*--if-exists overwrite"):
        other.build()
    hnsw = replace(service.settings, index_type="HNSW")
    with pytest.raises(Mismatch, match="made or indexed in another way"):
        reserve(Vectors(other.vectors), hnsw, replaces=False)
    reserve(Vectors(other.vectors), hnsw, replaces=True).drop()
    other.build()
    other.same(30)
    with pytest.raises(Mismatch, match=r"does not hold the vectors that .*index was built from"):
        service.search(service.index, 5)
    service.drop([1])
    with pytest.raises(Mismatch, match=r"other vectors than .*index was built from"):
        service.update()


def test_a_collection_that_is_gone_is_said_to_be_and_made_again(service: Service) -> None:
    service.fill(singles()).build()
    service.client().drop_collection("docs")
    with pytest.raises(Mismatch, match=r"collection docs is not there; bring .*index up to date"):
        service.search(service.index, 5)
    assert service.update().startswith("built again")
    service.same(120)


def moved(service: Service, uri: str) -> tuple[Path, Manifest, Vectors, int]:
    """The index with another place in its manifest, as `open_database` is given it."""
    recorded = manifest.read(service.index)
    settings = {**recorded.identity["settings"], "uri": uri}
    changed = replace(recorded, identity={**recorded.identity, "settings": settings})
    return service.index, changed, Vectors(service.vectors), 120


@of_a_file
def test_a_file_that_was_moved_is_found_with_uri(service: Service) -> None:
    service.fill(singles()).build()
    gone = moved(service, "../gone.db")
    with pytest.raises(DataError, match=r"are not at .*gone.db; say where with --uri"):
        database.open_database(*gone, CPU)
    assert not (service.root / "gone.db").exists()
    database.open_database(*gone, replace(CPU, uri=service.settings.uri))


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
def test_what_is_on_this_machine(uri: str, local: bool) -> None:
    assert is_local(uri) == local


def test_a_server_elsewhere_is_asked_only_where_it_is_named(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.fill(singles()).build()
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    asked: list[tuple[str, str]] = []

    def connect(settings: MilvusSettings, token: str) -> Any:
        asked.append((settings.uri, token))
        raise DataError("nobody there")

    monkeypatch.setenv("LMK_MILVUS_TOKEN", "secret")
    monkeypatch.setattr(milvus.Milvus, "connect", connect)
    far = moved(service, "http://far.example:19530")
    with pytest.raises(DataError, match=r"if you trust it, add --uri http://far.example:19530"):
        database.open_database(*far, CPU)
    assert asked == []
    with pytest.raises(DataError, match="nobody there"):
        database.open_database(*far, replace(CPU, uri="http://far.example:19530"))
    with pytest.raises(DataError, match="nobody there"):
        database.open_database(*moved(service, "http://localhost:1"), CPU)
    assert asked == [("http://far.example:19530", "secret"), ("http://localhost:1", "")]


def test_offline_asks_nobody_elsewhere(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    elsewhere = replace(service.settings, uri="http://far.example:19530")
    with pytest.raises(DataError, match="network is not to be used"):
        reserve(Vectors(service.fill(singles(5)).vectors), elsewhere, replaces=False)


@pytest.mark.parametrize(
    ("uri", "said"),
    [("http://127.0.0.1:9", "no Milvus answers there"), ("no/folder/milvus.db", "no such folder")],
)
def test_a_milvus_that_cannot_be_reached(service: Service, uri: str, said: str) -> None:
    service.settings = replace(service.settings, uri=uri)
    with pytest.raises(DataError, match=said):
        service.fill(singles(5)).build()
    assert not service.index.exists()


@of_a_file
def test_a_file_that_is_none_of_milvus_lite(service: Service, tmp_path: Path) -> None:
    (tmp_path / "milvus.db").write_text("something else")
    with pytest.raises(DataError, match="Milvus Lite cannot open it"):
        service.fill(singles(5)).build()


@pytest.mark.parametrize("held", ["null", "[]", "{}", '{"made": 1}', "x"])
def test_a_mark_that_cannot_be_read_is_not_lmks(service: Service, held: str) -> None:
    service.fill(singles(5)).build()
    service.client().alter_collection_properties("docs", {"lmk": held})
    with pytest.raises(DataError, match="lmk did not make"):
        service.search(service.index, 5)


def test_the_mark_says_what_is_held(service: Service) -> None:
    service.fill(singles(5)).build()
    properties = service.client().describe_collection("docs")["properties"]
    mark = Mark(**json.loads(properties["lmk"]))
    assert (mark.holds, mark.becomes) == (Vectors(service.vectors).digest(), "")


@pytest.mark.parametrize("name", ["1st", "a-b", "a b", "x" * 256, "é"])
def test_names_that_milvus_does_not_take(name: str) -> None:
    with pytest.raises(UsageError, match="letters, digits and underscores"):
        MilvusSettings(uri="x.db", collection=name)


@pytest.mark.parametrize("setting", [{"nprobe": 3}, {"ef_search": 3}])
def test_settings_without_an_effect(service: Service, setting: dict[str, int]) -> None:
    service.fill(singles(5)).build()
    with pytest.raises(UsageError, match="has no effect on a collection"):
        service.search(service.index, 5, **setting)
