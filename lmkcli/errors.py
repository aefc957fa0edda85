"""The error tree. Every message states the fix; the command line exits with `exit_code`.

LmkError                3  bad input or data, and the base of all errors of lmk
├── UsageError          2  an invalid flag or argument
│   └── UnknownName     2  a name that is not in a catalog (suggests similar names)
├── DataError           3  an unusable file, record or vector
├── MissingExtra        3  a missing optional package (contains the pip command)
├── Mismatch            3  two artifacts that do not belong together
├── CheckFailed         4  a requested comparison that failed
└── Stopped            75  stopped early; all written files are complete; run the same command again
"""

import copyreg
import difflib
from collections.abc import Iterable
from typing import Any


class LmkError(Exception):
    """The base of all errors that lmk raises on purpose; the message states the fix."""

    exit_code = 3

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message: a subclass makes it of other arguments, which it does not keep."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows: the message, without the frames inside lmk."""
        return [f"{type(self).__name__}: {self}"]


class UsageError(LmkError):
    """An invalid flag or argument."""

    exit_code = 2


class UnknownName(UsageError):
    """A name that is not in a catalog. The message suggests similar names."""

    def __init__(self, what: str, name: str, known: Iterable[str], hint: str = "") -> None:
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        known_ones = f"known: {', '.join(known)}" if known else ""
        advice = f"did you mean {' or '.join(near)}?" if near else known_ones
        super().__init__(f"unknown {what} '{name}': {' '.join(filter(None, (advice, hint)))}")


class DataError(LmkError):
    """An unusable file, record or vector."""


class MissingExtra(LmkError, ImportError):
    """A missing optional package. The message contains the pip command."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f'{purpose} needs {package}, which is not installed: pip install "lmkcli[{extra}]"'
        )


class Mismatch(LmkError):
    """Two artifacts that do not belong together."""


class CheckFailed(LmkError):
    """A requested comparison that failed."""

    exit_code = 4


class Stopped(LmkError):
    """Stopped early. All written files are complete, and the same command continues the work."""

    exit_code = 75
