"""A teacher's vectors are those that `lmk encode` makes with its windows, and are learned."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmkcli.data.collection import Query
from lmkcli.encoding.encoder import open_encoder
from lmkcli.encoding.resolution import resolve
from lmkcli.errors import UsageError
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.training import training_job
from lmkcli.training.loop import training_run as execution
from lmkcli.training.objectives.infonce import InfoNCE
from lmkcli.training.objectives.objective import BatchFacts, Embedded
from lmkcli.training.objectives.prediction import Prediction
from lmkcli.training.step.contrastive import Imitation, Teacher
from lmkcli.training.train_settings import TrainSettings
from lmkcli.training.training_job import TrainJob
from tests import tiny

Models = Callable[[str], Path]
CPU = EncodeSettings(dtype="fp32", device="cpu")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short queries, and passages of up to 190 tokens."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    lines = [
        {"query": tiny.sentence(i, 4), "pos": [f"{tiny.sentence(i, 20 + 9 * i)} number {i}"]}
        for i in range(20)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def planned(source: str, model: Path, teacher: Path | str, **settings: Any) -> TrainJob:
    asked = {"steps": 1, "batch_size": 20, "dtype": "fp32", "device": "cpu", **settings}
    options = RecipeOptions(
        model=str(model), pool="lmk", gran="4,8", max_length=400, extend="recurrent"
    )
    return training_job.plan([source], options, TrainSettings(teacher=str(teacher), **asked))


def vectors(teacher: Path, texts: list[str], **options: Any) -> np.ndarray:
    """Those of the model as it is used alone."""
    resolved = resolve(RecipeOptions(model=str(teacher), **options))
    encoder = open_encoder(resolved.recipe.doc, resolved.folder, CPU)
    return encoder.queries([Query(str(i), text) for i, text in enumerate(texts)]).vectors


def test_a_teacher_reads_long_texts_in_windows(pairs: Path, tiny_model: Models) -> None:
    """Its vectors of passages are those of `lmk encode --window`, with as many positions as it has."""
    model = tiny_model("bert")
    plan = planned(str(pairs), model, model)
    assert plan.teacher is not None
    batch = next(plan.feed(execution.Start()).batches())
    forward = plan.task(execution.Start()).module
    facts = Teacher.open(plan.teacher, CPU, forward).add_targets(batch)  # type: ignore[arg-type]
    assert facts.query_targets is not None
    assert facts.passage_targets is not None
    texts = batch.passage_texts.texts
    assert max(len(text.split()) for text in texts) > tiny.POSITIONS
    windows = vectors(model, texts, window=str(tiny.POSITIONS))
    np.testing.assert_allclose(facts.passage_targets.numpy(), windows, atol=1e-5)
    truncated = vectors(model, texts)
    assert np.abs(truncated - windows).max() > 1e-2  # the windows matter
    asked = vectors(model, batch.query_texts.texts)
    np.testing.assert_allclose(facts.query_targets.numpy(), asked, atol=1e-5)


def test_it_reads_no_more_than_the_student(pairs: Path, tiny_model: Models) -> None:
    model = tiny_model("bert")
    plan = planned(f"{pairs},max-length=30", model, model)
    batch = next(plan.feed(execution.Start()).batches())
    assert set(batch.passage_texts.tokens) == {30}
    assert set(batch.query_texts.tokens) == {400}
    forward: Any = plan.task(execution.Start()).module
    assert plan.teacher is not None
    teacher = Teacher.open(plan.teacher, CPU, forward)
    shorter = [text.first(30) for text in teacher.passage.tokenizer(batch.passage_texts.texts)]
    targets = teacher.add_targets(batch).passage_targets
    expected = teacher.passage.texts(shorter, batch.passage_texts.texts).vectors
    assert targets is not None
    np.testing.assert_allclose(targets.numpy(), expected, atol=1e-6)


def test_nothing_is_read_twice_where_nobody_teaches(pairs: Path, tiny_model: Models) -> None:
    batch = next(planned(str(pairs), tiny_model("bert"), "").feed(execution.Start()).batches())
    assert (batch.query_texts.texts, batch.passage_texts.texts) == ([], [])


def test_imitation_is_added_to_the_loss() -> None:
    torch.manual_seed(0)
    queries, passages, to_query, to_passage = (torch.randn(3, 5).double() for _ in range(4))
    facts = BatchFacts(torch.arange(3).unsqueeze(1))
    taught = replace(facts, query_targets=to_query, passage_targets=to_passage)
    both = Imitation(InfoNCE(0.5), 2.5)
    assert both.needs == {"targets"}
    loss = both(Embedded(queries), Embedded(passages), taught)
    first = InfoNCE(0.5)(Embedded(queries), Embedded(passages), facts)
    second = Prediction()(Embedded(queries), Embedded(passages), taught)
    assert float(loss.total) == pytest.approx(float(first.total + 2.5 * second.total))
    assert set(loss.parts) == {"infonce", "prediction_queries", "prediction_passages"}


@pytest.mark.parametrize("loss", ["infonce", "prediction"])
def test_the_distance_from_the_teacher_falls(
    pairs: Path, tiny_model: Models, tmp_path: Path, loss: str
) -> None:
    teacher = tiny_model("bert")
    settings = {
        "steps": 35,
        "lr": 6e-3,
        "log_every": 1,
        "loss": loss,
        "batch_size": 20,
    }  # all texts
    if loss == "infonce":
        settings["teacher_weight"] = 30.0
    execution.run(planned(str(pairs), teacher, teacher, **settings), tmp_path / "model", Report())
    log = [json.loads(line) for line in (tmp_path / "model" / "log.jsonl").read_text().splitlines()]
    distances = [line["prediction_passages"] for line in log]
    assert np.mean(distances[-5:]) < 0.6 * np.mean(distances[:5])
    assert ("infonce" in log[0]) == (loss == "infonce")


def test_people_are_told_of_the_teacher(pairs: Path, tiny_model: Models) -> None:
    """Which it is and how it reads, and that its pooling was guessed."""
    model = tiny_model("bert")
    lines = list(training_job.describe_training(planned(str(pairs), model, model)))
    how = f"pool mean (a guess: its folder declares none), windows of {tiny.POSITIONS} positions"
    assert lines[-1] == f"teacher {model}: {how}"
    assert not any(
        "taught" in line for line in training_job.describe_training(planned(str(pairs), model, ""))
    )


def test_a_declared_pooling_is_no_guess(pairs: Path, tiny_model: Models) -> None:
    """Even if the folder of the teacher has another note for people."""
    model = tiny_model("bert")
    plan = planned(str(pairs), model, model)
    assert plan.teacher is not None
    teacher = plan.teacher._replace(
        folder=replace(plan.teacher.folder, pool="mean"), notes=["its prompts differ"]
    )
    told = replace(plan, teacher=teacher)
    assert not any("a guess" in line for line in training_job.describe_training(told))


def test_the_teacher_belongs_to_what_a_training_is(pairs: Path, tiny_model: Models) -> None:
    model = tiny_model("bert")
    alone, taught = (planned(str(pairs), model, teacher) for teacher in ("", model))
    assert alone.identity.teacher is None
    told = taught.identity.teacher
    assert told
    assert told.doc.weights == resolve(RecipeOptions(model=str(model))).folder.weights_digest


@pytest.mark.parametrize(
    ("options", "settings", "words"),
    [
        ({}, {"loss": "prediction"}, "^--loss prediction .*--teacher MODEL"),
        ({}, {"teacher_weight": 2.0}, "--teacher-weight needs --teacher"),
        (
            {},
            {"teacher": "bert", "loss": "prediction", "teacher_weight": 2.0},
            "--teacher-weight .*no effect.*--loss prediction",
        ),
        ({"unit": "token", "pool": "auto", "gran": None}, {"teacher": "bert"}, "--unit doc"),
    ],
)
def test_what_cannot_be_taught_is_refused(
    pairs: Path, tiny_model: Models, options: dict[str, Any], settings: dict[str, Any], words: str
) -> None:
    if "teacher" in settings:
        settings = {**settings, "teacher": str(tiny_model(settings["teacher"]))}
    asked = RecipeOptions(model=str(tiny_model("bert")), **{"pool": "lmk", "gran": "4", **options})
    with pytest.raises(UsageError, match=words):
        training_job.plan([str(pairs)], asked, TrainSettings(steps=1, device="cpu", **settings))


def test_a_teacher_of_another_width_is_refused(
    pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=tiny.VOCABULARY, hidden_size=2 * tiny.WIDTH, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=32, max_position_embeddings=64,
    )  # fmt: skip
    BertModel(config).save_pretrained(tmp_path / "wide")
    tiny.wordpiece().save_pretrained(tmp_path / "wide")
    plan = planned(str(pairs), tiny_model("bert"), tmp_path / "wide")
    with pytest.raises(UsageError, match=rf"\b{2 * tiny.WIDTH} dimensions.* {tiny.WIDTH}\b"):
        plan.task(execution.Start())
