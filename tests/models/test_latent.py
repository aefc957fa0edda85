"""Latent attention against the official numbers and its formula; ColBERT's projections of states."""

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
from lmkcli.models import latent
from lmkcli.models.finding import read_model
from lmkcli.models.folder import ModelFolder, Module
from lmkcli.models.heads import open_token_head

CPU = torch.device("cpu")
DIM = 128  # of the official fixture: two heads


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    """Random weights under the names and shapes that LMK's training writes."""
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
    """A plain model folder with a latent attention beside its encoder."""
    (path / "latent_attn_model").mkdir(parents=True)
    save_file(weights, path / "latent_attn_model/model.safetensors")
    (path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    return read_model(str(path))


def applied(made: ModelFolder, states: torch.Tensor, pool: str = "latent") -> torch.Tensor:
    with torch.inference_mode():
        result: torch.Tensor = open_token_head(made, pool, CPU)(states)
    return result


def test_it_equals_the_official_module(parity: Callable[[str], Path], tmp_path: Path) -> None:
    made = folder(tmp_path, load_file(parity("lmk/latent_attention.safetensors")))
    assert made.pool == "latent"
    official = np.load(parity("lmk/latent_attention.npz"))
    masks = official["m"].astype(bool)
    states = torch.from_numpy(
        np.concatenate([x[m] for x, m in zip(official["x"], masks, strict=True)])
    )
    heads = torch.split(applied(made, states), masks.sum(1).tolist())
    means = np.stack([head.mean(0).numpy() for head in heads])
    assert len(means) == 3
    np.testing.assert_allclose(means, official["y"], atol=1e-6)


def test_it_is_its_formula(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    """x + Attention(LN(x), LN(latents)) of two heads as wide as x, then x + FF(LN(x)), in float64."""
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
    made = applied(folder(tmp_path, weights), states).double()
    torch.testing.assert_close(made, x, atol=1e-5, rtol=1e-5)


def test_long_inputs_go_in_blocks(
    tmp_path: Path, weights: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = folder(tmp_path, weights)
    states = torch.from_numpy(np.random.default_rng(0).normal(size=(23, DIM)).astype("f4"))
    whole = applied(made, states)
    monkeypatch.setattr(latent, "BLOCK", 5)
    torch.testing.assert_close(applied(made, states), whole, rtol=1e-5, atol=1e-5)
    half = applied(made, states.to(torch.bfloat16))
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, applied(made, states.to(torch.bfloat16).float()))


def test_only_the_latent_pooling_asks_for_it(
    tmp_path: Path, weights: dict[str, torch.Tensor]
) -> None:
    made = folder(tmp_path / "with", weights)
    states = torch.ones(2, DIM, dtype=torch.bfloat16)
    assert len(open_token_head(made, "mean", CPU)) == 0
    assert applied(made, states, "mean") is states
    with pytest.raises(UsageError, match="has no folder latent_attn_model; choose another --pool"):
        open_token_head(ModelFolder(tmp_path, "m"), "latent", CPU)


def test_its_weights_are_part_of_the_models_identity(
    tmp_path: Path, weights: dict[str, torch.Tensor]
) -> None:
    before = folder(tmp_path, weights).weights_digest
    shutil.rmtree(tmp_path / "latent_attn_model")
    changed = folder(tmp_path, weights | {"latents": weights["latents"] + 1}).weights_digest
    assert changed != before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: {"other": w["latents"]}, "holds no 'latents'"),
        (lambda w: {k: v for k, v in w.items() if "to_q" not in k}, "Missing key.*query.weight"),
        (lambda w: w | {"extra.weight": w["latents"] + 1}, "Unexpected key.*extra.weight"),
        (lambda w: w | {"latents": w["latents"][:, :64].contiguous()}, "size mismatch"),
    ],
)
def test_other_weights_are_refused(
    tmp_path: Path, weights: dict[str, torch.Tensor], change: Any, message: str
) -> None:
    made = folder(tmp_path, change(weights))
    with pytest.raises(DataError, match=message):
        open_token_head(made, "latent", CPU)


def test_a_damaged_file_is_named(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    made = folder(tmp_path, weights)
    (tmp_path / "latent_attn_model/model.safetensors").write_bytes(b"{")
    with pytest.raises(DataError, match=r"latent_attn_model/model\.safetensors, the latent"):
        open_token_head(made, "latent", CPU)


def projection(path: Path, config: dict[str, Any], **weights: torch.Tensor) -> ModelFolder:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file(
        {f"linear.{name}": value for name, value in weights.items()}, path / "model.safetensors"
    )
    return ModelFolder(path, "m", projections=(Module("Dense", path),))


def test_a_projection_maps_every_state(tmp_path: Path) -> None:
    weight = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 3)).astype("f4"))
    made = projection(tmp_path, {"in_features": 3, "out_features": 2}, weight=weight)
    states = torch.randn(7, 3)
    torch.testing.assert_close(applied(made, states, "mean"), states @ weight.T)


@pytest.mark.parametrize(
    "config", [{"use_residual": True}, {"module_input_name": "sentence_embedding"}]
)
def test_a_projection_of_another_kind_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    made = projection(
        tmp_path, {"in_features": 3, "out_features": 2} | config, weight=torch.ones(2, 3)
    )
    with pytest.raises(DataError, match="Dense to the states of a ColBERT model, without a resid"):
        open_token_head(made, "mean", CPU)
