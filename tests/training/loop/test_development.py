"""A training that is scored as it goes: the best weights stay, patience ends it, kills change nothing."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lmkcli.errors import Mismatch, Stopped
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.training import training_job
from lmkcli.training.loop import checkpoints
from lmkcli.training.loop import training_run as execution
from lmkcli.training.loop.development import Dev, DevScores, best
from lmkcli.training.train_settings import TrainSettings
from tests import tiny

Models = Callable[[str], Path]
SETTINGS = TrainSettings(steps=8, batch_size=8, lr=1e-3, dtype="fp32", device="cpu", log_every=3)


class Scripted:
    """A scorer whose scores are written down for the weights that it meets, in their order.

    Whoever meets weights again gives them the score that they had.
    """

    measure = "nDCG@10"

    def __init__(self, scores: Sequence[float]) -> None:
        self._left: Iterator[float] = iter(scores)
        self.seen: dict[float, float] = {}
        self.kept: dict[float, Tensor] = {}

    @property
    def identity(self) -> dict[str, Any]:
        return {"measure": self.measure}

    def __call__(self, module: nn.Module) -> DevScores:
        weights = torch.cat([p.detach().flatten() for p in module.parameters()]).double()
        key = float(weights.abs().sum())
        if key not in self.seen:
            self.seen[key] = next(self._left)
            self.kept.setdefault(self.seen[key], weights)
        return DevScores({"set": self.seen[key]})


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    lines = [{"query": tiny.sentence(i, 4), "positive": tiny.sentence(i, 20)} for i in range(40)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def planned(pairs: Path, model: Path, dev: Dev, **more: Any) -> training_job.TrainJob:
    options = RecipeOptions(model=str(model), pool="lmk", gran="4,8", max_length=24)
    plan = training_job.plan([str(pairs)], options, TrainSettings(**{**vars(SETTINGS), **more}))
    return replace(plan, dev=dev)


def weights(folder: Path) -> float:
    state = load_file(folder / "model.safetensors")
    return float(torch.cat([value.flatten() for value in state.values()]).double().abs().sum())


def test_the_best_weights_are_published(pairs: Path, tiny_model: Models, tmp_path: Path) -> None:
    scorer = Scripted([0.2, 0.5, 0.4, 0.5])
    execution.run(planned(pairs, tiny_model("bert"), Dev(scorer, 2)), tmp_path / "model", Report())
    facts = json.loads((tmp_path / "model" / "training.json").read_text())["dev"]
    assert [(line["step"], line["score"]) for line in facts["curve"]] == [
        (2, 0.2), (4, 0.5), (6, 0.4), (8, 0.5),
    ]  # fmt: skip
    assert facts["published"]["step"] == 4  # the first of equals
    expected = float(scorer.kept[0.5].abs().sum())
    assert weights(tmp_path / "model") == pytest.approx(expected, rel=1e-6)
    card = (tmp_path / "model" / "README.md").read_text()
    assert "| set | 0.5000 |" in card
    log = [json.loads(line) for line in (tmp_path / "model" / "log.jsonl").read_text().splitlines()]
    assert [line["score"] for line in log if "score" in line] == [0.2, 0.5, 0.4, 0.5]
    assert [line["step"] for line in log if "loss" in line] == [3, 6, 8]


def test_the_last_step_is_always_scored(pairs: Path, tiny_model: Models, tmp_path: Path) -> None:
    scorer = Scripted([0.2, 0.3, 0.4])
    execution.run(planned(pairs, tiny_model("bert"), Dev(scorer, 3)), tmp_path / "m", Report())
    facts = json.loads((tmp_path / "m" / "training.json").read_text())["dev"]
    assert [line["step"] for line in facts["curve"]] == [3, 6, 8]
    assert facts["published"]["step"] == 8


def test_patience_ends_it(pairs: Path, tiny_model: Models, tmp_path: Path) -> None:
    scorer = Scripted([0.3, 0.6, 0.5, 0.55])
    plan = planned(pairs, tiny_model("bert"), Dev(scorer, 2, patience=2), steps=20)
    execution.run(plan, tmp_path / "model", Report())
    facts = json.loads((tmp_path / "model" / "training.json").read_text())
    assert [line["step"] for line in facts["dev"]["curve"]] == [2, 4, 6, 8]
    assert facts["dev"]["published"]["step"] == 4


def stopping_at(*steps: int) -> Report:
    counted = iter(range(1, 1000))
    return Report(stopping=lambda: next(counted) in steps)


SCORES = [0.2, 0.5, 0.4, 0.3]


@pytest.fixture(scope="module")
def whole(pairs: Path, tiny_model: Models, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed training that is scored four times."""
    folder = tmp_path_factory.mktemp("whole") / "model"
    execution.run(planned(pairs, tiny_model("bert"), Dev(Scripted(SCORES), 2)), folder, Report())
    return folder


@pytest.mark.parametrize("stop", [1, 3, 4, 5, 7])
def test_a_stop_changes_neither_scores_nor_weights(
    pairs: Path, tiny_model: Models, tmp_path: Path, whole: Path, stop: int
) -> None:
    plan = planned(pairs, tiny_model("bert"), Dev(Scripted(SCORES), 2))
    scorer = Scripted(SCORES)
    again = replace(plan, dev=Dev(scorer, 2))
    with pytest.raises(Stopped):
        execution.run(again, tmp_path / "parts", stopping_at(stop))
    execution.run(again, tmp_path / "parts", Report())
    assert len(scorer.seen) == 4
    folders = (whole, tmp_path / "parts")
    files = [folder / "model.safetensors" for folder in folders]
    assert files[0].read_bytes() == files[1].read_bytes()
    curves = [
        json.loads((folder / "training.json").read_text())["dev"]["curve"] for folder in folders
    ]
    assert [[line["score"] for line in curve] for curve in curves] == [SCORES] * 2


def test_killed_before_it_published_it_still_ends_early(
    pairs: Path, tiny_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = [0.3, 0.6, 0.5, 0.55, 0.9, 0.9]
    plan = planned(pairs, tiny_model("bert"), Dev(Scripted(scores), 2, patience=2), steps=20)
    with monkeypatch.context() as broken:
        broken.setattr(checkpoints, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            execution.run(plan, tmp_path / "model", Report())
    execution.run(plan, tmp_path / "model", Report())
    facts = json.loads((tmp_path / "model" / "training.json").read_text())
    assert [line["score"] for line in facts["dev"]["curve"]] == [0.3, 0.6, 0.5, 0.55]
    assert facts["dev"]["published"]["step"] == 4


def test_another_way_of_scoring_is_another_training(
    pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    scorer = Scripted([0.2] * 9)
    with pytest.raises(Stopped):
        execution.run(
            planned(pairs, tiny_model("bert"), Dev(scorer, 2)), tmp_path / "m", stopping_at(1)
        )
    with pytest.raises(Mismatch, match=r"dev\.every"):
        execution.run(planned(pairs, tiny_model("bert"), Dev(scorer, 3)), tmp_path / "m", Report())


def test_lines_without_a_score_are_none() -> None:
    assert best([{"step": 1, "loss": 2.0}]) is None
    assert not Dev(Scripted([]), 1, patience=1).exhausted([{"step": 1, "loss": 2.0}])
