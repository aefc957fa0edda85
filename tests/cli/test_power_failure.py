"""After a command has ended, a power failure loses none of its output: everything was flushed to the disk."""

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import tiny
from tests.conftest import Lmk

OnDisk = Callable[[Path], bool]


def change(path: Path | int) -> tuple[int, int]:
    """Size and time of the last change of a file."""
    state = os.stat(path)
    return state.st_size, state.st_mtime_ns


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> OnDisk:
    """Says whether a file or folder was flushed as it is now, and also its entry in the folder above."""
    names: dict[int, set[str]] = {}  # of each folder that was flushed, by inode
    files: dict[int, tuple[int, int]] = {}

    def flush(number: int) -> None:
        state = os.fstat(number)
        if stat.S_ISDIR(state.st_mode):
            names[state.st_ino] = set(os.listdir(number))
        else:
            files[state.st_ino] = change(number)

    def check(path: Path) -> bool:
        named = path.name in names.get(path.parent.stat().st_ino, ())
        return named and (path.is_dir() or files.get(path.stat().st_ino) == change(path))

    monkeypatch.setattr(os, "fsync", flush)
    return check


def lost(path: Path, on_disk: OnDisk) -> list[str]:
    """What a power failure could lose of an output; lock files do not matter."""
    every = (path, *path.rglob("*"))
    return [
        str(each.relative_to(path.parent))
        for each in every
        if each.suffix != ".lock" and not on_disk(each)
    ]


def flush(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    os.fsync(number)
    os.close(number)


def test_only_flushed_content_under_a_flushed_name_is_on_disk(
    tmp_path: Path, on_disk: OnDisk
) -> None:
    """The fixture itself."""
    path, other = tmp_path / "a" / "file", tmp_path / "a" / "other"
    path.parent.mkdir()
    path.write_text("one")
    flush(path.parent)
    assert not on_disk(path)
    flush(path)
    assert on_disk(path)
    path.rename(other)
    assert not on_disk(other)
    flush(path.parent)
    assert on_disk(other)
    assert lost(path.parent, on_disk) == ["a"]
    other.write_text("longer")
    assert lost(path.parent, on_disk) == ["a", "a/other"]


Words = Callable[[Path, Path, Path], list[object]]
OUTPUTS: dict[str, Words] = {
    "tokens": lambda beir, model, vectors: ["tokenize", beir, "-m", model],
    "vectors": lambda beir, model, vectors: ["encode", beir, "-m", model],
    "a shard": lambda beir, model, vectors: ["encode", beir, "-m", model, "--shard", "0/2"],
    "bm25": lambda beir, model, vectors: ["index", beir, "--kind", "bm25"],
    "faiss": lambda beir, model, vectors: ["index", vectors, "--kind", "IVF1,Flat"],
    "run": lambda beir, model, vectors: ["search", vectors, beir],
    "numpy": lambda beir, model, vectors: ["export", vectors, "--to", "numpy"],
    "model": lambda beir, model, vectors: [
        "export", "-m", model, "--pool", "mean", "--to", "sentence-transformers"
    ],
    "training": lambda beir, model, vectors: [
        "train", pairs(vectors.with_name("pairs.jsonl")), "-m", model, "--steps", 3,
        "--save-every", 2, "--batch-size", 2,
    ],
    "pre-training": lambda beir, model, vectors: [
        "pretrain", beir, "-m", model, "--steps", 2, "--batch-size", 2
    ],
}  # fmt: skip


def pairs(path: Path) -> Path:
    lines = [{"query": tiny.sentence(i, 4), "positive": tiny.sentence(i, 9)} for i in range(8)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def own(beir: Path, tmp_path: Path) -> Path:
    """A copy of the collection, which a test may change."""
    return Path(shutil.copytree(beir, tmp_path / "beir"))


@pytest.fixture
def vectors(
    lmk: Lmk, tiny_model: Callable[[str], Path], own: Path, tmp_path: Path, on_disk: OnDisk
) -> Path:
    lmk("encode", own, "-m", tiny_model("bert"), "-o", tmp_path / "vectors")
    return tmp_path / "vectors"


@pytest.mark.parametrize("kind", OUTPUTS)
def test_a_power_failure_loses_no_finished_output(
    lmk: Lmk,
    tiny_model: Callable[[str], Path],
    own: Path,
    vectors: Path,
    on_disk: OnDisk,
    kind: str,
) -> None:
    output = vectors.with_name("new") / "folders" / "output"
    lmk(*OUTPUTS[kind](own, tiny_model("bert"), vectors), "-o", output)
    assert lost(vectors.with_name("new"), on_disk) == []


def test_nor_files_in_folders_of_the_user(
    lmk: Lmk, tiny_model: Callable[[str], Path], own: Path, vectors: Path, on_disk: OnDisk
) -> None:
    """An output that is replaced keeps the user's files, so that new ones are moved to them one by one."""
    output = vectors.with_name("new")
    words = (*OUTPUTS["model"](own, tiny_model("bert"), vectors), "-o", output)
    lmk(*words)
    for path in (output / "notes.txt", output / "1_Pooling" / "notes.txt"):
        path.write_text("mine")
        flush(path)
    lmk(*words, "--if-exists", "overwrite")
    assert (output / "1_Pooling" / "notes.txt").is_file()
    assert lost(output, on_disk) == []


def test_nor_an_update(lmk: Lmk, own: Path, vectors: Path, on_disk: OnDisk) -> None:
    index = vectors.with_name("index")
    lmk("index", vectors, "--kind", "Flat", "-o", index)
    corpus = own / "corpus.jsonl"
    lines = corpus.read_text().splitlines(keepends=True)
    corpus.write_text("".join([lines[0].replace('"text": "', '"text": "other '), *lines[2:]]))
    lmk("update", own, vectors, index)
    assert lost(vectors, on_disk) == []
    assert lost(index, on_disk) == []
    lmk("compact", vectors, "--keep-hours", 0)
    assert lost(vectors, on_disk) == []


def test_nor_a_line_of_a_log(lmk: Lmk, own: Path, vectors: Path, on_disk: OnDisk) -> None:
    run, log = vectors.with_name("run.trec"), vectors.with_name("new") / "scores.jsonl"
    lmk("search", vectors, own, "-o", run)
    for _ in range(2):
        lmk("eval", run, "--qrels", own, "--log", log)
        assert lost(log.parent, on_disk) == []


def test_a_file_system_that_cannot_flush_folders(
    lmk: Lmk, vectors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(number: int) -> None:
        if stat.S_ISDIR(os.fstat(number).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", refuse)
    lmk("index", vectors, "--kind", "Flat", "-o", vectors.with_name("new") / "index")
