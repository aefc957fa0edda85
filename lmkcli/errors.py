"""The error tree. Every message says what to do; the command line turns `exit_code` into its own.

LmkError                3  bad input or data, unless a subclass says otherwise
├── UsageError          2  an impossible flag or argument
│   └── UnknownName     2  a name that is in no catalog (carries the nearest ones)
├── DataError           3  a file, a record or a vector that cannot be used
├── MissingExtra        3  an optional package that is not installed (carries the pip line)
├── Mismatch            3  two artifacts that do not belong together
├── CheckFailed         4  a comparison that was asked for and did not hold
└── Stopped            75  stopped early with everything whole; run the same command again
"""

import difflib
from collections.abc import Iterable


class LmkError(Exception):
    """Anything that lmk refuses; the message says how to fix it."""

    exit_code = 3


class UsageError(LmkError):
    """An impossible flag or argument."""

    exit_code = 2


class UnknownName(UsageError):
    """A name that no catalog holds."""

    def __init__(self, what: str, name: str, known: Iterable[str], hint: str = "") -> None:
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        known_ones = f"known: {', '.join(known)}" if known else ""
        advice = f"did you mean {' or '.join(near)}?" if near else known_ones
        super().__init__(f"unknown {what} '{name}': {' '.join(filter(None, (advice, hint)))}")


class DataError(LmkError):
    """A file, a record or a vector that cannot be used."""


class MissingExtra(LmkError):
    """An optional package that is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f'{purpose} needs {package}, which is not installed: pip install "lmkcli[{extra}]"'
        )


class Mismatch(LmkError):
    """Two artifacts that do not belong together."""


class CheckFailed(LmkError):
    """A comparison that was asked for and did not hold."""

    exit_code = 4


class Stopped(LmkError):
    """Stopped early, everything written is whole; the same command continues."""

    exit_code = 75
