"""Lengths of documents: bins of doubling width that contain each document once."""

from pathlib import Path

import pytest

from lmkcli.data.collection import open_collection
from lmkcli.plugins.analysis import documents
from lmkcli.progress import Report


def test_bins_contain_all_lengths_and_the_outer_ones_are_not_empty() -> None:
    assert documents._edges(0, 0) == [0, 64]
    assert documents._edges(63, 64) == [0, 64, 128]
    assert documents._edges(64, 128) == [64, 128, 256]
    assert documents._edges(1500, 5000) == [1024, 2048, 4096, 8192]


def test_lengths_in_words(tmp_path: Path) -> None:
    texts = ["w " * 10, "w " * 63, "w " * 64, "w " * 300]
    lines = [f'{{"_id": "{n}", "text": "{text.strip()}"}}\n' for n, text in enumerate(texts)]
    (tmp_path / "corpus.jsonl").write_text("".join(lines))
    found = documents.lengths(open_collection(str(tmp_path / "corpus.jsonl")), None, Report())
    assert found.what == "words"
    assert found.edges == [0, 64, 128, 256, 512]
    assert found.shares == [0.5, 0.25, 0, 0.25]
    assert found.mean == pytest.approx(109.25)
    assert found.quantiles["max"] == 300
