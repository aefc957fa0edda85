"""Training of sparse models: losses and gradients, what a folder holds, and what is refused."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sparse_encoder import losses
from sentence_transformers.sparse_encoder.callbacks.splade_callbacks import (
    SpladeRegularizerWeightSchedulerCallback,
)
from sentence_transformers.sparse_encoder.modules import SpladePooling
from torch import Tensor
from transformers import AutoModelForMaskedLM

from lmkcli import Export
from lmkcli.data.collection import Query
from lmkcli.encoding.encoder import open_encoder
from lmkcli.encoding.resolution import resolve
from lmkcli.errors import DataError, Stopped, UsageError
from lmkcli.models import language_head
from lmkcli.plugins.sparse.sparsity import Sparsity
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import Window
from lmkcli.training import training_job
from lmkcli.training.loop import training_run as execution
from lmkcli.training.loop.training_run import Start
from lmkcli.training.train_settings import TrainSettings
from tests import tiny
from tests.training.step.test_distributed import check_two_processes

Models = Callable[[str], Path]
Loss = torch.nn.Module
FAST: dict[str, Any] = {
    "steps": 4, "batch_size": 8, "lr": 1e-3, "dtype": "fp32", "device": "cpu", "log_every": 2,
}  # fmt: skip
LINES = [
    {
        "query": tiny.sentence(i, 4),
        "pos": [f"{tiny.sentence(i, 3 + 2 * i)} number {i}"],
        "neg": [f"{tiny.sentence(i + 7, 15 - i)} other {i}"],
        "pos_scores": [2.0 + i],
        "neg_scores": [0.5],
    }
    for i in range(8)
]
POOLERS = {
    "splade": SpladePooling("max"),
    "splade-sum": SpladePooling("sum"),
    "splade-log": SpladePooling("max", "log1p_relu"),
}
WEIGHTS = {"doc_flops": 0.3, "query_flops": 0.2, "sparsity_warmup": 0.0}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


@pytest.fixture(scope="module")
def steady(masked_model: Models, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Makes masked language models without dropout, with small logits: losses are around 1."""

    def copy(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name) / "model"
        shutil.copytree(masked_model(name), folder)
        config = json.loads((folder / "config.json").read_text())
        dropped = {key: 0.0 for key in config if "dropout" in key and config[key] is not None}
        (folder / "config.json").write_text(json.dumps(config | dropped))
        model = AutoModelForMaskedLM.from_pretrained(folder)
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(0.1)
            model.get_output_embeddings().bias.fill_(-0.1)
        model.save_pretrained(folder)
        return folder

    return cache(copy)


def planned(
    pairs: Path, model: Path, settings: Mapping[str, Any] = MappingProxyType({}), **options: Any
) -> training_job.TrainJob:
    options = {"pool": "splade", "max_length": 40, **options}
    chosen = TrainSettings(**{**FAST, **settings})
    return training_job.plan([str(pairs)], RecipeOptions(model=str(model), **options), chosen)


def trained(plan: training_job.TrainJob, folder: Path) -> Path:
    execution.run(plan, folder, Report())
    return folder


class Step:
    """The first step of a training: its loss, and the gradients by the names of transformers."""

    def __init__(self, plan: training_job.TrainJob) -> None:
        task = plan.task(Start())
        self.batch = next(iter(task.feed))
        loss = task.step(task.module, self.batch)
        self.loss, self.parts = loss.total.item(), {k: float(v) for k, v in loss.parts.items()}
        masked: Any = task.module.pooling.token_head.masked
        self.gradients: dict[str, Tensor] = {}
        for name, parameter in task.module.named_parameters():
            name = name.removeprefix("pooling.token_head.masked.")
            if name.startswith("encoder."):
                name = f"{masked.base_model_prefix}.{name.removeprefix('encoder.')}"
            if parameter.grad is not None:
                self.gradients[name] = parameter.grad


