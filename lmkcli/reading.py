"""Reading files that may be anybody's: regular files and pipes alone, in lines and sizes that have bounds."""

import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from lmkcli.errors import DataError

LINE = 1 << 20  # of a run, judgements: ids and numbers
LONG_LINE = 256 << 20  # of a collection or a log: a whole document
WHOLE = 256 << 20  # of a file that is read at once, such as a manifest
Text = TypeVar("Text", str, bytes)
Read = TypeVar("Read", str, bytes, covariant=True)


class Opened(Protocol[Read]):
    """A file, compressed or not, opened for text or bytes."""

    def read(self, size: int, /) -> Read: ...
    def readline(self, size: int, /) -> Read: ...


def check_finite(path: Path) -> None:
    """DataError for what is no file or has no end, such as a folder or /dev/zero; OSError if absent."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        what = "a folder" if stat.S_ISDIR(mode) else "a device"
        raise DataError(f"{path} is {what}, where a file or a pipe is needed")


def bounded_lines(file: Opened[Text], name: object, limit: int = LINE) -> Iterator[Text]:
    """The lines of an open file, with their ends; DataError for one that is longer than `limit`."""
    for number, line in enumerate(iter(partial(file.readline, limit), file.read(0)), 1):
        if len(line) == limit:
            raise DataError(
                f"{name} line {number} is longer than {limit:,} characters; is it the right file?"
            )
        yield line


def whole_file(path: Path, limit: int = WHOLE) -> bytes:
    """What is in a file; DataError where that is more than `limit` bytes. OSError if absent."""
    check_finite(path)
    with open(path, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise DataError(f"{path} is larger than {limit:,} bytes; is it the right file?")
    return data
