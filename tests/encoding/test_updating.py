"""Updates: only what changed is encoded, one generation counts at a time, and nothing can be lost."""

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lmkcli.data.collection import WHOLE, Collection, CountedDocs, Doc, DocStream, Query, Shard
from lmkcli.data.digest import doc_hash
from lmkcli.encoding import jobs, planning, updating
from lmkcli.encoding.encoder import Encoded
from lmkcli.encoding.planning import Job
from lmkcli.encoding.resolving import resolve
from lmkcli.encoding.updating import Compacted, Updated, compact, run_update
from lmkcli.errors import DataError, Mismatch, Stopped, UsageError
from lmkcli.progress import Report
from lmkcli.recipe import RecipeOptions
from lmkcli.retrieval import building, dense, index_folder
from lmkcli.retrieval.building import build_dense
from lmkcli.retrieval.opening import open_index
from lmkcli.retrieval.updating import update_dense, update_lexical
from lmkcli.settings import AnnSettings, EncodeSettings, OpenSettings
from lmkcli.store import part_folders, part_writer, parts, tokens
from lmkcli.store.ragged import Ragged
from lmkcli.store.tokens import TokenRow
from lmkcli.store.vectors import Vectors
from lmkcli.system import locking
from tests import forked, tiny
from tests.test_kill import PRELOAD, Machine, Step, last_moment

Models = Callable[[str], Path]
Floats = NDArray[np.float32]
Texts = dict[str, str]
EXACT = EncodeSettings(dtype="fp32", store_dtype="fp32", device="cpu")


# --- with a model's stand-in: vectors from a table -------------------------------------------------


class Given(Collection):
    """Documents in memory; the text is the number of a vector."""

    name, settings = "given", {}

    def __init__(self, docs: dict[str, int]) -> None:
        self._docs = [Doc(name, str(number)) for name, number in docs.items()]

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        assert shard == WHOLE
        return CountedDocs(lambda: iter(self._docs), len(self._docs))

    def queries(self) -> Iterator[Query]:
        raise NotImplementedError

    qrels = queries  # type: ignore[assignment]

    def stamp(self) -> dict[str, list[int]]:
        return {"given": [len(self._docs), hash(tuple(self._docs))]}


class Table:
    """Stands in for an encoder: text 'i' has vector i. Counts what it encodes."""

    buffer_tokens, spans, contexts = 1, False, False
    model = SimpleNamespace(dtype="fp32", packed=False, device="cpu", why_padded="")

    def __init__(self, vectors: Floats) -> None:
        self.vectors, self.dim = vectors, vectors.shape[1]
        self.encoded = 0

    def tokenizer(self, texts: list[str]) -> list[Any]:
        none = np.zeros(0, np.int32)
        return [(np.ones(9, np.int32), np.zeros((9, 2), np.int32), none, None) for _ in texts]

    def __call__(self, rows: list[TokenRow], report: Any) -> Encoded:
        report.check_stop()
        self.encoded += len(rows)
        vectors = self.vectors[[int(row.doc.text) for row in rows]]
        return Encoded(Ragged.single(vectors), [9] * len(rows))

    def queries(self, queries: list[Query]) -> Ragged:
        return Ragged.single(self.vectors[[int(query.text) for query in queries]])


class Folder:
    """A vectors folder that follows a collection in memory."""

    def __init__(self, path: Path, model: Path, table: Table) -> None:
        self.path, self.table = path, table
        self._resolved = resolve(RecipeOptions(model=str(model)))

    def update(self, docs: dict[str, int], stopping: Callable[[], bool] = lambda: False) -> Updated:
        return run_update(self.job(docs), self.path, Report(stopping=stopping))

    def job(self, docs: dict[str, int], shard: Shard = WHOLE) -> Job:
        return Job(Given(docs), self._resolved, EXACT, shard)

    def holds(self) -> dict[str, int]:
        """Every document with the number of its vector, read in all the ways that there are."""
        found = Vectors(self.path)
        rows = np.arange(found.rows)
        docs = found.docs(rows)
        numbers = {doc.id: int(doc.text) for doc in docs}
        wanted = self.table.vectors[list(numbers.values())]
        assert len(numbers) == found.rows == found.counts().docs == found.counts().vectors
        np.testing.assert_array_equal(
            np.concatenate([wanted[:0], *(b.vectors for b in found)]), wanted
        )
        np.testing.assert_array_equal(found.at(rows[::-1]).vectors, wanted[::-1])
        assert found.ids(rows[:5]) == found.ids(rows)[:5] == list(numbers)[:5]
        assert found.numbers() == {name: row for row, name in enumerate(numbers)}
        assert found.by_ids(list(numbers)[3:6]) == docs[3:6]
        assert found.collection_digest() == digest(docs)
        return numbers


