"""Whether this process may use the network. The Hugging Face libraries obey the same variable."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "HF_HUB_OFFLINE"


def forbid() -> None:
    """Forbid downloads from now on.

    The Hugging Face libraries obey only if this runs before they are imported.
    """
    os.environ[VARIABLE] = "1"


def forbidden() -> bool:
    """Whether `forbid` was called, or the variable was set when the process started."""
    return os.environ.get(VARIABLE, "").upper() in {"1", "ON", "YES", "TRUE"}


@contextmanager
def restricted(forbids: bool) -> Iterator[None]:
    """Forbid downloads inside the block, if asked to; then restore the earlier state."""
    before = os.environ.get(VARIABLE)
    if forbids:
        forbid()
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
