"""Which weights are trained, adapters of low rank, and the folder of what they add to a model."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from lmkcli.data.collection import Query
from lmkcli.encoding.encoder import open_encoder
from lmkcli.encoding.resolution import resolve
from lmkcli.errors import DataError, UsageError
from lmkcli.models.lookup import read_model
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.training import training_job
from lmkcli.training.train_settings import TrainSettings
from tests import tiny
from tests.training.test_training_job import FAST, planned, trained

Models = Callable[[str], Path]
TABLE = "embeddings.position_embeddings.weight"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty queries, each the words of its passage."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    texts = [(tiny.sentence(i, 4), f"{tiny.sentence(i, 20)} number {i}") for i in range(40)]
    path.write_text("".join(json.dumps({"query": q, "pos": [p]}) + "\n" for q, p in texts))
    return path


def changed(folder: Path, base: Path) -> set[str]:
    """The tensors that are not those of the base."""
    before = AutoModel.from_pretrained(base).state_dict()
    after = load_file(folder / "model.safetensors")
    return {
        name
        for name, value in after.items()
        if value.shape != before[name].shape or not torch.equal(value, before[name])
    }


def vector(folder: Path) -> np.ndarray:
    resolved = resolve(RecipeOptions(model=str(folder)))
    encoder = open_encoder(
        resolved.recipe.doc, resolved.folder, EncodeSettings(dtype="fp32", device="cpu")
    )
    return encoder.queries([Query("q", "one two three " * 60)]).vectors[0]


@pytest.mark.parametrize(
    ("settings", "inside"),
    [
        ({"train": "layers.1"}, lambda name: ".layer.1." in name),
        ({"train": "positions,layers.0"}, lambda name: name == TABLE or ".layer.0." in name),
        ({"freeze": "embeddings"}, lambda name: name.startswith("encoder.")),
        ({"freeze": "embeddings,layers.0-0"}, lambda name: ".layer.1." in name),
        ({"train": "layers", "freeze": "norms,biases"},
         lambda name: "layer." in name and "LayerNorm" not in name and name.endswith("weight")),
    ],
)  # fmt: skip
def test_these_parts_change_and_no_others(
    pairs: Path,
    tiny_model: Models,
    tmp_path: Path,
    settings: dict[str, str],
    inside: Callable[[str], bool],
) -> None:
    base = tiny_model("bert")
    folder = trained(planned(pairs, base, replace(FAST, steps=2, **settings)), tmp_path / "model")
    assert changed(folder, base) == {
        name
        for name in load_file(folder / "model.safetensors")
        if inside(name) and "pooler" not in name
    }


@pytest.mark.parametrize("words", ["layer", "layers.9", "head", "layers.x"])
def test_a_part_that_is_none_is_refused(pairs: Path, tiny_model: Models, words: str) -> None:
    plan = planned(pairs, tiny_model("bert"), replace(FAST, train=words))
    with pytest.raises(UsageError, match="embeddings"):
        training_job.open_trainable(plan)


@pytest.mark.parametrize(("train", "freeze"), [("", "embeddings,layers"), ("norms", "norms")])
def test_something_must_be_left(pairs: Path, tiny_model: Models, train: str, freeze: str) -> None:
    plan = planned(pairs, tiny_model("bert"), replace(FAST, train=train, freeze=freeze))
    with pytest.raises(UsageError, match="leave no weights to train"):
        training_job.open_trainable(plan)


def test_adapters_learn_the_same_from_states_that_are_computed_again(
    pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    folders = []
    for again in (False, True):
        settings = replace(FAST, lora=2, lr=1e-2, steps=2, gradient_checkpointing=again)
        plan = planned(pairs, tiny_model("bert"), settings)
        folders.append(load_file(trained(plan, tmp_path / str(again)) / "model.safetensors"))
    assert changed(tmp_path / "True", tiny_model("bert"))
    for name, value in folders[0].items():
        torch.testing.assert_close(folders[1][name], value, atol=1e-5, rtol=1e-4)


@pytest.fixture(scope="module")
def adapted(pairs: Path, tiny_model: Models, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model trained by adapters and a longer table of positions."""
    settings = TrainSettings(
        steps=4, batch_size=8, lr=1e-2, dtype="fp32", device="cpu", lora=3, train="positions"
    )
    plan = planned(
        pairs, tiny_model("bert"), settings, max_length=2 * tiny.POSITIONS, extend="recurrent"
    )
    return trained(plan, tmp_path_factory.mktemp("adapted") / "model")


