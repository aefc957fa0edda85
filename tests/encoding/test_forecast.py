"""Forecasts: the estimate from a few documents, compared with the count of all documents."""

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmkcli.data.collection import DocStream, PartOfCollection, Shard, open_collection
from lmkcli.encoding import forecast
from lmkcli.encoding.jobs import CollectionJob, plan
from lmkcli.progress import silent
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import WHOLE, Granularities, Window
from tests import tiny


class Counting(PartOfCollection):
    """A collection that counts how often its documents are read."""

    reads = 0

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        self.reads += 1
        return self._whole.docs(shard)


def job(source: Path, model: Path, **given: Any) -> CollectionJob:
    options = RecipeOptions(**{"model": str(model), "pool": "mean", **given})
    return plan(str(source), options, EncodeSettings(dtype="fp32"), WHOLE)


def test_an_estimate_reads_a_shard_and_is_near_the_count(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    source = tiny.collection(tmp_path / "large", docs=600)
    whole_job = job(source, tiny_model("bert"))
    whole = forecast.forecast(whole_job, silent)
    same = forecast.Estimator()(whole_job)
    assert same.disk == whole.disk  # a small collection is read as a whole
    rough = forecast.Estimator((source / "corpus.jsonl").stat().st_size // 5)(whole_job)
    assert rough.disk != whole.disk
    assert rough.disk == pytest.approx(whole.disk, rel=0.2)
    assert rough.seconds > 0


SETTINGS: list[dict[str, Any]] = [
    {},
    {"pool": "lmk", "gran": Granularities("16")},
    {"pool": "lmk", "gran": Granularities("8")},
    {"unit": "chunk", "gran": Granularities("16")},
    {"unit": "chunk", "gran": Granularities("sentence")},
    {"doc_prompt": "text: "},
    {"max_length": 60},
    {"window": Window("64")},
]


def test_the_jobs_of_a_model_share_a_sample(
    tmp_path: Path, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is counted is that of each job, and the model is timed once for inputs of about one length."""
    timed, measure = [], forecast._pace

    def pace(encoder: Any, sample: Any) -> float:
        timed.append(measure(encoder, sample))
        return timed[-1]

    monkeypatch.setattr(forecast, "_pace", pace)
    source = tiny.collection(tmp_path / "large", docs=300)
    models = [tiny_model("bert"), tiny_model("roberta")]
    collection = Counting(open_collection(str(source)))
    estimator = forecast.Estimator()
    for model in models:
        for settings in SETTINGS:
            planned = job(source, model, **settings)
            shared = estimator(replace(planned, source=collection))
            whole = forecast.forecast(planned, silent)
            assert shared.disk == pytest.approx(whole.disk, rel=1e-3), settings
            assert shared.seconds > 0
    assert collection.reads == 1
    assert len(timed) - len(models) * len(SETTINGS) <= 3 * len(models)


def test_a_collection_that_must_be_read_as_a_whole_is_not_kept(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    source = tiny.collection(tmp_path / "large", docs=300) / "corpus.jsonl"
    packed = tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    collection = Counting(open_collection(str(packed)))
    planned = job(packed, tiny_model("bert"))
    estimator = forecast.Estimator(packed.stat().st_size // 2)
    made = [estimator(replace(planned, source=collection)) for _ in range(2)]
    assert collection.reads == 2
    assert {each.disk for each in made} == {forecast.forecast(planned, silent).disk}


def test_an_empty_collection_costs_nothing(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert forecast.Estimator()(job(empty, tiny_model("bert"))) == forecast.Estimate(0, 0.0)
