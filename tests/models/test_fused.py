"""Fused layers compute what the layers that they replace compute, and can be put back."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel
from transformers.models.modernbert.modeling_modernbert import apply_rotary_pos_emb

from lmkcli.models.finding import read_model
from lmkcli.models.forward import ModelOptions
from lmkcli.models.fused import RotaryLayer, fuse, rotated
from lmkcli.models.transformer import open_model

Models = Callable[[str], Path]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_is_that_of_transformers(dtype: torch.dtype) -> None:
    x = torch.randn(7, 2, 3, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    angles = torch.arange(7)[:, None] / 100 ** (torch.arange(4) / 4)
    cosine, sine = (f(torch.cat([angles, angles], -1))[None] for f in (torch.cos, torch.sin))
    made = rotated(x, cosine, sine).unbind(1)
    wanted = apply_rotary_pos_emb(
        *(part.transpose(0, 1)[None] for part in x.unbind(1)), cosine, sine
    )
    near = {"rtol": 1e-6, "atol": 1e-6} if dtype is torch.float32 else {"rtol": 0.05, "atol": 0.05}
    for one, other in zip(made, wanted, strict=True):
        torch.testing.assert_close(one, other[0].transpose(0, 1), **near)


def test_layers_of_modernbert_are_replaced_and_put_back(tiny_model: Models) -> None:
    model = AutoModel.from_pretrained(tiny_model("modernbert")).eval()
    before = [type(layer) for layer in model.layers]
    undo = fuse(model)
    assert all(type(layer) is RotaryLayer for layer in model.layers)
    undo()
    assert [type(layer) for layer in model.layers] == before


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_fused_states_are_those_of_transformers(tiny_model: Models, name: str) -> None:
    fused = open_model(read_model(str(tiny_model(name))), ModelOptions("fp32", "cpu"))
    assert fused.packed
    plain = AutoModel.from_pretrained(tiny_model(name)).eval()
    random = np.random.default_rng(0)
    ids = [random.integers(5, 60, n).astype(np.int32) for n in (3, 30, 100)]
    with torch.inference_mode():
        wanted = [plain(torch.from_numpy(i).long()[None]).last_hidden_state[0] for i in ids]
    torch.testing.assert_close(fused.states(ids), torch.cat(wanted), rtol=1e-4, atol=2e-5)
