"""The same commands give the same results on a GPU and on the CPU; skipped without a GPU."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from lmkcli.data.run import read_run
from lmkcli.errors import Stopped
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.training import training_job
from lmkcli.training.loop import training_run as execution
from lmkcli.training.train_settings import TrainSettings
from lmkcli.vectors.stored import Vectors
from tests import tiny
from tests.conftest import Lmk
from tests.models.test_forward import m2bert_folder, tite_folder
from tests.models.test_late import pylate as pylate  # a fixture
from tests.training import test_exact_weights

Models = Callable[[str], Path]
GPU = os.environ.get("LMK_TEST_DEVICE", "cuda")  # with cpu, the test compares the CPU with itself
pytestmark = pytest.mark.skipif(GPU == "cuda" and not torch.cuda.is_available(), reason="no GPU")
DEVICES = ("cpu", GPU)


def encoded(lmk: Lmk, collection: Path, model: Path, folder: Path, *how: str) -> np.ndarray:
    """The stored vectors of the collection; `how` has the device, the dtype and the pooler."""
    lmk("encode", collection, "-m", model, "--store-dtype", "fp32", *how, "-o", folder)
    vectors = Vectors(folder)
    return vectors.at(np.arange(vectors.rows)).vectors


POOLERS = (
    ["--pool", "mean"],
    ["--pool", "lmk", "--gran", "8"],
    ["--pool", "mean", "--window", "32"],
    ["--pool", "mean", "--unit", "chunk", "--gran", "8"],
)


@pytest.mark.parametrize("name", ["bert", "distilbert", "mpnet", "modernbert", "qwen2", "mistral"])
@pytest.mark.parametrize("pooling", POOLERS, ids=lambda words: "-".join(words[1::2]))
def test_vectors_are_the_same_to_five_digits(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path, name: str, pooling: list[str]
) -> None:
    on_cpu, on_gpu = (
        encoded(lmk, beir, tiny_model(name), tmp_path / str(number), "--device", device,
                "--dtype", "fp32", *pooling)
        for number, device in enumerate(DEVICES)
    )  # fmt: skip
    np.testing.assert_allclose(on_gpu, on_cpu, atol=2e-5)


@pytest.mark.parametrize("make", [tite_folder, m2bert_folder])
def test_models_of_other_kinds(lmk: Lmk, beir: Path, tmp_path: Path, make: Any) -> None:
    model = make(tmp_path / "model")
    on_cpu, on_gpu = (
        encoded(lmk, beir, model, tmp_path / str(number), "--device", device, "--dtype", "fp32")
        for number, device in enumerate(DEVICES)
    )
    np.testing.assert_allclose(on_gpu, on_cpu, atol=2e-5)


@pytest.mark.parametrize("name", ["bert", "modernbert", "qwen2", "tite", "m2bert"])
def test_bf16_is_near(lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path, name: str) -> None:
    """A GPU computes attention in bf16 with another kernel, which reads packed texts."""
    others = {"tite": tite_folder, "m2bert": m2bert_folder}
    model = others[name](tmp_path / "model") if name in others else tiny_model(name)
    exact = encoded(lmk, beir, model, tmp_path / "0", "--device", "cpu", "--dtype", "fp32")
    rounded = encoded(lmk, beir, model, tmp_path / "1", "--device", GPU, "--dtype", "bf16")
    assert (exact * rounded).sum(1).min() > 0.995


def test_vectors_of_many_packs_arrive_whole(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    """Copies to the CPU overlap with the next pack: each vector is the same as with one pack."""
    sizes = ("100", "100000")
    few, many = (
        encoded(lmk, beir, tiny_model("bert"), tmp_path / size, "--device", GPU, "--dtype", "fp32",
                "--batch-tokens", size)
        for size in sizes
    )  # fmt: skip
    np.testing.assert_allclose(few, many, atol=2e-5)


def run_of(lmk: Lmk, *words: object) -> dict[str, dict[str, float]]:
    """The scores of each query and document of a search. The last word is the path of the run."""
    lmk("search", *words[:-1], "-k", 20, "-o", words[-1])
    rankings = read_run(Path(str(words[-1]))).rankings
    return {q: dict(zip(r.doc_ids, r.scores, strict=True)) for q, r in rankings.items()}


def check_scores(found: dict[str, dict[str, float]], expected: dict[str, dict[str, float]]) -> None:
    """Both runs have the same scores, but for documents at the end, where equal scores can change places."""
    assert found.keys() == expected.keys()
    for query, scores in expected.items():
        np.testing.assert_allclose(
            sorted(found[query].values()), sorted(scores.values()), rtol=1e-4, atol=2e-5
        )
        both = scores.keys() & found[query].keys()
        assert len(both) >= len(scores) - 2
        for doc in both:
            assert found[query][doc] == pytest.approx(scores[doc], rel=1e-4, abs=2e-5)


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_sparse_vectors(
    lmk: Lmk, masked_model: Models, beir: Path, tmp_path: Path, kind: str
) -> None:
    runs = []
    for number, device in enumerate(DEVICES):
        how = ("--device", device, "--dtype", "fp32")
        folder = tmp_path / str(number)
        lmk("encode", beir, "-m", masked_model(kind), "--pool", "splade", *how, "-o", folder)
        runs.append(run_of(lmk, folder, beir, *how, tmp_path / f"{number}.trec"))
    check_scores(runs[1], runs[0])


def test_late_interaction(
    lmk: Lmk, pylate: Callable[..., Path], beir: Path, tmp_path: Path
) -> None:
    runs = []
    model = pylate()
    for number, device in enumerate(DEVICES):
        how = ("--device", device, "--dtype", "fp32")
        folder = tmp_path / f"v{number}"
        lmk("encode", beir, "-m", model, "--store-dtype", "fp32", *how, "-o", folder)
        runs.append(run_of(lmk, folder, beir, *how, tmp_path / f"{number}.trec"))
    check_scores(runs[1], runs[0])


def test_reranking_by_a_cross_encoder(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    config = transformers.BertConfig(
        vocab_size=tiny.VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, num_labels=1,
    )  # fmt: skip
    torch.manual_seed(1)
    judge = tmp_path / "judge"
    transformers.BertForSequenceClassification(config).save_pretrained(judge)
    tiny.wordpiece().save_pretrained(judge)
    lmk("encode", beir, "-m", tiny_model("bert"), "--device", "cpu", "-o", tmp_path / "v")
    runs = [
        run_of(lmk, tmp_path / "v", beir, "--rerank-model", judge, "--rerank-depth", 30, "--device", device,
               "--dtype", "fp32", tmp_path / f"{device}-{number}.trec")
        for number, device in enumerate(DEVICES)
    ]  # fmt: skip
    check_scores(runs[1], runs[0])


@pytest.mark.parametrize("kind", ["IVF1,Flat", "IVF1,SQ8"])
def test_inverted_lists_find_the_same(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path, kind: str
) -> None:
    pytest.importorskip("faiss")
    vectors, index = tmp_path / "v", tmp_path / "i"
    lmk("encode", beir, "-m", tiny_model("bert"), "--device", "cpu", "-o", vectors)
    lmk("index", vectors, "--kind", kind, "-o", index)
    runs = []
    for number, device in enumerate(DEVICES):
        path = tmp_path / f"{number}.trec"
        how = ("--device", device, "--dtype", "fp32", "--nprobe", 1)
        lmk("search", index, beir, "-k", 5, *how, "-o", path)
        runs.append(read_run(path))
    for query, expected in runs[0].rankings.items():
        scores = runs[1].rankings[query].scores
        np.testing.assert_allclose(scores, expected.scores, atol=2e-5)


@pytest.mark.parametrize("unit", [["doc"], ["chunk", "--gran", "8"], ["token"]])
def test_exact_search_makes_the_same_run(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path, unit: list[str]
) -> None:
    vectors, runs = tmp_path / "v", []
    lmk("encode", beir, "-m", tiny_model("bert"), "--unit", *unit, "--device", "cpu", "-o", vectors)
    for number, device in enumerate(DEVICES):
        path = tmp_path / f"{number}.trec"
        lmk("search", vectors, beir, "-k", 20, "--device", device, "--dtype", "fp32", "-o", path)
        runs.append(read_run(path))
    assert runs[0].rankings.keys() == runs[1].rankings.keys()
    for query, expected in runs[0].rankings.items():
        scores = runs[1].rankings[query].scores
        np.testing.assert_allclose(scores, expected.scores, atol=2e-5)
        clear = (
            np.abs(np.diff(expected.scores)).min(initial=1) > 1e-4
        )  # closer scores may change their order
        if clear:
            assert runs[1].rankings[query].doc_ids == expected.doc_ids


@pytest.fixture
def exact_model(masked_model: Models, tmp_path: Path) -> Path:
    """A masked-language model without dropout, which draws other numbers on a GPU."""
    folder = shutil.copytree(masked_model("bert"), tmp_path / "exact")
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def pairs(path: Path) -> Path:
    lines = [
        {"query": tiny.sentence(i, 4), "positive": f"{tiny.sentence(i, 20)} {i}"} for i in range(40)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def curve(lmk: Lmk, *words: object) -> list[tuple[float, float]]:
    """Train, and return `losses`. The last word is the output folder."""
    lmk(*words[:-1], "--log-every", 1, "-o", words[-1])
    return losses(Path(str(words[-1])))


def check_steps(lmk: Lmk, steps: int, folder: Path, *words: object) -> None:
    """Train on both devices, and compare each step."""
    on_cpu, on_gpu = (
        curve(lmk, *words, "--device", device, folder / str(number))
        for number, device in enumerate(DEVICES)
    )
    assert len(on_cpu) == steps
    np.testing.assert_allclose(on_gpu, on_cpu, rtol=2e-3)


def losses(model: Path) -> list[tuple[float, float]]:
    """Loss and norm of the gradient of each step of a training."""
    lines = map(json.loads, (model / "log.jsonl").read_text().splitlines())
    return [(line["loss"], line["grad_norm"]) for line in lines if "loss" in line]


@pytest.mark.parametrize("batch_tokens", [100, 100_000])
@pytest.mark.parametrize(
    "how",
    [
        ["--pool", "mean"],
        ["--pool", "lmk", "--gran", "4,8"],
        ["--pool", "lmk", "--gran", "8", "--lora", "2"],
        ["--pool", "mean", "--skip-positions", "0.5", "--loss", "opl"],
    ],
    ids=lambda words: "-".join(words[1::2]),
)
def test_training_takes_the_same_steps(
    lmk: Lmk, exact_model: Path, tmp_path: Path, how: list[str], batch_tokens: int
) -> None:
    words = (
        pairs(tmp_path / "pairs.jsonl"), "-m", exact_model, *how, "--max-length", 32, "--steps", 4,
        "--batch-size", 8, "--batch-tokens", batch_tokens, "--dtype", "fp32",
    )  # fmt: skip
    check_steps(lmk, 4, tmp_path, "train", *words)


@pytest.mark.parametrize("batch_tokens", [100, 100_000])
def test_training_in_bf16_is_near(
    lmk: Lmk, exact_model: Path, tmp_path: Path, batch_tokens: int
) -> None:
    words = (
        pairs(tmp_path / "pairs.jsonl"), "-m", exact_model, "--pool", "lmk", "--gran", "8",
        "--max-length", 32, "--batch-size", 8, "--batch-tokens", batch_tokens, "--steps", 4,
    )  # fmt: skip
    exact = curve(lmk, "train", *words, "--device", "cpu", "--dtype", "fp32", tmp_path / "0")
    rounded = curve(lmk, "train", *words, "--device", GPU, "--dtype", "bf16", tmp_path / "1")
    np.testing.assert_allclose(rounded, exact, rtol=0.1)


@pytest.mark.parametrize("lora", [0, 2])
@pytest.mark.parametrize("kind", ["bert", "tite", "m2bert"])
def test_a_bf16_training_without_changes_returns_the_weights_of_its_model(
    tmp_path: Path, kind: str, lora: int
) -> None:
    path = pairs(tmp_path / "pairs.jsonl")
    test_exact_weights.check_unchanged(path, tmp_path, kind, lora, GPU)


def test_a_stopped_training_continues(exact_model: Path, tmp_path: Path) -> None:
    options = RecipeOptions(model=str(exact_model), pool="lmk", gran="8", max_length=32)
    settings = TrainSettings(
        steps=6, batch_size=8, batch_tokens=100, dtype="bf16", device=GPU, save_every=2, log_every=1
    )
    plan = training_job.plan([str(pairs(tmp_path / "pairs.jsonl"))], options, settings)
    counted = iter(range(1, 10))
    execution.run(plan, tmp_path / "whole", Report())
    with pytest.raises(Stopped):
        execution.run(plan, tmp_path / "parts", Report(stopping=lambda: next(counted) == 3))
    execution.run(plan, tmp_path / "parts", Report())
    whole, parts = losses(tmp_path / "whole"), losses(tmp_path / "parts")
    assert len(whole) == 6
    np.testing.assert_allclose(parts, whole, rtol=1e-3)


@pytest.mark.parametrize("name", ["mlm", "retromae"])
def test_pretraining_takes_the_same_steps(
    lmk: Lmk, exact_model: Path, beir: Path, tmp_path: Path, name: str
) -> None:
    words = (
        beir, "-m", exact_model, "--objective", name, "--max-length", 32, "--steps", 3,
        "--batch-size", 8, "--dtype", "fp32",
    )  # fmt: skip
    check_steps(lmk, 3, tmp_path, "pretrain", *words)
