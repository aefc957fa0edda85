"""Folders with several vectors a document: read, searched, indexed, and chunks as passages."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lmkcli.data.collection import Query
from lmkcli.data.run import Ranking, Run, read_run, write_run
from lmkcli.encoding import updating
from lmkcli.errors import UsageError
from lmkcli.retrieval import dense, rerank_by_vectors
from lmkcli.retrieval.building import build_dense
from lmkcli.retrieval.index import Passage
from lmkcli.retrieval.opening import open_index
from lmkcli.retrieval.pipeline import Stages, open_all, open_pipeline
from lmkcli.retrieval.updating import update_dense
from lmkcli.retrieval.views import Flat
from lmkcli.settings import AnnSettings, OpenSettings, RerankSettings
from lmkcli.store import part_folders, part_writer, parts
from lmkcli.store.parts import Generation, PartSlice
from lmkcli.store.ragged import Ragged
from lmkcli.store.vectors import Vectors
from tests.retrieval.test_opening import Asked, Made, text

Models = Callable[[str], Path]
Scores = dict[str, np.float32]
ROWS = 60
IDS = [f"d{number:02d}" for number in range(ROWS)]
QUERIES = [Query(f"q{number}", str(number)) for number in range(4)]
FP32 = OpenSettings(device="cpu", dtype="fp32")


def several(seed: int, longest: int = 12) -> Ragged:
    """1 to `longest` vectors for each of ROWS documents, some documents the same."""
    random = np.random.default_rng(seed)
    counts = random.integers(1, longest + 1, ROWS)
    counts[7] = counts[40] = 5
    made = Ragged.of(random.standard_normal((counts.sum(), 6)).astype(np.float32), counts)
    made.text(40)[:] = made.text(7)
    return made


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a few documents."""
    monkeypatch.setattr(part_writer, "PART_BYTES", 800)


