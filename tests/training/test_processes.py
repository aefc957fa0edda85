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

from lmkcli.cli import main
from tests import tiny

Models = Callable[[str], Path]
ROOT = Path(__file__).resolve().parents[2]


def train_together(words: list[str]) -> subprocess.CompletedProcess[str]:
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *run, "-m", "lmkcli.cli.main", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("taught", [False, True], ids=["alone", "taught"])
def test_two_processes_learn_what_one_does(
    tiny_model: Models, tmp_path: Path, taught: bool
) -> None:
    """Without dropout; texts of very different lengths, so that halves are cut into different packs.

    One process has room for all texts at once, as one pair of processes; the other caches gradients.
    """
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
        *("train", str(path), "-m", str(tiny_model("modernbert")), "--pool", "lmk"),
        *("--gran", "4,8", "--max-length", "40", "--steps", "4", "--batch-size", "9"),
        *("--lr", "1e-3", "--dtype", "fp32", "--device", "cpu", "--log-every", "1"),
        *(("--teacher", str(tiny_model("bert"))) if taught else ()),
    ]
    alone = tmp_path / "alone"
    main.app([*words, "--batch-tokens", "100000", "-o", str(alone)], standalone_mode=False)
    for tokens in ("100000", "60"):
        together = tmp_path / tokens
        done = train_together([*words, "--batch-tokens", tokens, "-o", str(together)])
        assert done.returncode == 0, done.stderr[-2000:]
        the_same(alone, together)


@pytest.mark.slow
def test_two_processes_predict_what_one_does(
    tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    """Masks are those of a text's place in the batch, and sums are divided by counts of all processes."""
    words = [
        *("pretrain", str(beir), "-m", str(tiny_model("modernbert")), "--objective", "dupmae"),
        *("--pool", "lmk", "--gran", "4,8", "--max-length", "40", "--steps", "3", "--lr", "1e-3"),
        *("--batch-size", "9", "--dtype", "fp32", "--device", "cpu", "--log-every", "1"),
    ]
    alone, together = tmp_path / "alone", tmp_path / "together"
    main.app([*words, "-o", str(alone)], standalone_mode=False)
    done = train_together([*words, "--batch-tokens", "60", "-o", str(together)])
    assert done.returncode == 0, done.stderr[-2000:]
    the_same(alone, together)


def the_same(alone: Path, together: Path) -> None:
    one, two = (load_file(folder / "model.safetensors") for folder in (alone, together))
    for name in one:
        # Adam divides by the gradient's own size: where that is rounding alone, so is the step
        assert (one[name] - two[name]).abs().mean() <= 1e-5, name
    losses = [
        [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]
        for folder in (alone, together)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert torch.tensor(losses[0]).isfinite().all()
