"""Fixtures that many tests share. Nothing here reaches the network."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of specs, parity numbers and collections beside the project; skips without it."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("../shared (parity numbers and collections) is not beside the project")
    return folder
