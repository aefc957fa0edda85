"""Progress of long jobs: a bar on a terminal or in a notebook, a line now and then in a log."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from lmkcli.progress import SILENT, Note, Progress, Report
from lmkcli.text.numbers import duration
from lmkcli.text.visible import visible

_LINE_SECONDS = 30.0


@contextmanager
def bar(title: str) -> Iterator[Progress]:
    """A progress bar on stderr, or in the notebook that runs this program."""
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


class Lines:
    """One line every half minute, for logs."""

    def __init__(self, title: str, note: Note) -> None:
        self._title, self._note = title, note
        self._pace, self._last = _Pace(), time.monotonic()

    def __call__(self, done: int, total: int | None, unit: str) -> None:
        line = self._pace.line(done, total, unit)
        if time.monotonic() - self._last >= _LINE_SECONDS:
            self._last = time.monotonic()
            self._note(f"{self._title}: {line}")


def interactive() -> Report:
    """The report of operations that Python runs: progress and notes for people, else nothing.

    People read along if stderr is a terminal or the program runs in a notebook.
    """
    return Report(note=_print, open=_bar) if _is_read() else SILENT


def _is_read() -> bool:
    return "ipykernel" in sys.modules or bool(sys.stderr and sys.stderr.isatty())


def _print(message: str) -> None:
    print(visible(message), file=sys.stderr)  # noqa: T201 (for people)


@contextmanager
def _bar(title: str, given: Report, graceful: bool) -> Iterator[Report]:
    with bar(title) as progress:
        yield given._replace(progress=progress, open=None)
