"""Encode, search, update, compact and verify sparse vectors through operations and folders."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForMaskedLM, AutoTokenizer

from lmkcli import BuildIndex, Encode, Search, Tokenize
from lmkcli.data.collection import Query, open_collection
from lmkcli.data.run import read_run
from lmkcli.encoding.vector_updates import compact
from lmkcli.encoding.verification import verify
from lmkcli.errors import DataError, Mismatch, UsageError
from lmkcli.plugins.sparse import exact_product
from lmkcli.provenance.reproduction import least_cosine
from lmkcli.retrieval.open_settings import OpenSettings, RerankSettings
from lmkcli.retrieval.pipeline import open_index, open_pipeline
from lmkcli.retrieval.stages import Stages
from lmkcli.retrieval.vectors.vector_index import VectorIndex
from lmkcli.spec.settings import ModelSettings
from lmkcli.vectors import stored as folders
from lmkcli.vectors.stored import Vectors
from tests import tiny

Models = Callable[[str], Path]


def encode(collection: Path, model: Path, output: Path, **options: object) -> Vectors:
    settings = {"pool": "splade", "dtype": "fp32", "device": "cpu", "batch_tokens": 60, **options}
    Encode(str(collection), model=str(model), output=output, **settings).run()
    return Vectors(output)


def opened(folder: Path, **settings: object) -> VectorIndex:
    index = open_index(folder, OpenSettings(device="cpu", **settings))
    assert isinstance(index, VectorIndex)
    return index


def brute_force(index: VectorIndex, query: Query, by_chunk: bool = False) -> dict[str, np.float32]:
    """Return the scores above 0 of all documents, or of all chunks."""
    vectors = index.units.vectors
    stored = vectors.at(np.arange(vectors.rows))
    products = stored.matrix() @ index.encoded([query]).matrix()[0]
    scores = {}
    for row, name in enumerate(vectors.ids(np.arange(vectors.rows))):
        own = products[stored.starts[row] : stored.starts[row + 1]]
        named = {f"{name}#{i}": x for i, x in enumerate(own)} if by_chunk else {name: own.max()}
        scores |= {key: np.float32(x) for key, x in named.items() if x > 0}
    return scores


@pytest.fixture(autouse=True)
def small(part_bytes: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Several parts, blocks and batches of queries."""
    part_bytes(4000)
    monkeypatch.setattr(folders, "BLOCK_BYTES", 720)
    monkeypatch.setattr(exact_product, "QUERIES", 5)


@pytest.mark.parametrize("options", [{}, {"unit": "chunk", "gran": 8}, {"window": 16}])
@pytest.mark.parametrize("level", [None, "chunk"])
def test_search_ranks_by_exact_products(
    masked_model: Models, beir: Path, tmp_path: Path, options: dict[str, object], level: str | None
) -> None:
    if level and "unit" not in options:
        encode(beir, masked_model("bert"), tmp_path / "v", **options)
        with pytest.raises(UsageError, match="--level have no effect"):
            opened(tmp_path / "v", level=level)
        return
    vectors = encode(beir, masked_model("bert"), tmp_path / "v", top_terms=20, **options)
    assert len(vectors.slices) > 2
    index, queries = opened(tmp_path / "v", level=level), list(open_collection(str(beir)).queries())
    assert len(queries) > exact_product.QUERIES
    for k in (3, 1000):
        run = index.search(queries, k)
        for query in queries:
            wanted = brute_force(index, query, level == "chunk")
            best = sorted(wanted.items(), key=lambda pair: (pair[1], pair[0]), reverse=True)[:k]
            ranking = run.rankings[query.id]
            assert list(zip(ranking.doc_ids, ranking.scores, strict=True)) == best


def test_shards_of_a_search_join_to_the_whole_run(
    masked_model: Models, beir: Path, tmp_path: Path
) -> None:
    encode(beir, masked_model("bert"), tmp_path / "v", unit="chunk", gran=8, top_terms=9)
    for level in ("doc", "chunk"):
        runs = []
        for name in ("whole", "shared"):
            settings = {
                "k": 7,
                "level": level,
                "device": "cpu",
                "output": tmp_path / f"{name}-{level}.trec",
            }
            for shard in ("2/3", "0/3", "1/3") if name == "shared" else ():
                Search(str(tmp_path / "v"), str(beir), shard=shard, **settings).run()
            Search(str(tmp_path / "v"), str(beir), **settings).run()
            runs.append(settings["output"].read_text())
        assert runs[0] == runs[1]
        assert runs[0].count("\n") == 7 * 12