def digest(docs: list[Doc]) -> str:
    made = part_writer.CollectionDigest()
    for doc in docs:
        made.add(doc_hash(doc))
    return str(made)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of about ten documents, read a few at a time."""
    monkeypatch.setattr(part_writer, "PART_BYTES", 10 * 4 * 16)
    monkeypatch.setattr(updating, "READ_CHARACTERS", 500)
    monkeypatch.setattr(tokens, "BATCH_CHARACTERS", 500)


@pytest.fixture
def folder(
    tiny_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: None
) -> Folder:
    vectors = np.random.default_rng(3).standard_normal((6000, 16)).astype(np.float32)
    table = Table(vectors)
    monkeypatch.setattr(updating, "open_encoder", lambda *_: table)
    monkeypatch.setattr(jobs, "open_encoder", lambda *_: table)
    monkeypatch.setattr(dense, "open_query_encoder", lambda *_: table)
    return Folder(tmp_path / "v", tiny_model("bert"), table)


def docs(first: int, stop: int) -> dict[str, int]:
    return {f"d{number}": number for number in range(first, stop)}


def test_only_new_and_changed_documents_are_encoded(folder: Folder) -> None:
    there = docs(0, 50)
    assert folder.update(there) == Updated(1, 0, 50, 0)
    assert folder.holds() == there
    there = docs(10, 50) | {"d20": 3020, "d60": 60}
    assert folder.update(there) == Updated(2, 39, 2, 11)
    assert folder.holds() == there
    assert folder.table.encoded == 52


def test_an_update_without_a_change_writes_no_part_and_keeps_the_digest(folder: Folder) -> None:
    folder.update(docs(0, 50))
    before, names = Vectors(folder.path).digest(), parts.list_parts(folder.path)
    assert folder.update(dict(reversed(docs(0, 50).items()))) == Updated(1, 50, 0, 0)
    assert Vectors(folder.path).digest() == before
    assert parts.list_parts(folder.path) == names


def test_all_that_was_there_may_go_and_come_back(folder: Folder) -> None:
    folder.update(docs(0, 30))
    assert folder.update(docs(30, 31)) == Updated(2, 0, 1, 30)
    assert folder.holds() == docs(30, 31)
    assert folder.update(docs(0, 31)) == Updated(3, 1, 30, 0)
    assert folder.holds() == docs(0, 31)
    assert folder.table.encoded == 61  # a row that was dead once stays dead: indexes rely on it


def test_an_empty_collection_removes_nothing(folder: Folder) -> None:
    assert folder.update({}) == Updated(1, 0, 0, 0)  # nothing from nothing is no loss
    folder.update(docs(0, 30))
    with pytest.raises(DataError, match="holds no document, and the update would remove all 30"):
        folder.update({})
    assert folder.holds() == docs(0, 30)
    assert folder.update(docs(0, 29)) == Updated(3, 29, 0, 1)


@pytest.mark.parametrize("shards", [1, 3])
def test_what_encode_made_can_be_updated(folder: Folder, shards: int) -> None:
    for number in range(shards):
        job = folder.job(docs(30 * number // shards, 30 * (number + 1) // shards))
        one = Job(Whole(job.source), job.resolved, EXACT, Shard(number, shards))
        jobs.run_encode(one, folder.path)
    assert folder.holds() == docs(0, 30)
    assert folder.update(docs(5, 35)) == Updated(1, 25, 5, 5)
    assert folder.holds() == docs(5, 35)


class Whole(Given):
    """The same documents for whatever shard."""

    def __init__(self, given: Any) -> None:
        self._docs = given._docs

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        return super().docs()

    def stamp(self) -> dict[str, list[int]]:
        return {}


def test_unfinished_shards_are_not_updated(folder: Folder) -> None:
    job = folder.job(docs(0, 5))
    one = Job(Whole(job.source), job.resolved, EXACT, Shard(0, 2))
    jobs.run_encode(one, folder.path)
    with pytest.raises(UsageError, match="finish its 2 shards first"):
        folder.update(docs(0, 9))


def test_a_shard_is_not_updated_alone(folder: Folder) -> None:
    with pytest.raises(UsageError, match="drop --shard"):
        run_update(folder.job({}, Shard(0, 2)), folder.path)


def test_an_id_that_comes_twice_is_refused_also_when_it_is_known(folder: Folder) -> None:
    folder.update(docs(0, 10))
    job = folder.job(docs(0, 10))
    job.source._docs.append(Doc("d3", "3"))  # type: ignore[union-attr]
    with pytest.raises(DataError, match="'d3' occurs twice"):
        run_update(job, folder.path)
    assert folder.holds() == docs(0, 10)


def test_encode_leaves_an_updated_folder_as_it_is(folder: Folder) -> None:
    folder.update(docs(0, 10))
    folder.update(docs(0, 12))
    jobs.run_encode(folder.job(docs(0, 12)), folder.path)
    assert folder.table.encoded == 12
    with pytest.raises(Mismatch, match="has changed since"):
        jobs.run_encode(folder.job(docs(0, 13)), folder.path)


def test_what_a_stopped_update_encoded_counts_for_the_next(folder: Folder) -> None:
    folder.update(docs(0, 20))
    looks = iter([False] * 25)
    with pytest.raises(Stopped):
        folder.update(docs(5, 80), lambda: next(looks, True))
    assert folder.holds() == docs(0, 20)
    encoded = folder.table.encoded
    assert 20 < encoded < 80
    assert folder.update(docs(5, 80)) == Updated(2, 15, 60, 5)
    assert folder.holds() == docs(5, 80)
    assert folder.table.encoded == 80
    before = folder.table.encoded
    looks = iter([False] * 25)
    with pytest.raises(Stopped):
        folder.update(docs(0, 200), lambda: next(looks, True))
    folder.update(docs(5, 80) | {"d100": 4000})  # what was made for nothing is not used
    assert folder.holds() == docs(5, 80) | {"d100": 4000}
    assert folder.table.encoded > before


def test_a_second_updater_is_told_who_is_at_work(folder: Folder) -> None:
    folder.update(docs(0, 5))
    for other in (
        lambda: folder.update(docs(0, 9)),
        lambda: compact(folder.path, 0),
    ):
        with (
            locking.locked(folder.path),
            pytest.raises(Stopped, match=f"process {os.getpid()} on "),
        ):
            other()
    assert folder.holds() == docs(0, 5)
    folder.update(docs(0, 9))


def test_a_lost_part_is_named(folder: Folder) -> None:
    folder.update(docs(0, 30))
    gone = parts.list_parts(folder.path)[1]
    part_folders.retire(folder.path / "parts" / str(gone))
    with pytest.raises(DataError, match=f"part {gone} is missing"):
        Vectors(folder.path)


# --- compact --------------------------------------------------------------------------------------


def test_compact_rewrites_what_counts_and_deletes_the_rest_in_time(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stop in (20, 23, 26, 30):
        folder.update(docs(stop - 20, stop))
    held, old = folder.holds(), set(parts.list_parts(folder.path))
    before = Vectors(folder.path).at(np.arange(20)).vectors
    monkeypatch.setattr(part_writer, "PART_BYTES", 1 << 20)  # so that no part is full
    made = compact(folder.path, 24)
    assert (made.generation, made.deleted, made.kept) == (5, 0, len(old))
    assert old < set(parts.list_parts(folder.path))
    assert sorted(folder.holds()) == sorted(held)
    order = [list(held).index(name) for name in folder.holds()]
    np.testing.assert_array_equal(Vectors(folder.path).at(np.arange(20)).vectors, before[order])
    assert compact(folder.path, 24) == Compacted(5, 0, 0, len(old))
    path = folder.path / "parts" / str(min(old))
    os.utime(path, (time.time() - 25 * 3600, time.time() - 25 * 3600))
    assert compact(folder.path, 24) == Compacted(5, 0, 1, len(old) - 1)
    assert not path.exists()
    compact(folder.path, 0)
    assert not old & set(parts.list_parts(folder.path))
    assert folder.update(held | {"d99": 99}).encoded == 1  # the hashes came along
    assert folder.holds() == held | {"d99": 99}


def test_compact_leaves_full_parts_alone(folder: Folder) -> None:
    folder.update(docs(0, 40))
    first = parts.list_parts(folder.path)[0]
    folder.update(docs(0, 39) | {"d50": 50})
    compact(folder.path, 0)
    assert first in parts.list_parts(folder.path)
    assert folder.holds() == docs(0, 39) | {"d50": 50}


def test_compact_makes_the_time_of_a_part_that_it_replaces_new(folder: Folder) -> None:
    folder.update(docs(0, 4))
    part = folder.path / "parts" / str(parts.list_parts(folder.path)[0])
    os.utime(part, (0, 0))
    folder.update(docs(1, 4))
    assert compact(folder.path, 24).kept == 1
    assert part.is_dir()


def test_a_row_number_is_never_given_twice(folder: Folder) -> None:
    seen: set[str] = set()
    for stop in range(5, 30, 5):
        folder.update(docs(stop - 5, stop))
        compact(folder.path, 0)
        now = {str(name) for name in parts.list_parts(folder.path)}
        assert not now & seen
        seen |= now


def test_a_compact_that_was_stopped_changes_nothing(folder: Folder) -> None:
    folder.update(docs(0, 40))
    folder.update({f"d{i}": i for i in range(0, 40, 2)})
    with pytest.raises(Stopped):
        compact(folder.path, 0, Report(stopping=lambda: True))
    assert folder.holds() == {f"d{i}": i for i in range(0, 40, 2)}


# --- indexes --------------------------------------------------------------------------------------


def ranking(path: Path, number: int, k: int) -> list[str]:
    wide = OpenSettings(ef_search=500 if (path / index_folder.BUILT).exists() else 0)
    opened = open_index(path, wide)
    return opened.search([Query("q", str(number))], k).rankings["q"].doc_ids


def refresh(folder: Folder, path: Path, kind: str = "hnsw") -> str:
    settings = AnnSettings(kind=kind)
    return update_dense(Vectors(folder.path), path, settings).how


def test_an_index_keeps_to_its_generation_and_says_that_it_is_behind(
    folder: Folder, tmp_path: Path
) -> None:
    folder.update(docs(0, 60))
    build_dense(Vectors(folder.path), tmp_path / "i", AnnSettings())
    before = ranking(tmp_path / "i", 7, 60)
    assert open_index(tmp_path / "i", OpenSettings()).info.notes == ()
    folder.update(docs(0, 7) | docs(8, 62))
    assert ranking(tmp_path / "i", 7, 60) == before
    (note,) = open_index(tmp_path / "i", OpenSettings()).info.notes
    assert "is behind" in note
    with pytest.raises(Mismatch, match="--if-exists update"):
        build_dense(Vectors(folder.path), tmp_path / "i", AnnSettings())
    compact(folder.path, 0)
    with pytest.raises(Mismatch, match="build the index again"):
        ranking(tmp_path / "i", 7, 60)


@pytest.mark.parametrize("kind", ["hnsw", "IVF4,Flat", "HNSW8,SQ8"])
def test_a_refreshed_index_finds_what_exact_search_finds(
    folder: Folder, tmp_path: Path, kind: str
) -> None:
    folder.update(docs(0, 200))
    assert refresh(folder, tmp_path / "i", kind) == "built"
    files = set()
    for first in (3, 10, 12, 25):
        folder.update(docs(first, 200 + 2 * first))
        how = refresh(folder, tmp_path / "i", kind)
        assert f"{first} are deleted" in how
        files.add(index_folder.read_built(tmp_path / "i")["at"])
        for number in (0, first, 150, 200 + first):
            for k in (5, 400):
                assert ranking(tmp_path / "i", number, k) == ranking(folder.path, number, k)
    assert refresh(folder, tmp_path / "i", kind) == "it is up to date already"
    assert len(files) == 4
    assert {path.name for path in (tmp_path / "i").iterdir()} == {
        "manifest.json", "built.json", "update.lock", max(files, key=int),
    }  # fmt: skip


def test_dead_rows_around_a_query_are_looked_past(folder: Folder, tmp_path: Path) -> None:
    """The nearest fifth of all rows is dead: more than is fetched at first."""
    folder.update(docs(0, 1000))
    refresh(folder, tmp_path / "i")
    order = ranking(folder.path, 2000, 1000)
    folder.update({name: n for name, n in docs(0, 1000).items() if name not in order[:200]})
    assert refresh(folder, tmp_path / "i") == "0 rows appended, 200 are deleted and passed over"
    assert index_folder.read_built(tmp_path / "i")["at"] == ""  # the file is the old one
    assert ranking(tmp_path / "i", 2000, 10) == order[200:210]


def test_texts_are_those_that_count(folder: Folder, tmp_path: Path) -> None:
    folder.update(docs(0, 20))
    refresh(folder, tmp_path / "i")
    folder.update(docs(0, 20) | {"d4": 400})
    refresh(folder, tmp_path / "i")
    assert open_index(tmp_path / "i", OpenSettings()).texts(["d4"])["d4"].text == "400"


def test_a_quarter_dead_is_built_again(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.update(docs(0, 100))
    refresh(folder, tmp_path / "i")
    folder.update(docs(33, 100))
    assert (
        refresh(folder, tmp_path / "i") == "built again: 33 of its 100 rows would be deleted rows"
    )
    assert index_folder.read_built(tmp_path / "i")["rows"] == 67
    assert ranking(tmp_path / "i", 40, 9) == ranking(folder.path, 40, 9)
    monkeypatch.setattr(part_writer, "PART_BYTES", 1 << 20)
    compact(folder.path, 0)
    assert (
        refresh(folder, tmp_path / "i") == "built again: 67 of its 134 rows would be deleted rows"
    )
    assert ranking(tmp_path / "i", 40, 9) == ranking(folder.path, 40, 9)


def test_other_vectors_are_built_again(folder: Folder, tiny_model: Models, tmp_path: Path) -> None:
    folder.update(docs(0, 20))
    refresh(folder, tmp_path / "i")
    other = Folder(tmp_path / "w", tiny_model("bert"), folder.table)
    other.update(docs(100, 120))
    assert refresh(other, tmp_path / "i") == "built again: these are other vectors"


def test_recall_stays_after_many_appends(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HNSW over random vectors, the hardest there are; in few parts."""
    monkeypatch.setattr(part_writer, "PART_BYTES", 1 << 20)
    folder.update(docs(0, 3000))
    refresh(folder, tmp_path / "i")
    for first in range(100, 501, 100):
        folder.update(docs(first, 3000 + 4 * first))
        assert "appended" in refresh(folder, tmp_path / "i")
    opened = [open_index(path, OpenSettings()) for path in (tmp_path / "i", folder.path)]
    queries = [Query(str(n), str(n)) for n in range(5500, 5600)]
    found, exact = (o.search(queries, 10).rankings for o in opened)
    shared = [len({*found[q.id].doc_ids} & {*exact[q.id].doc_ids}) for q in queries]
    assert np.mean(shared) / 10 >= 0.95


