"""Exit codes and streams of the process as a whole."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmkcli import __version__
from lmkcli.cli import main
from lmkcli.operations.show import Show

Models = Callable[[str], Path]
Lmk = Callable[..., Any]
LMK = [sys.executable, "-m", "lmkcli.cli.main"]


def test_version_and_help(lmk: Lmk) -> None:
    assert lmk("--version").out == f"lmk {__version__}\n"
    assert "tokenize" in lmk("--help").out
    assert "--pool" in lmk("encode", "-h").out


def test_a_process_leaves_with_the_documented_code() -> None:
    done = subprocess.run([*LMK, "search", "./nothing", "-q", "x"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [["show", "poolers"], ["show", "poolers", "--json"]])
def test_a_closed_pipe_is_no_error(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*LMK, *words], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_bug_is_shown_with_its_traceback(lmk: Lmk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Show, "execute", broken)
    with pytest.raises(ZeroDivisionError):  # Python itself prints it and leaves with 1
        lmk("show", "poolers")


def test_interrupted(lmk: Lmk, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Show, "execute", interrupted)
    lmk("show", "poolers", code=130)


def test_after_a_full_disk_the_same_command_continues(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["encode", beir, "-m", tiny_model("bert"), "-o", tmp_path / "v"]
    rename = os.rename

    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(os, "rename", full)
    assert "no space left" in lmk(*command, code=3).err
    assert not list((tmp_path / "v").glob("parts/0*"))
    monkeypatch.setattr(os, "rename", rename)
    assert lmk(*command, "--json").json["docs"] == 60


def test_out_of_memory_is_not_a_bug(
    lmk: Lmk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greedy(path: Path) -> bytes:
        return bytes(1 << 60)

    (tmp_path / "manifest.json").write_text("{}")
    monkeypatch.setattr("lmkcli.system.input_files.whole_file", greedy)
    assert "out of memory" in lmk("show", tmp_path, code=3).err


def test_a_path_that_cannot_be_written_is_named(lmk: Lmk, tmp_path: Path) -> None:
    run, qrels = tmp_path / "a.trec", tmp_path / "qrels.txt"
    run.write_text("q1 Q0 d1 1 2.0 t\n")
    qrels.write_text("q1 0 d1 1\n")
    words = ["eval", run, "--qrels", qrels, "-m", "P@1", "--log"]
    assert lmk(*words, tmp_path, code=2).err.startswith(f"error: --log {tmp_path} is a folder")
    assert "Traceback" in lmk("-v", *words, tmp_path, code=2).err


def test_verbose_shows_where_an_error_came_from(lmk: Lmk) -> None:
    assert "Traceback" in lmk("-v", "verify", "./nothing", code=3).err
    assert "Traceback" not in lmk("verify", "./nothing", code=3).err


def test_quiet_leaves_results_alone(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    done = lmk("-q", "encode", beir, "-m", tiny_model("bert"), "-o", tmp_path / "v")
    assert done.err == ""
    assert "60 documents" in done.out


@pytest.mark.parametrize("output", ["/dev/stdout", "-"])
def test_a_run_may_go_into_a_pipe(
    lmk: Lmk, lmk_program: Path, beir: Path, tmp_path: Path, output: str
) -> None:
    lmk("index", beir, "--kind", "bm25", "-o", tmp_path / "b")
    words = ["search", str(tmp_path / "b"), str(beir), "-k", "3", "-o", output]
    line = [lmk_program, *words]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) > 12
    assert {len(line) for line in lines} == {6}
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    reader, writer = os.pipe()
    os.close(reader)
    line.insert(1, "-q")
    left = subprocess.run(line, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (left.returncode, left.stderr) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_before_the_work_began_is_75_too(
    lmk: Lmk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    """A task can be requeued while it starts. Its batch script relies on the exit code."""
    before = signal.getsignal(number)
    monkeypatch.setattr("lmkcli.encoding.jobs.plan", lambda *_: os.kill(os.getpid(), number))
    done = lmk("encode", "x.jsonl", "-m", "m", "-o", tmp_path / "v", code=75)
    assert "run the same command again" in done.err
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("closed", ["sys.stdout", "sys.stderr"])
def test_a_closed_stream_is_not_written_to(monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    """As after `lmk show poolers >&-`."""
    monkeypatch.setattr("sys.argv", ["lmk", "show", "poolers"])
    monkeypatch.setattr(closed, None)
    with pytest.raises(SystemExit) as left:
        main.main()
    assert not left.value.code


def test_a_deleted_current_folder(
    lmk: Callable[..., Any], beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    err = lmk("index", beir, "--kind", "bm25", "-o", tmp_path / "bm25", code=3).err
    assert "current folder" in err
