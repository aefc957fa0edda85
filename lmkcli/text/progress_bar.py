"""Progress of long jobs: a bar on a terminal, HTML in a notebook, a line every half minute in a log."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from html import escape
from importlib import import_module

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from lmkcli.progress import SILENT, EstimatedTotal, Note, Progress, Report
from lmkcli.text.formatting import duration, visible

_LINE_SECONDS = 30.0
_UPDATE_SECONDS = 0.1  # in a notebook
_RATE_SECONDS = 60.0  # the rate is computed over so long


@contextmanager
def bar(title: str) -> Iterator[Progress]:
    """Show a progress bar on stderr."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None, state="")
        pace = _Pace()

        def report(done: int, total: int | None, unit: str, detail: str = "") -> None:
            line = pace.line(done, total, unit, detail)
            known = None if pace.share is None else 1  # without a total, the bar only moves
            progress.update(task, completed=pace.share or 0, total=known, state=line)

        yield report


class _Pace:
    """Share, rate and remaining time of a job.

    The rate is the rate of the last minute, so it recovers from a slow start or a pause. An estimated total
    is rounded and printed with "about", and `share`, from 0 to 1, falls when the estimate grows. `share` is
    None while the total is unknown or already exceeded. 100 % is printed for finished work only.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()  # times and work done, a second apart
        self.share: float | None = None

    def line(self, done: int, total: int | None, unit: str, detail: str = "") -> str:
        """Describe the progress: done units, rate, share of the total, remaining time, and the detail."""
        rate = self._rate(done)
        shown = f"{round(rate):,}" if rate >= 10 else f"{rate:.2g}"
        texts = [f"{done:,} {unit}", f"{shown}/s" if rate else ""]
        guessed = isinstance(total, EstimatedTotal)
        reached = total is not None and (done >= total if guessed else done > total)
        self.share = done / total if total and not reached else None
        if total and done and self.share is not None:
            whole = f"about {round(total, 2 - len(str(total))):,}" if guessed else f"{total:,}"
            texts.append(f"{100 * done // total} % of {whole}")
            texts.append(f"{duration((total - done) / rate)} left" if rate else "")
        return ", ".join(filter(None, [*texts, detail]))

    def _rate(self, done: int) -> float:
        """Units per second since the oldest sample of the last minute; 0 for the first report."""
        now, samples = time.monotonic(), self._samples
        while len(samples) > 1 and samples[1][0] <= now - _RATE_SECONDS:
            samples.popleft()
        if not samples or now - samples[-1][0] >= 1:
            samples.append((now, done))
        since, before = samples[0]
        return (done - before) / max(now - since, 1e-9)


class Lines:
    """Progress as one line every half minute, for logs."""

    def __init__(self, title: str, note: Note) -> None:
        self._title, self._note = title, note
        self._pace, self._last = _Pace(), time.monotonic()

    def __call__(self, done: int, total: int | None, unit: str, detail: str = "") -> None:
        line = self._pace.line(done, total, unit, detail)
        if time.monotonic() - self._last >= _LINE_SECONDS:
            self._last = time.monotonic()
            self._note(f"{self._title}: {line}")


def interactive() -> Report:
    """Return the report for operations that Python code runs: progress and notes on stderr, or silence.

    It is silent unless stderr is a terminal or the program runs in a notebook.
    """
    if _in_notebook():
        return Report(note=_print, open=partial(_job, _notebook_bar))
    watched = bool(sys.stderr and sys.stderr.isatty())
    return Report(note=_print, open=partial(_job, bar)) if watched else SILENT


def _in_notebook() -> bool:
    """Return whether the kernel of a notebook runs this program. A terminal of IPython has no kernel."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


@contextmanager
def _notebook_bar(title: str) -> Iterator[Progress]:
    """Show progress in the output of a cell, as HTML with a plain text; widgets are not needed."""
    display = import_module("IPython.display").display
    pace = _Pace()
    handle = display(_shown(title, "", None), raw=True, display_id=True)
    last = 0.0

    def report(done: int, total: int | None, unit: str, detail: str = "") -> None:
        nonlocal last
        line = pace.line(done, total, unit, detail)
        if time.monotonic() - last >= _UPDATE_SECONDS:
            last = time.monotonic()
            handle.update(_shown(title, line, pace.share), raw=True)

    try:
        yield report
    finally:
        handle.update({"text/plain": "", "text/html": ""}, raw=True)


def _shown(title: str, state: str, share: float | None) -> dict[str, str]:
    """Return the progress of a job in the two forms that notebooks and terminals show."""
    text = visible(f"{title} {state}".rstrip())
    value = "" if share is None else f' value="{share:.4f}"'
    return {"text/plain": text, "text/html": f"{escape(text)} <progress{value}></progress>"}


def _print(message: str) -> None:
    print(visible(message), file=sys.stderr)  # noqa: T201 (output for people)


Bar = Callable[[str], AbstractContextManager[Progress]]


@contextmanager
def _job(bar: Bar, title: str, report: Report, before_stop: str) -> Iterator[Report]:
    with bar(title) as progress:
        yield report._replace(progress=progress, open=None)
