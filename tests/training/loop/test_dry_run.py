"""A dry run: what it counts, what it shows, and that nothing remains of it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lmkcli.errors import Stopped
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.training import training_job
from lmkcli.training.loop.dry_run import TIMED, rehearse
from lmkcli.training.loop.training_run import Start
from lmkcli.training.train_settings import TrainSettings
from tests import tiny

Models = Callable[[str], Path]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    lines = [
        {"query": tiny.sentence(i, 4), "positive": tiny.sentence(i, 20), "negative": f"no {i}"}
        for i in range(40)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def planned(pairs: Path, model: Path, steps: int) -> training_job.TrainJob:
    options = RecipeOptions(model=str(model), pool="lmk", gran="4,8", max_length=24)
    settings = TrainSettings(steps=steps, batch_size=8, dtype="fp32", device="cpu", lr=1e-3)
    return training_job.plan([str(pairs)], options, settings)


def test_it_counts_and_times_without_training(
    pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    plan = planned(pairs, tiny_model("bert"), 300)
    found = rehearse(plan, None, Report())
    batches = [*plan.feed(Start()).batches()]
    tokens = sum(one.queries.tokens + one.passages.tokens for one in batches)
    assert found.tokens == pytest.approx(tokens, rel=0.02)
    assert (found.examples, found.steps, found.counted, found.timed) == (40, 300, 256, TIMED)
    assert found.seconds == pytest.approx(found.tokens / found.tokens_per_second, rel=1e-3)
    assert found.memory > 1 << 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.jsonl"]


def test_placed_examples_are_those_of_the_first_step(pairs: Path, tiny_model: Models) -> None:
    plan = planned(pairs, tiny_model("bert"), 10)
    batch = next(plan.feed(Start()).batches())
    shown = rehearse(plan, None, Report()).shown
    assert [[text.side for text in example] for example in shown] == [
        ["query", "positive", "negative"]
    ] * 3
    for number, (query, positive, _) in enumerate(shown):
        assert positive.words.startswith("[CLS] ")
        assert query.words.count("«[SEP]»") == len(batch.queries.inputs[number].marks)
        assert query.positions == len(batch.queries.inputs[number].ids)
        assert {query.gran, positive.gran} <= {"4", "8"}
        words = positive.words.removeprefix("[CLS] ").split(" «[SEP]»")[0].split()
        assert len(words) == int(positive.gran)  # every word of these is one token


def test_a_training_of_one_step(pairs: Path, tiny_model: Models) -> None:
    found = rehearse(planned(pairs, tiny_model("bert"), 1), None, Report())
    assert (found.counted, found.timed) == (1, 1)
    assert found.seconds > 0


def test_it_can_be_stopped(pairs: Path, tiny_model: Models) -> None:
    with pytest.raises(Stopped):
        rehearse(planned(pairs, tiny_model("bert"), 10), None, Report(stopping=lambda: True))


def test_positions_that_skip_are_told(pairs: Path, tiny_model: Models) -> None:
    plan = planned(pairs, tiny_model("modernbert"), 3)
    long = RecipeOptions(model=str(tiny_model("modernbert")), pool="lmk", gran="4", max_length=512)
    plan = training_job.plan([str(pairs)], long, replace(plan.settings, skip_positions=1.0))
    shown = rehearse(plan, None, Report()).shown
    assert any(text.reach > text.positions for example in shown for text in example)
    assert all(text.reach == text.positions for text in (example[0] for example in shown))
