"""Announcements of changes: an old name works, and says what replaces it and when it goes.

docs/stability.md describes the promise to users.
"""

import warnings


class Deprecated(FutureWarning):
    """An old name of lmk that a later version removes. Python shows a FutureWarning to every user."""


def deprecated(old: str, new: str, removal: str) -> None:
    """Warn the caller of a function of lmk that used `old`; `new` replaces it.

    `removal` is the version without the old name, such as '2.0'. Call this in the function that accepts the
    old name, with literals: a test finds the calls, and fails when a version is reached. The command line
    prints the message as one note.
    """
    message = f"{old} is deprecated, and lmk {removal} removes it: use {new}"
    warnings.warn(message, Deprecated, stacklevel=3)
