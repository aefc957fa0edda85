"""benchmarks/late.py on a few documents: exact search finds all, and every way is in the table."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lmkcli import Encode, open_collection
from lmkcli.vectors.stored import Vectors

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(
    r"^\| (\S+) \| (.+?) \| ([\d,]+) \| [\d.,]* \| [\d,.]+ \| ([\d.]+) \| ([\d.]*) \|$", re.M
)


def rows(*words: object) -> dict[str, tuple[float, float, str]]:
    """Bytes, the share of exact's 100, and nDCG@10 of each search."""
    done = subprocess.run(
        [sys.executable, "benchmarks/late.py", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = ROW.findall(done.stdout)
    return {
        search: (float(size.replace(",", "")), float(share), score)
        for _, search, size, share, score in found
    }


@pytest.mark.slow
def test_the_ways_to_search_several_vectors(
    beir: Path, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    Encode(str(beir), model=str(tiny_model("bert")), unit="token", output=tokens).run()
    given = (f"{beir}={tokens}", "--work", tmp_path / "work")
    found = rows(*given, "--save", "--search", "exact", "Flat", "Flat,muvera=4x2x8")
    assert found["exact, fp16"][1] == 1
    assert found["exact, int4"][1] > 0.9
    sizes = [found[f"exact, {dtype}"][0] for dtype in ("fp16", "int8", "int4", "int2", "binary")]
    assert sizes == sorted(sizes, reverse=True)
    assert all(0 < float(score) <= 1 for _, _, score in found.values())
    assert found["Flat,muvera=4x2x8 (Flat)"][0] < found["Flat (Flat)"][0]

    saved = tmp_path / "work" / f"{beir.name}-arrays"
    assert np.load(saved / "docs.npy").shape == (Vectors(tokens).total, 32)
    assert (saved / "qrels.txt").read_text().count("\n") == len(
        list(open_collection(str(beir)).qrels())
    )

    made = rows(*given, "--rows", 1500, "--store", "int4", "--search", "exact", "Flat,muvera=8x2x8")
    assert made["exact, int4"][0] == 6800
    assert 0.3 < made["Flat,muvera=8x2x8 (Flat)"][1] <= made["exact, int4"][1] < 1
