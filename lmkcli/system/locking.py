"""One process at a time changes a folder."""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lmkcli.errors import Stopped
from lmkcli.progress import Note

LOCK = "update.lock"


@contextmanager
def locked(folder: Path, waiting: Note | None = None) -> Iterator[None]:
    """Only one process at a time is in here; when there is one, Stopped names it.

    With `waiting`, which is told the name, this waits for the other one instead.
    """
    with open(folder / LOCK, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            said = f"{folder} is being changed by {file.read().strip() or 'another process'}"
            if waiting is None:
                raise Stopped(
                    f"{said}; nothing was done. Run the same command again later"
                ) from None
            waiting(f"{said}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {since}\n")
        file.flush()
        yield