@pytest.mark.parametrize("damage", [{"terms": 600}, {"weights": np.nan}, {"offsets": -1}])
def test_damaged_queries_of_shards_are_named(
    masked_model: Models, beir: Path, tmp_path: Path, damage: dict[str, float]
) -> None:
    encode(beir, masked_model("bert"), tmp_path / "v", top_terms=9)
    words = {"k": 7, "device": "cpu", "output": tmp_path / "r.trec"}
    Search(str(tmp_path / "v"), str(beir), shard="0/1", **words).run()
    (path,) = (tmp_path / "r.trec.shards").glob("shared-queries-*.npz")
    arrays = dict(np.load(path))
    for stem, value in damage.items():
        arrays[stem][0] = value
    with open(path, "wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(DataError, match=r"queries-0\.npz cannot be read"):
        Search(str(tmp_path / "v"), str(beir), **words).run()


@pytest.mark.parametrize("pool", ["splade", "splade-sum", "splade-log"])
def test_windows_are_reduced_like_positions(
    masked_model: Models, beir: Path, tmp_path: Path, pool: str
) -> None:
    """A window of one chunk makes the vectors of unit chunk; a document has their maximum, or their sum."""
    cut = {"gran": 8, "window": "chunk", "pool": pool}
    whole = encode(beir, masked_model("bert"), tmp_path / "whole", **cut)
    parts = encode(beir, masked_model("bert"), tmp_path / "parts", unit="chunk", **cut)
    rows = np.arange(whole.rows)
    chunks = parts.at(rows)
    assert chunks.counts.max() > 3
    reduce = np.add if pool == "splade-sum" else np.maximum
    wanted = reduce.reduceat(chunks.matrix(), chunks.starts[:-1])
    np.testing.assert_allclose(whole.at(rows).matrix(), wanted, rtol=1e-5, atol=1e-5)


def test_passages_are_the_best_chunks(masked_model: Models, beir: Path, tmp_path: Path) -> None:
    encode(beir, masked_model("bert"), tmp_path / "v", unit="chunk", gran=8, top_terms=9)
    index, query = opened(tmp_path / "v"), Query("q", tiny.sentence(3, 5))
    ids = index.search([query], 5).rankings["q"].doc_ids
    chunks = brute_force(index, query, by_chunk=True)
    for name, passage in index.passages(query, ids).items():
        own = {key: x for key, x in chunks.items() if key.startswith(f"{name}#")}
        assert f"{name}#{passage.chunk}" == max(own, key=lambda key: own[key])
        assert index.texts([name])[name].content[passage.begin : passage.end] == passage.text


def test_an_update_keeps_vectors_and_a_compaction_changes_none(
    masked_model: Models, tmp_path: Path
) -> None:
    corpus, model = tmp_path / "c.jsonl", masked_model("bert")

    def write(numbers: range) -> None:
        tiny.write_jsonl(corpus, [{"_id": f"d{i}", "text": tiny.sentence(i, 9)} for i in numbers])

    write(range(30))
    encode(corpus, model, tmp_path / "v", unit="chunk", gran=4)
    write(range(5, 40))
    encode(corpus, model, tmp_path / "v", unit="chunk", gran=4, if_exists="update")
    fresh = encode(corpus, model, tmp_path / "fresh", unit="chunk", gran=4)
    for _ in range(2):
        updated = Vectors(tmp_path / "v")
        rows = updated.rows_of([f"d{i}" for i in range(5, 40)])
        assert updated.rows == len(rows) == 35
        wanted = fresh.at(np.array([fresh.rows_of([name])[name] for name in rows]))
        made = updated.at(np.array([*rows.values()]))
        np.testing.assert_array_equal(made.counts, wanted.counts)
        np.testing.assert_allclose(made.matrix(), wanted.matrix(), atol=1e-5)
        assert [updated.spans(row).tolist() for row in rows.values()] == [
            fresh.spans(fresh.rows_of([name])[name]).tolist() for name in rows
        ]
        compact(tmp_path / "v", 0)
    assert len(updated.slices) < len(Vectors(tmp_path / "fresh").slices) + 2


def test_shards_make_the_same_vectors(masked_model: Models, beir: Path, tmp_path: Path) -> None:
    whole = encode(beir, masked_model("bert"), tmp_path / "whole")
    settings = {"pool": "splade", "dtype": "fp32", "device": "cpu"}
    for shard in ("1/2", "0/2"):
        model = str(masked_model("bert"))
        Encode(str(beir), model=model, output=tmp_path / "s", shard=shard, **settings).run()
    sharded = Vectors(tmp_path / "s")
    rows = whole.rows_of(sharded.ids(np.arange(sharded.rows)))
    assert least_cosine(whole, sharded) == pytest.approx(1)
    assert least_cosine(whole, encode(beir, masked_model("distilbert"), tmp_path / "d")) < 0.99
    made = sharded.at(np.array([sharded.rows_of([name])[name] for name in rows]))
    np.testing.assert_allclose(
        made.matrix(), whole.at(np.array([*rows.values()])).matrix(), atol=1e-5
    )


def test_verification_and_damage(masked_model: Models, beir: Path, tmp_path: Path) -> None:
    encode(beir, masked_model("bert"), tmp_path / "v", top_terms=9)
    found = verify(tmp_path / "v", 20, ModelSettings(device="cpu"))
    assert found.documents == 20
    assert found.cosine > 0.99999
    part = next((tmp_path / "v" / "parts").iterdir())
    for stem, value, reason in (
        ("terms", tiny.VOCABULARY, "its terms are not ascending"),
        ("weights", -1, "weights that are not positive"),
        ("offsets", 10**9, "offsets are not in order"),
    ):
        path = part / f"{stem}.npy"
        whole = path.read_bytes()
        array = np.load(path)
        array[2] = value
        np.save(path, array)
        with pytest.raises(DataError, match=reason):
            list(Vectors(tmp_path / "v"))
        with pytest.raises(DataError, match=reason):
            _ = [Vectors(tmp_path / "v").at(np.array([row])) for row in range(3)]
        with pytest.raises(DataError, match=r"has changed|not finite|not ascending|offsets"):
            verify(tmp_path / "v", 20, ModelSettings(device="cpu"))
        path.write_bytes(whole)
    list(Vectors(tmp_path / "v"))


def biased(model: Path, folder: Path, bias: float) -> Path:
    """Save a copy of a BERT in which a number is added to all logits."""
    copy = AutoModelForMaskedLM.from_pretrained(model)
    copy.cls.predictions.bias.data += bias
    copy.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("bias", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(
    masked_model: Models, beir: Path, tmp_path: Path, bias: float
) -> None:
    model = biased(masked_model("bert"), tmp_path / "model", bias)
    with pytest.raises(DataError, match=r"document d000 .*not finite"):
        encode(beir, model, tmp_path / "v")


def test_a_document_without_terms_is_never_found(
    masked_model: Models, beir: Path, tmp_path: Path
) -> None:
    vectors = encode(beir, biased(masked_model("bert"), tmp_path / "m", -1000), tmp_path / "v")
    assert vectors.codec.notes(vectors) == ["60 documents without any term: no query finds them"]
    assert opened(tmp_path / "v").search([Query("q", "bread")], 10).rankings["q"].doc_ids == []
    assert verify(tmp_path / "v", 5, ModelSettings(device="cpu")).cosine == 1


def test_fusion_with_bm25(masked_model: Models, beir: Path, tmp_path: Path) -> None:
    encode(beir, masked_model("bert"), tmp_path / "v")
    BuildIndex(str(beir), kind="bm25", output=tmp_path / "b").run()
    both = {"others": (tmp_path / "b",), "fuse": "rrf"}
    searched = Search(str(tmp_path / "v"), str(beir), output=tmp_path / "r.trec", k=5, **both).run()
    assert searched.lines == 60
    assert len(read_run(tmp_path / "r.trec").rankings) == 12


@pytest.mark.parametrize("options", [{}, {"unit": "chunk", "gran": 8}])
def test_reranking_gives_the_scores_of_sparse_search(
    masked_model: Models, beir: Path, tmp_path: Path, options: dict[str, object]
) -> None:
    encode(beir, masked_model("bert"), tmp_path / "v", top_terms=6, query_top_terms=6, **options)
    BuildIndex(str(beir), kind="bm25", output=tmp_path / "b").run()
    stages = Stages([tmp_path / "b"], rerank=tmp_path / "v", reranking=RerankSettings(depth=10))
    settings = OpenSettings(device="cpu")
    queries = list(open_collection(str(beir)).queries())
    first = open_index(tmp_path / "b", OpenSettings()).search(queries, 10)
    reranked = open_pipeline(stages, settings).search(queries, 10)
    for query in queries:
        scores = brute_force(opened(tmp_path / "v"), query)
        ranking = reranked.rankings[query.id]
        assert set(ranking.doc_ids) == set(first.rankings[query.id].doc_ids)
        wanted = [scores.get(name, 0) for name in ranking.doc_ids]
        np.testing.assert_allclose(ranking.scores, wanted, rtol=1e-6)
        assert wanted == sorted(wanted, reverse=True)


def test_settings_that_do_not_apply(masked_model: Models, beir: Path, tmp_path: Path) -> None:
    model = masked_model("bert")
    for options, message in (
        ({"store_dtype": "int8"}, "--store-dtype int8 has no effect"),
        ({"unit": "token"}, "--unit token: --pool splade makes a sparse vector"),
        ({"dim": 8}, "--dim 8: the dimensions of sparse vectors"),
        ({"pool": "mean", "top_terms": 8}, "--top-terms has no effect with --pool mean"),
        ({"pool": "mean", "query_top_terms": 8}, "--query-top-terms has no effect"),
        ({"sum_windows": True}, "--sum-windows has no effect with --unit doc and --window full"),
        ({"sum_windows": True, "window": 16, "unit": "chunk", "gran": 8}, "with --unit chunk"),
        (
            {"sum_windows": True, "window": 16, "pool": "splade-sum"},
            "no effect with --pool splade-sum, only with --pool splade, splade-log",
        ),
        (
            {"sum_windows": True, "window": 16, "pool": "mean"},
            "--sum-windows has no effect with --pool mean",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            encode(beir, model, tmp_path / "v", **options)
        assert not (tmp_path / "v").exists()
    encode(beir, model, tmp_path / "v")
    with pytest.raises(
        UsageError, match=r"sparse vectors, and this needs dense ones.*without an index"
    ):
        BuildIndex(str(tmp_path / "v"), output=tmp_path / "i").run()
    for settings, message in (
        ({"aggregate": "sum"}, "have no effect"),
        ({"ef_search": 9}, "has no effect"),
    ):
        with pytest.raises(UsageError, match=message):
            opened(tmp_path / "v", **settings)
    other = tiny.save_masked(tmp_path / "other", "distilbert")
    with pytest.raises(Mismatch, match="give the original model"):
        opened(tmp_path / "v", model=str(other)).search([Query("q", "bread")], 1)


def test_the_recipe_travels_with_the_vectors(
    masked_model: Models, beir: Path, tmp_path: Path
) -> None:
    encode(beir, masked_model("bert"), tmp_path / "v", top_terms=9, query_top_terms=4)
    index = opened(tmp_path / "v")
    assert index.encoded([Query("q", "bread before dawn")]).lengths.tolist() == [4]
    assert set(index.units.vectors.at(np.arange(60)).lengths.tolist()) == {9}
    recorded = json.loads((tmp_path / "v" / "manifest.json").read_text())["identity"]["recipe"]
    assert [recorded[side]["settings"] for side in ("doc", "query")] == [
        {"top_terms": 9},
        {"top_terms": 4},
    ]
    assert re.fullmatch(r"splade", recorded["doc"]["pool"])


def test_a_recipe_of_other_vectors_is_refused(
    masked_model: Models, beir: Path, tmp_path: Path
) -> None:
    encode(beir, masked_model("bert"), tmp_path / "v")
    path = tmp_path / "v" / "manifest.json"
    path.write_text(path.read_text().replace('"splade"', '"mean"'))
    with pytest.raises(
        DataError, match=r"contains sparse vectors of .* its recipe makes dense ones"
    ):
        opened(tmp_path / "v").search([Query("q", "bread")], 1)


def test_weights_of_windows_are_added_or_compared(
    masked_model: Models, beir: Path, tmp_path: Path
) -> None:
    """A document has the sum or the maximum of the vectors of its windows, which here are its chunks."""
    cut: dict[str, object] = {"gran": 8, "window": "chunk"}
    model, rows = masked_model("bert"), np.arange(60)
    windows = encode(beir, model, tmp_path / "windows", unit="chunk", **cut).at(rows)
    assert windows.counts.max() > 2
    for settings, reduction in (({}, np.maximum), ({"sum_windows": True}, np.add)):
        folder = tmp_path / reduction.__name__
        made = encode(beir, model, folder, **cut, **settings).at(rows)
        wanted = reduction.reduceat(windows.matrix(), windows.starts[:-1])
        np.testing.assert_allclose(made.matrix(), wanted, rtol=1e-5, atol=1e-5)
        recorded = json.loads((folder / "manifest.json").read_text())["identity"]["recipe"]
        assert recorded["doc"].get("settings", {}) == settings
        assert "settings" not in recorded["query"]


def test_the_terms_of_a_text_are_printed(masked_model: Models) -> None:
    text, options = "bread before dawn", {"pool": "splade", "unit": "chunk", "gran": 2}
    shown = Tokenize(model=str(masked_model("bert")), show=text, top_terms=3, **options).run()
    assert shown.as_json()["vectors"] == 2
    for terms, line in zip(shown.as_json()["terms"], str(shown).splitlines()[1:], strict=True):
        weights = [term["weight"] for term in terms]
        assert len(weights) == 3
        assert weights == sorted(weights, reverse=True)
        assert line == ", ".join(f"{term['token']} {term['weight']:.2f}" for term in terms)
