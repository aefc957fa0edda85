"""Losses on CUDA devices, rehearsed without a GPU: right devices, right dtypes, and no waiting.

Without a driver, the autograd engine of PyTorch's CUDA build cannot run, so only forward passes are
rehearsed.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from lmkcli import catalog
from lmkcli.encoding.encoder import open_forward
from lmkcli.encoding.resolution import resolve
from lmkcli.models.forward import ModelOptions
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.training.objectives.objective import BatchFacts, Embedded, Objective
from lmkcli.training.pretrain.pretext import HeadOptions, Pretraining
from tests.gpu.rehearsal import CUDA, rehearsed
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
