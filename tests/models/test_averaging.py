"""benchmarks/average_adapters.py: the mean of two adapters is the mean of their merged models."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmkcli.models.lookup import read_model
from lmkcli.progress import Report
from lmkcli.training.loop import training_run as execution
from lmkcli.training.train_settings import TrainSettings
from tests import tiny
from tests.training.test_training_job import planned

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "average_adapters.py"
Models = Callable[[str], Path]


@pytest.fixture
def adapters(tmp_path: Path, tiny_model: Models) -> list[Path]:
    """Two adapters of one base, from different seeds and with different scales."""
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
        execution.run(planned(source, tiny_model("bert"), settings), tmp_path / f"{seed}", Report())
        folders.append(tmp_path / f"{seed}" / "adapter")
    config = json.loads((folders[1] / "adapter_config.json").read_text())
    (folders[1] / "adapter_config.json").write_text(
        json.dumps(config | {"lora_alpha": 3 * config["r"]})
    )
    return folders


Averaged = Callable[..., str]


@pytest.fixture
def averaged(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Averaged:
    """Run the script; returns what it prints."""

    def run(models: list[Path | str], output: Path, rank: int, *more: str) -> str:
        words = [str(SCRIPT), *map(str, models), "-o", str(output), "--rank", str(rank), *more]
        monkeypatch.setattr("sys.argv", words)
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return capsys.readouterr().out

    return run


def weights(adapter: Path) -> dict[str, torch.Tensor]:
    """Return the weights of the merged model of an adapter."""
    return load_file(next(read_model(str(adapter)).encoder.glob("*.safetensors")))


def test_the_mean_of_the_models(adapters: list[Path], averaged: Averaged, tmp_path: Path) -> None:
    printed = averaged([*adapters], tmp_path / "mean", 8)
    assert "keep 100.0% to 100.0%" in printed
    one, other, mean = map(weights, (*adapters, tmp_path / "mean"))
    apart = 0.0
    for name, tensor in mean.items():
        torch.testing.assert_close(tensor, (one[name] + other[name]) / 2, atol=2e-3, rtol=2e-3)
        apart = max(apart, float((one[name] - other[name]).abs().max()))
    assert apart > 0.05
    share = float(averaged([*adapters], tmp_path / "low", 1).split("keep ")[1].split("%")[0])
    assert share < 100


def test_a_chain_of_adapters_and_weights_of_the_mean(
    adapters: list[Path], averaged: Averaged, tmp_path: Path, tiny_model: Models
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


def test_whole_tensors_are_averaged(
    adapters: list[Path], averaged: Averaged, tmp_path: Path
) -> None:
    table = "base_model.model.embeddings.position_embeddings.weight"
    for number, adapter in enumerate(adapters):
        file = adapter / "adapter_model.safetensors"
        save_file(load_file(file) | {table: torch.full((4, 2), float(number))}, file)
    averaged([*adapters], tmp_path / "mean", 2)
    made = load_file(tmp_path / "mean" / "adapter_model.safetensors")
    assert made[table].tolist() == [[0.5, 0.5]] * 4


def test_a_declared_window_is_kept_and_the_pooling_can_be_declared(
    adapters: list[Path], averaged: Averaged, tmp_path: Path
) -> None:
    one, other = adapters
    _declare(other, "12")
    averaged([one, other], tmp_path / "mean", 2)
    assert read_model(str(tmp_path / "mean")).window == "12"
    averaged([one, other], tmp_path / "cls", 2, "--pool", "cls")
    declared = read_model(str(tmp_path / "cls"))
    assert (declared.pool, declared.gran, declared.window) == ("cls", "", "12")
    trained = read_model(str(one)).pool
    assert declared.poolers == {"cls", trained}
    assert trained != "cls"
    _declare(one, "14")
    with pytest.raises(SystemExit, match="different windows: 12, 14"):
        averaged([one, other], tmp_path / "refused", 2)
    assert not (tmp_path / "refused").exists()


def _declare(adapter: Path, window: str) -> None:
    settings = adapter / "sentence_bert_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"window": window}))
