"""The inverted file of sparse vectors: the rankings of exact search, updates, and damage."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForMaskedLM, AutoTokenizer

from lmkcli import BuildIndex, Encode, Search
from lmkcli.data.collection import Query, open_collection
from lmkcli.data.run import Run
from lmkcli.errors import DataError, Mismatch, UsageError
from lmkcli.plugins.sparse import inverted
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.pipeline import open_index
from lmkcli.retrieval.vectors.vector_index import VectorIndex
from lmkcli.vectors import stored as folders
from lmkcli.vectors.stored import Vectors
from tests import tiny

Models = Callable[[str], Path]


def encode(collection: Path, model: Path, output: Path, **options: Any) -> Vectors:
    settings = {"pool": "splade", "dtype": "fp32", "device": "cpu", **options}
    Encode(str(collection), model=str(model), output=output, **settings).run()
    return Vectors(output)


def build(vectors: Path, output: Path, **options: Any) -> dict[str, Any]:
    built = BuildIndex(str(vectors), kind="inverted", output=output, **options).run()
    facts: dict[str, Any] = built.as_json()
    return facts


def opened(folder: Path, **settings: Any) -> VectorIndex:
    index = open_index(folder, OpenSettings(device="cpu", **settings))
    assert isinstance(index, VectorIndex)
    return index


def ranking(run: Run) -> dict[str, list[tuple[str, np.float32]]]:
    return {
        name: list(zip(each.doc_ids, each.scores, strict=True))
        for name, each in run.rankings.items()
    }


@pytest.fixture(autouse=True)
def small(part_bytes: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Several parts, blocks and ranges of terms."""
    part_bytes(4000)
    monkeypatch.setattr(folders, "BLOCK_BYTES", 720)
    monkeypatch.setattr(inverted, "IN_MEMORY", 300)


@pytest.mark.parametrize("options", [{}, {"unit": "chunk", "gran": 8}])
@pytest.mark.parametrize("level", [None, "chunk"])
def test_rankings_are_those_of_exact_search(
    masked_model: Models, beir: Path, tmp_path: Path, options: dict[str, Any], level: str | None
) -> None:
    vectors = encode(beir, masked_model("bert"), tmp_path / "v", top_terms=20, **options)
    facts = build(tmp_path / "v", tmp_path / "i")
    stored = vectors.at(np.arange(vectors.rows))
    assert (facts["documents"], facts["rows"]) == (60, vectors.total)
    assert (facts["postings"], facts["vocabulary"]) == (
        len(stored.terms),
        len(np.unique(stored.terms)),
    )
    if level and not options:
        with pytest.raises(UsageError, match="--level have no effect"):
            opened(tmp_path / "i", level=level)
        return
    exact, index = opened(tmp_path / "v", level=level), opened(tmp_path / "i", level=level)
    assert (index.info.kind, index.info.search) == ("inverted", exact.info.search)
    queries = list(open_collection(str(beir)).queries())
    for k in (3, 1000):
        found = ranking(index.search(queries, k))
        assert found == ranking(exact.search(queries, k))
        assert max(map(len, found.values())) > 2
    query = Query("q", tiny.sentence(3, 5))
    ids = index.search([query], 5).rankings["q"].doc_ids
    assert index.passages(query, ids) == exact.passages(query, ids)
    assert index.texts(ids) == exact.texts(ids)


def test_documents_without_terms_are_never_found(
    masked_model: Models, beir: Path, tmp_path: Path
) -> None:
    silent = AutoModelForMaskedLM.from_pretrained(masked_model("bert"))
    silent.cls.predictions.bias.data -= 1000
    silent.save_pretrained(tmp_path / "m")
    AutoTokenizer.from_pretrained(masked_model("bert")).save_pretrained(tmp_path / "m")
    encode(beir, tmp_path / "m", tmp_path / "v")
    assert build(tmp_path / "v", tmp_path / "i")["postings"] == 0
    assert opened(tmp_path / "i").search([Query("q", "bread")], 3).rankings["q"].doc_ids == []


def test_pipelines_search_the_index(masked_model: Models, beir: Path, tmp_path: Path) -> None:
    encode(beir, masked_model("bert"), tmp_path / "v", top_terms=20)
    build(tmp_path / "v", tmp_path / "i")
    BuildIndex(str(beir), kind="bm25", output=tmp_path / "b").run()
    for name, options in (
        ("fused", {"others": (tmp_path / "b",), "fuse": "rrf"}),
        ("reranked", {"rerank": tmp_path / "v"}),
    ):
        runs = []
        for first in ("v", "i"):
            path = tmp_path / f"{name}-{first}.trec"
            Search(str(tmp_path / first), str(beir), output=path, k=5, **options).run()
            runs.append([line.split()[:5] for line in path.read_text().splitlines()])
        assert runs[0] == runs[1]
        assert len(runs[0]) == 60


def test_damaged_and_missing_files(masked_model: Models, beir: Path, tmp_path: Path) -> None:
    vectors = encode(beir, masked_model("bert"), tmp_path / "v", top_terms=9)
    build(tmp_path / "v", tmp_path / "i")
    query = [Query("q", "bread")]
    for stem, value, reason in (
        ("starts", -1, r"starts\.npy is damaged"),
        ("rows", vectors.total, r"rows\.npy is damaged"),
        ("weights", np.nan, r"weights\.npy is damaged"),
    ):
        path = tmp_path / "i" / "1" / f"{stem}.npy"
        whole = path.read_bytes()
        array = np.load(path)
        array[1 if stem == "starts" else slice(None)] = value
        np.save(path, array)
        with pytest.raises(DataError, match=reason):
            opened(tmp_path / "i").search(query, 3)
        path.write_bytes(whole)
    (tmp_path / "v").rename(tmp_path / "w")
    described = tmp_path / "w" / "manifest.json"
    record = json.loads(described.read_text())
    record["identity"]["dim"] += 1
    described.write_text(json.dumps(record))
    with pytest.raises((DataError, Mismatch)):
        opened(tmp_path / "i", vectors=str(tmp_path / "w"))


def test_settings_that_do_not_apply(
    masked_model: Models, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    encode(beir, masked_model("bert"), tmp_path / "v", top_terms=5)
    for options, message in (
        ({"m": 8}, "--m has no effect"),
        ({"shard": "0/2"}, "--shard has no effect|built whole"),
        ({"k1": 1.0}, "--k1 has no effect"),
    ):
        with pytest.raises(UsageError, match=message):
            build(tmp_path / "v", tmp_path / "i", **options)
        assert not (tmp_path / "i").exists()
    with pytest.raises(UsageError, match="--kind inverted"):
        BuildIndex(str(tmp_path / "v"), output=tmp_path / "i").run()
    with pytest.raises(UsageError, match="not a vectors folder"):
        build(beir, tmp_path / "i")
    Encode(str(beir), model=str(tiny_model("bert")), output=tmp_path / "d", device="cpu").run()
    with pytest.raises(UsageError, match="contains dense vectors"):
        build(tmp_path / "d", tmp_path / "i")
    build(tmp_path / "v", tmp_path / "i")
    for settings, message in (
        ({"ef_search": 9}, "--ef-search has no effect"),
        ({"nprobe": 9}, "--nprobe has no effect"),
        ({"aggregate": "max"}, "have no effect"),
    ):
        with pytest.raises(UsageError, match=message):
            opened(tmp_path / "i", **settings)
