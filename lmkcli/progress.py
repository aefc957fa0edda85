"""How the library reports progress: it calls what it was given, and says nothing by itself."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from lmkcli.errors import Stopped


class Progress(Protocol):
    """Called now and then by long loops."""

    def __call__(self, done: int, total: int | None, unit: str) -> None:
        """`done` units of work so far, `total` at the end (an estimate; None when unknown)."""


class Note(Protocol):
    """Called with something that people should know, seldom."""

    def __call__(self, message: str) -> None:
        """`message` is one line."""


def mute(message: str) -> None:
    """The default: nothing is said."""


def silent(done: int, total: int | None, unit: str) -> None:
    """The default: nothing is reported."""


class Report(NamedTuple):
    """How a long job reports and learns that it should stop; `call` is what it was asked for.

    The call (a verb and its parameters, empty for a Python program) is recorded in manifests.
    """

    progress: Progress = silent
    stopping: Callable[[], bool] = lambda: False
    note: Note = mute
    call: Mapping[str, Any] = {}

    def check_stop(self) -> None:
        """Stopped when a signal asked for it; everything that was published stays."""
        if self.stopping():
            raise Stopped(
                "stopped early; every part written is whole. Run the same command again to continue"
            )
