"""One `lmk` command line in a child process, with small parts. Used by test_kill.py.

A file of its own, so that the children import only what they run.
"""

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from lmkcli.cli import main
from lmkcli.errors import Stopped
from lmkcli.store import part_writer, shards, tokens

PART_BYTES, BATCH_CHARACTERS = 15_000, 15_000  # many part boundaries even in a tiny collection


def lmk(words: list[str], log: str) -> None:
    """Runs `lmk` with stdout and stderr appended to `log`; leaves with its exit code."""
    part_writer.PART_BYTES = PART_BYTES
    tokens.BATCH_CHARACTERS = BATCH_CHARACTERS
    sys.argv = ["lmk", *words]
    with open(log, "a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    main.main()


# The calls that change names on disk.
STEPS = ("link", "replace", "rename", "unlink", "mkdir", "rmdir")


def lmk_dying(words: list[str], log: str, moment: int) -> None:
    """The same, killed just before the `moment`-th change of a name; counted from zero."""
    left = moment

    def dying(step: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return step(*args, **named)

        return call

    for name in STEPS:
        setattr(os, name, dying(getattr(os, name)))
    lmk(words, log)


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
    from lmkcli.training import checkpoints  # here, since it brings torch

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
