"""TensorBoard has what the log has."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lmkcli.errors import UsageError
from lmkcli.plugins.pretrain import pretraining_job
from lmkcli.plugins.pretrain.pretrain_settings import PretrainSettings
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.training import training_job
from lmkcli.training.loop import tensorboard
from lmkcli.training.train_settings import TrainSettings


def test_where_it_is_missing_its_installation_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install tensorboard"):
        tensorboard.check_installed()


def test_it_is_missed_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Callable[[str], Path]
) -> None:
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    options = RecipeOptions(model=str(tiny_model("bert")), pool="mean")
    with pytest.raises(UsageError, match="pip install tensorboard"):
        training_job.plan(["none.jsonl"], options, TrainSettings(tensorboard=True))
    base_model = pretraining_job.BaseModelSpec(options)
    with pytest.raises(UsageError, match="pip install tensorboard"):
        pretraining_job.plan(["none"], base_model, PretrainSettings(tensorboard=True))


def test_every_number_of_a_line_is_a_scalar(tmp_path: Path) -> None:
    written = tensorboard.Board(tmp_path, 2)
    written.add({"step": 2, "loss": 0.5, "learning_rate": 1e-3})
    written.add({"step": 4, "dev": {"one": 0.25}, "score": 0.25, "seconds": 1.5})
    read = EventAccumulator(str(tmp_path / tensorboard.FOLDER))
    read.Reload()
    assert set(read.Tags()["scalars"]) == {
        "loss", "learning_rate", "dev/one", "score", "seconds",
    }  # fmt: skip
    (event,) = read.Scalars("dev/one")
    assert (event.step, event.value) == (4, 0.25)
