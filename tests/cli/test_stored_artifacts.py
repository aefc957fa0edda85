"""Artifacts written by lmk 0.1 can be opened, searched and continued: file formats do not change."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import Stemmer

from lmkcli.artifact import manifest
from lmkcli.retrieval.index_folder import read_record, write_record
from lmkcli.store import parts
from lmkcli.store.tokens import Tokens
from lmkcli.vectors.stored import Vectors

Lmk = Callable[..., Any]
STORED = Path(__file__).resolve().parents[1] / "fixtures" / "artifacts-0.1"
SAME_STEMMER = Stemmer.version() == "3.1.0"
with_stemmer = pytest.mark.skipif(
    not SAME_STEMMER, reason="lmk refuses the stored BM25 index, whose stemmer is another version"
)
ROOT = "/data/example"  # the folder in which make.py pretends to run


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A copy of the artifacts, as if they had been made in this folder."""
    root = shutil.copytree(STORED, tmp_path / "stored")
    for path in [*root.rglob("*.json"), *root.rglob("*.jsonl")]:
        path.write_text(path.read_text().replace(ROOT, str(root)))
    _sign(root)
    _set_time(json.loads((root / "tokens" / "manifest.json").read_text())["execution"]["source"])
    _set_time(json.loads((root / "updated" / "generation.json").read_text())["source"])
    return root


def _sign(root: Path) -> None:
    """Record the digests of files that contain the name of the folder."""
    for path in root.rglob("manifest.json"):
        path.write_text(manifest.as_text(manifest.read_file(path)))
    path = root / "updated" / "generation.json"
    values = json.loads(path.read_text())
    del values["digest"]
    path.write_text(json.dumps({**values, "digest": manifest.digest(values)}))
    record = read_record(root / "bm25")
    assert record
    digest = write_record(root / "bm25", record.facts, record.of, record.at).digest
    for path in [*root.rglob("*.json"), *root.rglob("*.jsonl")]:
        path.write_text(path.read_text().replace(record.digest, digest))


def _set_time(source: dict[str, Any]) -> None:
    """Restore the modification times of the source files, which git does not store."""
    for name, (size, time) in source["stamp"].items():
        path = Path(source["name"]) / name
        assert path.stat().st_size == size
        os.utime(path, ns=(time, time))


def parts_of(folder: Path) -> dict[str, bytes]:
    """The metadata of each part; its name starts with the shard and the first row."""
    return {p.parent.name: p.read_bytes() for p in (folder / "parts").glob("*/part.json")}


def test_unfinished_tokens_are_continued(lmk: Lmk, stored: Path, tmp_path: Path) -> None:
    folder, before = stored / "tokens", parts_of(stored / "tokens")
    assert Tokens(folder).state.unfinished == [1]
    command = ("tokenize", stored / "corpus", "-m", stored / "model", "-o")
    lmk(*command, folder, "--shard", "1/2")
    now = parts_of(folder)
    assert now.items() > before.items()
    lmk(*command, tmp_path / "fresh")
    rows, fresh = (
        [row for batch in Tokens(place).rows(0, 40) for row in batch]
        for place in (folder, tmp_path / "fresh")
    )
    assert len(rows) == 40
    for one, other in zip(rows, fresh, strict=True):
        assert (one.doc, one.hash) == (other.doc, other.hash)
        assert all(np.array_equal(a, b) for a, b in zip(one[2:], other[2:], strict=True))


def test_unfinished_vectors_are_continued(lmk: Lmk, stored: Path) -> None:
    folder, before = stored / "unfinished", parts_of(stored / "unfinished")
    refused = lmk("search", folder, "-q", "copper", code=3)
    assert "not finished: 1" in refused.err
    words = ("--pool", "lmk", "--gran", 4, "--unit", "chunk", "--dtype", "fp32")
    lmk("encode", stored / "corpus", "-m", stored / "model", "-o", folder, "--shard", "1/2", *words)
    assert parts_of(folder).items() > before.items()
    assert len(Vectors(folder).numbers()) == 40
    assert lmk("verify", folder, "--sample", 40, "--json").json["least cosine"] > 0.99999
    assert lmk("search", folder, "-q", "copper conducts", "--json").json


