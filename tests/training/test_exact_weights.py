"""A training in bf16 starts from the exact weights of its model, and saves those that it does not train."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lmkcli.errors import Stopped
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.training import training_job
from lmkcli.training.loop import training_run as execution
from lmkcli.training.train_settings import TrainSettings
from tests import tiny
from tests.training.test_kinds import m2bert, tite

LENGTH = 32
WEIGHTS = "model.safetensors"
# the learning rate changes no weight by more than 1e-11
STILL = TrainSettings(
    steps=3, batch_size=4, lr=1e-12, weight_decay=0.0, dtype="bf16", device="cpu", save_every=1
)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    texts = [(tiny.sentence(i, 4), f"{tiny.sentence(i, 20)} number {i}") for i in range(12)]
    path.write_text("".join(json.dumps({"query": q, "pos": [p]}) + "\n" for q, p in texts))
    return path


def planned(
    pairs: Path, model: Path, settings: TrainSettings, **options: Any
) -> training_job.TrainJob:
    recipe = RecipeOptions(model=str(model), **{"max_length": LENGTH, **options})
    return training_job.plan([str(pairs)], recipe, settings)


def base(kind: str, folder: Path) -> Path:
    """A model of a kind, whose weights need all bits of float32."""
    torch.manual_seed(0)
    builders = {"tite": tite, "m2bert": m2bert}
    builders.get(kind, lambda path: tiny.save(path, kind))(folder)
    return folder


@pytest.mark.parametrize("lora", [0, 2])
@pytest.mark.parametrize("kind", ["bert", "tite", "m2bert"])
def test_a_training_without_changes_returns_the_weights_of_its_model(
    pairs: Path, tmp_path: Path, kind: str, lora: int
) -> None:
    check_unchanged(pairs, tmp_path, kind, lora, "cpu")


def check_unchanged(pairs: Path, folder: Path, kind: str, lora: int, device: str) -> None:
    settings = TrainSettings(**{**vars(STILL), "lora": lora, "device": device})
    plan = planned(pairs, base(kind, folder / "base"), settings)
    execution.run(plan, folder / "model", Report())
    before, after = (load_file(folder / name / WEIGHTS) for name in ("base", "model"))
    used = {name: value for name, value in before.items() if name in after}
    assert len(used) > 10
    rounded = [value for value in used.values() if not torch.equal(value, value.bfloat16().float())]
    assert rounded  # else the comparison could not fail
    for name, value in used.items():
        assert after[name].dtype == value.dtype, name
        torch.testing.assert_close(after[name], value, rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("extend", ["interpolate", "recurrent"])
def test_frozen_positions_that_were_extended_survive_a_stop(
    pairs: Path, tmp_path: Path, extend: str
) -> None:
    settings = TrainSettings(**{**vars(STILL), "lr": 1e-3, "freeze": "positions"})
    model = base("bert", tmp_path / "base")
    plan = planned(pairs, model, settings, pool="mean", extend=extend, max_length=600)
    execution.run(plan, tmp_path / "whole", Report())
    steps = iter([False, True])
    with pytest.raises(Stopped):
        execution.run(plan, tmp_path / "parts", Report(stopping=lambda: next(steps, True)))
    execution.run(plan, tmp_path / "parts", Report())
    whole, parts = (load_file(tmp_path / name / WEIGHTS) for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    table = next(value for name, value in whole.items() if "position_embeddings" in name)
    assert not torch.equal(table, table.bfloat16().float())
