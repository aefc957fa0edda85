"""Two processes that train together learn what one learns of the whole batch."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests import tiny

Models = Callable[[str], Path]
ROOT = Path(__file__).resolve().parents[2]


def train(processes: int, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    run = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *run, "-m", "lmkcli.cli.main", "train", *words, "-o", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("tokens", ["100000", "60"], ids=["whole", "cached"])
def test_two_processes_learn_what_one_does(tiny_model: Models, tmp_path: Path, tokens: str) -> None:
    """Without dropout; texts of very different lengths, so that halves are cut into different packs."""
    lines = [
        {
            "query": tiny.sentence(i, 3 + i % 5),
            "pos": [f"{tiny.sentence(i, 5 + 3 * (i % 11))} {i}"],
            "neg": [f"{tiny.sentence(i + 7, 9)} {i} {j}" for j in range(i % 3)],
        }
        for i in range(30)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = [
        *(str(path), "-m", str(tiny_model("modernbert")), "--pool", "lmk", "--gran", "4,8"),
        *("--max-length", "40", "--steps", "4", "--batch-size", "9", "--lr", "1e-3"),
        *("--dtype", "fp32", "--device", "cpu", "--batch-tokens", tokens, "--log-every", "1"),
    ]
    folders = []
    for processes in (1, 2):
        folder = tmp_path / f"by-{processes}"
        done = train(processes, folder, *words)
        assert done.returncode == 0, done.stderr[-2000:]
        folders.append(folder)
    one, two = (load_file(folder / "model.safetensors") for folder in folders)
    for name in one:
        # Adam divides by the gradient's own size: where that is rounding alone, so is the step
        assert (one[name] - two[name]).abs().mean() <= 1e-5, name
    losses = [
        [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]
        for folder in folders
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert torch.tensor(losses[0]).isfinite().all()
