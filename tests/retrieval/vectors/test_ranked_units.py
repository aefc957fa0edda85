"""Folders with several vectors per document: reading, search, indexes, and passages."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lmkcli.artifact.kinds import Origin
from lmkcli.core import CODECS
from lmkcli.data.collection import Query
from lmkcli.data.run import Ranking, Run, read_run, write_run
from lmkcli.encoding import vector_updates
from lmkcli.errors import UsageError
from lmkcli.retrieval.engines.exact.exact_search import Exact
from lmkcli.retrieval.engines.exact.gpu_search import AsStored, GpuExact, GpuSizes
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSettings
from lmkcli.retrieval.index import Passage
from lmkcli.retrieval.open_settings import OpenSettings, RerankSettings
from lmkcli.retrieval.pipeline import open_all, open_index, open_pipeline
from lmkcli.retrieval.stages import Stages
from lmkcli.retrieval.vectors import vector_index, vector_reranker
from lmkcli.retrieval.vectors.ranked_units import Aggregated, Flat
from lmkcli.store import part_writer, parts
from lmkcli.store.parts import Generation, PartSlice
from lmkcli.vectors.rows import Ragged
from lmkcli.vectors.stored import Vectors
from tests.indexes import build_faiss, update_faiss
from tests.retrieval.test_opening import FixedQueryEncoder, VectorsFolder, text

Models = Callable[[str], Path]
Scores = dict[str, np.float32]
ROWS = 60
IDS = [f"d{number:02d}" for number in range(ROWS)]
QUERIES = [Query(f"q{number}", str(number)) for number in range(4)]
FP32 = OpenSettings(device="cpu", dtype="fp32")

ORIGIN = Origin(name="given")


def several(seed: int, longest: int = 12) -> Ragged:
    """1 to `longest` vectors for each of ROWS documents; two documents are equal."""
    random = np.random.default_rng(seed)
    counts = random.integers(1, longest + 1, ROWS)
    counts[7] = counts[40] = 5
    vectors = Ragged.of(random.standard_normal((counts.sum(), 6)).astype(np.float32), counts)
    vectors.text(40)[:] = vectors.text(7)
    return vectors


@pytest.fixture(autouse=True)
def small(part_bytes: Callable[[int], None]) -> None:
    """Parts of a few documents."""
    part_bytes(800)


class Folder:
    """A vectors folder of a unit, and the vectors of its queries."""

    def __init__(self, path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.model, self._patch = path, model, monkeypatch
        self.vectors, self.query_vectors = several(0), several(1, 1).take(np.arange(4))

    def fill(self, unit: str = "chunk", query_vectors: Ragged | None = None) -> "Folder":
        VectorsFolder(self.path, self.model, shards=2).unit(unit).fill(IDS, self.vectors)
        self.query_vectors = query_vectors or self.query_vectors
        self._patch.setattr(
            vector_index, "open_query_encoder", lambda *_: FixedQueryEncoder(self.query_vectors)
        )
        self._patch.setattr(
            vector_reranker, "open_query_encoder", lambda *_: FixedQueryEncoder(self.query_vectors)
        )
        return self

    def search(self, path: Path | None = None, k: int = 20, **settings: Any) -> Run:
        return open_index(path or self.path, replace(FP32, **settings)).search(QUERIES, k)

    def built(self, kind: str = "hnsw") -> Path:
        path = self.path.with_name("index")
        build_faiss(Vectors(self.path), path, FaissSettings(kind=kind))
        return path

    def drop(self, deleted: Sequence[int]) -> None:
        """Delete documents, as an update does."""
        now = Vectors(self.path)
        slices, first = [], 0
        for piece in now.slices:
            alive = ~np.isin(np.arange(first, first + piece.rows), deleted)
            first += piece.rows
            if alive.any():
                slices.append(PartSlice.of(piece.name, alive))
        vector_updates.publish_generation(
            self.path, Generation(0, ORIGIN, now.slices, 0), Generation(0, ORIGIN, slices, 0)
        )


@pytest.fixture
def folder(tiny_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    return Folder(tmp_path / "v", tiny_model("bert"), monkeypatch)


def products(docs: Ragged, query: NDArray[Any], row: int) -> NDArray[np.float64]:
    """Dot products [query vectors, vectors of the document]."""
    return query.astype(np.float64) @ docs.text(row).astype(np.float64).T  # type: ignore[no-any-return]


REDUCE: dict[str, Callable[[NDArray[np.float64]], float]] = {
    "max": lambda p: p.max(1).sum(),
    "sum": lambda p: p.sum(),
    "avg": lambda p: p.mean(),
    "first": lambda p: p[0, 0],
}


def oracle(
    folder: Folder, query: int, aggregate: str = "max", rows: Sequence[int] = range(ROWS)
) -> Scores:
    """The scores of all documents in float64, in the order of a run."""
    query_vectors = folder.query_vectors.text(query)
    scores = {
        IDS[r]: np.float32(REDUCE[aggregate](products(folder.vectors, query_vectors, r)))
        for r in rows
    }
    return by_score(scores)


def by_score(scores: Scores) -> Scores:
    order = sorted(scores, reverse=True)
    return {name: scores[name] for name in sorted(order, key=lambda name: -scores[name])}


def same(ranking: Ranking, expected: Scores, k: int) -> None:
    assert ranking.doc_ids == list(expected)[:k]
    np.testing.assert_allclose(ranking.scores, list(expected.values())[:k], rtol=2e-7)


def listed(run: Run) -> list[tuple[str, list[str], list[float]]]:
    return [(query, r.doc_ids, r.scores.tolist()) for query, r in run.rankings.items()]


@pytest.mark.parametrize("resident", [0, 1 << 30])
@pytest.mark.parametrize("store", [row.name for row in CODECS])
def test_a_gpu_reads_the_stored_form(folder: Folder, store: str, resident: int) -> None:
    """Documents and chunks, with deleted ones, rank as with exact search on a CPU."""
    VectorsFolder(folder.path, folder.model, store=store).unit("chunk").fill(IDS, folder.vectors)
    folder.drop([0, 1, 2, 3, 17, 40, 59])
    vectors, cpu = Vectors(folder.path), torch.device("cpu")
    for matrix in (vectors, Flat(vectors), Aggregated(vectors, "avg")):
        assert isinstance(matrix, AsStored) == (not isinstance(matrix, Aggregated))
        sizes = GpuSizes(tile=2, block=9, resident=resident)
        hits = GpuExact(matrix, cpu, sizes).search(folder.query_vectors, 5)
        wanted = Exact(matrix, cpu).search(folder.query_vectors, 5)
        for rows, others in zip(hits.rows, wanted.rows, strict=True):
            assert np.sort(rows).tolist() == np.sort(others).tolist()
        for scores, others in zip(hits.scores, wanted.scores, strict=True):
            np.testing.assert_allclose(np.sort(scores), np.sort(others), rtol=1e-12)


# --- reading ---------------------------------------------------------------------------------------


def test_documents_are_read_with_all_their_vectors(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Vectors(folder.fill().path)
    expected = folder.vectors
    assert (found.rows, found.total, found.single) == (ROWS, len(expected.vectors), False)
    assert len(found.slices) > 5
    np.testing.assert_array_equal(found.starts, expected.starts)
    random = np.random.default_rng(0)
    for size in (0, 1, 9, 200):
        rows = random.integers(0, ROWS, size)
        actual, wanted = found.at(rows), expected.take(rows)
        np.testing.assert_array_equal(actual.starts, wanted.starts)
        np.testing.assert_array_equal(actual.vectors, wanted.vectors)
    blocks = list(found.blocks(4 * 6 * 10))
    assert all(len(b.vectors) <= 10 or len(b.counts) == 1 for b in blocks)
    np.testing.assert_array_equal(np.concatenate([b.counts for b in blocks]), expected.counts)
    np.testing.assert_array_equal(np.concatenate([b.vectors for b in blocks]), expected.vectors)
    assert found.counts().vectors == sum(found.part_totals()) == found.total


def test_vectors_of_deleted_documents_are_not_read(folder: Folder) -> None:
    folder.fill().drop([0, 1, 2, 3, 17, 40, 59])
    left = np.array([row for row in range(ROWS) if row not in {0, 1, 2, 3, 17, 40, 59}])
    found, wanted = Vectors(folder.path), folder.vectors.take(left)
    for actual in (
        found.at(np.arange(found.rows)),
        Ragged.of(all_of(found), np.diff(found.starts)),
    ):
        np.testing.assert_array_equal(actual.starts, wanted.starts)
        np.testing.assert_array_equal(actual.vectors, wanted.vectors)
    assert found.rows_of(["d18", "d40", "d58"]) == {"d18": 13, "d58": 52}
    assert [tuple(span) for span in found.spans(13)] == spans(18, folder)


def all_of(found: Vectors) -> NDArray[Any]:
    return np.concatenate([block.vectors for block in found])


def spans(row: int, folder: Folder) -> list[tuple[int, int]]:
    words, position, ranges = text(row, int(folder.vectors.counts[row])).split(), 0, []
    for word in words:
        ranges.append((position, position + len(word)))
        position += len(word) + 1
    return ranges


@pytest.mark.parametrize("unit", ["chunk", "token"])
def test_compacted_folders_hold_the_same(
    folder: Folder, part_bytes: Callable[[int], None], unit: str
) -> None:
    folder.fill(unit).drop([0, 1, 2, 3, 17, 40])
    before = Vectors(folder.path)
    vectors, names = before.at(np.arange(before.rows)), before.ids(np.arange(before.rows))
    part_bytes(5000)
    vector_updates.compact(folder.path, 0)
    after = Vectors(folder.path)
    assert len(after.slices) < len(before.slices)
    rows = np.array([after.rows_of([name])[name] for name in names])
    np.testing.assert_array_equal(after.at(rows).vectors, vectors.vectors)
    np.testing.assert_array_equal(after.at(rows).starts, vectors.starts)
    if unit == "chunk":
        assert [tuple(span) for span in after.spans(int(rows[30]))] == spans(
            int(names[30][1:]), folder
        )


# --- searching -------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["chunk", "token"])
def test_exact_search_is_maxsim_and_ranks_like_float64(folder: Folder, unit: str) -> None:
    query_vectors = (
        several(1, 1).take(np.arange(4)) if unit == "chunk" else several(2, 5).take(np.arange(4))
    )
    folder.fill(unit, query_vectors)
    for k in (1, 7, 59, 60, 1000):
        run = folder.search(k=k)
        for number, query in enumerate(QUERIES):
            same(run.rankings[query.id], oracle(folder, number), k)


@pytest.mark.parametrize("aggregate", ["max", "sum", "avg", "first"])
@pytest.mark.parametrize("indexed", [False, True])
def test_aggregates_are_their_definitions(folder: Folder, aggregate: str, indexed: bool) -> None:
    folder.fill()
    path = folder.built() if indexed else folder.path
    run = folder.search(path, k=60, aggregate=aggregate)
    for number, query in enumerate(QUERIES):
        same(run.rankings[query.id], oracle(folder, number, aggregate), 60)
    assert (
        open_index(path, replace(FP32, aggregate=aggregate)).info.search["aggregate"] == aggregate
    )


def test_chunks_are_ranked_with_own_ids(folder: Folder) -> None:
    folder.fill()
    for path in (folder.path, folder.built()):
        run = folder.search(path, k=70, level="chunk")
        for number, query in enumerate(QUERIES):
            expected = {
                f"{name}#{chunk}": np.float32(value)
                for row, name in enumerate(IDS)
                for chunk, value in enumerate(
                    products(folder.vectors, folder.query_vectors.text(number), row)[0]
                )
            }
            same(run.rankings[query.id], by_score(expected), 70)


@pytest.mark.parametrize("kind", ["hnsw", "IVF4,Flat", "HNSW32,SQ8"])
@pytest.mark.parametrize("unit", ["chunk", "token"])
def test_an_index_always_finds_k_documents(folder: Folder, kind: str, unit: str) -> None:
    """Even with the narrowest search, and one document with most of the vectors."""
    random = np.random.default_rng(5)
    counts = np.ones(ROWS, np.int64)
    counts[9] = 300
    query_vectors = 1 if unit == "chunk" else 3
    folder.vectors = Ragged.of(random.standard_normal((counts.sum(), 6)).astype(np.float32), counts)
    folder.vectors.text(9)[:] += 3  # its vectors are the best for many queries
    queries = np.abs(random.standard_normal((4 * query_vectors, 6))).astype(np.float32)
    folder.fill(unit, Ragged.of(queries, np.full(4, query_vectors)))
    for k in (1, 10, 60):
        run = folder.search(folder.built(kind), k=k, ef_search=1, nprobe=1)
        for number, query in enumerate(QUERIES):
            found = run.rankings[query.id]
            scores = oracle(folder, number)
            assert len(found.doc_ids) == k
            assert dict(zip(found.doc_ids, found.scores, strict=True)) == pytest.approx(
                {name: scores[name] for name in found.doc_ids}, rel=1e-6
            )
            assert "d09" in found.doc_ids


def test_an_updated_index_skips_deleted_documents(folder: Folder) -> None:
    """Deleted rows are skipped also after compaction removed their part."""
    folder.fill()
    path = folder.built("HNSW32,Flat")
    deleted = [0, 1, 2, 3, 17, 40]
    folder.drop(deleted)
    settings = FaissSettings(kind="HNSW32,Flat")
    changes = update_faiss(Vectors(folder.path), path, settings).how
    assert changes == "0 rows appended, 6 deleted rows skipped"
    left = [row for row in range(ROWS) if row not in deleted]
    named = {piece.name for piece in Vectors(folder.path).slices}
    for name in set(parts.list_parts(folder.path)) - named:
        part_writer.retire_part(folder.path / parts.PARTS / str(name))
    for level in ("", "chunk"):
        indexed, exact = (folder.search(each, 300, level=level) for each in (path, folder.path))
        assert listed(indexed) == listed(exact)
    run = folder.search(path, k=60)
    for number, query in enumerate(QUERIES):
        same(run.rankings[query.id], oracle(folder, number, rows=left), 60)


def test_reranking_takes_all_vectors(folder: Folder, tmp_path: Path) -> None:
    folder.fill()
    first = Run({q.id: Ranking(IDS[10:30], np.zeros(20, np.float32)) for q in QUERIES})
    write_run(tmp_path / "run.trec", first)
    paths = [tmp_path / "run.trec"]
    for aggregate in ("max", "avg"):
        settings = replace(FP32, aggregate=aggregate)
        stages = Stages(paths, rerank=folder.path, reranking=RerankSettings(15))
        reranked = open_pipeline(stages, settings)
        listed = read_run(paths[0]).rankings
        for number, query in enumerate(QUERIES):
            rows = [IDS.index(name) for name in listed[query.id].doc_ids[:15]]
            found = reranked.search(QUERIES, 10).rankings[query.id]
            same(found, oracle(folder, number, aggregate, rows), 10)
        best = reranked.passages(QUERIES[0], ["d10", "d11"])
        assert best == expected_passages(folder, 0, ["d10", "d11"])
        assert reranked.info.search["aggregate"] == aggregate


# --- passages --------------------------------------------------------------------------------------


def expected_passages(folder: Folder, query: int, names: list[str]) -> dict[str, Passage]:
    passages = {}
    for name in names:
        row = IDS.index(name)
        chunk = int(products(folder.vectors, folder.query_vectors.text(query), row)[0].argmax())
        begin, end = spans(row, folder)[chunk]
        count = int(folder.vectors.counts[row])
        passages[name] = Passage(chunk, count, begin, end, text(row, count)[begin:end])
    return passages


def test_the_best_passage_is_the_chunk_of_the_score(folder: Folder) -> None:
    folder.fill()
    for path in (folder.path, folder.built()):
        opened = open_index(path, FP32)
        names = opened.search(QUERIES[:1], 10).rankings["q0"].doc_ids
        assert opened.passages(QUERIES[0], names) == expected_passages(folder, 0, names)


def test_chunk_ids_are_their_own_passages(folder: Folder) -> None:
    folder.fill()
    opened = open_index(folder.path, replace(FP32, level="chunk"))
    name = opened.search(QUERIES[:1], 1).rankings["q0"].doc_ids[0]
    row, chunk = IDS.index(name[:3]), int(name[4:])
    begin, end = spans(row, folder)[chunk]
    passage = opened.passages(QUERIES[0], [name])[name]
    assert (passage.chunk, passage.begin, passage.end) == (chunk, begin, end)
    assert opened.texts([name])[name].text == passage.text == text(row, 12)[begin:end]


def test_vectors_of_other_units_have_no_passages(folder: Folder) -> None:
    opened = open_index(folder.fill("token").path, FP32)
    assert opened.passages(QUERIES[0], IDS[:3]) == {}


# --- settings without an effect ----------------------------------------------------------------------------


def test_levels_and_aggregates_without_an_effect(folder: Folder, tmp_path: Path) -> None:
    folder.fill("token", several(2, 5).take(np.arange(4)))
    with pytest.raises(UsageError, match="unit token without chunks"):
        folder.search(level="chunk")
    with pytest.raises(UsageError, match="several vectors each"):
        folder.search(aggregate="sum")
    with pytest.raises(UsageError, match="unknown aggregate 'mean'"):
        folder.search(aggregate="mean")
    single = VectorsFolder(tmp_path / "single", folder.model).fill(
        IDS, np.ones((ROWS, 6), np.float32)
    )
    for settings in (replace(FP32, aggregate="sum"), replace(FP32, level="chunk")):
        with pytest.raises(UsageError, match="one vector for each document"):
            open_index(single, settings)
    chunks = Folder(tmp_path / "chunks", folder.model, folder._patch).fill()
    with pytest.raises(UsageError, match="drop --aggregate"):
        chunks.search(level="chunk", aggregate="sum")
    query_vectors = replace(FP32, level="chunk")
    for paths, rerank in (([chunks.path, single], None), ([chunks.path], single)):
        with pytest.raises(UsageError, match="chunks"):
            open_all(Stages(paths, rerank=rerank), query_vectors)
    assert open_all(Stages([chunks.path, single]), replace(FP32, aggregate="avg"))


def test_flat_numbers_are_those_of_the_documents(folder: Folder) -> None:
    found = Vectors(folder.fill().path)
    flat = Flat(found)
    rows = np.array([0, flat.rows - 1, 17, 17, 5])
    np.testing.assert_array_equal(flat.at(rows).vectors, folder.vectors.vectors[rows])
    docs, numbers = flat.owners(rows)
    assert flat.ids(rows) == [f"{IDS[d]}#{n}" for d, n in zip(docs, numbers, strict=True)]
    np.testing.assert_array_equal(folder.vectors.starts[docs] + numbers, rows)