def reference(
    folder: Path, pool: str, step: Step, loss: Callable[[SparseEncoder], Loss]
) -> tuple[float, dict[str, Tensor]]:
    """Return the loss of the same batch and its gradients, as sentence-transformers computes them."""
    transformer = Transformer(str(folder), transformer_task="fill-mask")
    model = SparseEncoder(modules=[transformer, POOLERS[pool]], device="cpu")
    model.train()
    lines = [LINES[int(name.rpartition(" ")[2]) - 1] for name in step.batch.examples]
    texts = [
        [line["query"] for line in lines],
        *([line[k][0] for line in lines] for k in ("pos", "neg")),
    ]
    whole = losses.SpladeLoss(
        model, loss(model), WEIGHTS["doc_flops"], query_regularizer_weight=WEIGHTS["query_flops"]
    )
    labels = torch.tensor([[line["pos_scores"][0], line["neg_scores"][0]] for line in lines])
    made = whole([model.preprocess(column) for column in texts], labels)
    total = torch.stack([*made.values()]).sum()
    total.backward()
    named = transformer.auto_model.named_parameters()
    return total.item(), {name: p.grad for name, p in named if p.grad is not None}


@pytest.mark.parametrize("name", ["bert", "distilbert", "modernbert"])
@pytest.mark.parametrize(
    ("loss", "theirs"),
    [
        ("infonce", losses.SparseMultipleNegativesRankingLoss),
        ("margin-mse", losses.SparseMarginMSELoss),
    ],
)
def test_loss_and_gradients_equal_those_of_sentence_transformers(
    pairs: Path, steady: Models, name: str, loss: str, theirs: Callable[[SparseEncoder], Loss]
) -> None:
    folder = steady(name)
    step = Step(planned(pairs, folder, {**WEIGHTS, "loss": loss}))
    compare(step, reference(folder, "splade", step, theirs))


class KLAndRanking(torch.nn.Module):
    """The losses of `--loss kl` in sentence-transformers: SparseDistillKLDivLoss and the ranking loss.

    lmk divides only the scores of the student by the temperature, and does not multiply the loss by its
    square. Its cross-entropy is the divergence plus the entropy of the teacher, which has no gradient.
    """

    def __init__(self, model: SparseEncoder, temperature: float) -> None:
        super().__init__()
        self.square = temperature**2
        self.divergence = losses.SparseDistillKLDivLoss(
            model, student_temperature=temperature, teacher_temperature=1.0
        )
        self.ranking = losses.SparseMultipleNegativesRankingLoss(model, scale=1 / temperature)

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor) -> Tensor:
        divergence = self.divergence.compute_loss_from_embeddings(embeddings, labels) / self.square
        ranking = self.ranking.compute_loss_from_embeddings(embeddings, labels)
        return (
            divergence + ranking + torch.distributions.Categorical(logits=labels).entropy().mean()
        )


@pytest.mark.parametrize("name", ["bert", "distilbert", "modernbert"])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_distillation_equals_that_of_sentence_transformers(
    pairs: Path, steady: Models, name: str, temperature: float
) -> None:
    folder = steady(name)
    settings = {**WEIGHTS, "loss": "kl", "temperature": temperature}
    step = Step(planned(pairs, folder, settings))
    compare(step, reference(folder, "splade", step, lambda model: KLAndRanking(model, temperature)))
    if temperature == 1:
        assert Step(planned(pairs, folder, {**settings, "temperature": 0.0})).loss == step.loss


@pytest.mark.parametrize("pool", ["splade-sum", "splade-log"])
def test_gradients_of_other_poolers(pairs: Path, steady: Models, pool: str) -> None:
    folder = steady("bert")
    step = Step(planned(pairs, folder, WEIGHTS, pool=pool))
    compare(step, reference(folder, pool, step, losses.SparseMultipleNegativesRankingLoss))


