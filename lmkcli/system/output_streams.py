"""Outputs that are streams: standard output, open descriptors, pipes and devices.

A stream is written as it is: never replaced, locked, or accompanied by another file. The name of a
descriptor, such as /dev/stdout, leads to the file behind it. Opening that file again would destroy what a
shell has written there before (`>> all.trec`), so the descriptor itself is used.
"""

import fcntl
import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO

from lmkcli.errors import DataError

STANDARD = Path("-")
"""The name of standard output on a command line."""
_MOST_LINKS = 40  # of a path, as in the kernel


def descriptor_of(path: Path) -> int | None:
    """Return the open descriptor of this process that a path names: -, /dev/stdout, /dev/fd/3; else None."""
    if path == STANDARD:
        return 1
    for _ in range(_MOST_LINKS):
        folder = os.path.realpath(path.parent)
        if path.name.isdecimal() and folder == os.path.realpath("/proc/self/fd"):
            return int(path.name)
        try:
            target = os.readlink(path)
        except (OSError, ValueError):  # a recorded path can contain a null character
            return None
        path = Path(folder) / target
    return None


def is_stream(path: Path) -> bool:
    """Return whether a path names a descriptor, a pipe or a device; not a file, a folder or a new name."""
    if descriptor_of(path) is not None:
        return True
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def is_standard_output(path: Path) -> bool:
    """Return whether writing to a path is writing to the standard output of this process."""
    number = descriptor_of(path)
    if number is None or number == 1:
        return number == 1
    try:
        return os.path.samestat(os.fstat(number), os.fstat(1))
    except OSError:
        return False


def check_stream(path: Path) -> None:
    """Raise DataError if a stream cannot be written: a closed descriptor, or one that is open for reading."""
    number = descriptor_of(path)
    if number is None:
        return
    # Python has opened other files under the number of a closed standard stream.
    closed = (number == 1 and sys.__stdout__ is None) or (number == 2 and sys.__stderr__ is None)
    try:
        mode = os.O_RDONLY if closed else fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError:
        closed = True
    if closed or mode == os.O_RDONLY:
        fault = "closed" if closed else "open for reading only"
        raise DataError(
            f"-o {path}: this output is {fault}; name a file, or connect it: -o - > FILE"
        )


def open_output(path: Path) -> BinaryIO:
    """Open a stream for writing at its present position; a file that a shell connected keeps its content."""
    check_stream(path)
    number = descriptor_of(path)
    if number is None:
        return open(path, "wb")
    for buffered in (sys.stdout, sys.stderr):  # what was printed before comes first
        buffered.flush()
    return os.fdopen(os.dup(number), "wb")
