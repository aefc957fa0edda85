"""Updates: only changed documents are encoded, readers see one generation, and kills lose nothing."""

import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lmkcli.data.collection import (
    WHOLE,
    Collection,
    CountedDocs,
    Doc,
    DocStream,
    Query,
    Shard,
    doc_hash,
)
from lmkcli.encoding import jobs, shard_run, vector_updates
from lmkcli.encoding.encoder import DocumentVectors
from lmkcli.encoding.jobs import CollectionJob
from lmkcli.encoding.resolution import resolve
from lmkcli.encoding.vector_updates import Compaction, VectorUpdate, compact, run_update
from lmkcli.errors import DataError, Mismatch, Stopped, UsageError
from lmkcli.progress import Report
from lmkcli.retrieval import index_folder
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSettings
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.pipeline import open_index
from lmkcli.retrieval.vectors import vector_index
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.store import part_writer, parts, tokens
from lmkcli.store.token_blocks import TextTokens, TokenRow
from lmkcli.system.atomic import locked
from lmkcli.vectors.rows import Ragged
from lmkcli.vectors.stored import Vectors
from tests import tiny
from tests.cluster import waited
from tests.forkserver import ForkServer
from tests.immediate import Immediate
from tests.indexes import build_faiss, record_of, update_faiss

Models = Callable[[str], Path]
Floats = NDArray[np.float32]
Texts = dict[str, str]
EXACT = EncodeSettings(dtype="fp32", store_dtype="fp32", device="cpu")


# --- with vectors from a table instead of a model --------------------------------------------------


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

    def file_stats(self) -> dict[str, list[int]]:
        return {"given": [len(self._docs), hash(tuple(self._docs))]}


class Table(Immediate):
    """Replaces an encoder: text 'i' has vector i. Counts the encoded documents."""

    buffer_tokens, spans, contexts, sparse = 1, False, False, False
    model = SimpleNamespace(dtype="fp32", packed=False, device=torch.device("cpu"), why_padded="")

    def __init__(self, vectors: Floats) -> None:
        self.vectors, self.dim = vectors, vectors.shape[1]
        self.encoded = 0

    def document_tokenizer(self, texts: list[str]) -> list[TextTokens]:
        ids, spans, none = np.ones(9, np.int32), np.zeros((9, 2), np.int32), np.zeros(0, np.int32)
        return [TextTokens(ids, spans, none, None) for _ in texts]

    def __call__(self, rows: list[TokenRow], report: Any) -> DocumentVectors[Ragged]:
        report.check_stop()
        self.encoded += len(rows)
        vectors = self.vectors[[int(row.doc.text) for row in rows]]
        return DocumentVectors(Ragged.single(vectors), [9] * len(rows))

    def cut(self, queries: list[Query]) -> frozenset[str]:
        return frozenset()

    def queries(self, queries: list[Query]) -> Ragged:
        return Ragged.single(self.vectors[[int(query.text) for query in queries]])


class Folder:
    """A vectors folder that follows a collection in memory."""

    def __init__(self, path: Path, model: Path, table: Table) -> None:
        self.path, self.table = path, table
        self._resolved = resolve(RecipeOptions(model=str(model)))

    def update(
        self, docs: dict[str, int], stopping: Callable[[], bool] = lambda: False
    ) -> VectorUpdate:
        return run_update(self.job(docs), self.path, Report(stopping=stopping))

    def job(self, docs: dict[str, int], shard: Shard = WHOLE) -> CollectionJob:
        return CollectionJob(Given(docs), self._resolved, EXACT, shard)

    def contents(self) -> dict[str, int]:
        """Return the vector number of every document. Checks that all ways of reading agree."""
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
def small(monkeypatch: pytest.MonkeyPatch, part_bytes: Callable[[int], None]) -> None:
    """Parts of about ten documents, read a few at a time."""
    part_bytes(10 * 4 * 16)
    monkeypatch.setattr(vector_updates, "READ_CHARACTERS", 500)
    monkeypatch.setattr(tokens, "BATCH_CHARACTERS", 500)


