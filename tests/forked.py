"""Parts of `lmk` in child processes of tests: many moments for a kill, slow programs, captured output.

A file of its own, so that the children import only what they run.
"""

import builtins
import io
import json
import mmap
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from lmkcli.artifact import shards
from lmkcli.cli import main
from lmkcli.errors import Stopped
from lmkcli.store import part_writer, tokens

PART_BYTES, BATCH_CHARACTERS = 15_000, 15_000  # many part boundaries even in a tiny collection

# Calls of the module os that change the file system; opening a file for writing is one as well.
CHANGES = (
    *("link", "symlink", "replace", "rename", "unlink", "remove", "mkdir", "rmdir"),
    *("truncate", "ftruncate", "fsync", "fdatasync"),
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Moments:
    """The moments before and after each call that changes the file system, and in the middle of each write.

    They are counted from zero over this process and the children that it forks. At the `fatal` one, SIGKILL
    ends all of them, as a batch system kills a job; another signal arrives at this process.
    """

    def __init__(self, fatal: int = -1, number: int = signal.SIGKILL) -> None:
        self._fatal, self._number = fatal, number
        self._passed = mmap.mmap(-1, 8)  # shared by the children

    @property
    def passed(self) -> int:
        """The number of moments so far."""
        return int.from_bytes(self._passed[:8], "little")

    def pass_one(self, before_end: Callable[[], object] = lambda: None) -> None:
        """Count one moment. At the fatal one, call something and send the signal."""
        number = self.passed
        self._passed[:8] = (number + 1).to_bytes(8, "little")
        if number != self._fatal:
            return
        if self._number == signal.SIGKILL:
            before_end()
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), self._number)

    def watch(self) -> None:
        """Count the calls of this process from now on."""
        for name in CHANGES:
            setattr(os, name, self._around(getattr(os, name)))
        os.open = self._os_open(os.open)
        builtins.open = io.open = self._open(builtins.open)

    def _around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            self.pass_one()
            result = call(*args, **named)
            self.pass_one()
            return result

        return counted

    def _os_open(self, call: Callable[..., int]) -> Callable[..., int]:
        counted = self._around(call)

        def opened(path: Any, flags: int, *args: Any, **named: Any) -> int:
            writes = flags & _WRITING and not str(path).startswith("/dev/")
            return (counted if writes else call)(path, flags, *args, **named)

        return opened

    def _open(self, call: Callable[..., Any]) -> Callable[..., Any]:
        moments = self

        class Written(io.FileIO):
            """A file with a moment in the middle of each write."""

            def write(self, data: Any) -> int:
                view, write = memoryview(data).cast("B"), super().write
                moments.pass_one()
                moments.pass_one(lambda: write(view[: len(view) // 2]))
                return write(view)

            def truncate(self, size: int | None = None) -> int:
                moments.pass_one()
                return super().truncate(size)

        @wraps(call)
        def opened(
            file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None,
            errors: Any = None, newline: Any = None, closefd: bool = True, opener: Any = None,
        ) -> Any:  # fmt: skip
            if not set(mode) & set("wax+") or isinstance(file, int) or _is_device(file):
                return call(file, mode, buffering, encoding, errors, newline, closefd, opener)
            moments.pass_one()
            raw = Written(file, mode.replace("b", "").replace("t", ""), closefd, opener)
            moments.pass_one()
            if buffering == 0:
                return raw
            size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
            buffered = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw, size)
            if "b" in mode:
                return buffered
            text = io.TextIOWrapper(buffered, encoding, errors, newline, buffering == 1)
            text.mode = mode  # type: ignore[misc]
            return text

        return opened


def _is_device(file: Any) -> bool:
    return str(file).startswith(("/dev/", "/proc/"))


def program(folder: Path, pause: float = 0.0) -> Path:
    """Makes an `lmk` in a folder for PATH: the real one, with small parts and a pause before each."""
    folder.mkdir()
    code = f"import sys; sys.argv[0] = 'lmk'; from tests import forked; forked.lmk_paced({pause})"
    path = folder / "lmk"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    path.chmod(0o755)
    return path


def lmk_paced(pause: float) -> None:
    """`lmk` on this process's command line, with a pause before each part, or piece of a shard, is there."""
    publish = part_writer.PartBuilder.publish

    def slowly(builder: part_writer.PartBuilder) -> int:
        time.sleep(pause)
        return publish(builder)

    once = shards.Shards.once

    def waiting(these: shards.Shards, *words: Any) -> Path:
        path = once(these, *words)
        time.sleep(pause)
        return path

    part_writer.PartBuilder.publish = slowly  # type: ignore[method-assign]
    shards.Shards.once = waiting  # type: ignore[method-assign]
    part_writer.PART_BYTES = PART_BYTES
    tokens.BATCH_CHARACTERS = BATCH_CHARACTERS
    main.main()


class Done(NamedTuple):
    """What a command line left behind."""

    code: int
    out: str
    err: str


def lines(command_lines: list[list[str]], folder: str, report: str) -> None:
    """Runs command lines one after another in a folder; what each left behind is a line of `report`."""
    os.chdir(folder)
    for words in command_lines:
        done = json.dumps(_captured(words))
        with open(report, "a", encoding="utf-8") as file:
            file.write(done + "\n")


def unpublished(command_lines: list[list[str]], folder: str, report: str) -> None:
    """The same, with trainings that are stopped before they put their model into its place."""
    from lmkcli.training.loop import checkpoints  # here, since it brings torch

    def stop(*_: Any) -> NoReturn:
        raise Stopped("before it was published")

    checkpoints.publish = stop
    lines(command_lines, folder, report)


def _captured(words: list[str]) -> Done:
    """One command line, with its output and errors in files as in a shell."""
    sys.argv = ["lmk", *words]
    code: Any = 0
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        try:
            main.main()
        except SystemExit as left:
            code = left.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        return Done(code, *(_text(stream) for stream in (out, err)))


def _text(stream: BinaryIO) -> str:
    stream.seek(0)
    return stream.read().decode("utf-8", "replace")
