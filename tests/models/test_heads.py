"""Sentence modules, latent attention and projections, against official numbers and their formulas."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lmkcli.errors import DataError, UsageError
from lmkcli.models.heads import LatentAttention, open_heads, open_token_head
from lmkcli.models.lookup import read_model
from lmkcli.models.model_folder import ModelFolder, SentenceModule
from lmkcli.pooling.table import LATENT, MEAN, Pooler

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
    return ModelFolder(folder, "m", modules=(SentenceModule("Dense", folder),))


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


def test_modules_are_applied_in_order(tmp_path: Path) -> None:
    dense(tmp_path / "2_Dense", activation_function="torch.nn.modules.linear.Identity")
    (tmp_path / "3_LayerNorm").mkdir()
    (tmp_path / "3_LayerNorm/config.json").write_text('{"dimension": 2}')
    scale, shift = torch.tensor([2.0, 3.0]), torch.tensor([0.5, -0.5])
    save_file(
        {"norm.weight": scale, "norm.bias": shift}, tmp_path / "3_LayerNorm/model.safetensors"
    )
    modules = (
        SentenceModule("Dense", tmp_path / "2_Dense"),
        SentenceModule("LayerNorm", tmp_path / "3_LayerNorm"),
    )
    mapped = POOLED @ WEIGHT.T + BIAS
    centred = mapped - mapped.mean(axis=1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    made = applied(ModelFolder(tmp_path, "m", modules=modules))
    np.testing.assert_allclose(made, normed * scale.numpy() + shift.numpy(), atol=1e-4)


def test_without_modules_vectors_are_unchanged(tmp_path: Path) -> None:
    np.testing.assert_array_equal(applied(ModelFolder(tmp_path, "m")), POOLED)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"activation_function": "torch.nn.Hardshrink"},
            "Hardshrink; .*Identity, Tanh",
        ),
        ({"module_input_name": "token_embeddings"}, "to the pooled vector"),
    ],
)
def test_unsupported_options_are_refused(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        open_heads(dense(tmp_path, **config), CPU)


def test_missing_weights_are_a_data_error(tmp_path: Path) -> None:
    folder = dense(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(DataError, match="has no weights"):
        open_heads(folder, CPU)


DIM = 128  # of the official fixture: two heads


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    """Random weights with the names and shapes of LMK's training."""
    random = torch.Generator().manual_seed(0)
    shapes = {
        "latents": (64, DIM),
        "cross_attend_blocks.0.fn.to_q.weight": (2 * DIM, DIM),
        "cross_attend_blocks.0.fn.to_kv.weight": (4 * DIM, DIM),
        "cross_attend_blocks.0.fn.to_out.weight": (DIM, 2 * DIM),
        "cross_attend_blocks.1.fn.net.0.weight": (8 * DIM, DIM),
        "cross_attend_blocks.1.fn.net.0.bias": (8 * DIM,),
        "cross_attend_blocks.1.fn.net.2.weight": (DIM, 4 * DIM),
        "cross_attend_blocks.1.fn.net.2.bias": (DIM,),
    }
    for norm in ("0.norm", "0.norm_context", "1.norm"):
        shapes |= {f"cross_attend_blocks.{norm}.{name}": (DIM,) for name in ("weight", "bias")}
    return {name: torch.randn(shape, generator=random) / 8 for name, shape in shapes.items()}


