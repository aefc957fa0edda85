"""Errors of a disk in the writes of every library: a message, exit code 3, and the same command continues.

A small library in C makes `write` fail, because torch, safetensors and FAISS do not write through Python.
"""

import errno
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmkcli.cli import exits
from lmkcli.system import disk
from tests import levels, tiny

Once = Callable[[str, Callable[[Path], object]], Path]
NUMBERS = ("EIO", "EDQUOT", "ENOSPC", "EROFS", "EACCES", "EFBIG", "ETIMEDOUT")
VERBS = ("train", "pretrain", "encode", "tokenize", "hnsw", "bm25", "search", "export", "numpy")
FEW = ("--steps", 4, "--save-every", 2, "--batch-size", 8, "--dtype", "fp32")
SOURCE = Path(__file__).parents[1] / "fixtures" / "failing_writes.c"


@pytest.fixture(scope="session")
def failing(once: Once) -> Path:
    """The library that makes writes fail; skips the test without a compiler."""
    compiler = shutil.which("cc") or pytest.skip("a C compiler is missing")

    def build(path: Path) -> None:
        line = [compiler, "-shared", "-fPIC", "-O1", "-o", path, SOURCE, "-ldl"]
        subprocess.run(line, check=True, capture_output=True)

    return once("failing_writes.so", build)


def lmk(*words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-P", "-m", "lmkcli.cli.main", *map(str, words)]
    env = os.environ | variables
    return subprocess.run(line, env=env, text=True, capture_output=True, timeout=600)


@pytest.fixture
def commands(
    tiny_model: Callable[[str], Path], beir: Path, tmp_path: Path, once: Once
) -> dict[str, list[Any]]:
    model, out = tiny_model("bert"), tmp_path / "disk" / "out"
    out.parent.mkdir()
    pairs = tmp_path / "pairs.jsonl"
    lines = [{"query": tiny.sentence(i, 4), "positive": tiny.sentence(i, 20)} for i in range(20)]
    tiny.write_jsonl(pairs, lines)
    recipe = ("-m", model, "--pool", "mean", "--dtype", "fp32")
    vectors = once("vectors for disk errors", lambda path: lmk("encode", beir, *recipe, "-o", path))
    return {
        "train": ["train", pairs, "-m", model, *FEW, "-o", out],
        "pretrain": ["pretrain", beir, "-m", model, *FEW, "-o", out],
        "encode": ["encode", beir, *recipe, "-o", out],
        "tokenize": ["tokenize", beir, "-m", model, "-o", out],
        "hnsw": ["index", vectors, "--kind", "hnsw", "-o", out],
        "bm25": ["index", beir, "--kind", "bm25", "-o", out],
        "search": ["search", vectors, beir, "-o", out.with_suffix(".trec")],
        "export": [
            "export",
            "--to",
            "sentence-transformers",
            "-m",
            model,
            "--pool",
            "mean",
            "-o",
            out,
        ],
        "numpy": ["export", vectors, "--to", "numpy", "-o", out],
    }


CASES = itertools.product(VERBS, NUMBERS, (0, 1, 3, 7, 15, 40))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "number", "after"), levels.sample("errors of a disk in all libraries", CASES, 3)
)
def test_an_error_of_the_disk_is_a_message_and_the_command_continues(
    commands: dict[str, list[Any]],
    failing: Path,
    tmp_path: Path,
    verb: str,
    number: str,
    after: int,
) -> None:
    variables = {
        "LD_PRELOAD": str(failing),
        "FAIL_BELOW": str(tmp_path / "disk"),
        "FAIL_ERRNO": str(getattr(errno, number)),
        "FAIL_AFTER": str(after),
    }
    failed = lmk(*commands[verb], **variables)
    assert failed.returncode in (0, 3), failed.stderr
    assert "Traceback" not in failed.stderr
    if failed.returncode and number in ("EIO", "EROFS", "EACCES"):
        assert "no space left" not in failed.stderr
        assert "quota is" not in failed.stderr
    if failed.returncode and number == "EDQUOT" and verb not in ("hnsw", "numpy"):
        assert "no space left" not in failed.stderr
    if "quota is exceeded (" in failed.stderr:  # the output is named, not the input
        assert f"({tmp_path / 'disk'}" in failed.stderr
    again = lmk(*commands[verb])
    assert again.returncode == 0, again.stderr


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "no space left"), (errno.EDQUOT, "quota"), (errno.EFBIG, "ulimit -f")],
)
def test_a_quota_is_not_called_a_full_disk(number: int, words: str) -> None:
    error = OSError(number, os.strerror(number), "/x")
    for each in (error, caused(RuntimeError("torch"), error), RuntimeError(os.strerror(number))):
        assert disk.is_full_disk(each)
        assert words in disk.reason(each)
        assert words in exits._file_error(each)


@pytest.mark.parametrize(
    "name",
    [
        "ETIMEDOUT",
        "ENOTCONN",
        "EREMOTEIO",
        "EUCLEAN",
        "ENOLCK",
        "EHOSTDOWN",
        "EKEYEXPIRED",
        "ENXIO",
    ],
)
def test_an_error_of_a_file_system_of_the_network_is_a_message(name: str) -> None:
    number = getattr(errno, name)
    assert exits._file_error(OSError(number, os.strerror(number))) == (
        f"a file: {os.strerror(number)}"
    )


def test_a_wrong_call_is_a_bug() -> None:
    for number in (errno.EBADF, errno.EINVAL):
        assert exits._file_error(OSError(number, os.strerror(number))) == ""
    assert exits._file_error(OSError("no number")) == ""


@pytest.mark.parametrize(
    "text",
    [
        "[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0",
        "PytorchStreamWriter failed writing file data/0: file write failed",
        "Error while serializing: I/O error: Input/output error (os error 5)",
        "Error: 'ret == (size)' failed: write error in /x: 0 != 1 (Input/output error)",
    ],
)
def test_errors_of_native_writers_are_recognised(text: str) -> None:
    assert disk.is_native_write_error(RuntimeError(text))
    assert "could not be written" in exits._file_error(RuntimeError(text))
    assert not disk.is_native_write_error(RuntimeError("size mismatch for linear.weight"))
