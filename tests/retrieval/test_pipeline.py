"""Runs, fusions and rerankings in an index's place, on a tiny collection with tiny models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from lmkcli.data.collection import Query, open_collection
from lmkcli.data.run import read_run, write_run
from lmkcli.encoding import jobs, planning
from lmkcli.encoding.encoder import open_encoder
from lmkcli.errors import UsageError
from lmkcli.models.finding import read_model
from lmkcli.recipe import RecipeOptions
from lmkcli.retrieval.building import build_dense, build_lexical
from lmkcli.retrieval.fusion import Fusion, fuse
from lmkcli.retrieval.index import Index, IndexInfo
from lmkcli.retrieval.opening import open_index
from lmkcli.retrieval.pipeline import Stages, open_all, open_pipeline
from lmkcli.settings import AnnSettings, Bm25Settings, EncodeSettings, OpenSettings, RerankSettings
from lmkcli.store.vectors import Vectors
from tests.models.test_crossencoder import by_hand, save

PLAIN = OpenSettings(device="cpu", dtype="fp32")
NONE = OpenSettings(device="cpu")


class Made(NamedTuple):
    """A BM25 index, vectors, a graph over them, a run of BM25, and the queries."""

    bm25: Path
    vectors: Path
    graph: Path
    run: Path
    queries: list[Query]


def encode(source: Path, model: Path, folder: Path, only: Path | None = None) -> Path:
    settings = EncodeSettings(dtype="fp32", store_dtype="fp32", device="cpu")
    job = planning.plan(str(source), RecipeOptions(model=str(model)), settings, "0/1")
    job = planning.restricted_to_run(job, only) if only else job
    jobs.run_encode(job, folder)
    return folder


@pytest.fixture(scope="module")
def made(
    beir: Path, tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Made:
    folder = tmp_path_factory.mktemp("pipelines")
    collection = open_collection(str(beir))
    build_lexical(collection, folder / "bm25", "bm25", Bm25Settings())
    vectors = encode(beir, tiny_model("bert"), folder / "vectors")
    build_dense(Vectors(vectors), folder / "graph", AnnSettings())
    queries = collection.judged_queries()
    run = open_index(folder / "bm25", OpenSettings()).search(queries, 20)
    write_run(folder / "bm25.trec", run)
    return Made(folder / "bm25", vectors, folder / "graph", folder / "bm25.trec", queries)


def opened(*paths: Path, settings: OpenSettings = NONE, **stages: Any) -> Index:
    return open_pipeline(Stages(paths, **stages), settings)


def reranked(made: Made, depth: int, interpolate: float | None = None, first: str = "run") -> Index:
    """The run, or another first stage, reranked by the vectors."""
    settings = RerankSettings(depth, interpolate)
    path = getattr(made, first)
    return opened(path, settings=PLAIN, rerank=made.vectors, reranking=settings)


def texts_of(beir: Path) -> dict[str, str]:
    return {doc.id: doc.content for doc in open_collection(str(beir)).docs()}


def vectors_of(folder: Path, texts: list[str]) -> Any:
    """Document vectors of texts, made anew by the encoder."""
    recipe = Vectors(folder).recipe
    model = read_model(recipe.query.model, None, True)
    encoder = open_encoder(recipe.doc, model, EncodeSettings(dtype="fp32", device="cpu"))
    return encoder.queries([Query(str(i), text) for i, text in enumerate(texts)]).vectors


def test_a_run_answers_the_queries_that_it_has(made: Made) -> None:
    index = opened(made.run)
    found = index.search([made.queries[1], Query("unknown", "river")], 3).rankings
    expected = read_run(made.run).rankings[made.queries[1].id]
    assert found[made.queries[1].id].doc_ids == expected.doc_ids[:3]
    assert found["unknown"].doc_ids == []
    assert index.info.kind == "bm25"
    assert index.texts(["d000"])["d000"].text == ""


@pytest.mark.parametrize("first", ["bm25", "run"])
def test_reranking_equals_scoring_those_pairs_by_hand(made: Made, beir: Path, first: str) -> None:
    index = reranked(made, 7, first=first)
    run = index.search(made.queries, 5)
    before = read_run(made.run).rankings
    texts = texts_of(beir)
    for query in made.queries:
        top = before[query.id].doc_ids[:7]
        asked, *documents = vectors_of(made.vectors, [query.text, *(texts[name] for name in top)])
        scores = dict(zip(top, (np.stack(documents) @ asked).tolist(), strict=True))
        best = sorted(top, key=lambda name: scores[name], reverse=True)[:5]
        assert run.rankings[query.id].doc_ids == best
        assert run.rankings[query.id].scores == pytest.approx([scores[n] for n in best], abs=1e-5)
    assert run.unscored == 0
    assert index.info.kind == "bm25-rerank"


def test_documents_without_a_vector_stand_at_the_end_and_are_counted(
    made: Made, beir: Path, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    query, before = made.queries[0], read_run(made.run).rankings[made.queries[0].id]
    missing = set(before.doc_ids[1:4])
    few = tmp_path / "few.trec"
    few.write_text(
        "".join(f"q Q0 {n} 1 1.0 x\n" for n in [*before.doc_ids, "nowhere"] if n not in missing)
    )
    folder = encode(beir, tiny_model("bert"), tmp_path / "vectors", only=few)
    run = reranked(made._replace(vectors=folder), 10).search([query], 10)
    found = run.rankings[query.id].doc_ids
    assert run.unscored == 3
    assert found[7:] == before.doc_ids[1:4]
    assert set(found) == set(before.doc_ids[:10])


def test_interpolation_is_its_formula(made: Made) -> None:
    query = made.queries[2]
    before = read_run(made.run).rankings[query.id]
    alone = reranked(made, 6).search([query], 6)
    both = reranked(made, 6, 0.3).search([query], 6)
    old = dict(zip(before.doc_ids[:6], before.scores[:6].tolist(), strict=True))
    ranking = alone.rankings[query.id]
    new = dict(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True))

    def scaled(scores: dict[str, float], name: str) -> float:
        low, high = min(scores.values()), max(scores.values())
        return (scores[name] - low) / (high - low)

    expected = {name: 0.3 * scaled(new, name) + 0.7 * scaled(old, name) for name in old}
    found = both.rankings[query.id]
    assert dict(zip(found.doc_ids, found.scores.tolist(), strict=True)) == pytest.approx(
        expected, abs=1e-4
    )


def test_an_index_and_a_run_are_fused_as_their_runs_are(made: Made) -> None:
    parts = open_all(Stages([made.vectors, made.run]), PLAIN)
    fused = opened(made.vectors, made.run, settings=PLAIN, fusion=Fusion("rrf"))
    runs = [part.search(made.queries, 1000) for part in parts]
    expected = fuse(runs, Fusion("rrf"), 9).rankings
    found = fused.search(made.queries, 9).rankings
    assert {q: r.doc_ids for q, r in found.items()} == {q: r.doc_ids for q, r in expected.items()}
    assert fused.texts(["d001"])["d001"].text  # the run has none, the vectors do
    assert fused.info.kind == "rrf"


def test_a_fusion_can_be_reranked(made: Made) -> None:
    fused = opened(made.bm25, made.run, fusion=Fusion("linear"))
    stages = {"rerank": made.vectors, "reranking": RerankSettings(4)}
    both = opened(made.bm25, made.run, settings=PLAIN, fusion=Fusion("linear"), **stages)
    run = both.search(made.queries[:1], 4)
    first = fused.search(made.queries[:1], 4).rankings[made.queries[0].id].doc_ids
    assert sorted(run.rankings[made.queries[0].id].doc_ids) == sorted(first)


def test_a_cross_encoder_reads_the_stored_texts(
    made: Made, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmkcli.models.crossencoder.native_dtype", lambda device: "fp32")
    folder = save(tmp_path / "model", 1)
    index = opened(made.bm25)
    query, texts = made.queries[3], texts_of(beir)
    top = index.search([query], 5).rankings[query.id].doc_ids
    stages = {"rerank_model": str(folder), "reranking": RerankSettings(5)}
    ranking = opened(made.bm25, **stages).search([query], 5)
    expected = dict(zip(top, by_hand(folder, query.text, [texts[n] for n in top]), strict=True))
    found = ranking.rankings[query.id]
    assert dict(zip(found.doc_ids, found.scores.tolist(), strict=True)) == pytest.approx(
        expected, abs=1e-4
    )
    assert found.doc_ids == sorted(top, key=expected.__getitem__, reverse=True)
    with pytest.raises(UsageError, match="is a run and holds no texts"):
        opened(made.run, **stages)


def test_a_setting_must_mean_something_to_one_of_the_indexes(made: Made) -> None:
    model = OpenSettings(model="elsewhere", device="cpu")
    with pytest.raises(UsageError, match="no effect on a bm25 index"):
        opened(made.bm25, settings=model)
    with pytest.raises(UsageError, match="no effect on a run"):
        open_all(Stages([made.run, made.bm25]), model)
    for paths in ([made.bm25, made.vectors], [made.run, made.graph]):
        assert len(open_all(Stages(paths), model)) == 2
    assert opened(made.run, settings=model, rerank=made.vectors)
    broad = OpenSettings(ef_search=50, device="cpu")
    assert open_all(Stages([made.bm25, made.vectors, made.graph]), broad)
    with pytest.raises(UsageError, match="no effect on a bm25 index"):
        opened(made.bm25, settings=broad, rerank=made.vectors)
    grown = OpenSettings(rm3=True, device="cpu")
    mixed = open_all(Stages([made.vectors, made.bm25, made.run]), grown)
    assert ["feedback" in index.info.search for index in mixed] == [False, True, False]
    for path, name in ((made.vectors, "vectors"), (made.graph, "an index"), (made.run, "a run")):
        with pytest.raises(UsageError, match=f"--rm3 has no effect on {name}"):
            opened(path, settings=grown)


def test_what_decides_a_run_is_in_its_digest(made: Made) -> None:
    def info(reranking: RerankSettings, fusion: Fusion) -> IndexInfo:
        stages = Stages([made.bm25, made.run], fusion, made.vectors, reranking=reranking)
        return open_pipeline(stages, PLAIN).info

    base = info(RerankSettings(), Fusion("rrf"))
    assert base == info(RerankSettings(), Fusion("rrf"))
    for other in (
        info(RerankSettings(50), Fusion("rrf")),
        info(RerankSettings(100, 0.5), Fusion("rrf")),
        info(RerankSettings(), Fusion("rrf", k=10)),
        info(RerankSettings(), Fusion("linear", weights=(1.0, 2.0))),
    ):
        assert other.search != base.search
    assert str(made.vectors) not in str(base.search)  # what was moved is the same still
    orders = ([made.run, made.bm25], [made.bm25, made.run])
    digests = {opened(*paths, fusion=Fusion("rrf")).info.digest for paths in orders}
    assert len(digests) == 2


def test_weights_and_indexes_are_checked_before_anything_is_searched(made: Made) -> None:
    with pytest.raises(UsageError, match="3 weights for 2 runs"):
        opened(made.bm25, made.run, fusion=Fusion.parse("linear:1,2,3"))
    with pytest.raises(UsageError, match="names an index twice"):
        opened(made.bm25, made.bm25.parent / "x" / ".." / made.bm25.name, fusion=Fusion("rrf"))
