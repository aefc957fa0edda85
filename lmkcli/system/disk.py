"""Full disks: recognise them in the errors of libraries, which may drop the error number."""

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Libraries in C++ and Rust write files without reporting the error number.
_NATIVE_WRITE = re.compile(
    r"inline_container|PytorchStreamWriter|PyTorchStreamWriter|iostream error|basic_ios|I/O error"
    r"|[Ee]rror while serializing|failed writing|file write failed|write error in"
)
_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")


def is_full_disk(error: BaseException) -> bool:
    """Return whether an exception, or one of its causes, reports a full disk."""
    messages = [os.strerror(code) for code in FULL_DISK]
    for cause in _causes(error):
        if any(message in str(cause) for message in messages):
            return True
        if isinstance(cause, OSError) and (cause.errno in FULL_DISK or _is_short_write(cause)):
            return True
    return False


def reason(error: BaseException) -> str:
    """Return why a disk accepts no more bytes: space, a quota, or a limit of the size of files."""
    return _reason(number(error))


def number(error: BaseException) -> int:
    """Return the number of the error of a full disk: that of an exception or of its causes, else ENOSPC."""
    for cause in _causes(error):
        found = cause.errno if isinstance(cause, OSError) else 0
        found = found or next((each for each in FULL_DISK if os.strerror(each) in str(cause)), 0)
        if found in FULL_DISK:
            return found
    return errno.ENOSPC


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _reason(code: int) -> str:
    if code == errno.EDQUOT:
        return "the disk quota is exceeded"
    if code == errno.EFBIG:
        return "a file would be larger than the system allows (ulimit -f)"
    return "no space left on the device"


def is_native_write_error(error: BaseException) -> bool:
    """Return whether a library in C++ or Rust failed to write a file; it does not report the cause."""
    found = (_NATIVE_WRITE.search(str(each)) for each in _causes(error))
    return not isinstance(error, OSError) and any(found)


def probe(folder: Path) -> str:
    """Return the reason why a folder accepts no file, by writing one; empty if it accepts one."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 16))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return _reason(error.errno) if error.errno in FULL_DISK else error.strerror or str(error)
    return ""


def _is_short_write(error: OSError) -> bool:
    """Return whether numpy wrote a part of an array: its error has no number."""
    return error.errno is None and bool(_SHORT_WRITE.search(str(error)))


def fits(folder: Path, needed: int) -> bool:
    """Return whether the disk of a folder has `needed` bytes left; quotas and size limits count."""
    return not shortage(folder, needed)


def shortage(folder: Path, needed: int) -> str:
    """Return why the disk of a folder does not accept `needed` bytes; empty if it does."""
    if not hasattr(os, "posix_fallocate"):  # macOS
        full = shutil.disk_usage(folder).free < needed
        return _reason(errno.ENOSPC) if full else ""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, needed)
    except OSError as error:
        return _reason(error.errno) if error.errno in FULL_DISK else ""
    return ""
