"""Pre-training from texts to an encoder's folder: what learns, how it stops, goes on, and is refused."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM

from lmkcli.data.collection import Shard
from lmkcli.encoding import jobs, shard_run
from lmkcli.encoding.resolution import resolve
from lmkcli.errors import DataError, Mismatch, Stopped, UnknownName, UsageError
from lmkcli.plugins.pretrain.masked_batches import drawn_ends
from lmkcli.plugins.pretrain.pretrain_settings import PretrainSettings
from lmkcli.plugins.pretrain.pretraining_job import (
    BaseModelSpec,
    PretrainJob,
    describe_pretraining,
    plan,
)
from lmkcli.progress import Report, mute
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import WHOLE
from lmkcli.training import training_job as train_planning
from lmkcli.training.loop.training_run import Start, run
from lmkcli.training.train_settings import TrainSettings
from tests import tiny

Models = Callable[[str], Path]
FAST = PretrainSettings(
    steps=4, batch_size=8, lr=1e-3, dtype="fp32", device="cpu", save_every=2, log_every=2
)
TITE = {
    "model_type": "tite", "vocab_size": tiny.VOCABULARY, "num_hidden_layers": 2,
    "hidden_sizes": tiny.WIDTH, "num_attention_heads": 4, "intermediate_sizes": 64,
    "kernel_sizes": [8, 8], "strides": [8, 8], "max_position_embeddings": 64, "dropout_prob": 0.0,
    "norm_location": "post", "norm_type": "layer", "absolute_positional_embedding_type": "learned",
}  # fmt: skip


def planned(beir: Path, model: Path, settings: PretrainSettings = FAST, **more: Any) -> PretrainJob:
    options: dict[str, Any] = {"pool": "lmk", "gran": "4,8", "max_length": 24, **more}
    return plan([str(beir)], BaseModelSpec(RecipeOptions(model=str(model), **options)), settings)


def trained(job: PretrainJob, folder: Path) -> Path:
    run(job, folder, Report())
    return folder


def after(counts: list[int]) -> Callable[[], bool]:
    steps: Iterator[int] = iter(range(1, 1000))
    return lambda: next(steps) in counts


@pytest.fixture
def architecture(tmp_path: Path) -> Path:
    path = tmp_path / "tite.json"
    path.write_text(json.dumps(TITE))
    return path


def tite_job(beir: Path, architecture: Path, tokenizer: Path, **settings: Any) -> PretrainJob:
    base_model = BaseModelSpec(RecipeOptions(), architecture, str(tokenizer))
    return plan([str(beir)], base_model, replace(FAST, **{"objective": "tite", **settings}))


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("mlm", "bert", {}),
    ("retromae", "bert", {"query_stream": "raw"}),
    ("dupmae", "bert", {}),
    ("retromae", "modernbert", {}),
]


@pytest.mark.parametrize(("objective", "name", "more"), CASES)
def test_losses_fall(
    beir: Path, tiny_model: Models, tmp_path: Path, objective: str, name: str, more: dict[str, Any]
) -> None:
    settings = replace(FAST, objective=objective, steps=30, lr=1e-2, log_every=3, **more)
    folder = trained(planned(beir, tiny_model(name), settings), tmp_path / "model")
    curve = json.loads((folder / "training.json").read_text())["curve"]
    assert curve[-1]["loss"] < 0.8 * curve[0]["loss"]
    assert {"mlm", "tokens_per_second"} <= curve[0].keys()
    assert resolve(RecipeOptions(model=str(folder))).recipe.doc.pool == "lmk"


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_half_precision(beir: Path, tiny_model: Models, tmp_path: Path, name: str) -> None:
    """Heads compute as the encoder does; the folder holds float32."""
    settings = replace(FAST, objective="dupmae", steps=2, dtype="bf16")
    folder = trained(planned(beir, tiny_model(name), settings), tmp_path / "model")
    assert np.isfinite(json.loads((folder / "training.json").read_text())["curve"][-1]["loss"])
    kept = load_file(folder / "heads" / "model.safetensors")
    assert {value.dtype for value in kept.values()} == {torch.float32}


@pytest.mark.parametrize("objective", ["tite", "tite-mae", "tite-bow"])
def test_losses_of_tite_fall(
    beir: Path, tiny_model: Models, architecture: Path, tmp_path: Path, objective: str
) -> None:
    job = tite_job(
        beir,
        architecture,
        tiny_model("markless"),
        objective=objective,
        steps=30,
        lr=1e-2,
        log_every=3,
    )
    folder = trained(job, tmp_path / "model")
    curve = json.loads((folder / "training.json").read_text())["curve"]
    assert curve[-1]["loss"] < 0.8 * curve[0]["loss"]


@pytest.mark.parametrize("objective", ["tite", "tite-mae", "tite-bow", "mlm"])
def test_a_tite_without_pooling_learns(
    beir: Path, tiny_model: Models, tmp_path: Path, objective: str
) -> None:
    """CLS-BERT (Schlatt et al. 2025, Table 2): TITE's objectives with the state of CLS as the vector."""
    path = tmp_path / "cls-bert.json"
    path.write_text(json.dumps(TITE | {"kernel_sizes": None, "strides": None}))
    base_model = BaseModelSpec(RecipeOptions(pool="cls"), path, str(tiny_model("bert")))
    settings = replace(FAST, objective=objective, steps=30, lr=1e-2, log_every=3)
    job = plan([str(beir)], base_model, settings)
    before = load_file(job.resolved.folder.path / "model.safetensors")
    folder = trained(job, tmp_path / "model")
    curve = json.loads((folder / "training.json").read_text())["curve"]
    assert curve[-1]["loss"] < 0.8 * curve[0]["loss"]
    after_ = load_file(folder / "model.safetensors")
    assert all(not torch.equal(after_[name], value) for name, value in before.items())
    assert resolve(RecipeOptions(model=str(folder))).recipe.doc.pool == "cls"