class Words(Given):
    """The same with words for texts."""

    def __init__(self, docs: Texts) -> None:
        self._docs = [Doc(*item) for item in docs.items()]


def test_a_lexical_index_is_built_again(tmp_path: Path) -> None:
    from lmkcli.settings import Bm25Settings

    def built(docs: Texts) -> str:
        made = update_lexical(Words(docs), tmp_path / "b", "bm25", Bm25Settings())
        opened = open_index(tmp_path / "b", OpenSettings())
        found = opened.search([Query("q", "tea")], 10).rankings["q"].doc_ids
        assert sorted(found) == sorted(name for name, text in docs.items() if "tea" in text)
        assert {name: doc.text for name, doc in opened.texts(list(docs)).items()} == docs
        return made.how

    assert built({"a": "green tea", "b": "bread"}) == "built"
    assert built({"a": "green tea", "b": "bread"}) == "it is up to date already"
    assert built({"a": "green tea", "c": "black tea"}).startswith("built again: bm25")
    with pytest.raises(Mismatch, match="has changed since"):
        building.build_lexical(Words({}), tmp_path / "b", "bm25", Bm25Settings())


# --- with a real model ----------------------------------------------------------------------------


def text(number: random.Random) -> str:
    return tiny.sentence(number.randrange(10_000), 3 + number.randrange(40))


