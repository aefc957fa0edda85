"""How the library reports progress: through the Report that it is given. By default it is silent."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

from lmkcli.errors import Stopped


class Progress(Protocol):
    """Called from time to time by long loops."""

    def __call__(self, done: int, total: int | None, unit: str) -> None:
        """`done` units of work so far, `total` at the end (an estimate; None when unknown)."""


class Note(Protocol):
    """Called, rarely, with something that people should know."""

    def __call__(self, message: str) -> None:
        """`message` is one line."""


def mute(message: str) -> None:
    """Ignore a note; the default."""


def silent(done: int, total: int | None, unit: str) -> None:
    """Ignore progress; the default."""


class Call(NamedTuple):
    """An operation as manifests store it: its settings as JSON, and the words of its command line."""

    record: Mapping[str, Any] = {}
    command: Sequence[str] = ()


NO_CALL = Call()


class Report(NamedTuple):
    """How an operation reports progress and notes, and learns that it should stop.

    `call` describes the operation that runs; it is empty for plain function calls.
    `show` prints the result of one of several steps. `open` starts the report of one long job under a
    title: it shows progress, and a signal asks the job to stop.
    """

    progress: Progress = silent
    stopping: Callable[[], bool] = lambda: False
    note: Note = mute
    call: Call = NO_CALL
    show: Callable[[Any], None] = lambda result: None
    open: "Callable[[str, Report, bool], AbstractContextManager[Report]] | None" = None

    def job(self, title: str) -> "AbstractContextManager[Report]":
        """The report of one long job, which asks `stopping` and ends by `check_stop`."""
        return self.open(title, self, True) if self.open else nullcontext(self)

    def step(self, title: str) -> "AbstractContextManager[Report]":
        """The report of work that shows progress and that a signal may end anywhere."""
        return self.open(title, self, False) if self.open else nullcontext(self)

    def of(self, call: Call) -> "Report":
        """The same report for another operation."""
        return self._replace(call=call)

    def check_stop(self) -> None:
        """Raise Stopped if a signal asked for it; everything that was published stays."""
        if self.stopping():
            raise Stopped(
                "stopped early; every part written is whole. Run the same command again to continue"
            )


SILENT = Report()