@pytest.fixture
def folder(
    tiny_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: None
) -> Folder:
    vectors = np.random.default_rng(3).standard_normal((6000, 16)).astype(np.float32)
    table = Table(vectors)
    monkeypatch.setattr(shard_run, "open_encoder", lambda *_: table)
    monkeypatch.setattr(vector_index, "open_query_encoder", lambda *_: table)
    return Folder(tmp_path / "v", tiny_model("bert"), table)


def docs(first: int, stop: int) -> dict[str, int]:
    return {f"d{number}": number for number in range(first, stop)}


def test_only_new_and_changed_documents_are_encoded(folder: Folder) -> None:
    now = docs(0, 50)
    assert folder.update(now) == VectorUpdate(1, 0, 50, 0)
    assert folder.contents() == now
    now = docs(10, 50) | {"d20": 3020, "d60": 60}
    assert folder.update(now) == VectorUpdate(2, 39, 2, 11)
    assert folder.contents() == now
    assert folder.table.encoded == 52


def test_an_update_without_changes_writes_no_part_and_keeps_the_digest(folder: Folder) -> None:
    folder.update(docs(0, 50))
    before, names = Vectors(folder.path).digest(), parts.list_parts(folder.path)
    assert folder.update(dict(reversed(docs(0, 50).items()))) == VectorUpdate(1, 50, 0, 0)
    assert Vectors(folder.path).digest() == before
    assert parts.list_parts(folder.path) == names


def test_all_documents_can_be_removed_and_added_again(folder: Folder) -> None:
    folder.update(docs(0, 30))
    assert folder.update(docs(30, 31)) == VectorUpdate(2, 0, 1, 30)
    assert folder.contents() == docs(30, 31)
    assert folder.update(docs(0, 31)) == VectorUpdate(3, 1, 30, 0)
    assert folder.contents() == docs(0, 31)
    assert folder.table.encoded == 61  # a deleted row stays deleted: indexes rely on it


