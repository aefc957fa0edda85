"""New models: random weights of an architecture, and weights from another model."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lmkcli.errors import DataError
from lmkcli.models.forward import ModelOptions
from lmkcli.models.lookup import read_model
from lmkcli.models.model_files import read_architecture
from lmkcli.models.new_model import NewModel, create
from lmkcli.models.transformer import open_model
from tests import tiny

Models = Callable[[str], Path]


def written(path: Path, config: dict[str, Any]) -> Path:
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_the_seed_decides_the_weights(tiny_model: Models, tmp_path: Path, name: str) -> None:
    base = tiny_model(name)
    found = []
    for number, seed in enumerate((1, 1, 2)):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert create(NewModel(base / "config.json", str(base), seed=seed), folder) == []
        found.append(read_model(str(folder)))
    assert found[0].weights_digest == found[1].weights_digest != found[2].weights_digest
    model = open_model(found[0], ModelOptions("fp32", "cpu"))
    assert model.dim == tiny.WIDTH


def test_toml_and_json_give_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('model_type = "tite"\nhidden_sizes = [8, 16]\n')
    assert read_architecture(tmp_path / "a.toml") == {"model_type": "tite", "hidden_sizes": [8, 16]}
    (tmp_path / "a.toml").write_text("model_type = tite")
    with pytest.raises(DataError, match="TOML"):
        read_architecture(tmp_path / "a.toml")


def test_matching_weights_are_copied_and_others_are_named(
    tiny_model: Models, tmp_path: Path
) -> None:
    base = tiny_model("bert")
    config = json.loads((base / "config.json").read_text())
    deeper = {"num_hidden_layers": 3, "intermediate_size": 48, "max_position_embeddings": 200}
    path = written(tmp_path / "deeper.json", config | deeper)
    folder = tmp_path / "new"
    folder.mkdir()
    notes = create(NewModel(path, str(base), str(base)), folder)
    old, new = (load_file(place / "model.safetensors") for place in (base, folder))
    words = "embeddings.word_embeddings.weight"
    assert torch.equal(old[words], new[words])
    rows = "embeddings.position_embeddings.weight"
    assert torch.equal(new[rows], torch.cat([old[rows], old[rows][:72]]))
    assert re.search(r"repeated.*: embeddings\.position_embeddings\.weight", notes[1])
    assert "encoder.layer.0.intermediate.dense.weight" in notes[2]
    (tmp_path / "other").mkdir()
    fewer = written(tmp_path / "fewer.json", config | {"num_hidden_layers": 1})
    notes = create(NewModel(fewer, str(base), str(base)), tmp_path / "other")
    assert re.search(r"not .*: encoder\.layer\.1", notes[-1])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"hidden_size": 8}, "no model_type"),
        ({"model_type": "nosuch"}, r"config\.json .*created: .*nosuch"),
        (
            {"model_type": "tite", "hidden_sizes": [16, 8], "num_hidden_layers": 2},
            r"hidden_sizes \[16, 8\] .*decrease",
        ),
    ],
)
def test_files_without_an_architecture_are_refused(
    tiny_model: Models, tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    (tmp_path / "new").mkdir()
    path = written(tmp_path / "config.json", config)
    with pytest.raises(DataError, match=words):
        create(NewModel(path, str(tiny_model("bert"))), tmp_path / "new")


def test_a_folder_without_a_tokenizer(tiny_model: Models, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with pytest.raises(DataError, match="no files of a tokenizer"):
        create(
            NewModel(tiny_model("bert") / "config.json", str(tmp_path / "new")), tmp_path / "new"
        )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"hidden_size": 1 << 20, "intermediate_size": 1 << 30},
            r"config\.json .*created: .*(GB|TB), .*memory",
        ),
        (
            {"hidden_size": (1 << 31) - 4, "vocab_size": (1 << 31) - 1},
            r"config\.json .*created: ",
        ),
        ({"num_hidden_layers": 9999}, "num_hidden_layers: .*<= 1000"),
        ({"hidden_size": 33}, r"config\.json .*created: .*hidden size"),
        ({"layer_norm_eps": []}, r"config\.json .*created: "),
    ],
)
def test_an_impossible_architecture_is_refused(
    tiny_model: Models, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    config = json.loads((tiny_model("bert") / "config.json").read_text())
    path = written(tmp_path / "config.json", config | change)
    (tmp_path / "new").mkdir()
    with pytest.raises(DataError, match=words):
        create(NewModel(path, str(tiny_model("bert"))), tmp_path / "new")


@pytest.mark.parametrize("end", [".json", ".toml"])
def test_a_deep_or_endless_architecture_is_refused(tmp_path: Path, end: str) -> None:
    path = tmp_path / f"config{end}"
    deep = {".json": '{"a":' * 5000, ".toml": "a = " + "[" * 5000}
    path.write_text(deep[end])
    with pytest.raises(DataError, match=str(path)):
        read_architecture(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match=f"{path.name} .*pipe"):
        read_architecture(path)


@pytest.mark.parametrize(
    "text",
    ["model_type = 3", "model_type = ['bert']", "model_type = 2020-01-01", "hidden_size = 0"],
)
def test_the_values_of_toml_are_checked(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(DataError, match=r"a\.toml"):
        read_architecture(tmp_path / "a.toml")


@pytest.mark.parametrize("share", [0, 0.5])
def test_a_truncated_tokenizer_is_refused(tiny_model: Models, tmp_path: Path, share: float) -> None:
    base = shutil.copytree(tiny_model("bert"), tmp_path / "base")
    whole = (base / "tokenizer.json").read_bytes()
    (base / "tokenizer.json").write_bytes(whole[: int(len(whole) * share)])
    (tmp_path / "new").mkdir()
    with pytest.raises(DataError, match=f"--tokenizer {base} cannot be loaded"):
        create(NewModel(base / "config.json", str(base)), tmp_path / "new")