class Folder:
    """Vectors of a unit, and the queries that are asked of them."""

    def __init__(self, path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.model, self._patch = path, model, monkeypatch
        self.vectors, self.asked = several(0), several(1, 1).take(np.arange(4))

    def fill(self, unit: str = "chunk", asked: Ragged | None = None) -> "Folder":
        Made(self.path, self.model, shards=2).unit(unit).fill(IDS, self.vectors)
        self.asked = asked or self.asked
        self._patch.setattr(dense, "open_query_encoder", lambda *_: Asked(self.asked))
        self._patch.setattr(rerank_by_vectors, "open_query_encoder", lambda *_: Asked(self.asked))
        return self

    def search(self, path: Path | None = None, k: int = 20, **settings: Any) -> Run:
        return open_index(path or self.path, replace(FP32, **settings)).search(QUERIES, k)

    def built(self, kind: str = "hnsw") -> Path:
        path = self.path.with_name("index")
        build_dense(Vectors(self.path), path, AnnSettings(kind=kind))
        return path

    def drop(self, dead: Sequence[int]) -> None:
        """Let documents be dead, as an update does."""
        now = Vectors(self.path)
        slices, first = [], 0
        for piece in now.slices:
            alive = ~np.isin(np.arange(first, first + piece.rows), dead)
            first += piece.rows
            if alive.any():
                slices.append(PartSlice.of(piece.name, alive))
        updating._publish(self.path, Generation(0, {}, now.slices, 0), Generation(0, {}, slices, 0))


@pytest.fixture
def folder(tiny_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    return Folder(tmp_path / "v", tiny_model("bert"), monkeypatch)


def products(of: Ragged, asked: NDArray[Any], row: int) -> NDArray[np.float64]:
    """[query vectors, vectors of a document]."""
    return asked.astype(np.float64) @ of.text(row).astype(np.float64).T  # type: ignore[no-any-return]


REDUCE: dict[str, Callable[[NDArray[np.float64]], float]] = {
    "max": lambda p: p.max(1).sum(),
    "sum": lambda p: p.sum(),
    "avg": lambda p: p.mean(),
    "first": lambda p: p[0, 0],
}


def oracle(
    folder: Folder, query: int, how: str = "max", rows: Sequence[int] = range(ROWS)
) -> Scores:
    """All documents in float64, by the order of a run."""
    asked = folder.asked.text(query)
    scores = {IDS[r]: np.float32(REDUCE[how](products(folder.vectors, asked, r))) for r in rows}
    return by_score(scores)


def by_score(scores: Scores) -> Scores:
    order = sorted(scores, reverse=True)
    return {name: scores[name] for name in sorted(order, key=lambda name: -scores[name])}


def same(ranking: Ranking, expected: Scores, k: int) -> None:
    assert ranking.doc_ids == list(expected)[:k]
    np.testing.assert_allclose(ranking.scores, list(expected.values())[:k], rtol=2e-7)


def listed(run: Run) -> list[tuple[str, list[str], list[float]]]:
    return [(query, r.doc_ids, r.scores.tolist()) for query, r in run.rankings.items()]


# --- reading ---------------------------------------------------------------------------------------


def test_documents_are_read_with_all_their_vectors(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Vectors(folder.fill().path)
    of = folder.vectors
    assert (found.rows, found.total, found.single) == (ROWS, len(of.vectors), False)
    assert len(found.slices) > 5
    np.testing.assert_array_equal(found.starts, of.starts)
    random = np.random.default_rng(0)
    for size in (0, 1, 9, 200):
        rows = random.integers(0, ROWS, size)
        made, wanted = found.at(rows), of.take(rows)
        np.testing.assert_array_equal(made.starts, wanted.starts)
        np.testing.assert_array_equal(made.vectors, wanted.vectors)
    monkeypatch.setattr("lmkcli.store.vectors.BLOCK_BYTES", 4 * 6 * 10)
    blocks = list(found)
    assert all(len(b.vectors) <= 10 or len(b.counts) == 1 for b in blocks)
    np.testing.assert_array_equal(np.concatenate([b.counts for b in blocks]), of.counts)
    np.testing.assert_array_equal(np.concatenate([b.vectors for b in blocks]), of.vectors)
    assert found.counts().vectors == sum(found.part_totals()) == found.total


def test_dead_documents_take_their_vectors_with_them(folder: Folder) -> None:
    folder.fill().drop([0, 1, 2, 3, 17, 40, 59])
    left = np.array([row for row in range(ROWS) if row not in {0, 1, 2, 3, 17, 40, 59}])
    found, wanted = Vectors(folder.path), folder.vectors.take(left)
    for made in (found.at(np.arange(found.rows)), Ragged.of(all_of(found), np.diff(found.starts))):
        np.testing.assert_array_equal(made.starts, wanted.starts)
        np.testing.assert_array_equal(made.vectors, wanted.vectors)
    assert found.rows_of(["d18", "d40", "d58"]) == {"d18": 13, "d58": 52}
    assert [tuple(span) for span in found.spans(13)] == spans(18, folder)


def all_of(found: Vectors) -> NDArray[Any]:
    return np.concatenate([block.vectors for block in found])


def spans(row: int, folder: Folder) -> list[tuple[int, int]]:
    words, at, made = text(row, int(folder.vectors.counts[row])).split(), 0, []
    for word in words:
        made.append((at, at + len(word)))
        at += len(word) + 1
    return made


@pytest.mark.parametrize("unit", ["chunk", "token"])
def test_compacted_folders_hold_the_same(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    folder.fill(unit).drop([0, 1, 2, 3, 17, 40])
    before = Vectors(folder.path)
    vectors, names = before.at(np.arange(before.rows)), before.ids(np.arange(before.rows))
    monkeypatch.setattr(part_writer, "PART_BYTES", 5000)
    updating.compact(folder.path, 0)
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
def test_exact_search_is_maxsim_in_the_order_of_float64(folder: Folder, unit: str) -> None:
    asked = (
        several(1, 1).take(np.arange(4)) if unit == "chunk" else several(2, 5).take(np.arange(4))
    )
    folder.fill(unit, asked)
    for k in (1, 7, 59, 60, 1000):
        run = folder.search(k=k)
        for number, query in enumerate(QUERIES):
            same(run.rankings[query.id], oracle(folder, number), k)


@pytest.mark.parametrize("how", ["max", "sum", "avg", "first"])
@pytest.mark.parametrize("indexed", [False, True])
def test_aggregates_are_their_definitions(folder: Folder, how: str, indexed: bool) -> None:
    folder.fill()
    path = folder.built() if indexed else folder.path
    run = folder.search(path, k=60, aggregate=how)
    for number, query in enumerate(QUERIES):
        same(run.rankings[query.id], oracle(folder, number, how), 60)
    assert open_index(path, replace(FP32, aggregate=how)).info.search["aggregate"] == how


def test_chunks_are_ranked_under_ids_of_their_own(folder: Folder) -> None:
    folder.fill()
    for path in (folder.path, folder.built()):
        run = folder.search(path, k=70, level="chunk")
        for number, query in enumerate(QUERIES):
            expected = {
                f"{name}#{chunk}": np.float32(value)
                for row, name in enumerate(IDS)
                for chunk, value in enumerate(
                    products(folder.vectors, folder.asked.text(number), row)[0]
                )
            }
            same(run.rankings[query.id], by_score(expected), 70)


@pytest.mark.parametrize("kind", ["hnsw", "IVF4,Flat", "HNSW32,SQ8"])
@pytest.mark.parametrize("unit", ["chunk", "token"])
def test_an_index_always_finds_k_documents(folder: Folder, kind: str, unit: str) -> None:
    """Though nothing is searched as widely as that, and some document has most of the vectors."""
    random = np.random.default_rng(5)
    counts = np.ones(ROWS, np.int64)
    counts[9] = 300
    asked = 1 if unit == "chunk" else 3
    folder.vectors = Ragged.of(random.standard_normal((counts.sum(), 6)).astype(np.float32), counts)
    folder.vectors.text(9)[:] += 3  # its vectors are the best of many queries
    queries = np.abs(random.standard_normal((4 * asked, 6))).astype(np.float32)
    folder.fill(unit, Ragged.of(queries, np.full(4, asked)))
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


def test_a_refreshed_index_follows_its_documents(folder: Folder) -> None:
    """Dead rows are passed over also when compaction has swept up the part that they were in."""
    folder.fill()
    path = folder.built("HNSW32,Flat")
    dead = [0, 1, 2, 3, 17, 40]
    folder.drop(dead)
    settings = AnnSettings(kind="HNSW32,Flat")
    how = update_dense(Vectors(folder.path), path, settings).how
    assert how == "0 rows appended, 6 are deleted and passed over"
    left = [row for row in range(ROWS) if row not in dead]
    named = {piece.name for piece in Vectors(folder.path).slices}
    for name in set(parts.list_parts(folder.path)) - named:
        part_folders.retire(folder.path / parts.PARTS / str(name))
    for level in ("", "chunk"):
        mine, theirs = (folder.search(where, 300, level=level) for where in (path, folder.path))
        assert listed(mine) == listed(theirs)
    run = folder.search(path, k=60)
    for number, query in enumerate(QUERIES):
        same(run.rankings[query.id], oracle(folder, number, rows=left), 60)


def test_reranking_takes_all_vectors(folder: Folder, tmp_path: Path) -> None:
    folder.fill()
    first = Run({q.id: Ranking(IDS[10:30], np.zeros(20, np.float32)) for q in QUERIES})
    write_run(tmp_path / "run.trec", first)
    paths = [tmp_path / "run.trec"]
    for how in ("max", "avg"):
        settings = replace(FP32, aggregate=how)
        stages = Stages(paths, rerank=folder.path, reranking=RerankSettings(15))
        reranked = open_pipeline(stages, settings)
        listed = read_run(paths[0]).rankings
        for number, query in enumerate(QUERIES):
            rows = [IDS.index(name) for name in listed[query.id].doc_ids[:15]]
            found = reranked.search(QUERIES, 10).rankings[query.id]
            same(found, oracle(folder, number, how, rows), 10)
        best = reranked.passages(QUERIES[0], ["d10", "d11"])
        assert best == expected_passages(folder, 0, ["d10", "d11"])
        assert reranked.info.search["aggregate"] == how


# --- passages --------------------------------------------------------------------------------------


def expected_passages(folder: Folder, query: int, names: list[str]) -> dict[str, Passage]:
    made = {}
    for name in names:
        row = IDS.index(name)
        chunk = int(products(folder.vectors, folder.asked.text(query), row)[0].argmax())
        begin, end = spans(row, folder)[chunk]
        count = int(folder.vectors.counts[row])
        made[name] = Passage(chunk, count, begin, end, text(row, count)[begin:end])
    return made


def test_the_best_passage_is_the_chunk_that_made_the_score(folder: Folder) -> None:
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


# --- what means nothing ----------------------------------------------------------------------------


def test_levels_and_aggregates_must_mean_something(folder: Folder, tmp_path: Path) -> None:
    folder.fill("token", several(2, 5).take(np.arange(4)))
    with pytest.raises(UsageError, match="holds vectors of unit token, not chunk"):
        folder.search(level="chunk")
    with pytest.raises(UsageError, match="several vectors each"):
        folder.search(aggregate="sum")
    with pytest.raises(UsageError, match="unknown aggregate 'mean'"):
        folder.search(aggregate="mean")
    single = Made(tmp_path / "single", folder.model).fill(IDS, np.ones((ROWS, 6), np.float32))
    for settings in (replace(FP32, aggregate="sum"), replace(FP32, level="chunk")):
        with pytest.raises(UsageError, match="one vector for each document"):
            open_index(single, settings)
    chunks = Folder(tmp_path / "chunks", folder.model, folder._patch).fill()
    with pytest.raises(UsageError, match="drop --aggregate"):
        chunks.search(level="chunk", aggregate="sum")
    asked = replace(FP32, level="chunk")
    for paths, rerank in (([chunks.path, single], None), ([chunks.path], single)):
        with pytest.raises(UsageError, match="cannot be fused with chunks, nor rerank them"):
            open_all(Stages(paths, rerank=rerank), asked)
    assert open_all(Stages([chunks.path, single]), replace(FP32, aggregate="avg"))


def test_flat_numbers_are_those_of_the_documents(folder: Folder) -> None:
    found = Vectors(folder.fill().path)
    flat = Flat(found)
    rows = np.array([0, flat.rows - 1, 17, 17, 5])
    np.testing.assert_array_equal(flat.at(rows).vectors, folder.vectors.vectors[rows])
    docs, numbers = flat.owners(rows)
    assert flat.ids(rows) == [f"{IDS[d]}#{n}" for d, n in zip(docs, numbers, strict=True)]
    np.testing.assert_array_equal(folder.vectors.starts[docs] + numbers, rows)