def edited(there: Texts, number: random.Random) -> Texts:
    """Some documents removed, some changed, some added, and the order another."""
    kept = {name: value for name, value in there.items() if number.random() > 0.1}
    changed = {name: text(number) for name in kept if number.random() < 0.15}
    added = {f"n{number.randrange(10**6)}": text(number) for _ in range(number.randrange(6))}
    items = list((kept | changed | added).items())
    number.shuffle(items)
    return dict(items)


def write(path: Path, there: Texts) -> Path:
    tiny.write_jsonl(path, [{"_id": name, "text": value} for name, value in there.items()])
    return path


@pytest.mark.parametrize("rounds", [7, pytest.param(20, marks=pytest.mark.slow)])
def test_each_round_equals_a_full_rebuild(
    tiny_model: Models, tmp_path: Path, small: None, rounds: int
) -> None:
    number = random.Random(11)
    there = {f"d{i}": text(number) for i in range(60)}
    path, model = tmp_path / "c.jsonl", str(tiny_model("bert"))
    queries = [Query(f"q{i}", text(number)) for i in range(5)]
    for round_ in range(rounds):
        there = edited(there, number)
        job = planning.plan(str(write(path, there)), RecipeOptions(model=model), EXACT, "0/1")
        run_update(job, tmp_path / "v")
        jobs.run_encode(job, tmp_path / f"full{round_}")
        if round_ % 6 == 4:
            compact(tmp_path / "v", 0)
        update_dense(Vectors(tmp_path / "v"), tmp_path / "i", AnnSettings())
        mine, full = Vectors(tmp_path / "v"), Vectors(tmp_path / f"full{round_}")
        assert mine.collection_digest() == full.collection_digest()
        assert mine.counts() == full.counts()
        wanted = open_index(full.folder, OpenSettings()).search(queries, 1000)
        for searched in ("v", "i"):
            run = open_index(tmp_path / searched, OpenSettings()).search(queries, 1000)
            for query in queries:
                alike(run.rankings[query.id], wanted.rankings[query.id], len(there))


