"""Filters of rankings: what they return does not depend on the other queries, or on pieces of the work."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lmkcli.data.collection import Query
from lmkcli.data.run import Ranking, Run, Scored, ranked, read_run, write_run
from lmkcli.operations.search import find
from lmkcli.retrieval import filtering
from lmkcli.retrieval.filtering import FilteredIndex
from lmkcli.retrieval.fusion import FusedIndex, Fusion
from lmkcli.retrieval.index import IndexInfo, Passage
from lmkcli.retrieval.open_settings import RerankSettings
from lmkcli.retrieval.pipeline import RunIndex
from lmkcli.retrieval.reranking import RerankedIndex, Scorer
from lmkcli.retrieval.searching import read_manifest
from tests import tiny
from tests.conftest import Lmk

DOCS = 6000
EASY, HARD = Query("easy", "easy"), Query("hard", "hard")


def accepts(name: str) -> bool:
    return int(name[1:]) % 2 == 0


@pytest.fixture
def fused(tmp_path: Path) -> FusedIndex:
    """Two runs, whose accepted documents are everywhere for one query, and at the end for the other."""
    random = np.random.default_rng(0)
    names = [f"d{number:04}" for number in range(DOCS)]
    first = np.arange(DOCS) % 2 * 100  # those that the filter does not accept
    indexes = []
    for number in range(2):
        path = tmp_path / f"{number}.run"
        rankings = {
            EASY.id: ranked(names, random.gamma(1.0, size=DOCS)),
            HARD.id: ranked(names, first + random.random(DOCS)),
        }
        write_run(path, Run(rankings))
        indexes.append(RunIndex(path))
    return FusedIndex(indexes, Fusion.parse("linear"))


def test_a_ranking_does_not_depend_on_the_other_queries(fused: FusedIndex) -> None:
    index = FilteredIndex(fused, accepts)
    together = index.search([EASY, HARD], 10)
    assert [*together] == [EASY.id, HARD.id]
    for query in (EASY, HARD):
        alone = index.search([query], 10)[query.id]
        assert alone.doc_ids == together[query.id].doc_ids
        assert len(alone.doc_ids) == 10
        np.testing.assert_array_equal(alone.scores, together[query.id].scores)


def test_deep_rankings_are_searched_in_pieces(
    fused: FusedIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = FilteredIndex(fused, accepts)
    whole = index.search([EASY, HARD], 10)
    monkeypatch.setattr(filtering, "HITS_AT_ONCE", 1)
    pieces = index.search([EASY, HARD], 10)
    assert {name: whole[name].doc_ids for name in whole} == {
        name: pieces[name].doc_ids for name in pieces
    }


def test_a_limited_depth_shows_for_which_queries_documents_may_be_missing(
    fused: FusedIndex,
) -> None:
    index = FilteredIndex(fused, accepts, deepest=1000)
    run = index.search([EASY, HARD], 10)
    assert [len(run[query.id].doc_ids) for query in (EASY, HARD)] == [10, 0]
    assert run.incomplete == {HARD.id}
    assert not index.search([EASY], 10).incomplete
    assert not index.search([], 10).incomplete


def test_a_reranked_run_keeps_the_queries_that_lack_documents(fused: FusedIndex) -> None:
    index = FilteredIndex(fused, accepts, deepest=1000)
    reranked = RerankedIndex(index, Backwards(), RerankSettings(depth=10))
    run = reranked.search([EASY, HARD], 5)
    assert run.incomplete == {HARD.id}
    assert run[EASY.id].doc_ids == index.search([EASY], 10)[EASY.id].doc_ids[:4:-1]


class Backwards:
    """A reranker that reverses each ranking."""

    info = IndexInfo("backwards", "backwards", "", {})

    def scorer(self, queries: list[Query]) -> Scorer:
        return lambda query, ids: Scored(np.arange(len(ids), dtype=np.float64))

    def cut(self, queries: list[Query]) -> frozenset[str]:
        return frozenset()

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage] | None:
        return None


def test_nothing_accepted(fused: FusedIndex) -> None:
    found = FilteredIndex(fused, lambda name: False).search([EASY, HARD], 10)
    assert {name: found[name].doc_ids for name in found} == {EASY.id: [], HARD.id: []}


class Sure(RunIndex):
    """A run whose hits are good matches."""

    def is_answered(self, query: Query, ranking: Ranking) -> bool | None:
        return True


def test_a_filtered_index_judges_its_hits_as_the_whole_one(tmp_path: Path) -> None:
    write_run(tmp_path / "run", Run({"q": ranked(["d1", "d2"], np.array([2.0, 1.0]))}))
    for kind, judged in ((Sure, True), (RunIndex, None)):
        found = find(FilteredIndex(kind(tmp_path / "run"), accepts), "easy")
        assert found.answered is judged


def write_collection(folder: Path) -> str:
    """Documents with a field, of which one that is judged is missing. Returns their name."""
    rows = [{"id": f"d{n}", "text": f"water report {n}", "group": n % 8} for n in range(40)]
    tiny.write_jsonl(folder / "docs.jsonl", rows)
    (folder / "queries.tsv").write_text("q1\twater report\n")
    (folder / "qrels").write_text("q1 0 d1 1\nq1 0 gone 1\n")
    return f"{folder / 'docs.jsonl'},queries={folder / 'queries.tsv'},qrels={folder / 'qrels'}"


def test_judged_documents_that_are_missing_are_counted(lmk: Lmk, tmp_path: Path) -> None:
    name, index, run = write_collection(tmp_path), tmp_path / "bm25", tmp_path / "run"
    lmk("index", tmp_path / "docs.jsonl", "--kind", "bm25", "-o", index)
    for options in ((), ("--where", "group<4")):
        found = lmk("search", index, name, "-o", run, "--if-exists", "overwrite", *options)
        assert "1 of 2 relevant chunks or documents cannot be found" in found.err, options
        assert read_manifest(run).facts.unfindable == 1


def test_vectors_at_another_place(
    lmk: Lmk, tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    write_collection(tmp_path)
    vectors, moved, index = tmp_path / "vectors", tmp_path / "moved", tmp_path / "index"
    lmk("encode", tmp_path / "docs.jsonl", "-m", tiny_model("bert"), "-o", vectors)
    lmk("index", vectors, "--kind", "hnsw", "-o", index)
    vectors.rename(moved)
    ask = ["search", index, "--vectors", moved, "-q", "water", "-k", 40, "--json", "--where"]
    assert {hit["id"] for hit in lmk(*ask, "group=3").json} == {f"d{n}" for n in range(3, 40, 8)}


def test_a_field_of_few_documents_is_known_in_every_piece_of_a_run(
    lmk: Lmk, tmp_path: Path
) -> None:
    rows: list[dict[str, object]] = [{"id": "a", "text": "alpha"}]
    rows += [{"id": "b", "text": "beta", "lang": "de"}]
    tiny.write_jsonl(tmp_path / "docs.jsonl", rows)
    asked = "".join(f"q{n}\talpha\n" for n in range(40))  # more than the first piece
    (tmp_path / "queries.tsv").write_text(f"{asked}last\tbeta\n")
    index, run = tmp_path / "bm25", tmp_path / "run"
    lmk("index", tmp_path / "docs.jsonl", "--kind", "bm25", "-o", index)
    name = f"{tmp_path / 'docs.jsonl'},queries={tmp_path / 'queries.tsv'}"
    ask = ["search", index, name, "-o", run, "--max-memory", "8GB", "--where"]
    lmk(*ask, "lang=de")
    assert read_run(run)["last"].doc_ids == ["b"]
    assert "'lung'" in lmk(*ask, "lung=de", "--if-exists", "overwrite", code=2).err


def test_indexes_of_one_collection_with_and_without_its_queries(lmk: Lmk, tmp_path: Path) -> None:
    name = write_collection(tmp_path)
    docs = tmp_path / "docs.jsonl"
    lmk("index", docs, "--kind", "bm25", "-o", tmp_path / "one")
    lmk("index", name, "--kind", "bm25", "--k1", 2, "-o", tmp_path / "two")
    lmk("index", f"{docs},id=text,map_ids=1", "--kind", "bm25", "-o", tmp_path / "other")
    ask = ["search", tmp_path / "one", "-q", "water", "--fuse", "rrf", "--where", "group=3"]
    found = lmk(*ask, "--json", "--with", tmp_path / "two").json
    assert {hit["id"] for hit in found} == {f"d{n}" for n in range(3, 40, 8)}
    assert "different collections" in lmk(*ask, "--with", tmp_path / "other", code=2).err


def test_a_fusion_of_other_files_is_noted(
    lmk: Lmk, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """Their ids are not of one collection: a document could get the score of another."""
    name = write_collection(tmp_path)
    tiny.write_jsonl(tmp_path / "more.jsonl", [{"_id": "d3", "text": "another document"}])
    one, same, other = (tmp_path / each for each in ("one", "same", "other"))
    lmk("index", name, "--kind", "bm25", "-o", one)
    lmk("index", tmp_path / "docs.jsonl", "--kind", "bm25", "--k1", 2, "-o", same)
    lmk("index", tmp_path / "more.jsonl", "--kind", "bm25", "-o", other)
    lmk("encode", tmp_path / "more.jsonl", "-m", tiny_model("bert"), "-o", tmp_path / "vectors")
    ask, line = ["search", one, "-q", "water"], "were made from different files"
    assert line not in lmk(*ask, "--with", same, "--fuse", "rrf").err
    assert line in lmk(*ask, "--with", other, "--fuse", "rrf").err
    assert line in lmk(*ask, "--rerank", tmp_path / "vectors").err
