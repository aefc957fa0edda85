"""The recipes of papers in examples/: each trains for two steps with a tiny model and tiny data."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lmkcli.plugins.m2bert.config import M2BertConfig
from lmkcli.plugins.m2bert.model import M2BertModel
from tests import tiny

Lmk = Callable[..., Any]
Models = Callable[[str], Path]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RECIPES = [
    path for path in sorted(EXAMPLES.glob("*.toml")) if "train" in tomllib.loads(path.read_text())
]
SMALL = {"steps": 2, "batch-size": 4, "max-length": 64, "dtype": "fp32", "device": "cpu"}


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Queries with one positive and nine negatives, and a teacher's scores of all."""
    path = tmp_path_factory.mktemp("scored") / "train.jsonl"
    lines = [
        {
            "query": tiny.sentence(i, 4),
            "pos": [f"{tiny.sentence(i, 20)} number {i}"],
            "neg": [f"{tiny.sentence(i + j, 9)} other {i} {j}" for j in range(1, 10)],
            "pos_scores": [3.0],
            "neg_scores": [0.1 * j for j in range(1, 10)],
        }
        for i in range(20)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def chunked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of four chunks with a query for each."""
    path = tmp_path_factory.mktemp("chunked") / "train.jsonl"
    lines = []
    for i in range(20):
        chunks = [tiny.sentence(9 * i + n, 6) for n in range(4)]
        queries = [{"query": tiny.sentence(200 + 9 * i + n, 3), "chunk": n} for n in range(4)]
        lines.append(json.dumps({"id": f"d{i}", "chunks": chunks, "queries": queries}))
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def m2bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "m2bert"
    torch.manual_seed(0)
    config = M2BertConfig(
        vocab_size=tiny.VOCABULARY, hidden_size=tiny.WIDTH, intermediate_size=64, num_hidden_layers=2,
        max_position_embeddings=64, hyena_filter_order=16,
    )  # fmt: skip
    M2BertModel(config).save_pretrained(folder)
    tiny.wordpiece().save_pretrained(folder)
    return folder


def test_there_are_recipes() -> None:
    assert len(RECIPES) >= 5


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_runs_unchanged(
    lmk: Lmk, tiny_model: Models, scored: Path, chunked: Path, m2bert: Path, recipe: Path, tmp_path: Path
) -> None:  # fmt: skip
    """Only the model, the data and their sizes are replaced; all other settings are those of the recipe."""
    wanted = tomllib.loads(recipe.read_text())["train"]
    model = m2bert if "m2-bert" in wanted["model"] else tiny_model(_architecture(wanted))
    by_chunk = wanted.get("gran") == "given"
    source = str(chunked) if by_chunk else f"{scored},per-query=7,replace=1"
    sizes = SMALL | ({"max-length": tiny.POSITIONS + 32} if "extend" in wanted else {})
    small = [f"--{name}={value}" for name, value in sizes.items()]
    if "query-max-length" in wanted:
        small.append("--query-max-length=32")
    if "window" in wanted:
        small.append("--window=32")
    lmk("train", source, "--config", recipe, "-m", model, *small, "-o", tmp_path / "model")
    training = json.loads((tmp_path / "model" / "training.json").read_text())
    assert training["steps"] == 2
    kept = {name.replace("-", "_"): value for name, value in wanted.items() if name not in SMALL}
    given = {name: value for name, value in kept.items() if name in training["settings"]}
    assert given.keys() >= {"loss", "lr", "warmup"}
    assert {name: training["settings"][name] for name in given} == given
    if "gran" in wanted and wanted["pool"] == "lmk":
        assert training["granularities"] == wanted["gran"].split(",")


def _architecture(recipe: dict[str, Any]) -> str:
    """A model with a table of positions if the recipe extends it."""
    return "bert" if "extend" in recipe else "modernbert"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_its_command_names_it(recipe: Path) -> None:
    assert f"--config examples/{recipe.name}" in recipe.read_text()
