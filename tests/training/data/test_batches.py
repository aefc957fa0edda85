"""Documents in chunks as training sees them: the vectors of late chunking, and each query has its chunk."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmkcli.data.collection import CHUNK_BREAK, Doc, Shard
from lmkcli.encoding.encoder import open_encoder
from lmkcli.encoding.resolution import resolve
from lmkcli.errors import DataError, UsageError
from lmkcli.models.lookup import read_model
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.store.token_blocks import TokenRow
from lmkcli.training import training_job
from lmkcli.training.loop import training_run as execution
from lmkcli.training.loop.training_run import Start
from lmkcli.training.train_settings import TrainSettings
from tests import tiny

Models = Callable[[str], Path]
FAST = TrainSettings(
    loss="insent", steps=3, batch_size=3, lr=1e-3, dtype="fp32", device="cpu", like_length=False
)
LATE = {"pool": "mean", "unit": "chunk", "gran": "given", "max_length": 40}


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve documents of five chunks, one of them blank, with a query for the third, fourth and last."""
    path = tmp_path_factory.mktemp("documents") / "train.jsonl"
    lines = []
    for i in range(12):
        chunks = [tiny.sentence(7 * i + n, 4 + n) for n in range(5)]
        chunks[1] = "  "
        asked = [{"query": tiny.sentence(100 * i + n, 3), "chunk": n} for n in (2, 3, 4)]
        lines.append(json.dumps({"id": f"d{i}", "chunks": chunks, "queries": asked}))
    path.write_text("\n".join(lines))
    return path


def planned(documents: Path, model: Path, **settings: Any) -> training_job.TrainJob:
    options = {**LATE, **{k: settings.pop(k) for k in list(settings) if k in LATE}}
    return training_job.plan(
        [str(documents)], RecipeOptions(model=str(model), **options), replace(FAST, **settings)
    )


@pytest.mark.parametrize("length", [128, 20])
@pytest.mark.parametrize("pool", ["mean", "lmk"])
def test_chunks_have_the_vectors_of_late_chunking(
    documents: Path, tiny_model: Models, pool: str, length: int
) -> None:
    plan = planned(documents, tiny_model("bert"), pool=pool, max_length=length)
    batch = next(plan.feed(Start()).batches())
    forward = training_job.open_trainable(plan).eval()
    with torch.inference_mode():
        made = forward(batch.passages.inputs)
    options = RecipeOptions(
        model=str(tiny_model("bert")), **{**LATE, "pool": pool, "max_length": length}
    )
    resolved = resolve(options)
    encoder = open_encoder(
        resolved.recipe.doc, resolved.folder, EncodeSettings(dtype="fp32", device="cpu")
    )
    records = {r["id"]: r for r in map(json.loads, documents.read_text().splitlines())}
    texts = [
        CHUNK_BREAK.join(c for c in records[name]["chunks"] if c.strip()) for name in batch.examples
    ]
    rows = [
        TokenRow(Doc(name, text), b"", *fields)
        for name, text, fields in zip(batch.examples, texts, encoder.tokenizer(texts), strict=True)
    ]
    there = encoder(rows, Report()).vectors
    here = torch.nn.functional.normalize(made, dim=1).numpy()
    np.testing.assert_allclose(here, there.vectors, atol=1e-5)
    assert len(batch.passages.counts) == len(there.vectors)
    chunks = [
        c for text, n in zip(texts, there.counts, strict=True) for c in text.split(CHUNK_BREAK)[:n]
    ]
    asked = [q for name in batch.examples for q in records[name]["queries"]]
    left = [q for q in asked if any(q["chunk"] == records[n]["chunks"].index(c)
            for n in batch.examples for c in chunks if c in records[n]["chunks"]
            and q in records[n]["queries"])]  # fmt: skip
    golds = [chunks[row] for row in batch.facts.positives]
    owners = {q["query"]: records[n]["chunks"][q["chunk"]] for n in batch.examples
              for q in records[n]["queries"]}  # fmt: skip
    assert golds == [owners[q["query"]] for q in left]
    assert len(batch.queries.counts) == len(left)
    assert (length == 20) == (len(left) < len(asked))


def test_processes_share_a_batch(documents: Path, tiny_model: Models) -> None:
    plan = planned(documents, tiny_model("bert"))
    whole = next(plan.feed(Start()).batches())
    parts = [next(plan.feed(Start(shard=Shard(i, 2))).batches()) for i in range(2)]
    assert [name for part in parts for name in part.examples] == whole.examples
    inputs = [one.ids.tolist() for part in parts for one in part.passages.inputs]
    assert inputs == [one.ids.tolist() for one in whole.passages.inputs]
    for part in parts:
        assert torch.equal(part.facts.groups, whole.facts.groups)


@pytest.mark.parametrize("loss", ["insent", "infonce"])
def test_a_training_on_documents(
    documents: Path, tiny_model: Models, tmp_path: Path, loss: str
) -> None:
    plan = planned(documents, tiny_model("bert"), loss=loss)
    execution.run(plan, tmp_path / "model", Report())
    made = read_model(str(tmp_path / "model"))
    assert (made.pool, made.gran) == ("mean", "")
    late = resolve(RecipeOptions(model=str(tmp_path / "model"), unit="chunk", gran="given")).recipe
    assert (late.doc.unit, late.doc.max_length) == ("chunk", 40)


def test_what_does_not_fit_is_refused(documents: Path, tiny_model: Models) -> None:
    model = tiny_model("bert")
    with pytest.raises(UsageError, match="add --unit chunk --gran given"):
        planned(documents, model, loss="insent", unit="doc", gran=None)
    with pytest.raises(UsageError, match="--gran given"):
        planned(documents, model, gran="8")
    with pytest.raises(UsageError, match="--skip-positions has no effect"):
        planned(documents, model, skip_positions=0.5)
    with pytest.raises(DataError, match="learns from teacher scores"):
        planned(documents, model, loss="kl")
    with pytest.raises(DataError, match="truncated"):
        next(planned(documents, model, max_length=4).feed(Start()).batches())
