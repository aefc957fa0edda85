"""Sentence modules after pooling, against their formulas in NumPy."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lmkcli.errors import DataError
from lmkcli.models.folder import ModelFolder, Module
from lmkcli.models.heads import open_heads

CPU = torch.device("cpu")
RANDOM = np.random.default_rng(0)
WEIGHT, BIAS = RANDOM.normal(size=(2, 3)).astype("f4"), RANDOM.normal(size=2).astype("f4")
POOLED = RANDOM.normal(size=(5, 3)).astype("f4")
DENSE = {"in_features": 3, "out_features": 2, "bias": True}


def dense(folder: Path, pickled: bool = False, **config: Any) -> ModelFolder:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(DENSE | config))
    weights = {"linear.weight": torch.from_numpy(WEIGHT), "linear.bias": torch.from_numpy(BIAS)}
    if pickled:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file(weights, folder / "model.safetensors")
    return ModelFolder(folder, "m", modules=(Module("Dense", folder),))


def applied(folder: ModelFolder) -> np.ndarray:
    with torch.inference_mode():
        made: np.ndarray = open_heads(folder, CPU)(torch.from_numpy(POOLED)).numpy()
    return made


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("torch.nn.modules.activation.Tanh", np.tanh),
        ("torch.nn.modules.linear.Identity", lambda x: x),
        ("torch.nn.modules.activation.ReLU", lambda x: np.maximum(x, 0)),
    ],
)
def test_dense_is_a_linear_map_and_its_activation(
    tmp_path: Path, pickled: bool, name: str, function: Any
) -> None:
    made = applied(dense(tmp_path, pickled, activation_function=name))
    np.testing.assert_allclose(made, function(POOLED @ WEIGHT.T + BIAS), atol=1e-6)


def test_dense_without_an_activation_in_its_config_is_tanh(tmp_path: Path) -> None:
    np.testing.assert_allclose(
        applied(dense(tmp_path)), np.tanh(POOLED @ WEIGHT.T + BIAS), atol=1e-6
    )


def test_modules_follow_each_other(tmp_path: Path) -> None:
    dense(tmp_path / "2_Dense", activation_function="torch.nn.modules.linear.Identity")
    (tmp_path / "3_LayerNorm").mkdir()
    (tmp_path / "3_LayerNorm/config.json").write_text('{"dimension": 2}')
    scale, shift = torch.tensor([2.0, 3.0]), torch.tensor([0.5, -0.5])
    save_file(
        {"norm.weight": scale, "norm.bias": shift}, tmp_path / "3_LayerNorm/model.safetensors"
    )
    modules = (Module("Dense", tmp_path / "2_Dense"), Module("LayerNorm", tmp_path / "3_LayerNorm"))
    mapped = POOLED @ WEIGHT.T + BIAS
    centred = mapped - mapped.mean(axis=1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    made = applied(ModelFolder(tmp_path, "m", modules=modules))
    np.testing.assert_allclose(made, normed * scale.numpy() + shift.numpy(), atol=1e-4)


def test_without_modules_vectors_stay_as_they_are(tmp_path: Path) -> None:
    np.testing.assert_array_equal(applied(ModelFolder(tmp_path, "m")), POOLED)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"activation_function": "torch.nn.Mish"}, "unknown activation Mish; lmk knows Identity"),
        ({"use_residual": True}, "without a residual"),
        ({"module_input_name": "token_embeddings"}, "to the pooled vector"),
    ],
)
def test_what_would_give_other_vectors_is_refused(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        open_heads(dense(tmp_path, **config), CPU)


def test_missing_weights_are_a_data_error(tmp_path: Path) -> None:
    folder = dense(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(DataError, match="has no weights"):
        open_heads(folder, CPU)
