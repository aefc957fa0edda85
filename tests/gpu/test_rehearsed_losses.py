"""Losses on CUDA devices, rehearsed without a GPU: right devices, right dtypes, and no waiting.

Without a driver, the autograd engine of PyTorch's CUDA build cannot run, so only forward passes are
rehearsed.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lmkcli import catalog
from lmkcli.encoding.encoder import open_forward
from lmkcli.encoding.resolution import resolve
from lmkcli.models.forward import ModelOptions
from lmkcli.pooling.placement import Input
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.training import training_job
from lmkcli.training.loop.execution import Start
from lmkcli.training.objectives.objective import BatchFacts, Embedded, Loss, Objective
from lmkcli.training.pretrain.pretext import HeadOptions, Pretraining
from lmkcli.training.settings import TrainSettings
from lmkcli.training.step.contrastive import ContrastiveStep
from lmkcli.training.step.gradients import LossOf
from lmkcli.training.step.sparsity import Sparsity
from tests import tiny
from tests.gpu.rehearsal import CUDA, rehearsed, rehearsed_forward
from tests.models.test_forward import tite_folder
from tests.training.pretrain.test_pretexts import texts_of

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
@pytest.mark.parametrize("name", catalog.OBJECTIVES)
def test_objectives(name: str, late: bool, dtype: torch.dtype) -> None:
    if late and name in ("opl", "prediction"):
        pytest.skip("needs one vector per text")
    objective: Objective = catalog.load(catalog.OBJECTIVES, name, "objective")()
    with rehearsed(nn.Module()):
        facts = FACTS.to(CUDA)
        loss = objective(vectors(3, late, dtype), vectors(5, late, dtype), facts)
        assert loss.total.device == CUDA
        assert loss.total.dtype == torch.float32
        assert all(part.device == CUDA for part in loss.parts.values())


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("loss", ["infonce", "kl", "margin-mse"])
@pytest.mark.parametrize(
    ("pool", "source"), [("splade", ""), ("splade", ",window=12"), ("splade-sum", ",window=12")]
)
def test_a_step_of_sparse_training(
    masked_model: Models, tmp_path: Path, pool: str, source: str, loss: str, dtype: str
) -> None:
    """From the inputs to the loss with FLOPS. Only the backward pass is missing."""
    examples = tmp_path / "pairs.jsonl"
    texts = [tiny.sentence(i, 3 + 4 * i) for i in range(6)]
    lines = [
        {
            "query": f"{text} ?",
            "pos": [text],
            "neg": ["bread"],
            "pos_scores": [2],
            "neg_scores": [1],
        }
        for text in texts
    ]
    examples.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = TrainSettings(
        steps=2, batch_size=4, loss=loss, dtype=dtype, device="cpu", doc_flops=0.3, query_l1=0.1
    )
    plan = training_job.plan(
        [f"{examples}{source}"], RecipeOptions(model=str(masked_model("bert")), pool=pool), settings
    )
    feed, resolved = plan.feed(Start()), plan.resolved
    options = ModelOptions(dtype, "cpu", trainable=True)
    forward = open_forward(resolved.recipe.doc, resolved.folder, options)

    def on_device(module: Any, inputs: list[Input], loss_of: LossOf) -> Loss:
        with rehearsed_forward(module):
            return loss_of(module(inputs))

    gradients: Any = on_device
    step = ContrastiveStep(
        gradients, plan.objective, feed.place.sides[0], sparsity=Sparsity.of(plan.settings)
    )
    made = step(forward, next(iter(feed)))
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
    heads = catalog.load(catalog.PRETEXTS, name, "objective")(model, HeadOptions(reach=24))
    module = Pretraining(model, heads).to(next(model.module.parameters()).dtype)
    model.device = CUDA
    with rehearsed(module):
        losses = module(texts_of("cls" if tite else "lmk"))
        assert losses.device == CUDA
        assert losses.dtype == torch.float32
        assert len(losses) == len(heads.weights)
