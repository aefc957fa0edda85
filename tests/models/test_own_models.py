"""The models of the package: what travels with their weights."""

from pathlib import Path

import pytest
from huggingface_hub import ModelCard

import lmkcli
from lmkcli.models.lookup import LMK_MINILM, MEAN_MINILM

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = Path(lmkcli.__file__).parent / "models"


@pytest.mark.parametrize("name", [MEAN_MINILM, LMK_MINILM])
def test_weights_travel_with_their_licence_and_sources(name: str) -> None:
    folder = FOLDERS / name
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    card = ModelCard.load(folder / "README.md")
    assert card.data["license"] == "apache-2.0"
    assert card.data["base_model"] == "sentence-transformers/all-MiniLM-L6-v2"
    page = (ROOT / "docs" / "lmk-minilm.md").read_text().split("## Training data\n")[1]
    rows = [line for line in page.split("\n##")[0].splitlines() if line.startswith("| ")]
    assert len(rows) > 5
    assert [line for line in card.text.splitlines() if line.startswith("| ")] == rows
