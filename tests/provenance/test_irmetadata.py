"""Metadata of a run: a YAML file with the recorded facts in the parts of the schema."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs

from lmkcli.artifact.kinds import Machine, Manifest, Origin
from lmkcli.errors import DataError
from lmkcli.provenance import irmetadata
from lmkcli.provenance.lineage import LineageStep
from lmkcli.spec.recipe import Recipe
from tests import manifests

MACHINE: Machine = {
    "system": "Linux-6.1-x86_64",
    "cpu": "A CPU: fast",
    "cores": 8,
    "memory": 64_000_000_000,
    "gpus": ["NVIDIA H200"],
}
ANALYSIS = {"tokenizer": "words", "stemmer": "snowball english", "stop_words": "lucene-en"}
SIDE = replace(manifests.SIDE, similarity="dot")


def step(name: str, made: Manifest, **facts: Any) -> dict[str, Any]:
    command = ["/venv/bin/lmk", made.kind, "-o", name]
    known = structs.replace(made.facts, machine=MACHINE, command=command, **facts)
    made = structs.replace(made, facts=known)
    return LineageStep(f"/home/{name}", made, "", "").as_json()


VECTORS = step("vectors", manifests.vectors(Recipe(SIDE, SIDE), source=Origin(name="")))
WORDS = manifests.index(k1=0.9, b=0.4)
ANALYSED = structs.replace(WORDS.identity, analysis=ANALYSIS)
BM25 = step("bm25", structs.replace(WORDS, identity=ANALYSED))


def entry(run: Path, search: dict[str, Any], **call: Any) -> dict[str, Any]:
    facts = {"operation": call, "collection": "beir/scifact/test", "index": "/home/vectors"}
    made = step(run.name, manifests.run(search=search), **facts)
    return {
        "run": str(run),
        "qrels": None,
        "scores": {"nDCG@10": 0.5, "R(rel=2)@100": 0.25},
        "lineage": [VECTORS, BM25, made],
    }


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "some.trec"
    path.write_text("q1 Q0 d1 1 2.0 my-tag\n")
    return path


def written(entry: dict[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(irmetadata.write(entry).read_text(encoding="utf-8"))
    assert loaded == irmetadata.describe_entry(entry)
    return loaded


def test_all_known_parts_of_the_schema(run: Path) -> None:
    made = written(
        entry(run, {"fuse": {"method": "rrf", "k": 60}}, index="vectors/", others=["bm25"])
    )
    assert made["schema version"] == 0.2
    assert made["tag"] == "my-tag"
    assert made["platform"]["hardware"] == {
        "cpu": {"model": "A CPU: fast", "number of cores": 8},
        "gpu": {"model": ["NVIDIA H200"]},
        "ram": "64 GB",
    }
    assert made["platform"]["software"]["retrieval toolkit"] == ["lmkcli==0.1.0"]
    assert made["research goal"]["evaluation"]["reported measures"] == ["nDCG@10", "R(rel=2)@100"]
    commands = made["implementation"]["executable"]["cmd"].split(" && ")
    assert commands == ["lmk vectors -o vectors", "lmk index -o bm25", "lmk run -o some.trec"]
    assert made["method"]["indexing"] == {
        "tokenizer": "words",
        "stemmer": "snowball english",
        "stopwords": "lucene-en",
    }
    assert made["data"]["test collection"] == {
        "name": "beir/scifact/test",
        "ir_datasets": "beir/scifact/test",
        "qrels": "beir/scifact/test",
    }
    assert "actor" not in made  # it is not recorded


def test_the_stages_of_the_pipeline(run: Path) -> None:
    how = {"fuse": {"method": "rrf", "k": 60}, "rerank": {"depth": 50, "interpolate": 0.5}}
    call = {"index": "vectors/", "others": ["bm25"], "rerank_model": "cross"}
    made = written(entry(run, {**how, "by": "crossencoder"}, **call))
    dense, words, fusion, rerank = made["method"]["retrieval"]
    assert dense == {
        "name": "vectors",
        "method": "dense retrieval",
        "model": "minilm",
        "pool": "lmk",
        "gran": "64",
        "unit": "doc",
        "window": "full",
        "max_length": 512,
        "similarity": "dot",
    }
    assert words == {"name": "bm25", "method": "bm25", "k1": 0.9, "b": 0.4}
    assert fusion["interpolates"] == ["vectors", "bm25"]
    assert rerank["reranks"] == fusion["name"]
    assert (rerank["with"], rerank["depth"], rerank["weight"]) == ("cross", 50, 0.5)


def test_a_run_of_another_tool_has_few_facts(run: Path) -> None:
    bare = {"run": str(run), "qrels": "q.tsv", "scores": {"AP": 0.5}, "lineage": []}
    made = written(bare)
    assert made.keys() == {"schema version", "tag", "research goal", "data"}
    assert made["data"] == {"test collection": {"qrels": "q.tsv"}}


def test_unusual_texts_are_preserved(run: Path) -> None:
    odd = entry(run, {}, index="vectors")
    odd["qrels"] = 'a: b # "c"\n\\ - ü \U0001f44b'
    assert written(odd)["data"]["test collection"]["qrels"] == odd["qrels"]


def test_an_existing_file_is_never_replaced(run: Path) -> None:
    existing = run.with_name("some.trec.ir_metadata.yml")
    existing.write_text("actor: {name: somebody}\n")
    with pytest.raises(DataError, match="exists already"):
        irmetadata.write(entry(run, {}))
    assert "somebody" in existing.read_text()
    existing.unlink()
    assert irmetadata.write(entry(run, {})) == irmetadata.write(entry(run, {}))  # the file is equal