def compare(step: Step, wanted: tuple[float, dict[str, Tensor]]) -> None:
    """Compare relative to the size of the loss and of all gradients: sums of weights are large."""
    assert 0.1 < step.parts["doc_terms"] / tiny.VOCABULARY < 0.98
    assert step.loss == pytest.approx(wanted[0], rel=1e-5)
    assert step.gradients.keys() == wanted[1].keys()
    largest = max(float(gradient.abs().max()) for gradient in wanted[1].values())
    for name, gradient in wanted[1].items():
        torch.testing.assert_close(
            step.gradients[name], gradient, rtol=1e-5, atol=1e-5 * max(1.0, largest)
        )


@pytest.mark.parametrize("pool", POOLERS)
@pytest.mark.parametrize("logits", [1, 5 * tiny.VOCABULARY])
@pytest.mark.parametrize("tokens", [0, 60])
def test_blocks_and_packs_change_nothing(
    pairs: Path,
    steady: Models,
    monkeypatch: pytest.MonkeyPatch,
    pool: str,
    logits: int,
    tokens: int,
) -> None:
    folder = steady("bert")
    whole = Step(planned(pairs, folder, WEIGHTS, pool=pool))
    monkeypatch.setitem(language_head.LOGITS, "cpu", logits)
    parts = Step(planned(pairs, folder, {**WEIGHTS, "batch_tokens": tokens}, pool=pool))
    compare(parts, (whole.loss, whole.gradients))


