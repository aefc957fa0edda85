"""What people see: results on stdout, progress and notes on stderr.

All text goes through here: ids, titles, texts and names come from files of other people, and what a
terminal would obey in them is shown instead.
"""

import errno
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from lmkcli.progress import Progress, Report, silent
from lmkcli.text.numbers import duration
from lmkcli.text.visible import visible

quiet = False
verbose = False
signalled = False  # whether a signal has asked this command to stop
FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
DEVICE = {  # errors of the device or the path, never bugs
    *(errno.EIO, errno.EROFS, errno.ELOOP, errno.EACCES, errno.EPERM),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ENAMETOOLONG),
}
_LINE_SECONDS = 30.0
_SMALLEST = 0.0001


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
        with _bar(title) as report:
            yield report
    else:
        yield _Lines(title)


@contextmanager
def _bar(title: str) -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, state="")
        pace = _Pace()

        def report(done: int, total: int | None, unit: str) -> None:
            line = pace.line(done, total, unit)
            bar.update(task, completed=pace.share, total=1 if total else None, state=line)

        yield report


class _Pace:
    """Rate and time left, from the work done since the first report.

    A total that changes from one report to the next is an estimate: it is rounded, and said to be about
    so much. `share` is what is done of it, from 0 to 1, and never falls.
    """

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None  # what was done by when
        self._total, self._known = 0, False
        self.share = 0.0

    def rate(self, done: int, total: int | None) -> float:
        """Of a second, so far; 0 where nothing was done since the first report."""
        now = time.monotonic()
        self._first = self._first or (done, now)
        self._known, self._total = total in (done, self._total), total or 0
        return (done - self._first[0]) / max(now - self._first[1], 1e-9)

    def line(self, done: int, total: int | None, unit: str) -> str:
        rate = self.rate(done, total)
        shown = f"{round(rate):,}" if rate >= 10 else f"{rate:.2g}"
        text = f"{done:,} {unit}" + (f", {shown}/s" if rate else "")
        if total and done:
            self.share = max(self.share, min(1.0, done / total))
            whole = f"{total:,}" if self._known else f"about {_rounded(total):,}"
            text = f"{text}, {100 * self.share:.0f} % of {whole}"
            if rate:
                return f"{text}, {duration(done * (1 / self.share - 1) / rate)} left"
        return text


def _rounded(value: int) -> int:
    """Two digits of a number, and zeros."""
    return round(value, 2 - len(str(value)))


class _Lines:
    """One line every half minute, for logs."""

    def __init__(self, title: str) -> None:
        self._title, self._pace, self._last = title, _Pace(), time.monotonic()

    def __call__(self, done: int, total: int | None, unit: str) -> None:
        line = self._pace.line(done, total, unit)
        if time.monotonic() - self._last >= _LINE_SECONDS:
            self._last = time.monotonic()
            note(f"{self._title}: {line}")


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
