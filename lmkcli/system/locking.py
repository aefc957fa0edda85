"""One process at a time changes a folder."""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lmkcli.errors import Stopped

LOCK = "update.lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process at a time is in here; Stopped, naming the other one, when there is one."""
    with open(folder / LOCK, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise Stopped(
                f"{folder} is being changed by {file.read().strip() or 'another process'}; "
                "nothing was done. Run the same command again later"
            ) from None
        file.truncate(0)
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {since}\n")
        file.flush()
        yield
