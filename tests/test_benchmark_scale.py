"""benchmarks/scale.py on a few vectors: what is built in shards finds what plain FAISS code finds."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_all_builds_find_the_same(tmp_path: Path) -> None:
    words = "--rows 3000 --dim 16 --queries 20 --factory IVF8,PQ4x4 --shards 2 --nprobe 4".split()
    done = subprocess.run(
        [sys.executable, "benchmarks/scale.py", *words, "--work", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^\| (.+?) \| [\d,]+ \| ([\d.]+) \| [\d,]+ \|$", done.stdout, re.MULTILINE)
    recall = {name: float(value) for name, value in rows}
    assert recall.pop("exact, lmk") == 1
    for name in ("whole", "joined"):
        assert recall.pop(f"{name}, lmk, rescored") > recall["joined, lmk"]
    assert set(recall) == {"whole, lmk", "joined, lmk", "apart, lmk", "FAISS alone"}
    assert len(set(recall.values())) == 1
    assert 0.2 < recall["joined, lmk"] < 1
    assert "2 shards, lmk" in done.stdout