def test_matrices_change_by_their_rank(adapted: Path, tiny_model: Models) -> None:
    base = AutoModel.from_pretrained(tiny_model("bert")).state_dict()
    after = load_file(adapted / "model.safetensors")
    names = changed(adapted, tiny_model("bert"))
    assert names == {TABLE} | {n for n in after if "layer." in n and n.endswith("dense.weight")} | {
        n for n in after if ".self." in n and n.endswith("weight")
    }
    for name in names - {TABLE}:
        assert torch.linalg.matrix_rank(after[name] - base[name], rtol=1e-3) == 3


def test_the_adapter_makes_the_model_again(adapted: Path) -> None:
    """To half precision, and from a folder without any weights of the base."""
    folder = adapted / "adapter"
    assert read_model(str(folder)).gran == "4"
    assert not np.allclose(vector(folder), 0)
    np.testing.assert_allclose(vector(folder), vector(adapted), atol=2e-3)
    weights = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert weights < (adapted / "model.safetensors").stat().st_size / 3


def test_peft_reads_the_adapter(pairs: Path, tiny_model: Models, tmp_path: Path) -> None:
    """Where no table is longer, peft merges to the weights that the folder holds."""
    settings = replace(FAST, lora=2, lr=1e-2)
    folder = trained(planned(pairs, tiny_model("bert"), settings), tmp_path / "model")
    base = AutoModel.from_pretrained(tiny_model("bert"))
    made = PeftModel.from_pretrained(base, folder / "adapter").merge_and_unload().state_dict()
    for name, value in load_file(folder / "model.safetensors").items():
        torch.testing.assert_close(made[name], value, atol=2e-3, rtol=1e-2)


def test_an_adapter_is_merged_once(
    adapted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = read_model(str(adapted / "adapter")).path
    assert first.parent == tmp_path / "lmk" / "merged"
    written = (first / "model.safetensors").stat().st_mtime_ns
    assert read_model(str(adapted / "adapter")).path == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written
    assert [path.name for path in first.parent.iterdir()] == [first.name]
    other = shutil.copytree(adapted / "adapter", tmp_path / "other")
    config = json.loads((other / "adapter_config.json").read_text())
    (other / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 1}))
    assert read_model(str(other)).path != first


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"peft_type": "IA3"}, r"adapter .*\(IA3\).*merge_and_unload"),
        ({"use_dora": True}, "DoRA needs"),  # the file has no magnitudes
        ({"alpha_pattern": {"quer.*": 3}}, "alpha_pattern"),
        ({"lora_alpha": float("nan")}, r"lora_alpha .*not finite.*merge_and_unload"),
        ({"r": "many"}, r"adapter_config\.json .*\(r: "),
        ({"base_model_name_or_path": "/nowhere"}, "model folder /nowhere"),
        ({"base_model_name_or_path": "some/model"}, "lmk fetch -m some/model"),
    ],
)
def test_what_cannot_be_merged_is_refused(
    adapted: Path, tmp_path: Path, change: dict[str, object], why: str
) -> None:
    folder = shutil.copytree(adapted / "adapter", tmp_path / "adapter")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(DataError, match=why):
        read_model(str(folder))


def test_an_adapter_of_another_model_is_refused(adapted: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(adapted / "adapter", tmp_path / "adapter")
    tensors = load_file(folder / "adapter_model.safetensors")
    renamed = {name.replace("layer.1", "layer.7"): value for name, value in tensors.items()}
    save_file(renamed, folder / "adapter_model.safetensors")
    with pytest.raises(DataError, match="base model"):
        read_model(str(folder))


def test_an_adapter_of_an_adapter(adapted: Path, pairs: Path, tmp_path: Path) -> None:
    settings = replace(FAST, lora=2, steps=2)
    plan = planned(pairs, adapted / "adapter", settings, max_length=60)
    folder = trained(plan, tmp_path / "model")
    np.testing.assert_allclose(vector(folder / "adapter"), vector(folder), atol=5e-3)


def test_an_adapter_of_itself_is_refused(adapted: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(adapted / "adapter", tmp_path / "adapter")
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(folder)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match="an adapter of itself"):
        read_model(str(folder))
