"""Indexes over one encoding for the vectors of each document (MUVERA)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lmkcli import BuildIndex, Encode, Search
from lmkcli.data.run import Run, read_run
from lmkcli.errors import DataError, UsageError
from lmkcli.retrieval.vectors.muvera import EncodedDocs, FixedDimensional
from lmkcli.spec.values import Muvera, Shard
from lmkcli.vectors.rows import Ragged
from lmkcli.vectors.stored import Vectors
from tests import tiny

Models = Callable[[str], Path]
Floats = NDArray[np.floating]


def texts(counts: list[int], dim: int, seed: int = 0) -> Ragged:
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((sum(counts), dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Ragged.of(vectors, np.array(counts))


def clusters(encoding: Floats, muvera: Muvera) -> Floats:
    """[repetitions, clusters, dims]"""
    return encoding.reshape(muvera.repetitions, 1 << muvera.bits, muvera.dims)


# --- the encoding ----------------------------------------------------------------------------------


def test_a_query_is_the_sum_of_the_encodings_of_its_vectors() -> None:
    encoding = FixedDimensional(Muvera("3x4x5"), 12)
    query = texts([9, 1, 4], 12)
    alone = encoding.queries(Ragged.single(query.vectors)).vectors
    together = encoding.queries(query).vectors
    sums = np.add.reduceat(alone, query.starts[:-1], axis=0)
    np.testing.assert_allclose(together, sums, atol=1e-5)
    # each vector is in one cluster of each repetition
    used = clusters(alone[0], Muvera("3x4x5")).any(axis=2).sum(axis=1)
    assert used.tolist() == [1, 1, 1]


def test_a_document_has_the_means_of_its_clusters_and_the_nearest_of_those_for_empty_ones() -> None:
    muvera = Muvera("3x4x5")
    encoding = FixedDimensional(muvera, 12)
    doc = texts([6], 12, seed=3)
    # [vectors, repetitions, clusters, dims]: where each vector is, and its projection
    alone = np.array([clusters(e, muvera) for e in encoding.docs(Ragged.single(doc.vectors))])
    placed = encoding.queries(Ragged.single(doc.vectors)).vectors
    places = np.array([clusters(e, muvera).any(axis=2).argmax(axis=1) for e in placed])
    found = clusters(encoding.docs(doc)[0], muvera)
    for repetition in range(3):
        own = places[:, repetition]
        for cluster in range(16):
            bits = {int(c): (int(c) ^ cluster).bit_count() for c in own}
            nearest = min(bits, key=lambda c: (bits[c], c))
            expected = alone[own == nearest, repetition, nearest].mean(axis=0)
            np.testing.assert_allclose(found[repetition, cluster], expected, atol=1e-6)


def test_the_encoding_of_a_text_does_not_depend_on_the_others() -> None:
    encoding = FixedDimensional(Muvera("4x3x8"), 16)
    docs = texts([3, 1, 20, 7, 2], 16)
    together = encoding.docs(docs)
    alone = np.concatenate([encoding.docs(docs.one(number)) for number in range(5)])
    np.testing.assert_allclose(together, alone, atol=1e-6)


@pytest.mark.parametrize(("size", "least"), [("20x4x16", 0.75), ("40x5x16", 0.8)])
def test_dot_products_estimate_maxsim(size: str, least: float) -> None:
    encoding = FixedDimensional(Muvera(size), 16)
    docs, query = texts([20] * 300, 16), texts([8], 16, seed=1)
    # an answer for the query's vectors, among vectors of other topics, in more and more documents
    for number in range(300):
        docs.text(number)[: number // 40] = query.vectors[: number // 40]
    maxsim = [(query.vectors @ docs.text(number).T).max(axis=1).sum() for number in range(300)]
    estimate = encoding.docs(docs) @ encoding.queries(query).vectors[0]
    assert np.corrcoef(maxsim, estimate)[0, 1] > least
    assert estimate[280:].min() > estimate[:40].max()


# --- indexes ---------------------------------------------------------------------------------------


@pytest.fixture
def tokens(
    tiny_model: Models, beir: Path, tmp_path: Path, part_bytes: Callable[[int], None]
) -> Path:
    """Vectors of tokens, in several parts."""
    part_bytes(400)
    model = str(tiny_model("bert"))
    Encode(str(beir), model=model, unit="token", batch_tokens=60, output=tmp_path / "v").run()
    assert len(Vectors(tmp_path / "v").slices) > 3
    return tmp_path / "v"


def search(index: Path, beir: Path, output: str, **settings: Any) -> Run:
    path = index.with_name(output)
    Search(str(index), str(beir), output=path, **{"k": 10, **settings}).run()
    return read_run(path)


def same(run: Run, expected: Run) -> None:
    for query, ranking in expected.rankings.items():
        assert run.rankings[query].doc_ids == ranking.doc_ids
        np.testing.assert_array_equal(run.rankings[query].scores, ranking.scores)


@pytest.mark.parametrize("kind", ["hnsw", "ivf", "int8", "PCA8,Flat"])
def test_candidates_are_ranked_by_exact_scores(tokens: Path, beir: Path, kind: str) -> None:
    index = tokens.with_name("index")
    built = BuildIndex(str(tokens), kind=kind, muvera="8x3x8", output=index).run()
    assert (built.facts["rows"], built.facts["dim"]) == (60, 8 * 8 * 8)
    same(search(index, beir, "index.trec"), search(tokens, beir, "exact.trec"))


def test_few_candidates_contain_the_best_document(tokens: Path, beir: Path) -> None:
    index = tokens.with_name("index")
    BuildIndex(str(tokens), kind="Flat", muvera="40x4x16", output=index).run()
    exact = search(tokens, beir, "exact.trec", k=1)
    found = search(index, beir, "index.trec", k=1)  # 36 of 60 documents are scored
    equal = [found.rankings[q].doc_ids == r.doc_ids for q, r in exact.rankings.items()]
    assert sum(equal) >= 11


@pytest.mark.parametrize("unit", ["chunk", "token"])
def test_an_update_appends_documents_and_skips_deleted_ones(
    tiny_model: Models, beir: Path, tmp_path: Path, unit: str
) -> None:
    source, vectors, index = tmp_path / "beir", tmp_path / "v", tmp_path / "index"
    source.mkdir()
    for path in beir.rglob("*"):
        if path.is_file():
            (source / path.relative_to(beir)).parent.mkdir(exist_ok=True)
            (source / path.relative_to(beir)).write_bytes(path.read_bytes())
    settings: dict[str, Any] = {"unit": unit, "gran": "4" if unit == "chunk" else None}

    def update() -> Any:
        given = {name: value for name, value in settings.items() if value}
        model = str(tiny_model("bert"))
        Encode(str(source), model=model, output=vectors, if_exists="update", **given).run()
        return BuildIndex(
            str(vectors), kind="hnsw", muvera="4x3x8", output=index, if_exists="update"
        ).run()

    assert update().facts["rows"] == 60
    corpus = source / "corpus.jsonl"
    docs = [json.loads(line) for line in corpus.open(encoding="utf-8")]
    tiny.write_jsonl(corpus, [*docs[5:], {"_id": "new", "text": "copper conducts electricity"}])
    assert update().facts["rows"] == 61  # five of them are deleted
    same(search(index, source, "index.trec", k=56), search(vectors, source, "exact.trec", k=56))


def test_shards_of_building_and_searching(tokens: Path, beir: Path) -> None:
    index, whole = tokens.with_name("index"), tokens.with_name("whole")
    settings: dict[str, Any] = {"kind": "IVF1,SQ8", "muvera": "4x3x8"}
    BuildIndex(str(tokens), output=whole, **settings).run()
    for number in range(3):
        BuildIndex(str(tokens), output=index, shard=Shard(number, 3), **settings).run()
    BuildIndex(str(tokens), output=index, **settings).run()
    expected = search(whole, beir, "whole.trec")
    same(search(index, beir, "index.trec"), expected)
    for number in range(2):
        Search(
            str(index), str(beir), output=index.with_name("sharded.trec"), k=10,
            shard=Shard(number, 2),
        ).run()  # fmt: skip
    same(search(index, beir, "sharded.trec"), expected)


def test_blocks_are_bounded(tokens: Path) -> None:
    vectors, muvera = Vectors(tokens), Muvera("4x3x8")
    docs = EncodedDocs(vectors, muvera)
    whole = np.concatenate([block.vectors for block in docs])
    one_document = 4 * 32 * 9
    small = EncodedDocs(vectors, muvera, encoded=7 * 4 * docs.dim, read=one_document)
    blocks = [block.vectors for block in small]
    assert max(len(block) for block in blocks) <= 7
    np.testing.assert_array_equal(np.concatenate(blocks), whole)
    rows = np.array([3, 17, 18, 59])
    np.testing.assert_allclose(small.compute(rows), whole[rows], atol=1e-6)


# --- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "fact"),
    [
        ("20", "20x5x16"),
        ("0x5x16", "20x5x16"),
        ("20x17x16", "at most 16"),
        ("ax5x16", "20x5x16"),
        ("99x10x16", "65,536"),
        ("2x2x33", "at most 2x2x32"),
    ],
)
def test_impossible_sizes(tokens: Path, tmp_path: Path, size: str, fact: str) -> None:
    with pytest.raises(UsageError, match=f"--muvera {size}.*{fact}"):
        BuildIndex(str(tokens), muvera=size, output=tmp_path / "index").run()
    assert not (tmp_path / "index").exists()


def test_what_has_no_effect_is_refused(
    tokens: Path, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    single, index = tmp_path / "single", tmp_path / "index"
    Encode(str(beir), model=str(tiny_model("bert")), output=single).run()
    with pytest.raises(UsageError, match=r"--muvera.*one vector"):
        BuildIndex(str(single), muvera="2x2x4", output=index).run()
    with pytest.raises(UsageError, match=r"--muvera.*bm25"):
        BuildIndex(str(beir), kind="bm25", muvera="2x2x4", output=index).run()


def test_chunks_are_not_ranked_by_encodings_of_documents(
    tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    vectors, index = tmp_path / "v", tmp_path / "index"
    Encode(str(beir), model=str(tiny_model("bert")), unit="chunk", gran="4", output=vectors).run()
    BuildIndex(str(vectors), muvera="2x2x4", output=index).run()
    with pytest.raises(UsageError, match="--level chunk"):
        search(index, beir, "chunks.trec", level="chunk")


def test_damaged_settings_are_named(tokens: Path, beir: Path) -> None:
    index = tokens.with_name("index")
    BuildIndex(str(tokens), muvera="2x2x4", output=index).run()
    manifest = index / "manifest.json"
    whole = manifest.read_text()
    for wrong in ('"2x"', "5", '"3x2x4"'):
        manifest.write_text(whole.replace('"2x2x4"', wrong))
        with pytest.raises(DataError, match="index"):
            search(index, beir, "a.trec")
