"""What people see: results on stdout, progress and notes on stderr.

All text goes through here: ids, titles, texts and names come from files of other people, and what a
terminal would obey in them is shown instead.
"""

import errno
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

from lmkcli.progress import Progress, Report, silent
from lmkcli.text.progress_bar import Lines, bar
from lmkcli.text.visible import visible

quiet = False
verbose = False
signalled = False  # whether a signal has asked this command to stop
FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
DEVICE = {  # errors of the device or the path, never bugs
    *(errno.EIO, errno.EROFS, errno.ELOOP, errno.EACCES, errno.EPERM),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ENAMETOOLONG),
}


def error(message: str) -> None:
    """One message on stderr, whatever the verbosity."""
    print(visible(f"lmk: {message}"), file=sys.stderr)


def note(message: str) -> None:
    """Something worth knowing, on stderr."""
    if not quiet:
        sys.stdout.flush()  # keeps the order when both go to one file
        print(visible(message), file=sys.stderr, flush=True)


def say(text: str = "", end: str = "\n") -> None:
    """A result, on stdout."""
    print(visible(text), end=end)


def plain_json(value: Any) -> None:
    """Print a JSON value on stdout."""
    say(json.dumps(value, indent=1, ensure_ascii=False))


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """A callable for the library: a bar on a terminal, now and then a line elsewhere."""
    if quiet:
        yield silent
    elif sys.stderr.isatty():
        with bar(title) as shown:
            yield shown
    else:
        yield Lines(title, note)


class StopSignal(BaseException):
    """A signal asked to stop when there was nothing that had to be closed."""


@contextmanager
def leaving() -> Iterator[None]:
    """SIGTERM and SIGUSR1 raise StopSignal wherever the command is, also while it starts.

    Python swallows what is raised inside a `__del__`, so `stoppable` remembers the signal too.
    """
    global signalled
    signalled = False

    def ask(number: int, frame: FrameType | None) -> None:
        global signalled
        signalled = True
        raise StopSignal(signal.Signals(number).name)

    kinds = (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.signal(kind, ask) for kind in kinds]
    try:
        yield
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Whether SIGTERM, SIGINT or SIGUSR1 has asked to stop; a second SIGINT interrupts at once."""
    asked = signalled

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked = True
        note(f"{signal.Signals(number).name}: stopping once the work so far is written")

    kinds = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = [signal.signal(kind, ask) for kind in kinds]
    try:
        yield lambda: asked
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)


def report(show: Callable[[Any], None]) -> Report:
    """The report of operations that the command line runs: notes and progress on stderr."""
    return Report(note=note, show=show, open=_job)


@contextmanager
def _job(title: str, given: Report, graceful: bool) -> Iterator[Report]:
    with progress(title) as shown, stoppable() if graceful else nullcontext(_never) as stopping:
        yield given._replace(progress=shown, stopping=stopping, open=None)


def _never() -> bool:
    return False
