"""benchmarks/grid.py on tiny grids: its comparisons can fail, and a killed grid ends as any other."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import tiny

ROOT = Path(__file__).resolve().parents[1]
GRID = """
[grid]
collections = {collections}
model = "{model}"
pool = {pools}
gran = [""]
max-length = {lengths}
dtype = "fp32"
store-dtype = "fp32"
measures = ["nDCG@10", "R@5"]
[[grid.where]]
pool = "lmk"
gran = [16]
"""


def written(folder: Path, collections: int, model: Path, **axes: object) -> Path:
    """A grid file over as many tiny collections."""
    places = [str(tiny.collection(folder / f"c{n}", docs=30 + 10 * n)) for n in range(collections)]
    axes_ = {name: json.dumps(values) for name, values in axes.items()}
    file = folder / "grid.toml"
    file.write_text(GRID.format(collections=json.dumps(places), model=model, **axes_))
    return file


def benchmark(*words: object, code: int = 0) -> str:
    """What the benchmark prints, and what it says when it fails."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "grid.py"), *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("collections", "pools", "lengths", "times"),
    [
        pytest.param(1, ["mean", "lmk"], [32, 128], 3, marks=pytest.mark.slow),
        pytest.param(3, ["cls", "last", "mean", "lmk"], [32, 128], 5, marks=pytest.mark.nightly),
    ],
)
def test_a_killed_grid_ends_as_one_that_was_left_alone(
    collections: int,
    pools: list[str],
    lengths: list[int],
    times: int,
    tmp_path: Path,
    tiny_model: Callable[[str], Path],
) -> None:
    file = written(tmp_path, collections, tiny_model("bert"), pools=pools, lengths=lengths)
    said = benchmark("kills", file, "--times", times, "-o", tmp_path / "results")
    ends = said.count("exit code -9") + said.count("exit code 75") + said.count("code -15")
    assert ends == times
    # tokens once for each collection, then encode, search and eval for each cell
    assert f"{collections + 3 * collections * len(pools) * len(lengths)} steps" in said


@pytest.mark.slow
def test_grid_and_commands_typed_one_by_one_make_the_same_runs(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    file = written(tmp_path, 1, tiny_model("bert"), pools=["mean"], lengths=[32])
    said = benchmark("overhead", file, "--repeats", 1, "-o", tmp_path / "results")
    assert "overhead over the bare commands: " in said
    (run,) = (tmp_path / "results").glob("bare-0/steps/search-*/run.trec")
    lines = run.read_text().splitlines()
    run.write_text("\n".join(lines[1:]) + "\n")
    compared = "import grid, pathlib, sys; grid.same(*map(pathlib.Path, sys.argv[1:]))"
    places = [tmp_path / "results" / name for name in ("grid-0", "bare-0")]
    done = subprocess.run(
        [sys.executable, "-c", compared, *map(str, places)],
        cwd=ROOT / "benchmarks",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "differ" in done.stderr
