"""Bins that double, and hold every document once."""

from pathlib import Path

import pytest

from lmkcli.analysis import lengths
from lmkcli.data.collection import open_collection
from lmkcli.progress import Report


def test_bins_hold_all_and_none_of_the_outer_ones_is_empty() -> None:
    assert lengths._edges(0, 0) == [0, 64]
    assert lengths._edges(63, 64) == [0, 64, 128]
    assert lengths._edges(64, 128) == [64, 128, 256]
    assert lengths._edges(1500, 5000) == [1024, 2048, 4096, 8192]


def test_lengths_in_words(tmp_path: Path) -> None:
    texts = ["w " * 10, "w " * 63, "w " * 64, "w " * 300]
    lines = [f'{{"_id": "{n}", "text": "{text.strip()}"}}\n' for n, text in enumerate(texts)]
    (tmp_path / "corpus.jsonl").write_text("".join(lines))
    found = lengths.lengths(open_collection(str(tmp_path / "corpus.jsonl")), None, Report())
    assert found.what == "words"
    assert found.edges == [0, 64, 128, 256, 512]
    assert found.shares == [0.5, 0.25, 0, 0.25]
    assert found.mean == pytest.approx(109.25)
    assert found.quantiles["max"] == 300
