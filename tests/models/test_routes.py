"""The check of a model's route: its outcome is kept, and a cache that is of no use is done without."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lmkcli.models import transformer
from lmkcli.models.finding import read_model
from lmkcli.models.forward import ModelOptions
from lmkcli.models.routes import Route, remembered, route_key
from lmkcli.models.transformer import Transformer, open_model

Models = Callable[[str], Path]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lmk" / "routes"


def test_a_route_is_checked_once(cache: Path) -> None:
    asked: list[int] = []

    def check() -> Route:
        asked.append(1)
        return Route(fused=True, packed=True)

    assert remembered("a" * 64, check) == remembered("a" * 64, check) == Route(True, True)
    assert asked == [1]
    assert remembered("b" * 64, lambda: Route(False, False, "why")).why_padded == "why"
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("content", ["", "{", "[]", '{"fused": true}', '{"other": 1}'])
def test_a_damaged_file_is_made_again(cache: Path, content: str) -> None:
    cache.mkdir(parents=True)
    (cache / f"{'a' * 32}.json").write_text(content)
    assert remembered("a" * 64, lambda: Route(False, True)) == Route(False, True)
    assert remembered("a" * 64, lambda: Route(True, True)) == Route(False, True)


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert remembered("a" * 64, lambda: Route(False, True)) == Route(False, True)


def test_dtype_weights_and_extension_have_routes_of_their_own() -> None:
    keys = {
        route_key(weights, dtype, CPU, extend)
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

    def never(self: Transformer, fusing: bool) -> Route:
        raise AssertionError("checked again")

    monkeypatch.setattr(transformer.Transformer, "check", never)
    again = open_model(folder, ModelOptions("fp32", "cpu"))
    ids = [torch.arange(5, 9).int().numpy(), torch.arange(5, 17).int().numpy()]
    torch.testing.assert_close(first.states(ids), again.states(ids))
    with pytest.raises(AssertionError, match="checked again"):
        open_model(folder, ModelOptions("bf16", "cpu"))
