"""Kills at random moments: whatever was being done, the same training ends with the same weights."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmkcli.progress import Report
from lmkcli.recipe import RecipeOptions
from lmkcli.training import checkpoints, planning, running
from lmkcli.training.settings import TrainSettings
from lmkcli.training.trainer import LossTrainer
from tests import tiny

Models = Callable[[str], Path]
# What may be under way: a step, the files of a checkpoint one after the other …
GOING = [
    (LossTrainer, "training_step"),
    (LossTrainer, "_save"),
    (LossTrainer, "_save_optimizer_and_scheduler"),
    (LossTrainer, "_save_rng_state"),
]
ENDING = [(checkpoints, "_write_encoder"), (checkpoints, "_card")]  # … or the model's own files


class Kill(BaseException):
    """Nobody catches it, and nothing is cleaned up, as with SIGKILL."""


def kill(monkeypatch: pytest.MonkeyPatch, chance: random.Random, ending: bool) -> None:
    """Ends the process, so to speak, before or after one of the next calls of something."""
    owner, name = chance.choice(ENDING if ending else GOING)
    left, before = 1 if ending else chance.randint(1, 3), chance.random() < 0.5
    original = getattr(owner, name)

    def deadly(*args: Any, **more: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and before:
            raise Kill
        found = original(*args, **more)
        if left == 0:
            raise Kill
        return found

    monkeypatch.setattr(owner, name, deadly)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_ten_kills_change_no_bit(
    tiny_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    lines = [{"query": tiny.sentence(i, 4), "positive": tiny.sentence(i, 20)} for i in range(40)]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = RecipeOptions(model=str(tiny_model("bert")), pool="lmk", gran="4,8", max_length=24)
    settings = TrainSettings(
        steps=60, batch_size=8, lr=1e-3, dtype="fp32", device="cpu", save_every=2, log_every=1
    )
    plan = planning.plan([str(pairs)], options, settings)
    running.run(plan, tmp_path / "whole", Report())
    chance = random.Random(seed)
    for number in range(10):
        with monkeypatch.context() as broken:
            kill(broken, chance, ending=number >= 8)
            with pytest.raises(Kill):
                running.run(plan, tmp_path / "parts", Report())
    running.run(plan, tmp_path / "parts", Report())
    files = [tmp_path / name / "model.safetensors" for name in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()
    log = (tmp_path / "parts" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == list(range(1, 61))