def alike(one: Any, other: Any, count: int) -> None:
    """The same documents with the same scores, in an order that the other's scores bear out."""
    scores = dict(zip(other.doc_ids, other.scores.tolist(), strict=True))
    assert len(one.doc_ids) == len(scores) == count
    mine = np.array([scores[name] for name in one.doc_ids])
    np.testing.assert_allclose(one.scores, mine, rtol=0, atol=1e-5)
    assert (np.diff(mine) <= 1e-5).all()


def sealed(there: Texts) -> Texts:
    """With one document more, whose text tells of all others."""
    told = hashlib.sha256(json.dumps(sorted(there.items())).encode()).hexdigest()
    return there | {"seal": told}


def read(folder: Path) -> Texts:
    found = Vectors(folder)
    return {doc.id: doc.text for doc in found.docs(np.arange(found.rows))}


def watch(folder: Path, done: Any, results: Any) -> None:
    """Open the folder again and again; every look must find one generation, and keep to it."""
    seals, looks = set(), 0
    while not done.is_set():
        found = Vectors(folder)
        rows = np.arange(found.rows)
        ids = found.ids(rows)
        time.sleep(random.random() / 50)
        there = {doc.id: doc.text for doc in found.docs(rows)}
        vectors = np.concatenate([block.vectors for block in found])
        seal = there.pop("seal")
        whole = sealed(there)["seal"] == seal and list(found.numbers()) == ids
        if not whole or len(vectors) != len(ids) or len(there) + 1 != len(ids):
            results.put(f"look {looks} found a mixture")
            return
        seals.add(seal)
        looks += 1
    results.put((looks, len(seals)))