def folder(path: Path, weights: dict[str, torch.Tensor]) -> ModelFolder:
    """A plain model folder with a latent attention next to its encoder."""
    (path / "latent_attn_model").mkdir(parents=True)
    save_file(weights, path / "latent_attn_model/model.safetensors")
    (path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    return read_model(str(path))


def states_after(made: ModelFolder, states: torch.Tensor, pool: Pooler = LATENT) -> torch.Tensor:
    with torch.inference_mode():
        result: torch.Tensor = open_token_head(made, pool, CPU)(states)
    return result


def test_latent_attention_equals_the_official_module(
    parity: Callable[[str], Path], tmp_path: Path
) -> None:
    made = folder(tmp_path, load_file(parity("lmk/latent_attention.safetensors")))
    assert made.pool == "latent"
    official = np.load(parity("lmk/latent_attention.npz"))
    masks = official["m"].astype(bool)
    states = torch.from_numpy(
        np.concatenate([x[m] for x, m in zip(official["x"], masks, strict=True)])
    )
    heads = torch.split(states_after(made, states), masks.sum(1).tolist())
    means = np.stack([head.mean(0).numpy() for head in heads])
    assert len(means) == 3
    np.testing.assert_allclose(means, official["y"], atol=1e-6)


def test_latent_attention_equals_its_formula(
    tmp_path: Path, weights: dict[str, torch.Tensor]
) -> None:
    """x + Attention(LN(x), LN(latents)) with two heads as wide as x, then x + FF(LN(x)), in float64."""
    w = {
        name.removeprefix("cross_attend_blocks."): value.double() for name, value in weights.items()
    }

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        apart = x - x.mean(-1, keepdim=True)
        unit = apart / (apart.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return unit * w[f"{name}.weight"] + w[f"{name}.bias"]

    states = torch.randn(5, DIM, generator=torch.Generator().manual_seed(1))
    x, latents = states.double(), norm(w["latents"], "0.norm_context")
    queries = (norm(x, "0.norm") @ w["0.fn.to_q.weight"].T).chunk(2, 1)
    keys, values = (part.chunk(2, 1) for part in (latents @ w["0.fn.to_kv.weight"].T).chunk(2, 1))
    seen = [
        torch.softmax(q @ k.T / DIM**0.5, 1) @ v
        for q, k, v in zip(queries, keys, values, strict=True)
    ]
    x = x + torch.cat(seen, 1) @ w["0.fn.to_out.weight"].T
    value, gate = (norm(x, "1.norm") @ w["1.fn.net.0.weight"].T + w["1.fn.net.0.bias"]).chunk(2, 1)
    gated = value * gate * (1 + torch.erf(gate / 2**0.5)) / 2
    x = x + gated @ w["1.fn.net.2.weight"].T + w["1.fn.net.2.bias"]
    made = states_after(folder(tmp_path, weights), states).double()
    torch.testing.assert_close(made, x, atol=1e-5, rtol=1e-5)


def test_blocks_do_not_change_latent_attention() -> None:
    whole, blocks = LatentAttention(DIM, 64), LatentAttention(DIM, 64, block=5)
    blocks.load_state_dict(whole.state_dict())
    states = torch.from_numpy(np.random.default_rng(0).normal(size=(23, DIM)).astype("f4"))
    with torch.inference_mode():
        torch.testing.assert_close(blocks(states), whole(states), rtol=1e-5, atol=1e-5)
        half = blocks(states.to(torch.bfloat16))
        assert half.dtype == torch.float32
        torch.testing.assert_close(half, blocks(states.to(torch.bfloat16).float()))


def test_only_latent_pooling_uses_latent_attention(
    tmp_path: Path, weights: dict[str, torch.Tensor]
) -> None:
    made = folder(tmp_path / "with", weights)
    states = torch.ones(2, DIM, dtype=torch.bfloat16)
    assert states_after(made, states, MEAN) is states
    with pytest.raises(UsageError, match=r"latent_attn_model; .*--pool"):
        open_token_head(ModelFolder(tmp_path, "m"), LATENT, CPU)


def test_latent_weights_are_part_of_the_digest(
    tmp_path: Path, weights: dict[str, torch.Tensor]
) -> None:
    before = folder(tmp_path, weights).weights_digest
    shutil.rmtree(tmp_path / "latent_attn_model")
    changed = folder(tmp_path, weights | {"latents": weights["latents"] + 1}).weights_digest
    assert changed != before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: {"other": w["latents"]}, r"model\.safetensors .*'latents'"),
        (lambda w: w | {"latents": w["latents"][0].contiguous()}, "'latents'"),
        (lambda w: {k: v for k, v in w.items() if "to_q" not in k}, "Missing key.*query.weight"),
        (lambda w: w | {"extra.weight": w["latents"] + 1}, "Unexpected key.*extra.weight"),
        (lambda w: w | {"latents": w["latents"][:, :64].contiguous()}, "size mismatch"),
    ],
)
def test_weights_of_another_module_are_refused(
    tmp_path: Path, weights: dict[str, torch.Tensor], change: Any, message: str
) -> None:
    made = folder(tmp_path, change(weights))
    with pytest.raises(DataError, match=message):
        open_token_head(made, LATENT, CPU)


def test_a_damaged_file_is_named(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    made = folder(tmp_path, weights)
    (tmp_path / "latent_attn_model/model.safetensors").write_bytes(b"{")
    with pytest.raises(DataError, match=r"latent_attn_model/model\.safetensors, the latent"):
        open_token_head(made, LATENT, CPU)


def projection(path: Path, config: dict[str, Any], **weights: torch.Tensor) -> ModelFolder:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file(
        {f"linear.{name}": value for name, value in weights.items()}, path / "model.safetensors"
    )
    return ModelFolder(path, "m", projections=(SentenceModule("Dense", path),))


def test_a_projection_maps_every_state(tmp_path: Path) -> None:
    weight = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 3)).astype("f4"))
    made = projection(tmp_path, {"in_features": 3, "out_features": 2}, weight=weight)
    states = torch.randn(7, 3)
    torch.testing.assert_close(states_after(made, states, MEAN), states @ weight.T)


def test_a_projection_of_pooled_vectors_is_refused(tmp_path: Path) -> None:
    config = {"in_features": 3, "out_features": 2, "module_input_name": "sentence_embedding"}
    made = projection(tmp_path, config, weight=torch.ones(2, 3))
    with pytest.raises(DataError, match=r"Dense .*sentence_embedding"):
        open_token_head(made, MEAN, CPU)


def test_a_projection_adds_its_residual(tmp_path: Path) -> None:
    weight = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 3)).astype("f4"))
    config = {"in_features": 3, "out_features": 3, "use_residual": True}
    states = torch.randn(7, 3)
    made = states_after(projection(tmp_path, config, weight=weight), states, MEAN)
    torch.testing.assert_close(made, states @ weight.T + states)
