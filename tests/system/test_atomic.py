"""Atomic files and folders: after a failure the old content remains, complete. Locks."""

import errno
import fcntl
import os
import subprocess
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from lmkcli.errors import DataError, Stopped
from lmkcli.system import atomic
from lmkcli.system.atomic import (
    LOCK_FILE,
    atomic_file,
    atomic_folder,
    exclusive,
    in_use,
    locked,
    make_folder,
    temporary_name,
    unused,
)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def fail() -> None:
        with atomic_file(path) as temporary:
            temporary.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text() == "old"
    with atomic_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def fail() -> None:
        with atomic_folder(path) as temporary:
            (temporary / "one").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert os.listdir(tmp_path) == []
    for content in ("first", "second"):
        with atomic_folder(path) as temporary:
            (temporary / "one").write_text(content)
        assert (path / "one").read_text() == content
        assert os.listdir(tmp_path) == ["a"]


def test_a_folder_with_files_of_the_user_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    for folder in (path, path / "below"):
        folder.mkdir()
        (folder / "thesis.tex").write_text("mine")
    moved = []
    replace = os.replace
    monkeypatch.setattr(
        os, "replace", lambda *paths: (moved.append(Path(paths[1]).name), replace(*paths))
    )
    with atomic_folder(path, last="manifest.json") as temporary:
        (temporary / "below").mkdir()
        for name in ("manifest.json", "one", "below/two"):
            (temporary / name).write_text("new")
    assert moved[-1] == "manifest.json"
    files = {str(file.relative_to(path)): file.read_text() for file in path.rglob("*.*")}
    assert files == {"thesis.tex": "mine", "below/thesis.tex": "mine", "manifest.json": "new"}
    assert (path / "below/two").read_text() == "new"
    assert os.listdir(tmp_path) == ["a"]


def test_the_next_process_removes_what_killed_processes_left(tmp_path: Path) -> None:
    path, day = tmp_path / "a.json", time.time() - atomic.ABANDONED_SECONDS - 60
    with subprocess.Popen(["true"]) as killed:
        killed.wait()
    mine = temporary_name(path)
    dead = mine.with_name(mine.name.replace(f".{os.getpid()}.", f".{killed.pid}."))
    folder = dead.with_name(f"{dead.name}1")
    parent = mine.with_name(mine.name.replace(f".{os.getpid()}.", f".{os.getppid()}."))
    elsewhere = tmp_path / ".a.json.1.2.3"
    old, older = tmp_path / ".a.json.1.2.4", tmp_path / ".a.json.2.4"
    others = [
        tmp_path / name for name in (".b.json.1.2.3", ".a.json.lock", ".a.json", "a.json.1.2")
    ]
    folder.mkdir()
    (folder / "b").write_text("half")
    for name in (mine, dead, parent, elsewhere, old, older, *others):
        name.write_text("half")
    for name in (old, older, *others):
        os.utime(name, (day, day))
    with atomic_file(path) as temporary:
        temporary.write_text("new")
    kept = {path, mine, parent, elsewhere, older, *others}
    assert set(tmp_path.iterdir()) == kept


LOCKS = [lambda folder: locked(folder), lambda folder: exclusive(folder / "run.trec")]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_its_owner(tmp_path: Path, lock: "type[AbstractContextManager[None]]") -> None:
    with (
        lock(tmp_path),
        pytest.raises(Stopped, match=f"process {os.getpid()} on "),
    ):
        lock(tmp_path).__enter__()
    with lock(tmp_path):
        pass


def test_the_lock_of_an_output_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs/2026/run.trec"
    with exclusive(path):
        path.write_text("run")
    assert os.listdir(path.parent) == ["run.trec"]

    def fail() -> None:
        with exclusive(tmp_path / "other/run.trec"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert os.listdir(tmp_path) == ["runs"]
    with exclusive(Path("/dev/stdout")):
        pass


def test_a_removed_lock_does_not_count(tmp_path: Path) -> None:
    """The next process makes a new lock file, while the last owner still has the old one."""
    path = tmp_path / LOCK_FILE
    with locked(tmp_path):
        path.unlink()
        with locked(tmp_path), pytest.raises(Stopped):
            locked(tmp_path).__enter__()


def make_link(path: Path) -> None:
    path.with_name("thesis.tex").write_text("mine")
    path.symlink_to("thesis.tex")


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, make_link])
def test_a_lock_is_a_file_of_its_own(tmp_path: Path, make: "type[object]") -> None:
    make(tmp_path / LOCK_FILE)  # type: ignore[call-arg]
    with pytest.raises(DataError, match="no lock file of lmk"):
        locked(tmp_path).__enter__()
    for file in tmp_path.glob("*.tex"):
        assert file.read_text() == "mine"


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    (tmp_path / "manifest.json").write_text("{}")
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(DataError, match=rf"{tmp_path} .*No locks available"):
        locked(tmp_path).__enter__()
    with exclusive(tmp_path / "run.trec"), in_use(tmp_path / "manifest.json"):
        pass


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_folder_that_cannot_be_written_cannot_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(path: Path, *_: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DataError, match=r"update\.lock .*copy the folder"):
        locked(tmp_path).__enter__()


def test_a_file_in_use_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text("{}")
    with in_use(path), in_use(path), pytest.raises(Stopped, match="is writing"):
        unused(path).__enter__()
    with unused(path), pytest.raises(Stopped, match="removes"):
        in_use(path).__enter__()


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    """Also the root folder, the current one in many containers."""
    make_folder(tmp_path)
    make_folder(Path("/"))
