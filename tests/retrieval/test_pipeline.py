"""Search in runs, fusions and rerankings, on a tiny collection with tiny models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from lmkcli.data.collection import Query, open_collection
from lmkcli.data.run import read_run, write_run
from lmkcli.encoding import jobs, shard_run
from lmkcli.encoding.encoder import open_encoder
from lmkcli.errors import UsageError
from lmkcli.models.lookup import read_model
from lmkcli.retrieval.engine import engine_of
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSettings
from lmkcli.retrieval.fusion import Fusion, fuse
from lmkcli.retrieval.index import Index, IndexInfo
from lmkcli.retrieval.lexical.lexical_settings import LexicalSettings
from lmkcli.retrieval.open_settings import OpenSettings, RerankSettings
from lmkcli.retrieval.pipeline import open_all, open_index, open_pipeline
from lmkcli.retrieval.stages import Stages
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import WHOLE
from lmkcli.vectors.stored import Vectors
from tests.indexes import build_faiss, build_lexical
from tests.models.test_crossencoder import by_hand, save

PLAIN = OpenSettings(device="cpu", dtype="fp32")
NONE = OpenSettings(device="cpu")


class Artifacts(NamedTuple):
    """A BM25 index, vectors, a graph over them, a run of BM25, and the queries."""

    bm25: Path
    vectors: Path
    graph: Path
    run: Path
    queries: list[Query]


def encode(source: Path, model: Path, folder: Path, only: Path | None = None) -> Path:
    settings = EncodeSettings(dtype="fp32", store_dtype="fp32", device="cpu")
    job = jobs.plan(str(source), RecipeOptions(model=str(model)), settings, WHOLE)
    job = jobs.restricted_to_run(job, only) if only else job
    shard_run.run_encode(job, folder)
    return folder


@pytest.fixture(scope="module")
def stored(
    beir: Path, tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Artifacts:
    folder = tmp_path_factory.mktemp("pipelines")
    collection = open_collection(str(beir))
    build_lexical(collection, folder / "bm25", engine_of("bm25"), LexicalSettings())
    vectors = encode(beir, tiny_model("bert"), folder / "vectors")
    build_faiss(Vectors(vectors), folder / "graph", FaissSettings())
    queries = collection.judged_queries()
    run = open_index(folder / "bm25", OpenSettings()).search(queries, 20)
    write_run(folder / "bm25.trec", run)
    return Artifacts(folder / "bm25", vectors, folder / "graph", folder / "bm25.trec", queries)


def opened(*paths: Path, settings: OpenSettings = NONE, **stages: Any) -> Index:
    return open_pipeline(Stages(paths, **stages), settings)


def reranked(
    stored: Artifacts, depth: int, interpolate: float | None = None, first: str = "run"
) -> Index:
    """The run, or another first stage, reranked by the vectors."""
    settings = RerankSettings(depth, interpolate)
    path = getattr(stored, first)
    return opened(path, settings=PLAIN, rerank=stored.vectors, reranking=settings)


def texts_of(beir: Path) -> dict[str, str]:
    return {doc.id: doc.content for doc in open_collection(str(beir)).docs()}


def vectors_of(folder: Path, texts: list[str]) -> Any:
    """Vectors of texts, encoded as documents."""
    recipe = Vectors(folder).recipe
    model = read_model(recipe.query.model, None, True)
    encoder = open_encoder(recipe.doc, model, EncodeSettings(dtype="fp32", device="cpu"))
    return encoder.queries([Query(str(i), text) for i, text in enumerate(texts)]).vectors


def test_a_run_answers_the_queries_that_it_has(stored: Artifacts) -> None:
    index = opened(stored.run)
    found = index.search([stored.queries[1], Query("unknown", "river")], 3).rankings
    expected = read_run(stored.run).rankings[stored.queries[1].id]
    assert found[stored.queries[1].id].doc_ids == expected.doc_ids[:3]
    assert found["unknown"].doc_ids == []
    assert index.info.kind == "bm25"
    assert index.texts(["d000"])["d000"].text == ""


@pytest.mark.parametrize("first", ["bm25", "run"])
def test_reranking_equals_scoring_those_pairs_by_hand(
    stored: Artifacts, beir: Path, first: str
) -> None:
    index = reranked(stored, 7, first=first)
    run = index.search(stored.queries, 5)
    before = read_run(stored.run).rankings
    texts = texts_of(beir)
    for query in stored.queries:
        top = before[query.id].doc_ids[:7]
        query_vector, *documents = vectors_of(
            stored.vectors, [query.text, *(texts[name] for name in top)]
        )
        scores = dict(zip(top, (np.stack(documents) @ query_vector).tolist(), strict=True))
        best = sorted(top, key=lambda name: scores[name], reverse=True)[:5]
        assert run.rankings[query.id].doc_ids == best
        assert run.rankings[query.id].scores == pytest.approx([scores[n] for n in best], abs=1e-5)
    assert run.unscored == 0
    assert index.info.kind == "bm25-rerank"


def test_documents_without_a_vector_are_last_and_are_counted(
    stored: Artifacts, beir: Path, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    query, before = stored.queries[0], read_run(stored.run).rankings[stored.queries[0].id]
    missing = set(before.doc_ids[1:4])
    few = tmp_path / "few.trec"
    few.write_text(
        "".join(f"q Q0 {n} 1 1.0 x\n" for n in [*before.doc_ids, "nowhere"] if n not in missing)
    )
    folder = encode(beir, tiny_model("bert"), tmp_path / "vectors", only=few)
    run = reranked(stored._replace(vectors=folder), 10).search([query], 10)
    found = run.rankings[query.id].doc_ids
    assert run.unscored == 3
    assert found[7:] == before.doc_ids[1:4]
    assert set(found) == set(before.doc_ids[:10])


def test_interpolation_is_its_formula(stored: Artifacts) -> None:
    query = stored.queries[2]
    before = read_run(stored.run).rankings[query.id]
    alone = reranked(stored, 6).search([query], 6)
    both = reranked(stored, 6, 0.3).search([query], 6)
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


def test_fusing_an_index_and_a_run_equals_fusing_runs(stored: Artifacts) -> None:
    parts = open_all(Stages([stored.vectors, stored.run]), PLAIN)
    fused = opened(stored.vectors, stored.run, settings=PLAIN, fusion=Fusion("rrf"))
    runs = [part.search(stored.queries, 1000) for part in parts]
    expected = fuse(runs, Fusion("rrf"), 9).rankings
    found = fused.search(stored.queries, 9).rankings
    assert {q: r.doc_ids for q, r in found.items()} == {q: r.doc_ids for q, r in expected.items()}
    assert fused.texts(["d001"])["d001"].text  # the run has none, the vectors do
    assert fused.info.kind == "rrf"


def test_a_fusion_can_be_reranked(stored: Artifacts) -> None:
    fused = opened(stored.bm25, stored.run, fusion=Fusion("linear"))
    stages = {"rerank": stored.vectors, "reranking": RerankSettings(4)}
    both = opened(stored.bm25, stored.run, settings=PLAIN, fusion=Fusion("linear"), **stages)
    run = both.search(stored.queries[:1], 4)
    first = fused.search(stored.queries[:1], 4).rankings[stored.queries[0].id].doc_ids
    assert sorted(run.rankings[stored.queries[0].id].doc_ids) == sorted(first)


def test_a_cross_encoder_reads_the_stored_texts(
    stored: Artifacts, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmkcli.models.crossencoder.native_dtype", lambda device: "fp32")
    folder = save(tmp_path / "model", 1)
    index = opened(stored.bm25)
    query, texts = stored.queries[3], texts_of(beir)
    top = index.search([query], 5).rankings[query.id].doc_ids
    stages = {"rerank_model": str(folder), "reranking": RerankSettings(5)}
    ranking = opened(stored.bm25, **stages).search([query], 5)
    expected = dict(zip(top, by_hand(folder, query.text, [texts[n] for n in top]), strict=True))
    found = ranking.rankings[query.id]
    assert dict(zip(found.doc_ids, found.scores.tolist(), strict=True)) == pytest.approx(
        expected, abs=1e-4
    )
    assert found.doc_ids == sorted(top, key=expected.__getitem__, reverse=True)
    with pytest.raises(UsageError, match="no texts"):
        opened(stored.run, **stages)


def test_a_setting_must_have_an_effect_on_one_index(stored: Artifacts) -> None:
    model = OpenSettings(model="elsewhere", device="cpu")
    with pytest.raises(UsageError, match="bm25"):
        opened(stored.bm25, settings=model)
    with pytest.raises(UsageError, match="no effect on a run"):
        open_all(Stages([stored.run, stored.bm25]), model)
    for paths in ([stored.bm25, stored.vectors], [stored.run, stored.graph]):
        assert len(open_all(Stages(paths), model)) == 2
    assert opened(stored.run, settings=model, rerank=stored.vectors)
    broad = OpenSettings(ef_search=50, device="cpu")
    assert open_all(Stages([stored.bm25, stored.vectors, stored.graph]), broad)
    with pytest.raises(UsageError, match="bm25"):
        opened(stored.bm25, settings=broad, rerank=stored.vectors)
    with_feedback = OpenSettings(rm3=True, device="cpu")
    mixed = open_all(Stages([stored.vectors, stored.bm25, stored.run]), with_feedback)
    assert ["feedback" in index.info.search for index in mixed] == [False, True, False]
    for path, name in (
        (stored.vectors, "vectors"),
        (stored.graph, "an index"),
        (stored.run, "a run"),
    ):
        with pytest.raises(UsageError, match=f"--rm3 .*{name}"):
            opened(path, settings=with_feedback)


def test_settings_of_stages_are_in_the_identity_of_a_run(stored: Artifacts) -> None:
    def info(reranking: RerankSettings, fusion: Fusion) -> IndexInfo:
        stages = Stages([stored.bm25, stored.run], fusion, stored.vectors, reranking=reranking)
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
    assert str(stored.vectors) not in str(base.search)  # a path is no part of the identity
    orders = ([stored.run, stored.bm25], [stored.bm25, stored.run])
    digests = {opened(*paths, fusion=Fusion("rrf")).info.digest for paths in orders}
    assert len(digests) == 2


def test_weights_and_indexes_are_checked_before_anything_is_searched(stored: Artifacts) -> None:
    with pytest.raises(UsageError, match="3 weights for 2 runs"):
        opened(stored.bm25, stored.run, fusion=Fusion.parse("linear:1,2,3"))
    with pytest.raises(UsageError, match="names an index twice"):
        opened(
            stored.bm25,
            stored.bm25.parent / "x" / ".." / stored.bm25.name,
            fusion=Fusion("rrf"),
        )
