"""Lengths of documents: bins of doubling width that contain each document once."""

import json
from pathlib import Path

import pytest

from lmkcli.plugins.analysis import documents
from lmkcli.progress import Report
from tests import mirrors


def test_bins_contain_all_lengths_and_the_outer_ones_are_not_empty() -> None:
    assert documents._edges(0, 0) == [0, 64]
    assert documents._edges(63, 64) == [0, 64, 128]
    assert documents._edges(64, 128) == [64, 128, 256]
    assert documents._edges(1500, 5000) == [1024, 2048, 4096, 8192]


def test_lengths_in_words(tmp_path: Path) -> None:
    texts = ["w " * 10, "w " * 63, "w " * 64, "w " * 300]
    lines = [f'{{"_id": "{n}", "text": "{text.strip()}"}}\n' for n, text in enumerate(texts)]
    (tmp_path / "corpus.jsonl").write_text("".join(lines))
    found = documents.lengths(
        documents.texts_of(str(tmp_path / "corpus.jsonl"), "doc"), "words", Report()
    )
    assert found.what == "words"
    assert found.edges == [0, 64, 128, 256, 512]
    assert found.shares == [0.5, 0.25, 0, 0.25]
    assert found.mean == pytest.approx(109.25)
    assert found.quantiles["max"] == 300
    assert found.per_document == {}


def test_lengths_of_chunks_and_of_positives(tmp_path: Path) -> None:
    """Chunks per document and their lengths (ConTEB, Table 3), positives in characters (LMK, Table 16)."""
    docs = [{"_id": "a", "chunks": ["one two", "three"]}, {"_id": "b", "chunks": ["x"] * 4}]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(each) + "\n" for each in docs))
    chunks = documents.texts_of(str(tmp_path / "corpus.jsonl"), "chunk")
    found = documents.lengths(chunks, "words", Report())
    assert (found.documents, found.mean, found.quantiles["max"]) == (6, pytest.approx(7 / 6), 2)
    assert (found.per_document["mean"], found.per_document["median"]) == (3, 3)
    rows = [
        {"chunk_id": f"a_{n}", "chunk": "one two"} for n in range(3)
    ]  # a training set of ConTEB
    mirrors.parquet(tmp_path / "set/documents/train-0.parquet", rows)
    mirrors.parquet(tmp_path / "set/queries/train-0.parquet", [{"query": "q", "chunk_id": "a_1"}])
    found = documents.lengths(documents.texts_of(str(tmp_path / "set"), "chunk"), "words", Report())
    assert (found.documents, found.mean, found.per_document["max"]) == (3, 2, 3)
    pairs = [
        {"query": "q", "pos": ["abc", "de"], "neg": ["long " * 50]},
        {"query": "r", "pos": ["f"]},
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in pairs))
    positives = documents.texts_of(str(tmp_path / "pairs.jsonl"), "positive")
    found = documents.lengths(positives, "characters", Report())
    assert (found.documents, found.mean, found.quantiles["median"]) == (3, 2, 2)
