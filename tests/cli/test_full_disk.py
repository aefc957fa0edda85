"""A full disk: a clear message, exit code 3, nothing half-made; with room, the same command goes on."""

import errno
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmkcli.store import part_writer, parts
from lmkcli.store.part_writer import NpyAppender
from lmkcli.store.vectors import Vectors
from tests import tiny

Models = Callable[[str], Path]
Lmk = Callable[..., Any]
DOCS = 2000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 kB; skips where none may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
    try:
        subprocess.run(line, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.collection(tmp_path_factory.mktemp("many") / "beir", DOCS, 20)


@pytest.mark.parametrize("name", ["tokenize", "encode", "hnsw", "bm25", "run.trec"])
def test_a_full_disk_is_said_and_with_room_the_same_command_completes(
    lmk: Lmk, tiny_model: Models, many: Path, disk: Path, tmp_path: Path, name: str
) -> None:
    bert, v, out = tiny_model("bert"), tmp_path / "v", disk / name
    encode = ["encode", many, "-m", bert, "--store-dtype", "fp32"]
    words = {
        "tokenize": ["tokenize", many, "-m", bert],
        "encode": encode,
        "hnsw": ["index", v],
        "bm25": ["index", many, "--kind", "bm25"],
        "run.trec": ["search", v, many, "-k", 1000],
    }[name]
    if v in words:
        lmk(*encode, "-o", v)
    failed = lmk(*words, "-o", out, code=3)
    assert "o space left on " in failed.err
    assert "Traceback" not in failed.err
    left = [path.name for path in disk.rglob(".*")]
    assert not left, "something half-made takes up the room"
    assert not out.is_file()
    lmk("search", out, "-q", "x", code=3)  # it is not taken for whole
    subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
    lmk(*words, "-o", out)
    assert lmk("show", out, "--json").json


@pytest.mark.parametrize("verb", ["tokenize", "encode"])
def test_parts_that_were_whole_before_stay(
    lmk: Lmk,
    tiny_model: Models,
    beir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
) -> None:
    """Without a file system of one's own: the eleventh write fails as on a full disk."""
    monkeypatch.setattr(part_writer, "PART_BYTES", 1)
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
    assert "no space left on the device" in failed.err
    assert "run the same command again" in failed.err
    kept = parts.list_parts(out)
    assert kept
    assert {path.name for path in (out / "parts").iterdir()} == set(map(str, kept))
    lmk(*words)
    assert set(kept) <= set(parts.list_parts(out))
    if verb == "encode":
        assert Vectors(out).rows == 60
