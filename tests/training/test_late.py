"""Late interaction is trained: a vector a token, MaxSim, and a folder in PyLate's layout at the end."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lmkcli.data.collection import Query
from lmkcli.encoding.encoder import open_encoder
from lmkcli.encoding.resolution import resolve
from lmkcli.errors import DataError
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.training import training_job
from lmkcli.training.loop import training_run as execution
from lmkcli.training.train_settings import TrainSettings
from lmkcli.vectors.rows import Ragged
from tests import tiny
from tests.models.test_late import PYLATE, dense, put

SETTINGS = TrainSettings(steps=3, batch_size=6, lr=1e-2, dtype="fp32", device="cpu")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    lines = [
        {"query": tiny.sentence(i, 4), "pos": [f"{tiny.sentence(i, 20)} number {i}"],
         "neg": [tiny.sentence(i + 50, 9)], "pos_scores": [3.0], "neg_scores": [1.0]}
        for i in range(30)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module", params=["plain", "colbert"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain encoder, and a ColBERT with prefixes, expansion, a skip list and a projection."""
    folder = tmp_path_factory.mktemp("base") / request.param
    tiny.save(folder, "bert")
    if request.param == "colbert":
        tokenizer = tiny.KINDS["bert"].tokenizer()
        tokenizer.add_special_tokens({"additional_special_tokens": ["[Q] ", "[D] "]})
        tokenizer.save_pretrained(folder)
        kinds = ["sentence_transformers.models.Transformer", "pylate.models.Dense.Dense"]
        listed = [{"idx": i, "name": str(i), "path": ["", "1_Dense"][i], "type": kind}
                  for i, kind in enumerate(kinds)]  # fmt: skip
        put(folder / "modules.json", listed)
        put(folder / "sentence_bert_config.json", {"max_seq_length": 89})
        put(folder / "config_sentence_transformers.json", PYLATE)
        dense(folder / "1_Dense")
    return folder


def planned(pairs: Path, base: Path, settings: TrainSettings = SETTINGS) -> training_job.TrainJob:
    options = RecipeOptions(model=str(base), unit="token", max_length=40, query_max_length=12)
    return training_job.plan([str(pairs)], options, settings)


def vectors(folder: Path, side: str, text: str) -> Ragged:
    resolved = resolve(RecipeOptions(model=str(folder), unit="token"))
    encoder = open_encoder(
        getattr(resolved.recipe, side), resolved.folder, EncodeSettings(dtype="fp32", device="cpu")
    )
    return encoder.queries([Query("q", text)])


def test_the_folder_is_a_colbert_that_learned(base: Path, pairs: Path, tmp_path: Path) -> None:
    plan = planned(pairs, base)
    execution.run(plan, tmp_path / "model", Report())
    before, after = (
        plan.resolved.recipe,
        resolve(RecipeOptions(model=str(tmp_path / "model"))).recipe,
    )
    for side in ("doc", "query"):
        wanted, found = getattr(before, side), getattr(after, side)
        names = ("unit", "pool", "max_length", "prefix_token", "skip", "expansion", "normalize")
        assert {n: getattr(found, n) for n in names} == {n: getattr(wanted, n) for n in names}
        old = vectors(base, side, "one two three")
        new = vectors(tmp_path / "model", side, "one two three")
        rows = min(len(old.vectors), len(new.vectors))
        assert np.abs(old.vectors[:rows] - new.vectors[:rows]).max() > 1e-3
    if base.name == "colbert":
        name = "1_Dense/model.safetensors"
        learned = load_file(tmp_path / "model" / name)["linear.weight"]
        assert not torch.equal(learned, load_file(base / name)["linear.weight"])
        assert json.loads((tmp_path / "model" / "modules.json").read_text())[1]["type"] == (
            "pylate.models.Dense.Dense"
        )


def test_the_loss_is_that_of_maxsim(base: Path, pairs: Path) -> None:
    """By plain loops over the vectors that `lmk encode` makes."""
    plan = planned(pairs, base)
    start = execution.Start()
    task = plan.task(start)
    batch = next(plan.feed(start).batches())
    task.module.eval()
    loss = task.step(task.module, batch)
    with torch.inference_mode():
        made = [task.module(one.inputs) for one in (batch.queries, batch.passages)]
    queries, passages = (torch.nn.functional.normalize(each, dim=1).double() for each in made)
    total = 0.0
    ends = [torch.cumsum(one.counts, 0).tolist() for one in (batch.queries, batch.passages)]
    for number, stop in enumerate(ends[0]):
        mine = queries[stop - int(batch.queries.counts[number]) : stop]
        scores = []
        for row, last in enumerate(ends[1]):
            theirs = passages[last - int(batch.passages.counts[row]) : last]
            hidden = batch.facts.excluded is not None and bool(batch.facts.excluded[number, row])
            scores.append(-1e9 if hidden else sum(float((theirs @ one).max()) for one in mine))
        gold = scores[int(batch.facts.positives[number])]
        total += float(torch.logsumexp(torch.tensor(scores, dtype=torch.float64), 0)) - gold
    assert loss.total.item() == pytest.approx(total / len(ends[0]), rel=1e-4)


def test_distillation_and_what_is_refused(base: Path, pairs: Path, tmp_path: Path) -> None:
    execution.run(planned(pairs, base, replace(SETTINGS, loss="late-kd")), tmp_path / "m", Report())
    plan = planned(pairs, base, replace(SETTINGS, loss="opl"))
    with pytest.raises(DataError, match="needs one vector per text"):
        execution.run(plan, tmp_path / "o", Report())