@pytest.fixture(scope="module")
def context() -> ForkServerContext:
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload([*PRELOAD, "lmkcli.encoding.updating", "lmkcli.retrieval.updating"])
    return made


def test_readers_always_see_one_generation(
    context: ForkServerContext, folder: Folder, tiny_model: Models, tmp_path: Path
) -> None:
    number = random.Random(5)
    there = {f"d{i}": text(number) for i in range(80)}
    path = tmp_path / "w"

    def update(there: Texts) -> None:
        job = replace(folder.job({}), source=Words(sealed(there)))
        run_update(job, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(updating, "open_encoder", lambda *_: WordTable(folder.table.vectors))
        update(there)
        done, results = context.Event(), context.Queue()
        readers = [context.Process(target=watch, args=(path, done, results)) for _ in range(2)]
        for reader in readers:
            reader.start()
        for _ in range(25):
            there = edited(there, number) | {f"x{number.randrange(99)}": text(number)}
            update(there)
            if number.random() < 0.2:
                compact(path, 0.001)
        done.set()
        for _ in readers:
            found = results.get(timeout=30)
            assert isinstance(found, tuple), found
            looks, generations = found
            assert looks >= generations > 3
        for reader in readers:
            reader.join(30)


class WordTable(Table):
    """Any text has a vector."""

    def __call__(self, rows: list[TokenRow], report: Any) -> Encoded:
        numbers = [int.from_bytes(row.hash[:2], "little") % 6000 for row in rows]
        return Encoded(Ragged.single(self.vectors[numbers]), [9] * len(rows))


# --- SIGKILL --------------------------------------------------------------------------------------


class Killed:
    """A collection that changes, and the command line that follows it."""

    def __init__(self, context: ForkServerContext, root: Path, model: Path) -> None:
        self.machine = Machine(context, root / "errors.txt")
        self.source, self.output = root / "c.jsonl", root / "v"
        words = ["encode", str(self.source), "-m", str(model), "--dtype", "fp32"]
        words += ["--batch-tokens", "128", "--if-exists", "update"]
        self.step = Step(words, self.same, self.whole)
        self.there: Texts = {}

    def change(self, number: random.Random, docs: int) -> None:
        """Half of all documents are others from now on."""
        self.old = self.there
        kept = dict(list(self.there.items())[: docs // 2])
        fresh = {f"n{number.randrange(10**9)}": text(number) for _ in range(docs - len(kept))}
        self.there = fresh | kept
        write(self.source, self.there)

    def whole(self, output: Path) -> bool:
        """Whether the folder is new; if not, it is the old one, or not there yet."""
        if not (output / "generation.json").exists():
            assert not self.old
            return False
        found = read(output)
        assert found in (self.old, self.there)
        return found == self.there

    def same(self, output: Path, _: Path) -> None:
        assert read(output) == self.there


@pytest.fixture
def killed(context: ForkServerContext, tmp_path: Path, tiny_model: Models) -> Killed:
    return Killed(context, tmp_path, tiny_model("bert"))


def rounds(killed: Killed, count: int, docs: int) -> None:
    number = random.Random(count)
    killed.change(number, docs)
    seconds = killed.machine.run(killed.step, killed.output)
    killed.change(number, docs)
    seconds = killed.machine.run(killed.step, killed.output)
    died = 0
    for _ in range(count):
        killed.change(number, docs)
        moment = number.uniform(0, 1.1 * seconds)
        code = killed.machine.stop(killed.step, killed.output, moment, signal.SIGKILL)
        assert code in (0, -signal.SIGKILL), killed.machine.errors.read_text()
        died += code != 0
        killed.whole(killed.output)
        killed.machine.run(killed.step, killed.output)
        assert killed.whole(killed.output)
    assert died > count // 4


def test_a_killed_update_leaves_the_old_or_the_new(killed: Killed) -> None:
    rounds(killed, 3, 300)


@pytest.mark.slow
def test_a_killed_update_leaves_the_old_or_the_new_often(killed: Killed) -> None:
    rounds(killed, 20, 300)


def prepared(killed: Killed, docs: int) -> Callable[[int], Path]:
    """Makes a folder of the old documents for each moment, and leaves the collection at the new."""
    killed.change(random.Random(1), docs)
    base = killed.output
    killed.machine.run(killed.step, base)
    killed.change(random.Random(2), docs)

    def fresh(moment: int) -> Path:
        return Path(shutil.copytree(base, base.with_name(f"v{moment}")))

    return fresh


@pytest.mark.slow
def test_no_moment_of_an_update_is_fatal(killed: Killed) -> None:
    fresh = prepared(killed, 40)
    assert last_moment(killed.machine, killed.step, killed.source, fresh) > 3


def every_moment(
    killed: Killed, words: list[str], copies: Iterator[Path], check: Callable[[Path, bool], None]
) -> int:
    """Kill a command line, whose last word is the folder, before each change of a name; complete it."""
    for moment, folder in enumerate(copies):
        line = [*words, str(folder)]
        target = (line, str(killed.machine.errors), moment)
        child = killed.machine.context.Process(target=forked.lmk_dying, args=target)
        child.start()
        child.join(60)
        assert child.exitcode in (0, -signal.SIGKILL), killed.machine.errors.read_text()
        check(folder, child.exitcode == 0)
        again = killed.machine.context.Process(target=forked.lmk, args=target[:2])
        again.start()
        again.join(60)
        assert again.exitcode == 0, killed.machine.errors.read_text()
        check(folder, True)
        if child.exitcode == 0:
            return moment
    raise AssertionError("it never came to an end")


def copies(base: Path) -> Iterator[Path]:
    for number in range(1000):
        yield Path(shutil.copytree(base, base.with_name(f"{base.name}-{number}")))


@pytest.mark.slow
def test_no_moment_of_a_compact_is_fatal(killed: Killed) -> None:
    prepared(killed, 30)
    killed.machine.run(killed.step, killed.output)

    def check(folder: Path, done: bool) -> None:
        assert read(folder) == killed.there
        assert not done or len(parts.list_parts(folder)) == 1

    words = ["compact", "--keep-hours", "0"]
    assert every_moment(killed, words, copies(killed.output), check) > 5


@pytest.mark.slow
def test_no_moment_of_a_refresh_is_fatal(killed: Killed) -> None:
    prepared(killed, 30)
    built = killed.output.with_name("i")
    build_dense(Vectors(killed.output), built, AnnSettings())
    killed.machine.run(killed.step, killed.output)

    def check(folder: Path, done: bool) -> None:
        opened = open_index(folder, OpenSettings(dtype="fp32"))
        found = opened.search([Query("q", "bread")], 99).rankings["q"].doc_ids
        assert not (done and opened.info.notes)
        assert sorted(found) == sorted(killed.old if opened.info.notes else killed.there)

    words = ["index", str(killed.output), "--if-exists", "update", "-o"]
    assert every_moment(killed, words, copies(built), check) > 5
