"""Forecasts: the estimate from a few documents, compared with the count of all documents."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lmkcli.encoding import forecast
from lmkcli.encoding.jobs import CollectionJob, plan
from lmkcli.progress import silent
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import WHOLE
from tests import tiny


def job(source: Path, model: Path) -> CollectionJob:
    options = RecipeOptions(model=str(model), pool="mean")
    return plan(str(source), options, EncodeSettings(dtype="fp32"), WHOLE)


def test_an_estimate_reads_a_shard_and_is_near_the_count(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    source = tiny.collection(tmp_path / "large", docs=600)
    whole_job = job(source, tiny_model("bert"))
    whole = forecast.forecast(whole_job, silent)
    same = forecast.estimate(whole_job)
    assert same.disk == whole.disk  # a small collection is read as a whole
    rough = forecast.estimate(whole_job, (source / "corpus.jsonl").stat().st_size // 5)
    assert rough.disk != whole.disk
    assert rough.disk == pytest.approx(whole.disk, rel=0.2)
    assert rough.seconds > 0


def test_an_empty_collection_costs_nothing(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert forecast.estimate(job(empty, tiny_model("bert"))) == forecast.Estimate(0, 0.0)
