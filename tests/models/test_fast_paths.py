"""Fused layers equal the layers that they replace; results of checks are cached."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel
from transformers.models.modernbert.modeling_modernbert import apply_rotary_pos_emb

from lmkcli.errors import DataError
from lmkcli.models import transformer
from lmkcli.models.fast_paths import (
    FastPath,
    RotaryLayer,
    cached_fast_path,
    fast_path_key,
    fuse,
    rotated,
)
from lmkcli.models.forward import ModelOptions
from lmkcli.models.lookup import read_model
from lmkcli.models.transformer import Transformer, open_model

Models = Callable[[str], Path]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_equals_that_of_transformers(dtype: torch.dtype) -> None:
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


def test_layers_of_modernbert_are_replaced_and_restored(tiny_model: Models) -> None:
    model = AutoModel.from_pretrained(tiny_model("modernbert")).eval()
    before = [type(layer) for layer in model.layers]
    replaced = fuse(model, torch.device("cpu"))
    assert all(type(layer) is RotaryLayer for layer in model.layers)
    replaced.restore()
    assert [type(layer) for layer in model.layers] == before


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_fused_states_equal_those_of_transformers(tiny_model: Models, name: str) -> None:
    fused = open_model(read_model(str(tiny_model(name))), ModelOptions("fp32", "cpu"))
    assert fused.packed
    plain = AutoModel.from_pretrained(tiny_model(name)).eval()
    random = np.random.default_rng(0)
    ids = [random.integers(5, 60, n).astype(np.int32) for n in (3, 30, 100)]
    with torch.inference_mode():
        wanted = [plain(torch.from_numpy(i).long()[None]).last_hidden_state[0] for i in ids]
    torch.testing.assert_close(fused.states(ids), torch.cat(wanted), rtol=1e-4, atol=2e-5)


CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lmk" / "routes"


def test_a_fast_path_is_checked_once(cache: Path) -> None:
    checks: list[int] = []

    def check() -> FastPath:
        checks.append(1)
        return FastPath(fused=True, packed=True)

    assert (
        cached_fast_path("a" * 64, check)
        == cached_fast_path("a" * 64, check)
        == FastPath(True, True)
    )
    assert checks == [1]
    assert cached_fast_path("b" * 64, lambda: FastPath(False, False, "why")).why_padded == "why"
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("content", ["", "{", "[]", '{"fused": true}', '{"other": 1}'])
def test_a_damaged_file_is_written_again(cache: Path, content: str) -> None:
    cache.mkdir(parents=True)
    (cache / f"{'a' * 32}.json").write_text(content)
    assert cached_fast_path("a" * 64, lambda: FastPath(False, True)) == FastPath(False, True)
    assert cached_fast_path("a" * 64, lambda: FastPath(True, True)) == FastPath(False, True)


def test_a_read_only_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cached_fast_path("a" * 64, lambda: FastPath(False, True)) == FastPath(False, True)


def test_keys_differ_by_dtype_weights_and_extension() -> None:
    keys = {
        fast_path_key(weights, dtype, CPU, extend)
        for weights in ("1", "2")
        for dtype in ("fp32", "bf16")
        for extend in ("", "ntk:4096")
    }
    assert len(keys) == 8


def test_the_second_opening_does_not_check(
    tiny_model: Models, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = read_model(str(tiny_model("bert")))
    first = open_model(folder, ModelOptions("fp32", "cpu"))
    assert first.packed

    def never(self: Transformer, fusing: bool, name: str) -> FastPath:
        raise AssertionError("checked again")

    monkeypatch.setattr(transformer.Transformer, "check", never)
    again = open_model(folder, ModelOptions("fp32", "cpu"))
    ids = [torch.arange(5, 9).int().numpy(), torch.arange(5, 17).int().numpy()]
    torch.testing.assert_close(first.states(ids), again.states(ids))
    with pytest.raises(DataError, match="checked again"):
        open_model(folder, ModelOptions("bf16", "cpu"))
