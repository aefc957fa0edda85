"""Full disks: recognise them in the errors of libraries, which may drop the error number."""

import errno
import os
import re
import shutil
import tempfile
from pathlib import Path

FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")


def is_full_disk(error: BaseException) -> bool:
    """Return whether an exception, or one of its causes, reports a full disk."""
    messages = [os.strerror(code) for code in FULL_DISK]
    cause: BaseException | None = error
    while cause is not None:
        if any(message in str(cause) for message in messages):
            return True
        if isinstance(cause, OSError) and (cause.errno in FULL_DISK or _is_short_write(cause)):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _is_short_write(error: OSError) -> bool:
    """Return whether numpy wrote a part of an array: its error has no number."""
    return error.errno is None and bool(_SHORT_WRITE.search(str(error)))


def fits(folder: Path, needed: int) -> bool:
    """Return whether the disk of a folder has `needed` bytes left; quotas and size limits count."""
    if not hasattr(os, "posix_fallocate"):  # macOS
        return shutil.disk_usage(folder).free >= needed
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, needed)
    except OSError as error:
        return error.errno not in FULL_DISK
    return True
