"""benchmarks/average_adapters.py: the mean of two adapters is the mean of the models that they make."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmkcli.models.finding import read_model
from lmkcli.progress import Report
from lmkcli.training import running
from lmkcli.training.settings import TrainSettings
from tests import tiny
from tests.training.test_job import planned

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "average_adapters.py"
Models = Callable[[str], Path]


@pytest.fixture
def adapters(tmp_path: Path, tiny_model: Models) -> list[Path]:
    """Two trainings of one base, of other scales, and not alike."""
    source = tmp_path / "pairs.jsonl"
    lines = [
        {"query": tiny.sentence(i, 4), "positive": f"{tiny.sentence(i, 20)} {i}"} for i in range(30)
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    folders = []
    for seed in (1, 2):
        settings = TrainSettings(
            steps=2, batch_size=8, lora=4, lr=0.1, seed=seed, device="cpu", dtype="fp32"
        )
        running.run(planned(source, tiny_model("bert"), settings), tmp_path / f"{seed}", Report())
        folders.append(tmp_path / f"{seed}" / "adapter")
    config = json.loads((folders[1] / "adapter_config.json").read_text())
    (folders[1] / "adapter_config.json").write_text(
        json.dumps(config | {"lora_alpha": 3 * config["r"]})
    )
    return folders


def averaged(models: list[Path | str], output: Path, rank: int, *more: str) -> str:
    words = [sys.executable, SCRIPT, *models, "-o", output, "--rank", str(rank), *more]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def weights(adapter: Path) -> dict[str, torch.Tensor]:
    """Those of the model that is made of it."""
    return load_file(next(read_model(str(adapter)).encoder.glob("*.safetensors")))


def test_the_mean_of_the_models(adapters: list[Path], tmp_path: Path) -> None:
    said = averaged([*adapters], tmp_path / "mean", 8)
    assert "keep 100.0% to 100.0%" in said
    one, other, mean = map(weights, (*adapters, tmp_path / "mean"))
    apart = 0.0
    for name, tensor in mean.items():
        torch.testing.assert_close(tensor, (one[name] + other[name]) / 2, atol=2e-3, rtol=2e-3)
        apart = max(apart, float((one[name] - other[name]).abs().max()))
    assert apart > 0.05
    share = float(averaged([*adapters], tmp_path / "low", 1).split("keep ")[1].split("%")[0])
    assert share < 100


def test_a_model_that_was_trained_twice_and_weights(
    adapters: list[Path], tmp_path: Path, tiny_model: Models
) -> None:
    one, other = adapters
    averaged([f"{one}+{other}", one], tmp_path / "mean", 8, "--weights", "1", "3")
    base = load_file(next(tiny_model("bert").glob("*.safetensors")))
    first, second, mean = map(weights, (one, other, tmp_path / "mean"))
    apart = 0.0
    for name, tensor in mean.items():
        expected = first[name] + (second[name] - base[name]) / 4
        torch.testing.assert_close(tensor, expected, atol=2e-3, rtol=2e-3)
        apart = max(apart, float((tensor - first[name]).abs().max()))
    assert apart > 0.02


def test_other_tensors_are_averaged_as_they_are(adapters: list[Path], tmp_path: Path) -> None:
    table = "base_model.model.embeddings.position_embeddings.weight"
    for number, adapter in enumerate(adapters):
        file = adapter / "adapter_model.safetensors"
        save_file(load_file(file) | {table: torch.full((4, 2), float(number))}, file)
    averaged([*adapters], tmp_path / "mean", 2)
    made = load_file(tmp_path / "mean" / "adapter_model.safetensors")
    assert made[table].tolist() == [[0.5, 0.5]] * 4
