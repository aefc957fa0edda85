"""Steps of training on CUDA devices, rehearsed without a GPU: right devices and dtypes, and no waiting."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lmkcli import catalog
from lmkcli.encoding.encoder import open_forward
from lmkcli.encoding.resolution import resolve
from lmkcli.models.forward import ForwardPass, ModelOptions
from lmkcli.plugins.pretrain.pretext import HeadOptions, PretextStep, PretrainBatch, Pretraining
from lmkcli.pooling.placement import Input
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.training import training_job
from lmkcli.training.data.batches import TrainBatch
from lmkcli.training.loop.training_run import Start
from lmkcli.training.objectives.objective import BatchFacts, Embedded, Loss, Objective
from lmkcli.training.step.contrastive import ContrastiveStep
from lmkcli.training.step.gradients import Budget, LossOf
from lmkcli.training.step.optimizer import widen
from lmkcli.training.step.trainable import freeze_unused
from lmkcli.training.train_settings import TrainSettings
from tests import levels, tiny
from tests.gpu.rehearsal import CUDA, rehearsed, rehearsed_forward
from tests.models.test_forward import tite_folder
from tests.models.test_late import pylate as pylate  # a fixture
from tests.plugins.pretrain.test_pretexts import texts_of

Models = Callable[[str], Path]
pytestmark = pytest.mark.skipif(
    not torch.backends.cuda.is_built(), reason="needs PyTorch's CUDA build; a GPU is not needed"
)
FACTS = BatchFacts(
    groups=torch.tensor([[0, 1], [2, -1], [3, 4]]),
    teacher=torch.tensor([[1.0, 0.5], [0.8, float("nan")], [0.3, 0.2]]),
    excluded=torch.zeros(3, 5, dtype=torch.bool),
    sequence=torch.tensor([0, 0, 1, 1, 2]),
    query_targets=torch.ones(3, 8),
    passage_targets=torch.ones(5, 8),
)


def vectors(texts: int, late: bool, dtype: torch.dtype) -> Embedded:
    """Vectors on the device; with `late`, three per text."""
    rows = texts * (3 if late else 1)
    counts = torch.full((texts,), 3).to(CUDA) if late else None
    return Embedded(torch.ones(rows, 8, dtype=dtype).to(CUDA), counts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("late", [False, True], ids=["single", "late"])
@pytest.mark.parametrize("name", catalog.LOSSES)
def test_objectives(name: str, late: bool, dtype: torch.dtype) -> None:
    if late and name in ("opl", "prediction"):
        pytest.skip("needs one vector per text")
    objective: Objective = catalog.LOSSES.load(name)()
    with rehearsed(nn.Module()):
        facts = FACTS.to(CUDA)
        loss = objective(vectors(3, late, dtype), vectors(5, late, dtype), facts)
        assert loss.total.device == CUDA
        assert loss.total.dtype == torch.float32
        assert all(part.device == CUDA for part in loss.parts.values())


def step_of(
    folder: Path, work: Path, pool: str, settings: TrainSettings, source: str = ""
) -> tuple[ContrastiveStep, ForwardPass, TrainBatch]:
    """The step of a training on the device, its model with float32 weights, and a batch with all facts."""
    examples = work / "pairs.jsonl"
    with open(examples, "w") as file:
        for number in range(6):
            text = tiny.sentence(number, 3 + 4 * number)
            pair = {"query": f"{text} ?", "pos": [text], "neg": ["bread"]}
            file.write(json.dumps({**pair, "pos_scores": [2], "neg_scores": [1]}) + "\n")
    pooling = {"lmk": {"pool": "lmk", "gran": "8"}, "late": {}}.get(pool, {"pool": pool})
    options = RecipeOptions(model=str(folder), **pooling)
    job = training_job.plan([f"{examples}{source}"], options, settings)
    task = job.task(Start())
    step, forward, batch = task.step, task.module, next(iter(task.feed))
    assert isinstance(step, ContrastiveStep)
    assert isinstance(forward, ForwardPass)
    width = forward.width
    widen(forward)
    queries, passages = len(batch.queries.counts), len(batch.passages.counts)
    facts = replace(
        batch.facts,
        sequence=torch.arange(passages) // 2,
        query_targets=torch.ones(queries, width),
        passage_targets=torch.ones(passages, width),
    )
    compute = step.gradients

    def on_device(module: Any, inputs: list[Input], loss_of: LossOf) -> Loss:
        with rehearsed_forward(module):
            loss = compute(module, inputs, loss_of)
            check_gradients(module)
        return loss

    gradients: Any = on_device
    return replace(step, gradients=gradients), forward, batch._replace(facts=facts)


def check_gradients(module: nn.Module) -> None:
    """Each trained weight has a float32 gradient on the device."""
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    assert trained
    for name, parameter in trained:
        gradient = parameter.grad
        assert gradient is not None, name
        assert (gradient.device, gradient.dtype) == (CUDA, torch.float32), name
        assert gradient.shape == parameter.shape, name


CASES = levels.pairs(
    loss=tuple(catalog.LOSSES),
    pool=("mean", "lmk", "late"),
    dtype=("fp32", "bf16"),
    lora=(0, 2),
    batch_tokens=(20, 4096),  # 20: gradient caching
)


@pytest.mark.parametrize(("loss", "pool", "dtype", "lora", "batch_tokens"), CASES)
def test_a_step_of_training(
    tiny_model: Models,
    pylate: Callable[..., Path],
    tmp_path: Path,
    loss: str,
    pool: str,
    dtype: str,
    lora: int,
    batch_tokens: int,
) -> None:
    late = pool == "late"
    if late and loss in ("opl", "prediction"):
        pytest.skip("needs one vector per text")
    settings = TrainSettings(
        steps=2, batch_size=4, dtype=dtype, device="cpu", lora=lora, batch_tokens=batch_tokens
    )
    folder = pylate() if late else tiny_model("bert")
    step, forward, batch = step_of(folder, tmp_path, pool, settings)
    objective: Objective = catalog.LOSSES.load(loss)()
    made = replace(step, objective=objective)(forward, batch)
    assert made.total.device == CUDA
    assert made.total.dtype == torch.float32
    assert all(part.device == CUDA for part in made.parts.values())


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("loss", ["infonce", "kl", "margin-mse"])
@pytest.mark.parametrize(
    ("pool", "source"), [("splade", ""), ("splade", ",window=12"), ("splade-sum", ",window=12")]
)
def test_a_step_of_sparse_training(
    masked_model: Models, tmp_path: Path, pool: str, source: str, loss: str, dtype: str
) -> None:
    settings = TrainSettings(
        steps=2, batch_size=4, loss=loss, dtype=dtype, device="cpu", doc_flops=0.3, query_l1=0.1
    )
    step, forward, batch = step_of(masked_model("bert"), tmp_path, pool, settings, source)
    made = step(forward, batch)
    assert made.total.device == CUDA
    assert {"sparsity", "doc_terms", "query_terms"} <= made.parts.keys()
    assert all(part.device == CUDA for part in made.parts.values())


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", catalog.PRETEXTS)
def test_objectives_of_pretraining(
    tiny_model: Models, tmp_path: Path, name: str, dtype: str
) -> None:
    tite = "tite" in name or name in ("bow", "mae")
    folder = tite_folder(tmp_path / "m") if tite else tiny_model("bert")
    resolved = resolve(RecipeOptions(model=str(folder)))
    options = ModelOptions(dtype, "cpu", trainable=True)
    model = open_forward(resolved.recipe.doc, resolved.folder, options).model
    heads = catalog.PRETEXTS.load(name)(model, HeadOptions(reach=24))
    module = Pretraining(model, heads).to(next(model.module.parameters()).dtype)
    texts = texts_of("cls" if tite else "lmk")
    freeze_unused(module, module(texts))
    widen(module)
    model.device = CUDA
    step = PretextStep(heads, Budget(model, 16))  # packs of one text
    with rehearsed(module, copies=1):  # the sums of the losses
        step(module, PretrainBatch(0, ["a"], texts))
        check_gradients(module)
