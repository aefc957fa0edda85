"""Search over vectors on disk: the order of exact arithmetic, and artifacts that belong together."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lmkcli.artifact import manifest
from lmkcli.catalog import engine_row
from lmkcli.data.collection import Doc, Query, Shard, doc_hash
from lmkcli.data.run import Run
from lmkcli.encoding.encoder import DocumentVectors, encode_stream
from lmkcli.encoding.resolution import resolve
from lmkcli.encoding.shard_run import vectors_target, write_vectors
from lmkcli.encoding.token_stream import TokenStream
from lmkcli.errors import DataError, LmkError, Mismatch, UnknownName, UsageError
from lmkcli.progress import Report
from lmkcli.retrieval import index_folder
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSettings
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.pipeline import open_index, open_pipeline
from lmkcli.retrieval.stages import Stages
from lmkcli.retrieval.vectors import vector_index
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import WHOLE
from lmkcli.store.part_writer import shard_writer
from lmkcli.store.token_blocks import TokenRow
from lmkcli.vectors.rows import Ragged
from lmkcli.vectors.stored import Vectors
from tests import manifests
from tests.immediate import Immediate
from tests.indexes import build_faiss

Floats = NDArray[np.float32]
Models = Callable[[str], Path]
NONE = np.zeros(0, np.int32)


class FixedEncoder(Immediate):
    """Replaces a model: row i of the collection has vectors i, with one span per word."""

    buffer_tokens, contexts, sparse = 1, False, False

    def __init__(self, vectors: Ragged, spans: bool = False) -> None:
        self.vectors, self.dim, self.spans = vectors, vectors.vectors.shape[1], spans

    def __call__(self, rows: list[TokenRow], report: Report) -> DocumentVectors[Ragged]:
        numbers = np.array([int(row.doc.text.split()[0]) for row in rows])
        kept, of = [0] * len(rows), self.vectors.take(numbers)
        if not self.spans:
            return DocumentVectors(of, kept)
        ends = [m.span() for row in rows for m in re.finditer(r"\S+", row.doc.text)]
        return DocumentVectors(of, kept, np.array(ends, np.int32))


class FixedQueryEncoder:
    """Replaces the encoder of the query side: query 'i' has vectors i."""

    def __init__(self, vectors: Floats | Ragged) -> None:
        self.vectors = ragged(vectors)

    def cut(self, queries: list[Query]) -> frozenset[str]:
        return frozenset()

    def queries(self, queries: list[Query]) -> Ragged:
        return self.vectors.take(np.array([int(query.text) for query in queries]))


def ragged(vectors: Floats | Ragged) -> Ragged:
    return vectors if isinstance(vectors, Ragged) else Ragged.single(vectors)


class VectorsFolder:
    """A vectors folder with given ids and vectors, in parts of a few documents."""

    def __init__(self, folder: Path, model: Path, store: Any = "fp32", shards: int = 1) -> None:
        self.folder, self.store, self.shards = folder, store, shards
        self.recipe = resolve(RecipeOptions(model=str(model))).recipe

    def unit(self, name: str) -> "VectorsFolder":
        self.recipe = replace(self.recipe, doc=replace(self.recipe.doc, unit=name))
        return self

    def fill(self, ids: Sequence[str], vectors: Floats | Ragged) -> Path:
        of, spans = ragged(vectors), self.recipe.doc.unit == "chunk"
        made = manifests.vectors(
            self.recipe, of.vectors.shape[1], shards=self.shards, store_dtype=self.store
        )
        manifest.claim(self.folder, made)
        for number in range(self.shards):
            shard = Shard(number, self.shards)
            docs = [Doc(ids[i], text(i, int(of.counts[i]))) for i in shard.rows(len(ids))]
            rows = [TokenRow(d, doc_hash(d), np.ones(1, np.int32), NONE, NONE, None) for d in docs]
            stream = TokenStream([[row] for row in rows], lambda: None)
            encode, settings = FixedEncoder(of, spans), EncodeSettings(store_dtype=self.store)
            target = vectors_target(self.folder, shard, encode, settings)
            with shard_writer(target, Report()) as writer:
                write_vectors(encode_stream(stream, encode, Report()), writer, settings)
        return self.folder


def text(number: int, words: int) -> str:
    return " ".join([str(number), *(f"w{word}" for word in range(1, words))])


def oracle(
    ids: Sequence[str], stored: Floats, query: Floats, k: int
) -> list[tuple[str, np.float32]]:
    """The k best in float64, rounded to float32, ties by descending id."""
    scores = (stored.astype(np.float64) @ query.astype(np.float64)).astype(np.float32)
    order = sorted(zip(ids, scores, strict=True), key=lambda pair: pair[0], reverse=True)
    return sorted(order, key=lambda pair: -pair[1])[:k]


def pairs(run: Run, query: str) -> list[tuple[str, np.float32]]:
    ranking = run.rankings[query]
    return list(zip(ranking.doc_ids, ranking.scores, strict=True))


@pytest.fixture
def parts_of_ten(part_bytes: Callable[[int], None]) -> None:
    part_bytes(120)


@pytest.mark.usefixtures("parts_of_ten")
@pytest.mark.parametrize("store", ["fp16", "fp32"])
@pytest.mark.parametrize("seed", range(4))
def test_exact_search_ranks_like_float64(
    tiny_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((130, 5)).astype(np.float32)
    vectors[random.integers(0, 130, 60)] = vectors[3]  # duplicates
    vectors[random.integers(0, 130, 30)] = np.sign(vectors[:30])  # exact ties between others
    query_vectors = np.concatenate(
        [random.standard_normal((3, 5)), np.eye(5)[:1], np.zeros((1, 5))]
    )
    query_vectors = query_vectors.astype(np.float32)
    ids = [f"d{i:03d}" for i in random.permutation(130)]
    folder = VectorsFolder(tmp_path / "v", tiny_model("bert"), store, shards=1 + seed % 3).fill(
        ids, vectors
    )
    assert len(Vectors(folder).slices) > 5
    monkeypatch.setattr(
        vector_index, "open_query_encoder", lambda *_: FixedQueryEncoder(query_vectors)
    )
    queries = [Query(f"q{i}", str(i)) for i in range(len(query_vectors))]
    stored = vectors.astype({"fp16": np.float16, "fp32": np.float32}[store]).astype(np.float32)
    for k in (1, 7, 65, 130, 1000):
        run = open_index(folder, OpenSettings()).search(queries, k)
        for query, vector in zip(queries, query_vectors, strict=True):
            assert pairs(run, query.id) == oracle(ids, stored, vector, k)


@pytest.mark.usefixtures("parts_of_ten")
def test_an_approximate_index_over_parts_rescores_exactly(
    tiny_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(5)
    vectors = random.standard_normal((200, 8)).astype(np.float32)
    vectors[100:150] = vectors[7]
    ids = [f"d{i}" for i in range(200)]
    folder = VectorsFolder(tmp_path / "v", tiny_model("bert"), "fp16").fill(ids, vectors)
    build_faiss(Vectors(folder), tmp_path / "i", FaissSettings())
    query_vectors = random.standard_normal((4, 8)).astype(np.float32)
    monkeypatch.setattr(
        vector_index, "open_query_encoder", lambda *_: FixedQueryEncoder(query_vectors)
    )
    queries = [Query(f"q{i}", str(i)) for i in range(4)]
    run = open_index(tmp_path / "i", OpenSettings(ef_search=500)).search(queries, 200)
    stored = vectors.astype(np.float16).astype(np.float32)
    for query, vector in zip(queries, query_vectors, strict=True):
        assert pairs(run, query.id) == oracle(ids, stored, vector, 200)


def test_no_documents_and_no_queries(tiny_model: Models, tmp_path: Path) -> None:
    folder = VectorsFolder(tmp_path / "v", tiny_model("bert")).fill(
        [], np.zeros((0, 32), np.float32)
    )
    found = open_index(folder, OpenSettings())
    assert found.search([Query("q", "anything")], 5).rankings["q"].doc_ids == []
    assert found.search([], 5).rankings == {}


def test_the_last_shard_refuses_a_repeated_id(tiny_model: Models, tmp_path: Path) -> None:
    made = VectorsFolder(tmp_path / "v", tiny_model("bert"), shards=2)
    with pytest.raises(DataError, match="document id 'a' occurs twice"):
        made.fill(["a", "b", "c", "a"], np.eye(4, dtype=np.float32))


def test_texts_are_found_by_id(tiny_model: Models, tmp_path: Path) -> None:
    ids = [f"d{i}" for i in range(9)]
    folder = VectorsFolder(tmp_path / "v", tiny_model("bert")).fill(
        ids, np.eye(9, dtype=np.float32)
    )
    texts = open_index(folder, OpenSettings()).texts(["d7", "d2"])
    assert {name: doc.text for name, doc in texts.items()} == {"d7": "7", "d2": "2"}


# --- artifacts that belong together ------------------------------------------------------------------------


class Chain:
    """Real vectors of a real tiny model, in folders that may be moved."""

    def __init__(self, root: Path, model: Path) -> None:
        from lmkcli.encoding import jobs, shard_run
        from tests import tiny

        self.model = shutil.copytree(model, root / "model")
        self.vectors, self.index = root / "vectors", root / "index"
        collection = tiny.collection(root / "beir")
        settings = EncodeSettings(dtype="fp32", device="cpu")
        job = jobs.plan(str(collection), RecipeOptions(model=str(self.model)), settings, WHOLE)
        shard_run.run_encode(job, self.vectors)
        build_faiss(Vectors(self.vectors), self.index, FaissSettings())

    def answer(self, folder: Path | None = None, **settings: Any) -> Run:
        opened = open_index(folder or self.vectors, OpenSettings(**settings))
        return opened.search([Query("q", "copper conducts electricity")], 5)


@pytest.fixture
def chain(tiny_model: Models, tmp_path: Path) -> Chain:
    return Chain(tmp_path / "chain", tiny_model("bert"))


def same(one: Run, other: Run) -> bool:
    return pairs(one, "q") == pairs(other, "q")


def test_a_model_that_was_moved_is_found_with_model(chain: Chain, tmp_path: Path) -> None:
    before = chain.answer()
    moved = shutil.move(chain.model, tmp_path / "elsewhere")
    with pytest.raises(LmkError, match="no model folder"):
        chain.answer()
    assert same(chain.answer(model=str(moved)), before)
    assert same(chain.answer(chain.index, model=str(moved)), before)


def test_another_model_is_a_mismatch(chain: Chain, tiny_model: Models) -> None:
    for folder in (chain.vectors, chain.index):
        with pytest.raises(Mismatch, match="weights of"):
            chain.answer(folder, model=str(tiny_model("modernbert")))


def test_a_whole_tree_may_be_moved_together(chain: Chain, tmp_path: Path) -> None:
    before = chain.answer(chain.index)
    shutil.move(tmp_path / "chain", tmp_path / "new")
    again = chain.answer(tmp_path / "new" / "index", model=str(tmp_path / "new" / "model"))
    assert same(again, before)


def test_vectors_that_were_moved_are_found_with_vectors(chain: Chain, tmp_path: Path) -> None:
    before = chain.answer(chain.index)
    moved = shutil.move(chain.vectors, tmp_path / "elsewhere")
    with pytest.raises(DataError, match="--vectors"):
        chain.answer(chain.index)
    assert same(chain.answer(chain.index, vectors=str(moved)), before)


def test_other_vectors_are_a_mismatch(chain: Chain, tiny_model: Models, tmp_path: Path) -> None:
    other = VectorsFolder(tmp_path / "v", tiny_model("bert")).fill(
        ["a"], np.ones((1, 32), np.float32)
    )
    with pytest.raises(Mismatch, match="are not the vectors that"):
        chain.answer(chain.index, vectors=str(other))


@pytest.mark.parametrize("settings", [{"ef_search": 9}, {"nprobe": 9}, {"vectors": "x"}])
def test_settings_without_an_effect_on_vectors_are_refused(
    chain: Chain, settings: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="no effect"):
        chain.answer(**settings)


def test_an_index_that_is_not_finished_is_never_searched(chain: Chain) -> None:
    (chain.index / index_folder.BUILT).unlink()
    with pytest.raises(DataError, match="index command again"):
        open_index(chain.index, OpenSettings())


def test_later_parts_do_not_change_an_index(chain: Chain) -> None:
    """An index searches the parts that it was built from, and ignores later parts."""
    before = chain.answer(chain.index)
    vectors = Vectors(chain.vectors)
    assert [p.rows for p in vectors.slices] == [60]
    name = vectors.slices[0].name
    again = chain.vectors / "parts" / str(name._replace(start=60, stop=120))
    shutil.copytree(chain.vectors / "parts" / str(name), again)
    assert same(chain.answer(chain.index), before)


def test_the_family_of_a_kind() -> None:
    assert [engine_row(kind).name for kind in ("hnsw", "ivf", "bm25")] == ["hnsw", "ivf", "bm25"]
    assert engine_row("OPQ8,IVF16,PQ8").name == engine_row("HNSW32").name == "hnsw"
    with pytest.raises(UnknownName, match="did you mean hnsw"):
        engine_row("hnws")


@pytest.mark.parametrize("kind", ["tokens", "run"])
def test_other_artifacts_cannot_be_searched(tmp_path: Path, kind: str) -> None:
    manifest.claim(tmp_path / "x", manifests.KINDS[kind]())
    with pytest.raises(DataError, match=f"contains .*{kind}.* vectors or an index"):
        open_index(tmp_path / "x", OpenSettings())


@pytest.mark.parametrize(
    "identity",
    [
        {"recipe": []},
        {"recipe": {"doc": {"unit": "doc"}}},
        {"recipe": {"doc": [], "query": []}},
        {"settings": []},
        {"family": None},
    ],
)
def test_a_damaged_identity_is_named(chain: Chain, identity: dict[str, Any]) -> None:
    path = chain.index / manifest.NAME
    recorded = json.loads(path.read_text())
    recorded["identity"] |= identity
    path.write_text(json.dumps(recorded))
    key = next(iter(identity))
    for open_damaged in (
        lambda: open_index(chain.index, OpenSettings()),
        lambda: open_pipeline(Stages([chain.index]), OpenSettings()),
    ):
        with pytest.raises(DataError, match=rf"index/manifest\.json.*identity\.{key}"):
            open_damaged()


def test_rankings_never_rise(chain: Chain) -> None:
    scores = chain.answer().rankings["q"].scores
    assert all(a >= b for a, b in pairwise(scores.tolist()))
