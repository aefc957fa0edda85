"""Progress reports: operations report progress and notes to a Report, which is silent by default."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

from lmkcli.errors import Stopped


class EstimatedTotal(int):
    """A total that may change. It is printed rounded, after "about"."""


def estimate_total(count: int, fraction: float | None) -> int | None:
    """Estimate all tokens or documents of a source from those in the fraction that was read.

    None if the fraction is unknown.
    """
    if not fraction:
        return None
    return count if fraction >= 1 else EstimatedTotal(count / fraction)


class Progress(Protocol):
    """Called by long loops from time to time."""

    def __call__(self, done: int, total: int | None, unit: str, detail: str = "") -> None:
        """Report `done` of `total` units of work. `total` may be an EstimatedTotal, or None if unknown.

        `detail` is more text for people, such as the loss.
        """


class Note(Protocol):
    """Called, rarely, with a message for people."""

    def __call__(self, message: str) -> None:
        """Report a message of one line."""


class Detail(str):
    """A note that the console prints only with --verbose."""


def mute(message: str) -> None:
    """Ignore a note (the default)."""


def silent(done: int, total: int | None, unit: str, detail: str = "") -> None:
    """Ignore progress (the default)."""


class Call(NamedTuple):
    """An operation as stored in manifests: its settings as JSON and the words of its command line."""

    record: Mapping[str, Any] = {}
    command: Sequence[str] = ()


NO_CALL = Call()


SAVING = "saving the finished work"


class Report(NamedTuple):
    """The channel through which an operation reports progress and notes, and learns that it should stop.

    `call` describes the running operation and is empty for plain function calls. `show` prints the result of
    one of several steps. `open` starts the report of one long job, with a title. The report shows progress,
    and tells the job to stop when a signal arrives.
    """

    progress: Progress = silent
    stopping: Callable[[], bool] = lambda: False
    note: Note = mute
    call: Call = NO_CALL
    show: Callable[[Any], None] = lambda result: None
    open: "Callable[[str, Report, str], AbstractContextManager[Report]] | None" = None

    def job(self, title: str, before_stop: str = SAVING) -> "AbstractContextManager[Report]":
        """Return the report of a long job that polls `stopping` and ends itself with `check_stop`.

        `before_stop` tells the user what the job still does after a signal.
        """
        return self.open(title, self, before_stop) if self.open else nullcontext(self)

    def step(self, title: str) -> "AbstractContextManager[Report]":
        """Return the report of work with progress that a signal may interrupt anywhere."""
        return self.open(title, self, "") if self.open else nullcontext(self)

    def with_call(self, call: Call) -> "Report":
        """Return the same report for another operation."""
        return self._replace(call=call)

    def check_stop(self) -> None:
        """Raise Stopped if a signal requested it. Everything that was published stays."""
        if self.stopping():
            raise Stopped(
                "stopped early; all written parts are complete. Run the same command again to continue"
            )


SILENT = Report()
