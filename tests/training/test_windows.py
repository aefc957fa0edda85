"""A source read in windows gives the vectors of `lmk encode --window`, and they are learned as one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmkcli import Encode, Search, Train
from lmkcli.data.collection import Query
from lmkcli.encoding.encoder import open_encoder
from lmkcli.encoding.resolution import resolve
from lmkcli.errors import UsageError
from lmkcli.evaluation.scoring import qrel_set_of, score
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.training import training_job
from lmkcli.training.data.batches import TrainBatch
from lmkcli.training.loop import training_run as execution
from lmkcli.training.train_settings import TrainSettings
from lmkcli.training.training_job import TrainJob
from tests import tiny

Models = Callable[[str], Path]
CPU = EncodeSettings(dtype="fp32", device="cpu")
TEXTS = [f"{tiny.sentence(i, 6 + 17 * i)} number {i}" for i in range(12)]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Passages of up to 200 tokens."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    lines = [{"query": tiny.sentence(i, 4), "pos": [text]} for i, text in enumerate(TEXTS)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def planned(source: str, model: Path, pool: str = "lmk", **settings: Any) -> TrainJob:
    asked = {"steps": 2, "batch_size": 12, "dtype": "fp32", "device": "cpu", **settings}
    gran = "8" if pool in ("lmk", "multicls") else None
    options = RecipeOptions(model=str(model), pool=pool, gran=gran, max_length=100)
    return training_job.plan([source], options, TrainSettings(**asked))


def first_batch(job: TrainJob) -> TrainBatch:
    batch: TrainBatch = next(job.feed(execution.Start()).batches())
    return batch


@pytest.mark.parametrize(
    ("pool", "window"),
    [("lmk", "40"), ("lmk", "even:40"), ("mean", "even:40"), ("cls", "40"), ("mean@8", "40")],
)
def test_vectors_are_those_of_encode(
    pairs: Path, tiny_model: Models, pool: str, window: str
) -> None:
    model = tiny_model("bert")
    job = planned(f"{pairs},window={window}", model, pool)
    batch = first_batch(job)
    forward: Any = job.task(execution.Start()).module
    side = job.feed(execution.Start()).place.sides[0].passage
    placed = batch.passages
    with torch.no_grad():
        each = torch.cat([forward([one]) for one in placed.inputs])
    trained = side.finish(each, placed.counts).numpy()
    order = [int(example) - 1 for example in (name.split()[-1] for name in batch.examples)]
    gran = "8" if pool == "lmk" else None
    resolved = resolve(RecipeOptions(model=str(model), pool=pool, gran=gran, window=window))
    encoder = open_encoder(resolved.recipe.doc, resolved.folder, CPU)
    texts = [Query(str(number), TEXTS[number]) for number in order]
    np.testing.assert_allclose(trained, encoder.queries(texts).vectors, atol=1e-5)
    windows = [len(placed.text(text)) for text in range(12)]
    assert max(windows) >= 5
    assert min(windows) == 1


@pytest.mark.parametrize("declared", [None, "12"])
def test_development_scores_are_those_of_windows(
    beir: Path, tiny_model: Models, tmp_path: Path, declared: str | None
) -> None:
    """Windows of the sources count unless the folder declares one."""
    source, trained = f"{beir}:test", tmp_path / "trained"
    pooling: Any = {"pool": "lmk", "gran": "4"}
    Train(
        [f"{source},window={14 if declared else 12}"], model=str(tiny_model("bert")), output=trained,
        window=declared, max_length=100, dev=[source], dev_measure="AP", steps=1, batch_size=8,
        dtype="fp32", device="cpu", **pooling,
    ).run()  # fmt: skip
    scores = {}
    for window in ("12", "full"):
        vectors, run = tmp_path / window, tmp_path / f"{window}.trec"
        Encode(
            source, model=str(trained), output=vectors, window=window, dtype="fp32",
            store_dtype="fp32", **pooling,
        ).run()  # fmt: skip
        Search(str(vectors), queries=source, output=run, k=1000, dtype="fp32").run()
        scores[window] = score(run, qrel_set_of(source), ["AP"]).scores.aggregated["AP"]
    (found,) = json.loads((trained / "training.json").read_text())["dev"]["published"][
        "dev"
    ].values()
    assert found == pytest.approx(scores["12"], abs=1e-6)
    assert abs(found - scores["full"]) > 1e-3


def test_long_texts_are_learned_in_packs_as_in_one_piece(
    pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    """Windows of one text may lie in different packs."""
    model, losses = tiny_model("modernbert"), []  # without dropout
    for tokens in (100_000, 80):
        job = planned(f"{pairs},window=40", model, log_every=1, batch_tokens=tokens)
        execution.run(job, tmp_path / str(tokens), Report())
        log = (tmp_path / str(tokens) / "log.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in log])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_windows_stand_where_they_will_be_read(pairs: Path, tiny_model: Models) -> None:
    batch = first_batch(planned(f"{pairs},window=40", tiny_model("bert"), skip_positions=1.0))
    for text in range(12):
        inputs = batch.passages.text(text)
        assert len(inputs) == 1 or all(one.positions is None for one in inputs)


def test_a_teacher_reads_all_of_what_is_read_in_windows(pairs: Path, tiny_model: Models) -> None:
    model = tiny_model("bert")
    batch = first_batch(planned(f"{pairs},window=40", model, teacher=str(model)))
    assert min(batch.passage_texts.tokens) > max(len(text) for text in TEXTS)


def test_what_a_window_cannot_be(pairs: Path, tiny_model: Models) -> None:
    model = tiny_model("bert")
    with pytest.raises(UsageError, match="max-length=30"):
        planned(f"{pairs},window=40,max-length=30", model)
    for window in ("0", "even:0", "full", "even:x", "EVEN:40"):
        with pytest.raises(UsageError, match=f"'{window}' is not a number of positions"):
            planned(f"{pairs},window={window}", model)
    with pytest.raises(UsageError, match=r"101 .* 100"):
        first_batch(planned(f"{pairs},window=101", model))
    options = RecipeOptions(model=str(model), pool="mean", unit="token", max_length=100)
    settings = TrainSettings(steps=1, batch_size=4, device="cpu", loss="infonce")
    with pytest.raises(
        UsageError,
        match=r"--unit token .*window=40",
    ):
        first_batch(training_job.plan([f"{pairs},window=40"], options, settings))


def test_a_training_without_windows_is_the_one_it_was(pairs: Path, tiny_model: Models) -> None:
    """What was begun before there were windows goes on."""
    (seen,) = planned(str(pairs), tiny_model("bert")).identity.sources
    assert "window" not in seen
    (seen,) = planned(f"{pairs},window=40", tiny_model("bert")).identity.sources
    assert seen["window"] == 40
    (seen,) = planned(f"{pairs},window=even:40", tiny_model("bert")).identity.sources
    assert seen["window"] == "even:40"