def test_an_empty_collection_removes_nothing(folder: Folder) -> None:
    assert folder.update({}) == VectorUpdate(1, 0, 0, 0)  # an empty folder loses nothing
    folder.update(docs(0, 30))
    with pytest.raises(DataError, match="remove all 30"):
        folder.update({})
    assert folder.contents() == docs(0, 30)
    assert folder.update(docs(0, 29)) == VectorUpdate(3, 29, 0, 1)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_of_encode_can_be_updated(folder: Folder, shards: int) -> None:
    for number in range(shards):
        job = folder.job(docs(30 * number // shards, 30 * (number + 1) // shards))
        one = CollectionJob(Whole(job.source), job.resolved, EXACT, Shard(number, shards))
        shard_run.run_encode(one, folder.path)
    assert folder.contents() == docs(0, 30)
    assert folder.update(docs(5, 35)) == VectorUpdate(1, 25, 5, 5)
    assert folder.contents() == docs(5, 35)


class Whole(Given):
    """The same documents for every shard."""

    def __init__(self, given: Any) -> None:
        self._docs = given._docs

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        return super().docs()

    def file_stats(self) -> dict[str, list[int]]:
        return {}


def test_unfinished_shards_are_not_updated(folder: Folder) -> None:
    job = folder.job(docs(0, 5))
    one = CollectionJob(Whole(job.source), job.resolved, EXACT, Shard(0, 2))
    shard_run.run_encode(one, folder.path)
    with pytest.raises(UsageError, match="finish its 2 shards first"):
        folder.update(docs(0, 9))


def test_a_single_shard_is_not_updated(folder: Folder) -> None:
    with pytest.raises(UsageError, match="drop --shard"):
        run_update(folder.job({}, Shard(0, 2)), folder.path)


def test_a_duplicate_of_an_encoded_document_is_refused(folder: Folder) -> None:
    folder.update(docs(0, 10))
    job = folder.job(docs(0, 10))
    job.source._docs.append(Doc("d3", "3"))  # type: ignore[union-attr]
    with pytest.raises(DataError, match="'d3' occurs twice"):
        run_update(job, folder.path)
    assert folder.contents() == docs(0, 10)


def test_encode_does_not_change_an_updated_folder(folder: Folder) -> None:
    folder.update(docs(0, 10))
    folder.update(docs(0, 12))
    shard_run.run_encode(folder.job(docs(0, 12)), folder.path)
    assert folder.table.encoded == 12
    with pytest.raises(Mismatch, match="has changed since"):
        shard_run.run_encode(folder.job(docs(0, 13)), folder.path)


def test_the_next_update_uses_the_documents_of_a_stopped_one(folder: Folder) -> None:
    folder.update(docs(0, 20))
    signals = iter([False] * 25)
    with pytest.raises(Stopped):
        folder.update(docs(5, 80), lambda: next(signals, True))
    assert folder.contents() == docs(0, 20)
    encoded = folder.table.encoded
    assert 20 < encoded < 80
    assert folder.update(docs(5, 80)) == VectorUpdate(2, 15, 60, 5)
    assert folder.contents() == docs(5, 80)
    assert folder.table.encoded == 80
    before = folder.table.encoded
    signals = iter([False] * 25)
    with pytest.raises(Stopped):
        folder.update(docs(0, 200), lambda: next(signals, True))
    folder.update(docs(5, 80) | {"d100": 4000})  # unneeded vectors are not listed
    assert folder.contents() == docs(5, 80) | {"d100": 4000}
    assert folder.table.encoded > before


def test_the_error_of_a_second_update_names_the_first_process(folder: Folder) -> None:
    folder.update(docs(0, 5))
    for other in (
        lambda: folder.update(docs(0, 9)),
        lambda: compact(folder.path, 0),
    ):
        with (
            locked(folder.path),
            pytest.raises(Stopped, match=f"process {os.getpid()} on "),
        ):
            other()
    assert folder.contents() == docs(0, 5)
    folder.update(docs(0, 9))


def test_the_error_of_a_missing_part_names_it(folder: Folder) -> None:
    folder.update(docs(0, 30))
    missing = parts.list_parts(folder.path)[1]
    part_writer.retire_part(folder.path / "parts" / str(missing))
    with pytest.raises(DataError, match=f"part {missing} is missing"):
        Vectors(folder.path)


# --- compact --------------------------------------------------------------------------------------


def test_compact_rewrites_live_rows_and_deletes_old_parts_later(
    folder: Folder, part_bytes: Callable[[int], None]
) -> None:
    for stop in (20, 23, 26, 30):
        folder.update(docs(stop - 20, stop))
    live, old = folder.contents(), set(parts.list_parts(folder.path))
    before = Vectors(folder.path).at(np.arange(20)).vectors
    part_bytes(1 << 20)  # no part is full
    made = compact(folder.path, 24)
    assert (made.generation, made.deleted, made.kept) == (5, 0, len(old))
    assert old < set(parts.list_parts(folder.path))
    assert sorted(folder.contents()) == sorted(live)
    order = [list(live).index(name) for name in folder.contents()]
    np.testing.assert_array_equal(Vectors(folder.path).at(np.arange(20)).vectors, before[order])
    assert compact(folder.path, 24) == Compaction(5, 0, 0, len(old))
    path = folder.path / "parts" / str(min(old))
    os.utime(path, (time.time() - 25 * 3600, time.time() - 25 * 3600))
    assert compact(folder.path, 24) == Compaction(5, 0, 1, len(old) - 1)
    assert not path.exists()
    compact(folder.path, 0)
    assert not old & set(parts.list_parts(folder.path))
    assert folder.update(live | {"d99": 99}).encoded == 1  # the hashes were copied
    assert folder.contents() == live | {"d99": 99}


def test_compact_keeps_full_parts(folder: Folder) -> None:
    folder.update(docs(0, 40))
    first = parts.list_parts(folder.path)[0]
    folder.update(docs(0, 39) | {"d50": 50})
    compact(folder.path, 0)
    assert first in parts.list_parts(folder.path)
    assert folder.contents() == docs(0, 39) | {"d50": 50}


def test_compact_counts_hours_from_the_replacement_of_a_part(folder: Folder) -> None:
    folder.update(docs(0, 4))
    part = folder.path / "parts" / str(parts.list_parts(folder.path)[0])
    os.utime(part, (0, 0))
    folder.update(docs(1, 4))
    assert compact(folder.path, 24).kept == 1
    assert part.is_dir()


def test_a_row_number_is_never_used_twice(folder: Folder) -> None:
    seen: set[str] = set()
    for stop in range(5, 30, 5):
        folder.update(docs(stop - 5, stop))
        compact(folder.path, 0)
        now = {str(name) for name in parts.list_parts(folder.path)}
        assert not now & seen
        seen |= now


def test_a_stopped_compact_changes_nothing(folder: Folder) -> None:
    folder.update(docs(0, 40))
    folder.update({f"d{i}": i for i in range(0, 40, 2)})
    with pytest.raises(Stopped):
        compact(folder.path, 0, Report(stopping=lambda: True))
    assert folder.contents() == {f"d{i}": i for i in range(0, 40, 2)}


# --- indexes --------------------------------------------------------------------------------------


def ranking(path: Path, number: int, k: int) -> list[str]:
    wide = OpenSettings(ef_search=500 if (path / index_folder.BUILT).exists() else 0)
    opened = open_index(path, wide)
    return opened.search([Query("q", str(number))], k).rankings["q"].doc_ids


def refresh(folder: Folder, path: Path, kind: str = "hnsw") -> str:
    settings = FaissSettings(kind=kind)
    return update_faiss(Vectors(folder.path), path, settings).how


def test_an_index_keeps_its_generation_and_notes_newer_vectors(
    folder: Folder, tmp_path: Path
) -> None:
    folder.update(docs(0, 60))
    build_faiss(Vectors(folder.path), tmp_path / "i", FaissSettings())
    before = ranking(tmp_path / "i", 7, 60)
    assert open_index(tmp_path / "i", OpenSettings()).info.notes == ()
    folder.update(docs(0, 7) | docs(8, 62))
    assert ranking(tmp_path / "i", 7, 60) == before
    (note,) = open_index(tmp_path / "i", OpenSettings()).info.notes
    assert "is behind" in note
    with pytest.raises(Mismatch, match="--if-exists update"):
        build_faiss(Vectors(folder.path), tmp_path / "i", FaissSettings())
    compact(folder.path, 0)
    with pytest.raises(Mismatch, match="build the index again"):
        ranking(tmp_path / "i", 7, 60)


@pytest.mark.parametrize("kind", ["hnsw", "IVF4,Flat", "HNSW8,SQ8"])
def test_a_refreshed_index_ranks_like_exact_search(
    folder: Folder, tmp_path: Path, kind: str
) -> None:
    folder.update(docs(0, 200))
    assert refresh(folder, tmp_path / "i", kind) == "built"
    files = set()
    for first in (3, 10, 12, 25):
        folder.update(docs(first, 200 + 2 * first))
        how = refresh(folder, tmp_path / "i", kind)
        assert f"{first} deleted rows skipped" in how
        files.add(record_of(tmp_path / "i").at)
        for number in (0, first, 150, 200 + first):
            for k in (5, 400):
                assert ranking(tmp_path / "i", number, k) == ranking(folder.path, number, k)
    assert refresh(folder, tmp_path / "i", kind) == "already up to date"
    assert len(files) == 4
    assert {path.name for path in (tmp_path / "i").iterdir()} == {
        "manifest.json", "built.json", max(files, key=int),
    }  # fmt: skip


def test_deleted_rows_near_a_query_are_skipped(folder: Folder, tmp_path: Path) -> None:
    """The nearest fifth of all rows is deleted, which is more than the first fetch."""
    folder.update(docs(0, 1000))
    refresh(folder, tmp_path / "i")
    order = ranking(folder.path, 2000, 1000)
    folder.update({name: n for name, n in docs(0, 1000).items() if name not in order[:200]})
    assert refresh(folder, tmp_path / "i") == "0 rows appended, 200 deleted rows skipped"
    assert record_of(tmp_path / "i").at == "1"  # the file is unchanged
    assert ranking(tmp_path / "i", 2000, 10) == order[200:210]


def test_an_index_returns_the_current_texts(folder: Folder, tmp_path: Path) -> None:
    folder.update(docs(0, 20))
    refresh(folder, tmp_path / "i")
    folder.update(docs(0, 20) | {"d4": 400})
    refresh(folder, tmp_path / "i")
    assert open_index(tmp_path / "i", OpenSettings()).texts(["d4"])["d4"].text == "400"


def test_an_index_with_a_quarter_of_deleted_rows_is_built_again(
    folder: Folder, tmp_path: Path, part_bytes: Callable[[int], None]
) -> None:
    folder.update(docs(0, 100))
    refresh(folder, tmp_path / "i")
    folder.update(docs(33, 100))
    assert (
        refresh(folder, tmp_path / "i") == "built again: 33 of its 100 rows would be deleted rows"
    )
    assert record_of(tmp_path / "i").facts["rows"] == 67
    assert ranking(tmp_path / "i", 40, 9) == ranking(folder.path, 40, 9)
    part_bytes(1 << 20)
    compact(folder.path, 0)
    assert (
        refresh(folder, tmp_path / "i") == "built again: 67 of its 134 rows would be deleted rows"
    )
    assert ranking(tmp_path / "i", 40, 9) == ranking(folder.path, 40, 9)


def test_an_index_of_other_vectors_is_built_again(
    folder: Folder, tiny_model: Models, tmp_path: Path
) -> None:
    folder.update(docs(0, 20))
    refresh(folder, tmp_path / "i")
    other = Folder(tmp_path / "w", tiny_model("bert"), folder.table)
    other.update(docs(100, 120))
    assert refresh(other, tmp_path / "i") == "built again: these are other vectors"


def test_recall_stays_after_many_appends(
    folder: Folder, tmp_path: Path, part_bytes: Callable[[int], None]
) -> None:
    """With HNSW over random vectors, the hardest case; in few parts."""
    part_bytes(1 << 20)
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
    """Documents with words as texts."""

    def __init__(self, docs: Texts) -> None:
        self._docs = [Doc(*item) for item in docs.items()]


def text(number: random.Random) -> str:
    return tiny.sentence(number.randrange(10_000), 3 + number.randrange(40))


def edited(docs: Texts, number: random.Random) -> Texts:
    """Remove, change and add some documents, and change the order."""
    kept = {name: value for name, value in docs.items() if number.random() > 0.1}
    changed = {name: text(number) for name in kept if number.random() < 0.15}
    added = {f"n{number.randrange(10**6)}": text(number) for _ in range(number.randrange(6))}
    items = list((kept | changed | added).items())
    number.shuffle(items)
    return dict(items)


def write(path: Path, docs: Texts) -> Path:
    tiny.write_jsonl(path, [{"_id": name, "text": value} for name, value in docs.items()])
    return path


@pytest.mark.parametrize("rounds", [7, pytest.param(20, marks=pytest.mark.slow)])
def test_each_round_equals_a_full_rebuild(
    tiny_model: Models, tmp_path: Path, small: None, rounds: int
) -> None:
    number = random.Random(11)
    current = {f"d{i}": text(number) for i in range(60)}
    path, model = tmp_path / "c.jsonl", str(tiny_model("bert"))
    queries = [Query(f"q{i}", text(number)) for i in range(5)]
    for round_ in range(rounds):
        current = edited(current, number)
        job = jobs.plan(str(write(path, current)), RecipeOptions(model=model), EXACT, WHOLE)
        run_update(job, tmp_path / "v")
        shard_run.run_encode(job, tmp_path / f"full{round_}")
        if round_ % 6 == 4:
            compact(tmp_path / "v", 0)
        update_faiss(Vectors(tmp_path / "v"), tmp_path / "i", FaissSettings())
        mine, full = Vectors(tmp_path / "v"), Vectors(tmp_path / f"full{round_}")
        assert mine.collection_digest() == full.collection_digest()
        assert mine.counts() == full.counts()
        wanted = open_index(full.folder, OpenSettings()).search(queries, 1000)
        for searched in ("v", "i"):
            run = open_index(tmp_path / searched, OpenSettings()).search(queries, 1000)
            for query in queries:
                check_alike(run.rankings[query.id], wanted.rankings[query.id], len(current))


def check_alike(one: Any, other: Any, count: int) -> None:
    """Check for the same documents with the same scores, in descending order of the other scores."""
    scores = dict(zip(other.doc_ids, other.scores.tolist(), strict=True))
    assert len(one.doc_ids) == len(scores) == count
    mine = np.array([scores[name] for name in one.doc_ids])
    np.testing.assert_allclose(one.scores, mine, rtol=0, atol=1e-5)
    assert (np.diff(mine) <= 1e-5).all()


def sealed(docs: Texts) -> Texts:
    """Add a document with a hash of all other documents as its text."""
    seal = hashlib.sha256(json.dumps(sorted(docs.items())).encode()).hexdigest()
    return docs | {"seal": seal}


def watch(folder: str, report: str) -> None:
    """Open the folder again and again. Each reading must see exactly one generation.

    Writes the numbers of readings and generations into `report`, until `report` + ".stop" exists.
    """
    seals, readings, number = set(), 0, random.Random(report)
    while not Path(f"{report}.stop").exists():
        found = Vectors(Path(folder))
        rows = np.arange(found.rows)
        ids = found.ids(rows)
        time.sleep(number.random() / 50)  # updates can happen within one reading
        docs = {doc.id: doc.text for doc in found.docs(rows)}
        vectors = np.concatenate([block.vectors for block in found])
        seal = docs.pop("seal")
        consistent = sealed(docs)["seal"] == seal and list(found.numbers()) == ids
        assert consistent, f"reading {readings} found a mixture"
        assert len(vectors) == len(ids) == len(docs) + 1, f"reading {readings} found a mixture"
        seals.add(seal)
        readings += 1
        Path(f"{report}.new").write_text(f"{readings} {len(seals)}")
        Path(f"{report}.new").replace(report)


def test_readers_always_see_one_generation(
    forkserver: ForkServer, folder: Folder, tmp_path: Path
) -> None:
    number = random.Random(5)
    current = {f"d{i}": text(number) for i in range(80)}
    path, errors = tmp_path / "w", tmp_path / "errors"

    def update(docs: Texts) -> None:
        job = replace(folder.job({}), source=Words(sealed(docs)))
        run_update(job, path)

    def seen(report: Path) -> list[int]:
        return [int(word) for word in report.read_text().split()] if report.exists() else [0, 0]

    with pytest.MonkeyPatch.context() as patch, open(errors, "wb") as err:
        patch.setattr(shard_run, "open_encoder", lambda *_: WordTable(folder.table.vectors))
        update(current)
        reports = [tmp_path / "one", tmp_path / "two"]
        readers = [
            forkserver.call(f"{__name__}:watch", str(path), str(report), streams=(err, err))
            for report in reports
        ]
        for round_ in range(25):
            current = edited(current, number) | {f"x{number.randrange(99)}": text(number)}
            update(current)
            if number.random() < 0.2:
                compact(path, 0.001)
            if round_ in (5, 10, 15):  # on a busy machine, wait for the readers
                readings = [seen(report)[0] for report in reports]
                waited(
                    "a reading of each reader",
                    lambda readings=readings: all(
                        reader.wait(0) is not None or seen(report)[0] > before
                        for reader, report, before in zip(readers, reports, readings, strict=True)
                    ),
                    errors.read_text,
                )  # fmt: skip
        for reader, report in zip(readers, reports, strict=True):
            Path(f"{report}.stop").touch()
            assert reader.wait(300) == 0, errors.read_text()
            count, generations = seen(report)
            assert count >= generations > 3


class WordTable(Table):
    """An encoder table with a vector for every text."""

    def __call__(self, rows: list[TokenRow], report: Any) -> DocumentVectors[Ragged]:
        numbers = [int.from_bytes(row.hash[:2], "little") % 6000 for row in rows]
        return DocumentVectors(Ragged.single(self.vectors[numbers]), [9] * len(rows))
