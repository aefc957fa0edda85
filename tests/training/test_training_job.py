"""Training from files to a model folder: what it writes, how it stops and goes on, what it refuses."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from lmkcli.data.collection import Query
from lmkcli.encoding.encoder import open_encoder
from lmkcli.encoding.resolution import resolve
from lmkcli.errors import DataError, Mismatch, Stopped, UnknownName, UsageError
from lmkcli.models.lookup import read_model
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import Granularities
from lmkcli.training import training_job
from lmkcli.training.loop import checkpoints
from lmkcli.training.loop import training_run as execution
from lmkcli.training.loop.development import Dev, DevScores
from lmkcli.training.request import published_model
from lmkcli.training.train_settings import TrainSettings
from tests import tiny

Models = Callable[[str], Path]
FAST = TrainSettings(
    steps=6, batch_size=8, lr=1e-3, dtype="fp32", device="cpu", save_every=2, log_every=2
)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty queries, each the words of its passage, with a negative and teacher scores."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    lines = [
        {
            "query": tiny.sentence(i, 4),
            "pos": [f"{tiny.sentence(i, 20)} number {i}"],
            "neg": [f"{tiny.sentence(i + 7, 15)} other {i}"],
            "pos_scores": [2.0],
            "neg_scores": [0.5],
        }
        for i in range(40)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def asked(stopping: Callable[[], bool]) -> Report:
    return Report(stopping=stopping)


def planned(
    pairs: Path, model: Path, settings: TrainSettings = FAST, **options: Any
) -> training_job.TrainJob:
    options = {"pool": "lmk", "gran": "4,8", "max_length": 24, **options}
    return training_job.plan([str(pairs)], RecipeOptions(model=str(model), **options), settings)


def trained(plan: training_job.TrainJob, folder: Path) -> Path:
    execution.run(plan, folder, Report())
    return folder


def after(counts: list[int]) -> Callable[[], bool]:
    """Asks to stop at these steps."""
    steps: Iterator[int] = iter(range(1, 1000))
    return lambda: next(steps) in counts


def test_a_model_folder_that_lmk_and_sentence_transformers_open_alike(
    pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    folder = trained(planned(pairs, tiny_model("bert")), tmp_path / "model")
    resolved = resolve(RecipeOptions(model=str(folder)))
    assert (resolved.recipe.doc.pool, resolved.recipe.doc.gran) == ("lmk", "4")
    assert resolved.recipe.doc.max_length == 24
    settings = EncodeSettings(dtype="fp32", device="cpu")
    encoder = open_encoder(resolved.recipe.doc, resolved.folder, settings)
    texts = [tiny.sentence(i, 3 + 5 * i) for i in range(5)]
    ours = encoder.queries([Query(str(i), text) for i, text in enumerate(texts)]).vectors
    theirs = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu").encode(texts)
    assert (ours * theirs).sum(1).min() > 0.99999
    before = open_encoder(
        resolve(RecipeOptions(model=str(tiny_model("bert")), pool="lmk", gran="4")).recipe.doc,
        read_model(str(tiny_model("bert"))),
        settings,
    )
    assert np.abs(ours - before.queries([Query("q", texts[0])]).vectors).max() > 0.01


def test_the_folder_says_what_it_was_made_of(
    pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    plan = planned(pairs, tiny_model("bert"))
    folder = trained(plan, tmp_path / "model")
    facts = json.loads((folder / "training.json").read_text())
    assert facts["data"] == plan.examples.digest
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len({path.stat().st_mode for path in files}) == 1  # whoever reads one can read all
    assert facts["granularities"] == ["4", "8"]
    assert facts["sources"] == [{"name": str(pairs), "examples": 40, "weight": 1.0}]
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4, 6]
    assert {"loss", "infonce", "learning_rate", "grad_norm", "tokens_per_second"} <= set(lines[0])
    assert not (folder / "checkpoints").exists()
    card = (folder / "README.md").read_text()
    assert str(pairs) in card
    assert "\n# model\n" in card
    assert 'model = SentenceTransformer("model"' in card
    assert "lmk encode COLLECTION -m model/ -o" in card


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_stopped_training_ends_where_an_undisturbed_one_does(
    pairs: Path, tiny_model: Models, tmp_path: Path, dtype: str
) -> None:
    settings = TrainSettings(**{**vars(FAST), "dtype": dtype, "batch_tokens": 200})
    plan = planned(pairs, tiny_model("bert"), settings)
    whole = trained(plan, tmp_path / "whole")
    parts = tmp_path / "parts"
    for steps in ([1], [2]):
        with pytest.raises(Stopped):
            execution.run(plan, parts, asked(after(steps)))
        with pytest.raises(DataError, match="has not ended"):
            read_model(str(parts))
    trained(plan, parts)
    one, other = (load_file(folder / "model.safetensors") for folder in (whole, parts))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_finished_training_is_left_alone_and_another_never_joins_it(
    pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    folder = trained(planned(pairs, tiny_model("bert")), tmp_path / "model")
    before = (folder / "model.safetensors").stat().st_mtime_ns
    trained(planned(pairs, tiny_model("bert")), folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(Mismatch, match="steps"):
        trained(
            planned(pairs, tiny_model("bert"), TrainSettings(**{**vars(FAST), "steps": 9})), folder
        )


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        ("infonce", {"symmetric": True, "temperature": 0.05}),
        ("m3-kd", {}),
        ("kl", {}),
        ("margin-mse", {}),
        ("opl", {}),
    ],
)
def test_every_objective_of_pairs_trains(
    pairs: Path, tiny_model: Models, tmp_path: Path, loss: str, options: dict[str, Any]
) -> None:
    settings = TrainSettings(**{**vars(FAST), "steps": 2, "loss": loss, **options})
    folder = trained(planned(pairs, tiny_model("bert"), settings), tmp_path / "model")
    assert np.isfinite(json.loads((folder / "training.json").read_text())["curve"][-1]["loss"])


@pytest.mark.parametrize(
    ("pool", "gran"),
    [
        ("cls", None),
        ("mean", None),
        ("last", None),
        ("mean@3", None),
        ("multicls", "4,8"),
        ("lmk", "sentence"),
    ],
)
def test_every_pooler_trains(
    pairs: Path, tiny_model: Models, tmp_path: Path, pool: str, gran: str | None
) -> None:
    settings = TrainSettings(**{**vars(FAST), "steps": 2})
    plan = planned(pairs, tiny_model("bert"), settings, pool=pool, gran=gran)
    folder = trained(plan, tmp_path / "model")
    assert resolve(RecipeOptions(model=str(folder))).recipe.doc.pool == pool


@pytest.mark.parametrize("name", ["modernbert", "qwen2", "mpnet"])
def test_other_architectures_train(
    pairs: Path, tiny_model: Models, tmp_path: Path, name: str
) -> None:
    settings = TrainSettings(**{**vars(FAST), "steps": 2})
    assert checkpoints.is_done(
        trained(planned(pairs, tiny_model(name), settings), tmp_path / "model")
    )


def test_a_task_is_learned(tmp_path: Path, tiny_model: Models) -> None:
    """Random weights learn to find, among forty, the passage with the words of a query."""
    words = list(dict.fromkeys(tiny.WORDS))[:24]
    every = [(a, b) for a in words for b in words if a != b]
    chosen = np.random.default_rng(0).permutation(len(every))[:200].tolist()
    lines = [
        {"query": f"{a} {b}", "positive": f"the {b} of {a}"} for a, b in (every[i] for i in chosen)
    ]
    path = tmp_path / "task.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = {"steps": 130, "batch_size": 40, "lr": 8e-3, "save_every": 0, "temperature": 0.1}
    settings = TrainSettings(**{**vars(FAST), **task})
    folder = trained(planned(path, tiny_model("bert"), settings), tmp_path / "model")
    resolved = resolve(RecipeOptions(model=str(folder)))
    encoder = open_encoder(
        resolved.recipe.doc, resolved.folder, EncodeSettings(dtype="fp32", device="cpu")
    )
    sides = [
        encoder.queries([Query(str(i), line[side]) for i, line in enumerate(lines[:40])]).vectors
        for side in ("query", "positive")
    ]
    right = (sides[0] @ sides[1].T).argmax(1) == np.arange(40)
    assert right.mean() >= 0.9


@pytest.mark.parametrize(
    ("settings", "options", "error", "words"),
    [
        ({"loss": "infonse"}, {}, UnknownName, "infonce"),
        ({"loss": "insent"}, {}, UsageError, "--loss insent .*--unit chunk --gran given"),
        (
            {"loss": "m3-kd", "symmetric": True},
            {},
            UsageError,
            "--symmetric .*no effect.*--loss m3-kd",
        ),
        ({}, {"pool": "cls", "gran": "4"}, UsageError, "--gran 4 has no effect"),
        ({}, {"window": "chunk"}, UsageError, "--window chunk .*--unit chunk --gran given"),
        ({}, {"gran": "4,x"}, UsageError, "--gran x"),
        ({"dims": "8;16"}, {}, UsageError, "--dims"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    pairs: Path,
    tiny_model: Models,
    settings: dict[str, Any],
    options: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    with pytest.raises(error, match=words):
        planned(pairs, tiny_model("bert"), TrainSettings(**{**vars(FAST), **settings}), **options)


def test_a_loss_that_needs_scores_says_so(tmp_path: Path, tiny_model: Models) -> None:
    path = tmp_path / "plain.jsonl"
    path.write_text('{"query": "a b", "positive": "c d"}\n' * 2)
    with pytest.raises(DataError, match="teacher scores"):
        planned(path, tiny_model("bert"), TrainSettings(**{**vars(FAST), "loss": "m3-kd"}))


def test_a_loss_that_is_not_a_number_stops_and_names_its_examples(
    pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    settings = TrainSettings(**{**vars(FAST), "max_grad_norm": 0.0, "save_every": 1})
    object.__setattr__(settings, "lr", 1e30)  # a rate that no user may ask for
    folder = tmp_path / "model"
    with pytest.raises(DataError, match=rf"step \d is nan .*{pairs} \d"):
        trained(planned(pairs, tiny_model("bert"), settings), folder)
    assert checkpoints.latest(folder) is not None


def test_a_refusal_leaves_the_folder_free(pairs: Path, tiny_model: Models, tmp_path: Path) -> None:
    settings = TrainSettings(**{**vars(FAST), "batch_size": 100})
    with pytest.raises(DataError, match="--batch-size 100"):
        trained(planned(pairs, tiny_model("bert"), settings), tmp_path / "model")
    assert not (tmp_path / "model").exists()
    trained(planned(pairs, tiny_model("bert")), tmp_path / "model")


def test_states_that_are_computed_again_teach_the_same(
    pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    weights = []
    for again in (False, True):
        settings = TrainSettings(**{**vars(FAST), "gradient_checkpointing": again})
        folder = trained(planned(pairs, tiny_model("modernbert"), settings), tmp_path / str(again))
        weights.append(load_file(folder / "model.safetensors"))
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=1e-4, atol=1e-5)


def test_other_prompts_of_a_source_are_another_training(
    pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    folder = trained(planned(pairs, tiny_model("bert")), tmp_path / "model")
    options = RecipeOptions(model=str(tiny_model("bert")), pool="lmk", gran="4,8", max_length=24)
    other = training_job.plan([f"{pairs},query_prompt=find: "], options, FAST)
    with pytest.raises(Mismatch, match="query_prompt"):
        trained(other, folder)


@pytest.fixture(scope="module")
def half(
    pairs: Path, tiny_model: Models, tmp_path_factory: pytest.TempPathFactory
) -> tuple[training_job.TrainJob, Path]:
    """A training that was stopped after four of six steps."""
    plan, folder = planned(pairs, tiny_model("bert")), tmp_path_factory.mktemp("half") / "model"
    with pytest.raises(Stopped):
        execution.run(plan, folder, asked(after([4])))
    return plan, folder


@pytest.mark.parametrize(
    "name",
    [
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "trainer_state.json",
        "weights.safetensors",
        "digests.json",
    ],
)
@pytest.mark.parametrize("damage", ["missing", "cut", "changed", "folder", "pipe"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_continues(
    half: tuple[training_job.TrainJob, Path], tmp_path: Path, name: str, damage: str
) -> None:
    plan, whole = half
    folder = shutil.copytree(whole, tmp_path / "model")
    file = folder / "checkpoints" / "checkpoint-4" / name
    data = bytearray(file.read_bytes())
    file.unlink()
    if damage == "cut":
        file.write_bytes(data[: len(data) // 2])
    if damage == "changed":
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    if damage == "folder":
        file.mkdir()
    if damage == "pipe":
        os.mkfifo(file)
    named = "checkpoint-4" if (damage, name) == ("changed", "digests.json") else name
    with pytest.raises(DataError, match=rf"{named}.*remove {file.parent},"):
        trained(plan, folder)


def test_without_its_damaged_checkpoint_a_training_ends_as_ever(
    half: tuple[training_job.TrainJob, Path], tmp_path: Path
) -> None:
    plan, whole = half
    models = []
    for name in ("kept", "removed"):
        folder = shutil.copytree(whole, tmp_path / name)
        if name == "removed":
            shutil.rmtree(folder / "checkpoints" / "checkpoint-4")
        models.append((trained(plan, folder) / "model.safetensors").read_bytes())
    assert models[0] == models[1]


def test_other_folders_among_the_checkpoints_are_left_alone(
    half: tuple[training_job.TrainJob, Path], tmp_path: Path
) -> None:
    plan, whole = half
    folder = shutil.copytree(whole, tmp_path / "model")
    names = (
        *("checkpoint-best-of-mine", "checkpoint-\u0663\u0663", f"checkpoint-{'9' * 30}"),
        *("checkpoint-007", "checkpoint-", "checkpoint-0", "checkpoint--4", "checkpoint-4.bak"),
    )
    for name in names:
        shutil.copytree(folder / "checkpoints" / "checkpoint-4", folder / "checkpoints" / name)
    trained(plan, folder)
    assert {path.name for path in (folder / "checkpoints").iterdir()} == set(names)


def test_a_stop_keeps_the_last_checkpoint_and_the_best_one(
    pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    """Scores fall after the first scoring; a stop loses no step."""

    class Falling:
        measure, identity = "falls", {"measure": "falls"}
        scores = iter(range(9, 0, -1))

        def __call__(self, module: Any) -> DevScores:
            return DevScores({"made up": float(next(self.scores))})

    settings = replace(FAST, save_every=0)
    plan = replace(planned(pairs, tiny_model("bert"), settings), dev=Dev(Falling(), 1))
    with pytest.raises(Stopped):
        execution.run(plan, tmp_path / "model", asked(after([4])))
    kept = {path.name for path in (tmp_path / "model" / "checkpoints").iterdir()}
    assert kept == {"checkpoint-1", "checkpoint-4"}
    (tmp_path / "model/checkpoints/checkpoint-1/weights.safetensors").unlink()
    with pytest.raises(DataError, match=r"checkpoint-1/weights.safetensors is missing"):
        trained(plan, tmp_path / "model")


def test_a_second_training_of_a_folder_names_the_first(
    pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    plan, folder = planned(pairs, tiny_model("bert")), tmp_path / "model"
    refused = []

    def also() -> bool:
        with pytest.raises(Stopped, match=rf"{folder} .*process {os.getpid()} "):
            trained(plan, folder)
        refused.append(True)
        return False

    execution.run(plan, folder, asked(also))
    assert len(refused) == FAST.steps
    assert not (folder / "update.lock").exists()
    log = (folder / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == [2, 4, 6]


def test_a_lock_file_that_a_kill_left_stops_nobody(
    pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "update.lock").write_text("process 1 on somewhere\n")
    folder = trained(planned(pairs, tiny_model("bert"), replace(FAST, steps=1)), tmp_path / "model")
    assert checkpoints.is_done(folder)
    assert not (folder / "update.lock").exists()


def test_a_longer_table_of_positions_is_learned(
    pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    """Short texts with gaps in their positions teach rows that no text reaches; the folder holds them."""
    settings = replace(FAST, skip_positions=0.9, lr=0.1)
    plan = planned(
        pairs, tiny_model("bert"), settings, max_length=4 * tiny.POSITIONS, extend="recurrent"
    )
    folder = trained(plan, tmp_path / "model")
    made = read_model(str(folder))
    assert made.max_length == made.positions == 4 * tiny.POSITIONS
    name = "embeddings.position_embeddings.weight"
    base = load_file(tiny_model("bert") / "model.safetensors")
    start = next(value for key, value in base.items() if key.endswith(name)).repeat(4, 1)
    moved = (load_file(folder / "model.safetensors")[name] - start).abs().amax(1) > 1e-3
    assert moved[tiny.POSITIONS :].sum() > 30
    text = "a word " * 3 * tiny.POSITIONS
    recipe = resolve(RecipeOptions(model=str(folder))).recipe
    assert recipe.doc.extend == ""
    encoder = open_encoder(recipe.doc, made, EncodeSettings(dtype="fp32", device="cpu"))
    here = encoder.queries([Query("q", text)]).vectors[0]
    there = SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(here, there.encode(text), atol=1e-5)


def test_rotary_positions_are_not_extended_in_training(pairs: Path, tiny_model: Models) -> None:
    with pytest.raises(UsageError, match="rotary positions have no limit"):
        planned(pairs, tiny_model("modernbert"), max_length=400, extend="ntk")


def test_checkpoints_that_a_kill_left_are_removed(
    pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    plan = planned(pairs, tiny_model("bert"), replace(FAST, steps=1))
    folder = trained(plan, tmp_path / "model")
    left = folder / checkpoints.FOLDER / "checkpoint-1"
    left.mkdir(parents=True)
    trained(plan, folder)
    assert not left.parent.exists()


@pytest.mark.usefixtures("minilm")
def test_a_trained_model_declares_only_the_pooler_of_its_training() -> None:
    options = RecipeOptions(model="lmk-minilm", pool="lmk", gran=Granularities("64"))
    base = resolve(options)
    assert base.folder.poolers == {"mean", "lmk"}
    assert published_model(base).folder.trained_poolers == ()
