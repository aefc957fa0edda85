"""`lmk encode --workers`: other processes tokenize, and nothing else changes."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmkcli.encoding import token_stream
from lmkcli.vectors.stored import Vectors
from tests.conftest import Lmk

Models = Callable[[str], Path]
WORDS = ("--gran", 8, "--dtype", "fp32", "--batch-tokens", 128, "--device", "cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, part_bytes: Callable[[int], None]) -> None:
    """Several batches and parts of a small collection."""
    monkeypatch.setattr(token_stream, "WORKER_CHARACTERS", 400)
    part_bytes(3000)


def stored(folder: Path) -> tuple[list[str], Any, Any]:
    vectors = Vectors(folder)
    rows = np.arange(vectors.rows)
    return vectors.ids(rows), vectors.at(rows).vectors, vectors.counts()


@pytest.mark.parametrize("unit", ["doc", "chunk"])
def test_the_vectors_and_counts_are_the_same(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path, unit: str
) -> None:
    folders = [tmp_path / "alone", tmp_path / "together"]
    for folder, workers in zip(folders, (0, 3), strict=True):
        given = (*WORDS, "--pool", "lmk", "--unit", unit, "--workers", workers)
        lmk("encode", beir, "-m", tiny_model("bert"), *given, "-o", folder)
    (ids, vectors, counts), (other_ids, others, other_counts) = map(stored, folders)
    assert ids == other_ids
    np.testing.assert_array_equal(vectors, others)
    assert counts == other_counts


def test_a_killed_worker_loses_nothing(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def words(folder: Path) -> tuple[object, ...]:
        given = (*WORDS, "--pool", "lmk", "--workers", 2, "-o", folder)
        return ("encode", beir, "-m", tiny_model("bert"), *given)

    whole = token_stream.in_order

    def one_is_killed(work: Any, items: Any, count: int) -> Iterator[Any]:
        made = whole(work, items, count)
        for number, result in enumerate(made):
            if number == 5:
                (process, *_) = children()
                os.kill(process, signal.SIGKILL)
            yield result

    with monkeypatch.context() as patched:
        patched.setattr(token_stream, "in_order", one_is_killed)
        done = lmk(*words(tmp_path / "v"), code=75)
    assert "signal 9" in done.err
    assert "Run the same command again" in done.err
    lmk(*words(tmp_path / "v"))
    lmk(*words(tmp_path / "undisturbed"))
    ids, vectors, _ = stored(tmp_path / "v")
    other_ids, others, _ = stored(tmp_path / "undisturbed")
    assert ids == other_ids
    np.testing.assert_allclose(vectors, others, atol=1e-6)


def children() -> list[int]:
    return [
        int(name)
        for task in Path("/proc/self/task").iterdir()
        for name in (task / "children").read_text().split()
        if b"lmkcli.system.workers" in Path(f"/proc/{name}/cmdline").read_bytes()
    ]


def test_a_negative_number_is_refused(lmk: Lmk, tmp_path: Path) -> None:
    done = lmk("encode", "x", "-m", "m", "--workers", -1, "-o", tmp_path / "v", code=2)
    assert "--workers" in done.err