@pytest.mark.parametrize("name", ["updated", "hnsw", pytest.param("bm25", marks=with_stemmer)])
def test_a_search_finds_the_same_hits(lmk: Lmk, stored: Path, tmp_path: Path, name: str) -> None:
    lmk("search", stored / name, stored / "grown", "-k", 10, "-o", tmp_path / "run.trec")
    then, now = (
        [line.split() for line in path.read_text().splitlines()]
        for path in (stored / f"{name}.trec", tmp_path / "run.trec")
    )
    scores = [np.array([float(line[4]) for line in lines]) for lines in (then, now)]
    assert np.abs(scores[0] - scores[1]).max() < 1e-4
    assert len({(line[0], line[2]) for line in then} & {(line[0], line[2]) for line in now}) >= 58


def test_an_updated_folder_is_updated_and_compacted(lmk: Lmk, stored: Path) -> None:
    folder, corpus = stored / "updated", stored / "grown" / "corpus.jsonl"
    command = ("encode", stored / "grown", "-m", stored / "model", "-o", folder, "--dtype", "fp32")
    made = lmk(*command, "--if-exists", "update", "--json").json
    assert (made["generation"], made["kept"], made["encoded"], made["removed"]) == (2, 35, 0, 0)
    lines = corpus.read_text().splitlines(keepends=True)
    corpus.write_text("".join(lines[1:]) + '{"_id": "new", "text": "storms bend young trees"}\n')
    made = lmk(*command, "--if-exists", "update", "--json").json
    assert (made["generation"], made["kept"], made["encoded"], made["removed"]) == (3, 34, 1, 1)
    again = lmk("index", folder, "-o", stored / "hnsw", "--m", 4, "--if-exists", "update")
    assert re.search(r"\b1 rows? appended.*\b1 deleted", again.err)
    hit = lmk("search", stored / "hnsw", "-q", "storms bend young trees", "-k", 1, "--json").json
    assert hit[0]["id"] == "new"
    lmk("compact", folder, "--keep-hours", 0)
    assert [str(p) for p in parts.list_parts(folder)] == ["00000of00000-000000000041-000000000076"]
    lmk("verify", folder)


def test_finished_work_is_recognised(lmk: Lmk, stored: Path) -> None:
    """The same commands again do nothing, because the recipe is unchanged."""
    before = {path: path.stat().st_mtime_ns for path in stored.rglob("*") if path.is_file()}
    lmk(
        "tokenize",
        stored / "corpus",
        "-m",
        stored / "model",
        "-o",
        stored / "tokens",
        "--shard",
        "0/2",
    )
    lmk("encode", stored / "grown", "-m", stored / "model", "-o", stored / "updated")
    lmk("index", stored / "updated", "-o", stored / "hnsw", "--m", 4)
    if SAME_STEMMER:
        lmk("index", stored / "corpus", "--kind", "bm25", "-o", stored / "bm25")
    for name in ("updated", "hnsw", *(["bm25"] if SAME_STEMMER else [])):
        lmk("search", stored / name, stored / "grown", "-k", 10, "-o", stored / f"{name}.trec")
    assert {path: path.stat().st_mtime_ns for path in stored.rglob("*") if path.is_file()} == before


def test_a_run_and_a_log_are_read_and_written_on(lmk: Lmk, stored: Path) -> None:
    log = stored / "scores.jsonl"
    then = json.loads(log.read_text())
    lmk("eval", stored / "updated.trec", "--log", log)
    first, second = map(json.loads, log.read_text().splitlines())
    assert first == then
    for key in ("scores", "coverage", "qrels_digest", "run_sha256"):
        assert second[key] == then[key]
    led = [[step["identity"] for step in entry["lineage"]] for entry in (then, second)]
    assert led[0] == led[1]
    assert len(lmk("show", log, "--json").json) == 2
    lmk("repro", f"{log}#1")
