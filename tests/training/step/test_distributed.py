"""Two processes that train together learn what one learns of the whole batch."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lmkcli.cli import main
from lmkcli.errors import UsageError
from lmkcli.training.loop.trainer import arguments
from lmkcli.training.train_settings import TrainSettings
from tests import tiny

Models = Callable[[str], Path]
ROOT = Path(__file__).resolve().parents[3]


# Runs lmk, then says which threads of the group are left.
THREADS = """
import sys
from pathlib import Path
from lmkcli.cli import main
main.app(sys.argv[1:], standalone_mode=False)
for name in Path("/proc/self/task").glob("*/comm"):
    if "gloo" in name.read_text():
        print("left:", name.read_text())
"""


def train_together(
    words: list[str], program: Sequence[str] = ("-m", "lmkcli.cli.main")
) -> subprocess.CompletedProcess[str]:
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *run, *program, *words]
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, **own}
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
    check_two_processes(words, tmp_path)


@pytest.mark.slow
def test_two_processes_predict_what_one_does(
    tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    """Masks are those of a text's place in the batch, and sums are divided by counts of all processes.

    The processes are not told their device: where there is no GPU, they find each other on the CPU.
    """
    words = [
        *("pretrain", str(beir), "-m", str(tiny_model("modernbert")), "--objective", "dupmae"),
        *("--pool", "lmk", "--gran", "4,8", "--max-length", "40", "--steps", "3", "--lr", "1e-3"),
        *("--batch-size", "9", "--dtype", "fp32", "--log-every", "1"),
    ]
    alone, together = tmp_path / "alone", tmp_path / "together"
    main.app([*words, "--device", "cpu", "-o", str(alone)], standalone_mode=False)
    done = train_together([*words, "--batch-tokens", "60", "-o", str(together)])
    assert done.returncode == 0, done.stderr[-2000:]
    the_same(alone, together)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="threads are named in /proc")
def test_no_thread_of_the_group_outlives_a_training(tiny_model: Models, tmp_path: Path) -> None:
    """Python may abort where one still holds a tensor."""
    pairs, program = tmp_path / "pairs.jsonl", tmp_path / "threads.py"
    lines = [{"query": tiny.sentence(i, 5), "pos": [tiny.sentence(i, 9)]} for i in range(8)]
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    program.write_text(THREADS)
    words = ["train", str(pairs), "-m", str(tiny_model("bert")), "-o", str(tmp_path / "out")]
    done = train_together([*words, "--steps", "2", "--batch-size", "4"], [str(program)])
    assert done.returncode == 0, done.stderr[-4000:]
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert "left:" not in done.stdout, done.stdout


def test_without_a_gpu_auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Told nothing, transformers would wait for GPUs, and each process would train by itself."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert arguments(TrainSettings(device="auto", steps=1), tmp_path).use_cpu


@pytest.mark.parametrize("engine", ["FSDP", "DeepSpeed"])
def test_a_model_that_is_cut_up_is_refused(
    engine: str, tiny_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"ACCELERATE_USE_{engine.upper()}", "true")
    words = ["train", "pairs.jsonl", "-m", str(tiny_model("bert")), "-o", str(tmp_path / "out")]
    with pytest.raises(UsageError, match=f"does not run under {engine}"):
        main.app(words, standalone_mode=False)
    assert not (tmp_path / "out").exists()


def check_two_processes(words: list[str], folder: Path, later: float = 1e-5) -> None:
    """Train with one process, and with two in packs of two sizes; compare the models and the logs.

    later: the relative difference of losses after the first step, which start from weights with differences.
    """
    alone = folder / "alone"
    main.app([*words, "--batch-tokens", "100000", "-o", str(alone)], standalone_mode=False)
    for tokens in ("100000", "60"):
        together = folder / tokens
        done = train_together([*words, "--batch-tokens", tokens, "-o", str(together)])
        assert done.returncode == 0, done.stderr[-2000:]
        the_same(alone, together, later)


def the_same(alone: Path, together: Path, later: float = 1e-5) -> None:
    one, two = (load_file(folder / "model.safetensors") for folder in (alone, together))
    for name in one:
        # Adam divides by the gradient's own size: where that is rounding alone, so is the step
        assert (one[name] - two[name]).abs().mean() <= 1e-5, name
    losses = [
        [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]
        for folder in (alone, together)
    ]
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-5)
    assert losses[0] == pytest.approx(losses[1], rel=later)
    assert torch.tensor(losses[0]).isfinite().all()