def test_the_vector_of_a_tite_without_pooling_is_the_state_of_cls(
    beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    path = tmp_path / "cls-bert.json"
    path.write_text(json.dumps(TITE | {"kernel_sizes": None, "strides": None}))
    base_model = BaseModelSpec(RecipeOptions(pool="cls"), path, str(tiny_model("bert")))
    job = plan([str(beir)], base_model, replace(FAST, objective="tite"))
    task = job.task(Start())
    texts = next(iter(job.feed(Start()).batches())).texts[:3]
    with torch.no_grad():
        encoded = task.module.eval().encode(texts)
        alone = [
            task.module.encoder(torch.from_numpy(text.shown)[None].long()).last_hidden_state[0]
            for text in texts
        ]
    torch.testing.assert_close(encoded.states, torch.cat(alone))
    torch.testing.assert_close(encoded.vectors, torch.stack([states[0] for states in alone]))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_stopped_one_ends_where_an_undisturbed_one_does(
    beir: Path, tiny_model: Models, architecture: Path, tmp_path: Path, dtype: str
) -> None:
    """TITE's two heads share a parameter, which must survive the checkpoint in float32."""

    def job() -> PretrainJob:
        return tite_job(beir, architecture, tiny_model("markless"), dtype=dtype)

    whole, parts = trained(job(), tmp_path / "whole"), tmp_path / "parts"
    with pytest.raises(Stopped):
        run(job(), parts, Report(stopping=after([2])))
    trained(job(), parts)
    for file in ("model.safetensors", "heads/model.safetensors"):
        one, other = (load_file(folder / file) for folder in (whole, parts))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_heads_go_on_and_training_begins(beir: Path, tiny_model: Models, tmp_path: Path) -> None:
    settings = replace(FAST, objective="retromae")
    first = trained(planned(beir, tiny_model("bert"), settings), tmp_path / "first")
    notes: list[str] = []
    job = planned(beir, first, settings)
    task = job.task(Start(0, Shard(), notes.append))
    assert "start with" in notes[0]
    kept = load_file(first / "heads" / "model.safetensors")
    state = task.module.state_dict()
    assert all(torch.equal(state[f"heads.{name}"], value) for name, value in kept.items())
    planned(beir, first, replace(FAST, objective="mlm")).task(Start(0, Shard(), notes.append))
    assert "start with" in notes[1]
    pairs = tmp_path / "pairs.jsonl"
    lines = [
        {"query": tiny.sentence(i, 4), "positive": f"{tiny.sentence(i, 9)} {i}"} for i in range(9)
    ]
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    loop = TrainSettings(steps=1, batch_size=4, dtype="fp32", device="cpu")
    plan_ = train_planning.plan([str(pairs)], RecipeOptions(model=str(first)), loop)
    run(plan_, tmp_path / "second", Report())
    assert (tmp_path / "second" / "training.json").is_file()


def test_a_tokens_folder_is_the_same_as_its_collection(
    beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    options = RecipeOptions(model=str(tiny_model("bert")), pool="lmk", gran="4", max_length=24)
    made = jobs.plan(str(beir), options, EncodeSettings(), WHOLE)
    shard_run.run_tokenize(made, tmp_path / "tokens", Report())
    one = planned(beir, tiny_model("bert"))
    other = planned(tmp_path / "tokens", tiny_model("bert"))
    assert one.corpus.digest == other.corpus.digest
    start = Start(1, Shard(), mute)
    batches = [next(iter(job.feed(start))) for job in (one, other)]
    assert batches[0].step == 1
    for mine, theirs in zip(batches[0].texts, batches[1].texts, strict=True):
        assert np.array_equal(mine.shown, theirs.shown)
        assert np.array_equal(mine.input.ids, theirs.input.ids)


def test_processes_share_a_batch(beir: Path, tiny_model: Models) -> None:
    job = planned(beir, tiny_model("bert"), replace(FAST, objective="retromae"))
    whole = next(iter(job.feed(Start(0, Shard(), mute)))).texts
    shares = [next(iter(job.feed(Start(0, Shard(i, 3), mute)))).texts for i in range(3)]
    parts = [text for share in shares for text in share]
    assert [len(share) for share in shares] == [2, 3, 3]
    for one, other in zip(whole, parts, strict=True):
        assert np.array_equal(one.shown, other.shown)
        assert np.array_equal(one.pool, other.pool)


def test_sources_are_weighed_and_blocks_fill_the_input(beir: Path, tiny_model: Models) -> None:
    options = RecipeOptions(model=str(tiny_model("bert")), pool="cls", max_length=24)
    sources = [f"{beir},weight=3", f"{beir},weight=0"]
    job = plan(sources, BaseModelSpec(options), replace(FAST, blocks=True, like_length=False))
    batch = next(iter(job.feed(Start(0, Shard(), mute))))
    assert all(f"{beir} block" in name for name in batch.examples)
    assert sorted(len(text.shown) for text in batch.texts)[1:] == [24] * 7
    assert any("blocks of 22 tokens" in line for line in describe_pretraining(job))


def test_every_chunk_has_a_length_drawn_for_it(beir: Path, tiny_model: Models) -> None:
    ends = drawn_ends(1000, [4, 8], np.random.default_rng(0))
    assert set(np.diff(ends, prepend=0)[:-1].tolist()) == {4, 8}
    assert ends[-1] == 1000
    job = planned(beir, tiny_model("bert"), replace(FAST, official_quirks=True))
    text = next(iter(job.feed(Start(0, Shard(), mute)))).texts[0].input
    assert text.ids[:2].tolist() == [2, 2]
    assert (text.ids[text.marks] == 3).all()


def test_a_finished_one_is_left_alone_and_another_never_joins(
    beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    folder = trained(planned(beir, tiny_model("bert")), tmp_path / "model")
    before = (folder / "model.safetensors").stat().st_mtime_ns
    trained(planned(beir, tiny_model("bert")), folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(Mismatch, match="mask"):
        trained(planned(beir, tiny_model("bert"), replace(FAST, mask=0.15)), folder)


@pytest.mark.parametrize(
    ("settings", "options", "error", "words"),
    [
        ({"objective": "retromea"}, {}, UnknownName, "retromae"),
        (
            {"objective": "mlm", "query_stream": "raw"},
            {},
            UsageError,
            "--query-stream .*no effect.*--objective mlm",
        ),
        ({"objective": "tite"}, {}, UsageError, "--objective tite .*mlm or retromae or dupmae"),
        (
            {"official_quirks": True},
            {"pool": "cls", "gran": None},
            UsageError,
            "--official-quirks .*no effect.*--pool cls",
        ),
        ({"blocks": True}, {"gran": "sentence"}, UsageError, "--blocks"),
        ({}, {"gran": "4,sentence"}, UsageError, "--gran 4,sentence: .*numbers of tokens"),
    ],
)
def test_what_cannot_be_pretrained_is_refused(
    beir: Path,
    tiny_model: Models,
    settings: dict[str, Any],
    options: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    def begin() -> None:
        job = planned(beir, tiny_model("bert"), replace(FAST, **settings), **options)
        job.task(Start(0, Shard(), mute))

    with pytest.raises(error, match=words):
        begin()


def test_other_refusals(beir: Path, tiny_model: Models, architecture: Path, tmp_path: Path) -> None:
    model = str(tiny_model("bert"))
    with pytest.raises(UsageError, match="--architecture"):
        plan([str(beir)], BaseModelSpec(RecipeOptions()), FAST)
    with pytest.raises(UsageError, match="--tokenizer"):
        plan([str(beir)], BaseModelSpec(RecipeOptions(model=model), architecture, model), FAST)
    with pytest.raises(UsageError, match="only the options weight and blocks"):
        plan([f"{beir},per_query=1"], BaseModelSpec(RecipeOptions(model=model, pool="cls")), FAST)
    (tmp_path / "none.jsonl").write_text('{"id": "a", "text": ""}\n')
    with pytest.raises(DataError, match="no text"):
        plan(
            [str(tmp_path / "none.jsonl")],
            BaseModelSpec(RecipeOptions(model=model, pool="cls")),
            FAST,
        )
    with pytest.raises(UsageError, match="raw"):
        planned(
            beir, tiny_model("modernbert"), replace(FAST, objective="retromae", query_stream="raw")
        ).task(Start(0, Shard(), mute))


@pytest.mark.parametrize("name", ["bert", "distilbert", "roberta"])
def test_mlm_makes_a_masked_language_model_of_an_encoder_without_a_head(
    beir: Path, tiny_model: Models, tmp_path: Path, name: str
) -> None:
    """transformers predicts with the folder what the trained head predicts."""
    base = shutil.copytree(tiny_model(name), tmp_path / "base")
    if name == "roberta":  # its tiny tokenizer has no mask token
        config = json.loads((base / "tokenizer_config.json").read_text())
        (base / "tokenizer_config.json").write_text(json.dumps({**config, "mask_token": "<pad>"}))
    job = planned(beir, base, pool="mean", gran=None)
    task = job.task(Start(0, Shard(), mute))
    folder = trained(job, tmp_path / "model")
    masked, loaded = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not loaded["missing_keys"]
    assert not loaded["unexpected_keys"]
    assert not (folder / "heads").exists()
    notes: list[str] = []
    module: Any = (
        planned(beir, folder, pool="mean", gran=None)
        .task(Start(0, Shard(), notes.append))
        .module.eval()
    )
    assert "all heads" in notes[0]
    ids = np.arange(5, 15, dtype=np.int32)
    table = module.encoder.get_input_embeddings().weight
    with torch.no_grad():
        ours = module.heads.language(module.model.states([ids]), table)
        theirs = masked.eval()(input_ids=torch.from_numpy(ids)[None].long()).logits[0]
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
        before: Any = task.module.eval()
        first = before.heads.language(before.model.states([ids]), table)
    assert (first - ours).abs().max() > 0.01
