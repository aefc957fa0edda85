"""Whether this process may use the network: one answer, which the Hugging Face libraries obey too."""

import os

VARIABLE = "HF_HUB_OFFLINE"


def forbid() -> None:
    """From now on nothing is downloaded.

    The Hugging Face libraries obey only if this runs before they are imported.
    """
    os.environ[VARIABLE] = "1"


def forbidden() -> bool:
    """Whether `forbid` was called, or the variable was set when the process began."""
    return os.environ.get(VARIABLE, "").upper() in {"1", "ON", "YES", "TRUE"}
