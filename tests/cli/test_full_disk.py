"""A full disk: a clear message, exit code 3, no incomplete output; with space, the same command continues."""

import errno
import itertools
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmkcli.store import parts
from lmkcli.store.part_writer import NpyAppender
from lmkcli.vectors.stored import Vectors
from tests import levels, tiny

Models = Callable[[str], Path]
Lmk = Callable[..., Any]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 kB. Skips the test if mounting is not allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
    try:
        subprocess.run(line, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


FEW = ("--steps", 6, "--save-every", 2, "--batch-size", 8, "--dtype", "fp32", "--log-every", 1)


TRAININGS = itertools.product(("train", "pretrain"), ("40k", "200k", "500k", "700k", "900k"))


@pytest.mark.parametrize(("verb", "size"), levels.sample("full disks of trainings", TRAININGS, 2))
def test_a_training_names_the_space_that_it_needs_and_continues_with_the_same_weights(
    lmk: Lmk, tiny_model: Models, beir: Path, disk: Path, tmp_path: Path, verb: str, size: str
) -> None:
    pairs = tmp_path / "pairs.jsonl"
    lines = [{"query": tiny.sentence(i, 4), "positive": tiny.sentence(i, 20)} for i in range(20)]
    tiny.write_jsonl(pairs, lines)
    source = beir if verb == "pretrain" else pairs
    words = [verb, source, "-m", tiny_model("bert"), *FEW]
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)
    full = lmk(*words, "-o", disk / "model", code=3)
    counts = (
        r"checkpoint-\d needs [\d.]+ [kM]B, and .* had [\d.]+ kB left; complete checkpoints were"
    )
    assert re.search(f"no space left on the device: {counts} kept", full.err)
    assert "Traceback" not in full.err
    assert not list(disk.rglob(".growing"))
    subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
    lmk(*words, "-o", disk / "model")
    lmk(*words, "-o", tmp_path / "whole")
    weights = [folder / "model.safetensors" for folder in (disk / "model", tmp_path / "whole")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.parametrize("verb", ["tokenize", "encode"])
def test_parts_that_were_whole_before_stay(
    lmk: Lmk,
    tiny_model: Models,
    beir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    part_bytes: Callable[[int], None],
    verb: str,
) -> None:
    """Simulate a full disk: the eleventh write fails."""
    part_bytes(1)
    monkeypatch.setattr("lmkcli.store.tokens.BATCH_CHARACTERS", 1000)
    append, calls, out = NpyAppender.append, [0], tmp_path / "out"

    def full(self: NpyAppender, array: Any) -> bytes:
        calls[0] += 1
        if calls[0] > 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        return append(self, array)

    words = [verb, beir, "-m", tiny_model("bert"), "-o", out]
    words += ["--batch-tokens", "2", "--dtype", "fp32"] if verb == "encode" else []
    with monkeypatch.context() as patch:
        patch.setattr(NpyAppender, "append", full)
        failed = lmk(*words, code=3)
    assert "no space left" in failed.err
    assert "run the same command again" in failed.err
    kept = parts.list_parts(out)
    assert kept
    assert {path.name for path in (out / "parts").iterdir()} == set(map(str, kept))
    lmk(*words)
    assert set(kept) <= set(parts.list_parts(out))
    if verb == "encode":
        assert Vectors(out).rows == 60
