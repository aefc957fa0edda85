"""Kills at random moments: whatever was being done, the same training ends with the same weights."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmkcli.errors import Stopped
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.training import training_job
from lmkcli.training.loop import checkpoints
from lmkcli.training.loop import training_run as execution
from lmkcli.training.loop.trainer import LossTrainer
from lmkcli.training.train_settings import TrainSettings
from tests import levels, tiny

Models = Callable[[str], Path]
# What may be under way: a step, the files of a checkpoint one after the other …
GOING = [
    (LossTrainer, "training_step"),
    (LossTrainer, "_save"),
    (LossTrainer, "_save_optimizer_and_scheduler"),
    (LossTrainer, "_save_rng_state"),
]
ENDING = [(checkpoints, "_write_model"), (checkpoints, "_card")]  # … or the model's own files


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


def test_a_continued_training_logs_and_saves_as_often_as_it_is_told_now(
    tiny_model: Models, tmp_path: Path
) -> None:
    pairs = tmp_path / "pairs.jsonl"
    lines = [{"query": tiny.sentence(i, 4), "positive": tiny.sentence(i, 20)} for i in range(40)]
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = RecipeOptions(model=str(tiny_model("bert")), pool="mean", max_length=24)
    saved = []

    def run(stop: int, **every: int) -> None:
        settings = TrainSettings(steps=9, batch_size=8, dtype="fp32", device="cpu", **every)
        plan = training_job.plan([str(pairs)], options, settings)

        def stopping() -> bool:
            steps = (tmp_path / "model" / "checkpoints").glob("checkpoint-*")
            saved.append(max((int(each.name.partition("-")[2]) for each in steps), default=0))
            return len(saved) == stop

        execution.run(plan, tmp_path / "model", Report(stopping=stopping))

    with pytest.raises(Stopped):
        run(4, save_every=2, log_every=2)
    assert saved == [0, 0, 2, 2]  # the latest checkpoint when a step ends
    run(0, save_every=3, log_every=1)
    assert saved[4:] == [4, 4, 6, 6, 6]
    log = (tmp_path / "model" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == [2, 4, 5, 6, 7, 8, 9]


@pytest.mark.slow
@pytest.mark.parametrize("seed", levels.sample("ten kills", range(5), 1))
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
    plan = training_job.plan([str(pairs)], options, settings)
    execution.run(plan, tmp_path / "whole", Report())
    chance = random.Random(seed)
    for number in range(10):
        with monkeypatch.context() as broken:
            kill(broken, chance, ending=number >= 8)
            with pytest.raises(Kill):
                execution.run(plan, tmp_path / "parts", Report())
    execution.run(plan, tmp_path / "parts", Report())
    files = [tmp_path / name / "model.safetensors" for name in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()
    log = (tmp_path / "parts" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == list(range(1, 61))
