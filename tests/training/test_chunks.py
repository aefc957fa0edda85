"""Training on documents in chunks: in their document, by themselves (--window chunk), and by tokens."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch

from lmkcli.encoding.resolution import resolve
from lmkcli.errors import UsageError
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.values import Granularities, Window
from lmkcli.training import request, training_job
from lmkcli.training.data.batches import TrainBatch
from lmkcli.training.loop import training_run as execution
from lmkcli.training.loop.training_run import Start
from lmkcli.training.train_settings import TrainSettings
from tests import tiny

Models = Callable[[str], Path]
CHUNKS, DOCUMENTS = 4, 8


@pytest.fixture(scope="module")
def chunked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chunked") / "train.jsonl"
    lines = []
    for i in range(DOCUMENTS):
        chunks = [tiny.sentence(9 * i + n, 6 + n) for n in range(CHUNKS)]
        queries = [{"query": tiny.sentence(200 + i, 3), "chunk": i % CHUNKS}]
        lines.append(json.dumps({"id": f"d{i}", "chunks": chunks, "queries": queries}))
    path.write_text("\n".join(lines))
    return path


def job(chunked: Path, model: Path, loss: str, **options: str) -> training_job.TrainJob:
    settings = TrainSettings(
        loss=loss, steps=2, batch_size=3, dtype="fp32", device="cpu", like_length=False
    )
    given = Granularities("given")
    if window := options.pop("window", ""):
        recipe = RecipeOptions(
            model=str(model), pool="mean", gran=given, window=Window(window), **options
        )  # type: ignore[arg-type]
    else:
        recipe = RecipeOptions(model=str(model), pool="mean", gran=given, **options)  # type: ignore[arg-type]
    return training_job.plan([str(chunked)], recipe, settings)


def batch(planned: training_job.TrainJob) -> TrainBatch:
    return next(islice(planned.feed(Start()).batches(), 1))


def test_with_window_chunk_each_chunk_is_an_input(
    chunked: Path, tiny_model: Models, tmp_path: Path
) -> None:
    """ConTEB's row '+ Training': the same documents and queries, and no text around a chunk."""
    model = tiny_model("modernbert")
    whole = batch(job(chunked, model, "infonce", unit="chunk"))
    planned = job(chunked, model, "infonce", unit="chunk", window="chunk")
    counted = f"; {DOCUMENTS * CHUNKS} chunks, 25.0% with a query; {DOCUMENTS} queries"
    assert counted in " ".join(training_job.describe_training(planned))
    alone = batch(planned)
    assert alone.examples == whole.examples
    assert (len(whole.passages.inputs), len(alone.passages.inputs)) == (3, 3 * CHUNKS)
    for one in (whole, alone):
        assert one.passages.counts.tolist() == [1] * 3 * CHUNKS
        assert one.facts.groups.tolist() == whole.facts.groups.tolist()
    execution.run(planned, tmp_path / "model", Report())
    declared = resolve(RecipeOptions(model=str(tmp_path / "model"))).recipe.doc
    assert (declared.unit, declared.window, declared.gran) == ("doc", "full", "")
    with pytest.raises(UsageError, match=r"--window chunk .*--unit chunk --gran given"):
        job(chunked, model, "infonce", unit="doc", window="chunk")


def test_the_prompt_of_a_source_belongs_to_no_chunk(chunked: Path, tiny_model: Models) -> None:
    """As in the vectors of a recipe with this prompt (ConTEB, App. B.1)."""
    model = tiny_model("bert")
    declared = job(chunked, model, "infonce", unit="chunk", doc_prompt="passage: ")
    recipe = RecipeOptions(
        model=str(model), pool="mean", gran=Granularities("given"), unit="chunk"
    )  # without a prompt
    of_source = training_job.plan([f"{chunked},doc_prompt=passage: "], recipe, declared.settings)
    (one, *_), (other, *_) = (batch(each).passages.inputs for each in (declared, of_source))
    assert one.ids.tolist() == other.ids.tolist()
    assert one.marks.tolist() == other.marks.tolist()
    published = request.published_model(declared.resolved).recipe.doc
    assert (published.unit, published.prompt_apart) == ("doc", False)


@pytest.mark.parametrize("window", ["", "chunk"])
def test_chunks_have_a_vector_for_each_of_their_tokens(
    chunked: Path, tiny_model: Models, tmp_path: Path, window: str
) -> None:
    """InSeNT of a late-interaction model: MaxSim of queries and chunks (§4.2)."""
    planned = job(chunked, tiny_model("modernbert"), "insent", unit="token", window=window)
    found = batch(planned)
    counts = found.passages.counts
    assert len(counts) == 3 * CHUNKS
    assert int(counts.min()) > 1
    marks = sum(len(one.marks) for one in found.passages.inputs)
    assert marks == int(counts.sum())  # specials between chunks and around documents have no vector
    assert found.facts.sequence is not None
    assert found.facts.sequence.tolist() == [n for n in range(3) for _ in range(CHUNKS)]
    execution.run(planned, tmp_path / "model", Report())
    declared = resolve(RecipeOptions(model=str(tmp_path / "model"))).recipe.doc
    assert (declared.unit, declared.window, declared.gran) == ("token", "full", "")
    log = [json.loads(line) for line in (tmp_path / "model/log.jsonl").read_text().splitlines()]
    assert {"insent_sequence", "insent_batch"} <= log[-1].keys()
    assert all(torch.tensor(list(line.values())).isfinite().all() for line in log[:1])
