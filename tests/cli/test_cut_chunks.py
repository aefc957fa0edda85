"""Chunks without a vector, because their document is cut, are counted: a note, --json, and lmk show."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmkcli.encoding.jobs import plan
from lmkcli.encoding.vector_updates import run_update
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import WHOLE
from lmkcli.vectors.stored import Vectors
from tests.conftest import Lmk

Models = Callable[[str], Path]
CHUNK = "rivers and bread and birds"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "c.jsonl"
    write(path, {"short": [CHUNK], "long": [CHUNK] * 9, "longer": [CHUNK] * 20})
    return path


def write(path: Path, docs: dict[str, list[str]]) -> None:
    rows = [{"_id": name, "chunks": chunks} for name, chunks in docs.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def words(model: Path, *more: Any) -> tuple[Any, ...]:
    pool = ("--pool", "mean", "--unit", "chunk", "--gran", "given")
    return ("-m", model, *pool, "--max-length", 24, *more)


def test_encode_counts_them(lmk: Lmk, corpus: Path, tiny_model: Models, tmp_path: Path) -> None:
    given = words(tiny_model("bert"), "-o", tmp_path / "v")
    done = lmk("encode", corpus, *given)
    made = Vectors(tmp_path / "v")
    vectors = [len(made.spans(row)) for row in range(3)]
    lost = 30 - sum(vectors)
    assert vectors[0] == 1
    assert lost > 15
    assert f"{lost} chunks of 30 have no vector and cannot be found" in done.err
    assert "--window 24" in done.err
    assert lmk("encode", corpus, *given, "--json").json["chunks_lost"] == lost
    assert lmk("show", tmp_path / "v", "--json").json["contents"]["chunks_lost"] == lost
    planned = lmk("encode", corpus, *words(tiny_model("bert")), "--dry-run", "--json").json
    assert planned["chunks without a vector"] == lost


@pytest.mark.parametrize("window", ["24", "chunk"])
def test_windows_lose_none(
    lmk: Lmk, corpus: Path, tiny_model: Models, tmp_path: Path, window: str
) -> None:
    given = [*words(tiny_model("bert"), "--window", window, "-o", tmp_path / "v")]
    done = lmk("encode", corpus, *given, "--json")
    assert done.json["vectors"] == 30
    assert "chunks_lost" not in done.json
    assert "no vector" not in done.err


def test_an_update_counts_those_of_the_current_documents(
    lmk: Lmk, corpus: Path, tiny_model: Models, tmp_path: Path
) -> None:
    options = RecipeOptions(
        model=str(tiny_model("bert")), pool="mean", unit="chunk", gran="given", max_length=24
    )
    folder = tmp_path / "v"
    run_update(plan(str(corpus), options, EncodeSettings(), WHOLE), folder)
    write(corpus, {"short": [CHUNK], "long": [CHUNK] * 9})
    run_update(plan(str(corpus), options, EncodeSettings(), WHOLE), folder)
    found = Vectors(folder)
    numbers = np.sort(list(found.numbers().values()))
    assert len(numbers) == 2
    lost = found.counts().chunks_lost
    assert lost == 10 - found.counts().vectors > 0
    assert (
        f"{lost} chunks of 10 have no vector"
        in lmk(
            "encode", corpus, *words(tiny_model("bert"), "-o", folder, "--if-exists", "update")
        ).err
    )
