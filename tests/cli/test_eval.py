"""lmk eval --baseline, through the command line, on runs whose numbers can be done by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Lmk = Callable[..., Any]
GOOD, BAD = "d1 d2 d3", "d3 d2 d1"  # where the one relevant document, d1, stands


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Five queries: `better` finds d1 first in all, `base` only in two."""
    (tmp_path / "qrels.txt").write_text("".join(f"q{i} 0 d1 1\n" for i in range(5)))
    for name, orders in {"better": [GOOD] * 5, "base": [GOOD] * 2 + [BAD] * 3}.items():
        lines = [
            f"q{i} Q0 {doc} {rank} {9 - rank} {name}\n"
            for i, order in enumerate(orders)
            for rank, doc in enumerate(order.split(), 1)
        ]
        (tmp_path / f"{name}.trec").write_text("".join(lines))
    return tmp_path


def test_wins_ties_losses_and_p_values(lmk: Lmk, runs: Path) -> None:
    files = [runs / "better.trec", runs / "base.trec"]
    words = ["--qrels", runs / "qrels.txt", "--baseline", files[1], "-m", "RR@10", "--json"]
    (row,) = json.loads(lmk("eval", *files, *words).out)
    assert (row["wins"], row["ties"], row["losses"]) == (3, 2, 0)
    assert row["difference"] == pytest.approx(3 * (1 - 1 / 3) / 5)
    # of the 8 ways to flip the signs of three equal differences, two are as far from zero
    assert row["p (randomisation)"] == pytest.approx(2 / 8)


def test_bonferroni_multiplies_by_the_number_of_tests(lmk: Lmk, runs: Path) -> None:
    files = [runs / "better.trec", runs / "base.trec"]
    words = ["eval", *files, "--qrels", runs / "qrels.txt", "--baseline", files[1], "--json"]
    once = json.loads(lmk(*words, "-m", "RR@10").out)
    twice = json.loads(lmk(*words, "-m", "RR@10", "-m", "P@1", "--correction", "bonferroni").out)
    assert twice[0]["p (t-test)"] == pytest.approx(2 * once[0]["p (t-test)"])


def test_a_baseline_must_be_one_of_the_runs(lmk: Lmk, runs: Path) -> None:
    words = ["eval", runs / "better.trec", "--qrels", runs / "qrels.txt"]
    assert "one of two or more" in lmk(*words, "--baseline", runs / "base.trec", code=2).err
    both = [*words, runs / "base.trec", "--baseline", runs / "base.trec", "--per-query"]
    assert "different tables" in lmk(*both, code=2).err


def test_the_log_keeps_one_line_an_evaluation(lmk: Lmk, runs: Path) -> None:
    log = runs / "scores.jsonl"
    for _ in range(2):
        lmk("eval", runs / "base.trec", "--qrels", runs / "qrels.txt", "-m", "P@1", "--log", log)
    shown = json.loads(lmk("show", log, "--json").out)
    assert [entry["scores"] for entry in shown] == [{"P@1": 0.4}] * 2
