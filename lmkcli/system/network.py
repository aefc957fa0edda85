"""Permission to use the network. The Hugging Face libraries read the same environment variable."""

import ipaddress
import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

VARIABLE = "HF_HUB_OFFLINE"


def forbid() -> None:
    """Forbid downloads from now on.

    The Hugging Face libraries obey only if this runs before they are imported.
    """
    os.environ[VARIABLE] = "1"


def forbidden() -> bool:
    """Return whether downloads are forbidden: by `forbid`, or by the variable when the process started."""
    return os.environ.get(VARIABLE, "").upper() in {"1", "ON", "YES", "TRUE"}


def is_local(address: str) -> bool:
    """Return whether an address names a file, or a server on this machine."""
    host = urlsplit(address).hostname or ""
    if "://" not in address or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def restricted(offline: bool) -> Iterator[None]:
    """Forbid downloads inside the block if `offline` is true; restore the earlier state afterwards."""
    before = os.environ.get(VARIABLE)
    if offline:
        forbid()
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
