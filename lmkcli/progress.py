"""How the library reports progress: it calls what it was given, and says nothing by itself."""

from typing import Protocol


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
