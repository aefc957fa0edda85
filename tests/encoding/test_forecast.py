"""Forecasts: an estimate from the first documents against the count of all of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lmkcli.encoding import forecast
from lmkcli.encoding.planning import Job, plan
from lmkcli.progress import silent
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import EncodeSettings
from tests import tiny


def job(source: Path, model: Path) -> Job:
    options = RecipeOptions(model=str(model), pool="mean")
    return plan(str(source), options, EncodeSettings(dtype="fp32"), "0/1")


def test_an_estimate_reads_a_slice_and_comes_near_to_the_count(
    tmp_path: Path, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny.collection(tmp_path / "large", docs=600)
    asked = job(source, tiny_model("bert"))
    whole = forecast.forecast(asked, silent)
    same = forecast.estimate(asked)
    assert same.disk == whole.disk  # so small a collection is read whole
    monkeypatch.setattr(forecast, "_QUICK_BYTES", (source / "corpus.jsonl").stat().st_size // 5)
    rough = forecast.estimate(asked)
    assert rough.disk != whole.disk
    assert rough.disk == pytest.approx(whole.disk, rel=0.2)
    assert rough.seconds > 0


def test_an_empty_collection_takes_nothing(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert forecast.estimate(job(empty, tiny_model("bert"))) == forecast.Estimate(0, 0.0)