def encoded(folder: Path, texts: list[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
    resolved = resolve(RecipeOptions(model=str(folder)))
    settings = EncodeSettings(dtype="fp32", device="cpu")
    encoder = open_encoder(resolved.recipe.doc, resolved.folder, settings)
    return encoder.queries([Query(str(i), text) for i, text in enumerate(texts)]).matrix()


@pytest.mark.parametrize("name", ["bert", "distilbert", "roberta", "modernbert"])
@pytest.mark.parametrize("pool", ["splade", "splade-log"])
def test_a_folder_that_lmk_and_sentence_transformers_open_alike(
    pairs: Path, masked_model: Models, tmp_path: Path, name: str, pool: str
) -> None:
    plan = planned(pairs, masked_model(name), pool=pool, query_max_length=20)
    folder = trained(plan, tmp_path / "model")
    recipe = resolve(RecipeOptions(model=str(folder))).recipe
    assert (recipe.doc.pool, recipe.doc.similarity, recipe.doc.max_length) == (pool, "dot", 40)
    assert recipe.query.max_length == 20
    texts = [tiny.sentence(i, 3 + 2 * i) for i in range(5)]
    ours = encoded(folder, texts)
    model = SparseEncoder(str(folder), device="cpu")
    theirs = model.encode(texts, convert_to_sparse_tensor=False).double().numpy()
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-5)  # logits up to 6, in fp32
    before = encoded_by(masked_model(name), pool, texts)
    assert np.abs(ours - before).max() > 0.01
    assert f'SparseEncoder("{folder.name}")' in (folder / "README.md").read_text()
    with pytest.raises(UsageError, match=re.escape(f"SparseEncoder({str(folder)!r})")):
        export_sparse_model(folder, "auto", tmp_path)
    again = trained(planned(pairs, folder, pool="auto"), tmp_path / "again")
    assert np.abs(encoded(again, texts) - ours).max() > 0.01


def export_sparse_model(folder: Path, pool: str, tmp_path: Path) -> None:
    Export(model=str(folder), pool=pool, to="sentence-transformers", output=tmp_path / "x").run()


def test_export_of_a_plain_folder_names_the_class_that_opens_it(
    masked_model: Models, tmp_path: Path
) -> None:
    folder, texts = masked_model("bert"), [tiny.sentence(i, 3 + 2 * i) for i in range(5)]
    with pytest.raises(UsageError, match=re.escape(f"SparseEncoder({str(folder)!r})")):
        export_sparse_model(folder, "splade", tmp_path)
    model = SparseEncoder(str(folder), device="cpu")
    theirs = model.encode(texts, convert_to_sparse_tensor=False).double().numpy()
    np.testing.assert_allclose(encoded_by(folder, "splade", texts), theirs, rtol=0, atol=1e-5)
    with pytest.raises(UsageError, match="lmk train --pool splade-log"):  # it would open as splade
        export_sparse_model(folder, "splade-log", tmp_path)


def encoded_by(folder: Path, pool: str, texts: list[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
    resolved = resolve(RecipeOptions(model=str(folder), pool=pool))
    settings = EncodeSettings(dtype="fp32", device="cpu")
    encoder = open_encoder(resolved.recipe.doc, resolved.folder, settings)
    return encoder.queries([Query(str(i), text) for i, text in enumerate(texts)]).matrix()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_stopped_training_ends_where_an_undisturbed_one_does(
    pairs: Path, masked_model: Models, tmp_path: Path, dtype: str
) -> None:
    settings = {"dtype": dtype, "batch_tokens": 100, "save_every": 1, "sparsity_warmup": 3.0}
    plan = planned(pairs, masked_model("bert"), settings)
    whole, parts = trained(plan, tmp_path / "whole"), tmp_path / "parts"
    stops = iter([True])
    with pytest.raises(Stopped):
        execution.run(plan, parts, Report(stopping=lambda: next(stops, False)))
    trained(plan, parts)
    one, other = ((folder / "model.safetensors").read_bytes() for folder in (whole, parts))
    assert one == other
    weights = load_file(whole / "model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.float32}


def test_lora_trains_an_adapter_that_opens(
    pairs: Path, masked_model: Models, tmp_path: Path
) -> None:
    settings = {"lora": 4, "train": "modules", "lr": 0.02}
    folder = trained(planned(pairs, masked_model("bert"), settings), tmp_path / "model")
    texts = [tiny.sentence(i, 9) for i in range(3)]
    whole, merged = encoded(folder, texts), encoded(folder / "adapter", texts)
    np.testing.assert_allclose(merged, whole, atol=0.02)  # the adapter is in half precision
    assert np.abs(encoded_by(masked_model("bert"), "splade", texts) - whole).max() > 0.1


@pytest.mark.parametrize("share", [0.5, 10.0, 0.0])
def test_weights_rise_as_in_sentence_transformers(share: float, masked_model: Models) -> None:
    settings = TrainSettings(**{**FAST, "steps": 20}, doc_flops=2.0, sparsity_warmup=share)
    transformer = Transformer(str(masked_model("bert")), transformer_task="fill-mask")
    model = SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu")
    loss = losses.SpladeLoss(model, losses.SparseMarginMSELoss(model), 2.0, 1.0)
    theirs = SpladeRegularizerWeightSchedulerCallback(loss, warmup_ratio=0.5)
    theirs.warmup_steps = {0.5: 10, 10.0: 10, 0.0: 0}[share]
    for step in range(20):
        wanted = theirs._calculate_weight_value(step, 2.0)
        assert 2.0 * Sparsity.of(settings).share(step) == pytest.approx(wanted)


@pytest.mark.parametrize("pool", POOLERS)
def test_windows_of_a_document_are_pooled_as_in_encoding(
    pairs: Path, steady: Models, pool: str
) -> None:
    """A document in windows has the vector that lmk encode makes in windows."""
    plan = training_job.plan(
        [f"{pairs},window=12"],
        RecipeOptions(model=str(steady("bert")), pool=pool),
        TrainSettings(**{**FAST, **WEIGHTS}),
    )
    task = plan.task(Start())
    batch = next(iter(task.feed))
    assert len(batch.passages.inputs) > len(batch.passages.counts)
    seen: list[Tensor] = []

    class Seeing:
        needs: frozenset[Any] = frozenset()

        def __call__(self, queries: Any, passages: Any, facts: Any) -> Any:
            seen.append(passages.vectors.detach())
            return plan.objective(queries, passages, facts)

    step: Any = task.step
    step.objective = Seeing()
    step(task.module, batch)
    resolved = resolve(RecipeOptions(model=str(steady("bert")), pool=pool, window=Window("12")))
    settings = EncodeSettings(dtype="fp32", device="cpu")
    encoder = open_encoder(resolved.recipe.doc, resolved.folder, settings)
    numbers = [int(name.rpartition(" ")[2]) - 1 for name in batch.examples]
    texts = [LINES[n][side][0] for n in numbers for side in ("pos", "neg")]
    wanted = encoder.queries([Query(str(i), text) for i, text in enumerate(texts)]).matrix()
    np.testing.assert_allclose(seen[0].numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "options", "words"),
    [
        ({"doc_flops": 0.1}, {"pool": "mean"}, "--doc-flops .*no effect.*--pool mean.*--pool splade"),
        ({"dims": "8"}, {}, "--dims .*dense.*--pool splade"),
        ({"teacher": "SELF"}, {}, "--teacher .*dense.*--pool splade"),
        ({"teacher": "SELF"}, {"pool": "mean"}, "--teacher .*SELF .*sparse.*dense"),
        ({}, {"unit": "token"}, "--unit token"),
        ({}, {"window": Window("16")}, "--window 16 .*declared.*lmk encode"),
    ],
)  # fmt: skip
def test_flags_without_an_effect_are_refused(
    pairs: Path,
    masked_model: Models,
    tmp_path: Path,
    settings: dict[str, Any],
    options: dict[str, Any],
    words: str,
) -> None:
    model = SparseEncoder(
        modules=[
            Transformer(str(masked_model("bert")), transformer_task="fill-mask"),
            POOLERS["splade"],
        ]
    )
    model.save_pretrained(str(tmp_path / "SELF"))
    if "teacher" in settings:
        settings = {"teacher": str(tmp_path / "SELF")}
    with pytest.raises(UsageError, match=words):
        planned(pairs, masked_model("bert"), settings, **options)


def test_a_number_of_weights_out_of_range_is_refused() -> None:
    with pytest.raises(UsageError, match="--doc-flops inf"):
        TrainSettings(doc_flops=float("inf"))


def test_models_without_a_language_head_are_refused(pairs: Path, tiny_model: Models) -> None:
    for name in ("bert", "qwen2"):
        with pytest.raises(UsageError, match="no masked-language-model head"):
            planned(pairs, tiny_model(name))


def test_a_model_that_loses_all_terms_stops(
    pairs: Path, masked_model: Models, tmp_path: Path
) -> None:
    settings = {"doc_l1": 100.0, "sparsity_warmup": 0.0, "lr": 0.5, "steps": 30, "save_every": 1}
    settings |= {"max_grad_norm": 0.0}
    with pytest.raises(DataError, match=r"(document|query) of step \d+ .*lower --"):
        trained(planned(pairs, masked_model("bert"), settings), tmp_path / "model")
    assert not (tmp_path / "model" / "model.safetensors").exists()


def test_weights_that_are_not_finite_stop(
    pairs: Path, masked_model: Models, tmp_path: Path
) -> None:
    base = shutil.copytree(masked_model("bert"), tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    weights["cls.predictions.transform.dense.weight"][0, 0] = torch.nan
    save_file(weights, base / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match="step 0 is nan"):
        trained(planned(pairs, base), tmp_path / "model")


@pytest.mark.slow
def test_two_processes_learn_what_one_does(pairs: Path, steady: Models, tmp_path: Path) -> None:
    words = [
        *("train", str(pairs), "-m", str(steady("modernbert")), "--pool", "splade"),
        *("--steps", "4", "--batch-size", "7", "--lr", "1e-3", "--dtype", "fp32"),
        *("--doc-flops", "0.3", "--sparsity-warmup", "0", "--device", "cpu", "--log-every", "1"),
    ]
    check_two_processes(words, tmp_path, 1e-3)  # the largest logit can move to another position
