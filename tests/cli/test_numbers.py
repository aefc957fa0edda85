"""Numbers that are too large, not finite, or not written in plain digits are refused or harmless."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Models = Callable[[str], Path]
Lmk = Callable[..., Any]
HUGE = "99999999999999999999"


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    (tmp_path / "pairs.tsv").write_text(
        "".join(f"rivers {n}\tthe river {n} carries water\n" for n in range(6))
    )
    return tmp_path / "pairs.tsv"


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--pool", "lmk", "--gran", HUGE], 2), (["--pool", "lmk", "--gran", "\u0663"], 2),
        (["--window", "\u00b2"], 2), (["--pool", "mean@\u00b2"], 2), (["--device", "meta"], 3),
        (["--extend", "grouped", "--max-length", "999999999999"], 2),
    ],
)  # fmt: skip
def test_an_encoding_that_cannot_be(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path, flags: list[str], code: int
) -> None:
    lmk("encode", beir, "-m", tiny_model("bert"), "-o", tmp_path / "v", *flags, code=code)
    assert not (tmp_path / "v").exists()


@pytest.mark.parametrize(
    ("options", "flags", "code"),
    [
        ("", ["--lr", "1e300"], 2), ("", ["--lr", "inf"], 2), ("", ["--epochs", "inf"], 2),
        ("", ["--epochs", "1e300"], 2), ("", ["--steps", HUGE], 2), ("", ["--seed", HUGE], 2),
        (",weight=inf", [], 2), (",max-length=0", [], 2), (",relative-margin=nan", [], 2),
        ("", ["--batch-size", "100000"], 3), ("", ["--weight-decay", "inf"], 2),
    ],
)  # fmt: skip
def test_a_training_that_cannot_be(
    lmk: Lmk,
    tiny_model: Models,
    pairs: Path,
    tmp_path: Path,
    options: str,
    flags: list[str],
    code: int,
) -> None:
    """The last one damages the weights in its only step, after the only loss that is checked."""
    line = ["train", f"{pairs}{options}", "-m", tiny_model("bert"), "--pool", "mean"]
    steps = [] if "--epochs" in flags else ["--steps", 1]
    lmk(*line, "-o", tmp_path / "m", "--batch-size", 2, *steps, *flags, code=code)
    assert not (tmp_path / "m" / "training.json").exists()


def test_breadths_beyond_all_vectors(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    vectors, graph, run = (tmp_path / name for name in ("v", "hnsw", "r.trec"))
    lmk("encode", beir, "-m", tiny_model("bert"), "--pool", "mean", "-o", vectors)
    lmk("index", vectors, "--ef-construction", HUGE, "-o", graph)
    assert lmk("search", graph, "-q", "rivers", "--ef-search", HUGE, "-k", HUGE).out
    lmk("search", graph, beir, "-k", 1 << 31, "-o", run)
    assert lmk("show", run, "--json").json["depth"] == 1 << 31
