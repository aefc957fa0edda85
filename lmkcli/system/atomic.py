"""Atomic changes on disk: files and folders that appear whole or not at all, and locks on outputs.

A temporary name contains the machine and the process that write it. The next process that writes the same
path removes the temporary files of killed processes.
"""

import errno
import fcntl
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path

from lmkcli.errors import DataError, Stopped
from lmkcli.progress import Note
from lmkcli.system.output_streams import is_stream

LOCK_FILE = "update.lock"
ABANDONED_SECONDS = 86_400.0  # a temporary file of another machine without changes for so long
_WRITER = re.compile(r"(?:.*[.-])?(\d+)[.-](\d+)[.-]\d+", re.ASCII | re.DOTALL)
# NFS refuses to lock a file alone that is open for reading (EBADF).
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF}
_NO_SYNC = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}  # some file systems cannot sync a folder


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file name in the folder of `path`.

    When the block ends without an error, the temporary file is synced and renamed to `path`.
    """
    temporary = temporary_name(path)
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path, last: str = "") -> Iterator[Path]:
    """Yield a temporary folder next to `path`.

    When the block ends without an error, the temporary folder is synced and renamed to `path`. If `path`
    is a folder with content, the new files are moved into it one by one; the file `last` follows the others.
    """
    path = destination(path)  # next to the target of a link, so that the rename stays on one disk
    temporary = temporary_name(path)
    make_folder(path.parent)
    temporary.mkdir()
    try:
        yield temporary
        sync_tree(temporary)
        if path.is_dir() and os.listdir(path):
            _move_entries(temporary, path, last)
        else:
            os.rename(temporary, path)
        sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _move_entries(source: Path, target: Path, last: str) -> None:
    """Move files in the order of their creation. A folder that exists in both is filled in the same way."""
    entries = sorted(source.iterdir(), key=lambda item: item.stat().st_mtime_ns)
    for entry in sorted(entries, key=lambda item: item.name == last):
        existing = target / entry.name
        if entry.is_dir() and existing.is_dir() and not existing.is_symlink():
            _move_entries(entry, existing, "")
        else:
            os.replace(entry, existing)
    sync(target)


def temporary_name(path: Path) -> Path:
    """Return a new temporary name for `path`. Removes what killed processes left of earlier ones."""
    remove_abandoned(path)
    return path.with_name(f".{path.name}.{process_mark('.')}")


def process_mark(separator: str) -> str:
    """Return the mark of this process in a temporary name: machine, process and time."""
    return separator.join(map(str, (_machine(), os.getpid(), time.monotonic_ns())))


def temporary_folder(purpose: str) -> "tempfile.TemporaryDirectory[str]":
    """Return a new temporary folder, in TMPDIR. Removes what killed processes left of earlier ones."""
    remove_abandoned(Path(tempfile.gettempdir()) / f"lmk-{purpose}")
    return tempfile.TemporaryDirectory(prefix=f".lmk-{purpose}.", suffix=f".{process_mark('.')}")


def remove_abandoned(path: Path) -> None:
    """Remove the temporary files and folders of `path` that killed processes left."""
    with suppress(OSError):
        for name in os.listdir(path.parent):
            left = path.with_name(name)
            temporary = name.startswith(f".{path.name}.") and _WRITER.fullmatch(name)
            if temporary and is_abandoned(left, ABANDONED_SECONDS):
                if left.is_dir() and not left.is_symlink():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)


def is_abandoned(path: Path, seconds: float) -> bool:
    """Return whether a path with a temporary name belongs to a killed process.

    The running processes of this machine are known. A path of another machine is abandoned if nothing in it
    has changed for some seconds.
    """
    named = _WRITER.fullmatch(path.name)
    if named and int(named[1]) == _machine():
        return not _is_running(int(named[2]))
    try:
        inside = [] if path.is_symlink() or not path.is_dir() else [*path.iterdir()]
        newest = max(each.lstat().st_mtime for each in [path, *inside])
    except OSError:
        return False  # it has just been renamed or removed
    return time.time() - newest > seconds


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


@cache
def _machine() -> int:
    """Return a number for this machine since its start, and for the container that numbers the processes."""
    names = [socket.gethostname()]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        with suppress(OSError):
            names.append(os.readlink(path) if path.endswith("pid") else Path(path).read_text())
    return int.from_bytes(blake2b("\0".join(names).encode(), digest_size=6).digest(), "big")


def destination(path: Path) -> Path:
    """Resolve links in the path of a file or folder that will be replaced.

    A link to a missing file or folder is followed, and the target can be created. The result has a name, and
    a temporary name or a lock can be next to it. Raises DataError if the folder above that target is missing,
    or for a stream, which cannot be replaced. Raises OSError for a link that leads to itself, and for the
    root folder.
    """
    if is_stream(path):
        raise DataError(
            f"{path} is a pipe, a device or an open stream, which cannot be replaced; name another output"
        )
    real = Path(os.path.realpath(path))
    if real.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if not real.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    for each in (path, *path.parents):
        if each.is_symlink() and not each.exists():
            target = Path(os.path.realpath(each))
            if not target.parent.is_dir():
                raise DataError(
                    f"{each} is a link to {target}, and the folder {target.parent} does not exist; create "
                    "that folder, or remove the link"
                )
    return real


def sync(path: Path) -> None:
    """Flush the data of a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Sync a folder and all files and folders in it."""
    for entry in (*folder.rglob("*"), folder):
        sync(entry)


def make_folder(path: Path) -> None:
    """Create a folder, and the folders above it, if they do not exist. Each new entry is synced.

    Errors are those of `destination`.
    """
    if path.is_dir():
        return
    path = destination(path)
    new = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in new:
        sync(each.parent)


@contextmanager
def locked(folder: Path, waiting: Note | None = None) -> Iterator[None]:
    """Lock a folder, so that only one process at a time changes it.

    If another process has the lock, raises Stopped with the name of that process. With `waiting`, waits
    for the lock instead, and first calls `waiting` with a line that names the other process. Raises DataError
    if the folder cannot be locked.
    """
    with _lock(folder / LOCK_FILE, f"{folder} is being changed by", waiting):
        yield


def lock_of(path: Path) -> Path:
    """Return the lock file of an output, which is a hidden file next to it."""
    return path.with_name(f".{path.name}.lock")


@contextmanager
def exclusive(path: Path, waiting: Note | None = None) -> Iterator[None]:
    """Let only one process at a time write the output `path`; the others raise Stopped.

    With `waiting`, they wait instead, as in `locked`. The lock is a hidden file next to the output, and it
    is removed at the end. A stream (a pipe, a device, standard output) needs no lock, and a file system
    without locks has none.
    """
    if is_stream(path):
        yield
        return
    path = destination(path)
    missing = [each for each in path.parents if not each.exists()]
    make_folder(path.parent)
    lock = lock_of(path)
    try:
        with _lock(lock, f"{path} is being written by", waiting, optional=True):
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
    finally:
        for each in missing:  # still empty after an error
            with suppress(OSError):
                each.rmdir()


@contextmanager
def _lock(
    path: Path, busy: str, waiting: Note | None = None, optional: bool = False
) -> Iterator[None]:
    """Create and lock a file. With `optional`, a file system without locks is no error."""
    descriptor = _open_lock(path)
    try:
        while not _acquire(descriptor, path, fcntl.LOCK_EX | fcntl.LOCK_NB, optional):
            owner = os.pread(descriptor, 1000, 0).decode(errors="replace").strip()
            line = f"{busy} {owner or 'another process'}"
            if waiting is None:
                raise Stopped(f"{line}; nothing was done. Run the same command again later")
            waiting(f"{line}; waiting for it")
            _acquire(descriptor, path, fcntl.LOCK_EX, optional)
        if not _is_current(descriptor, path):  # its owner has removed it
            with _lock(path, busy, waiting, optional):
                yield
            return
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        os.ftruncate(descriptor, 0)
        line = f"process {os.getpid()} on {socket.gethostname()} since {since}\n"
        os.write(descriptor, line.encode())
        yield
    finally:
        os.close(descriptor)


@contextmanager
def in_use(path: Path) -> Iterator[None]:
    """Share a lock on an existing file with other processes, so that `unused` refuses its removal."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not _acquire(descriptor, path, fcntl.LOCK_SH | fcntl.LOCK_NB, optional=True):
            raise Stopped(
                f"another process removes {path.parent}; run the same command again later"
            )
        yield
    finally:
        os.close(descriptor)


@contextmanager
def unused(path: Path) -> Iterator[None]:
    """Lock an existing file alone. Raises Stopped if another process has it in use."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not _acquire(descriptor, path, fcntl.LOCK_EX | fcntl.LOCK_NB, optional=True):
            raise Stopped(
                f"another process is writing {path.parent}; nothing was removed. Run the same command again "
                "later"
            )
        yield
    finally:
        os.close(descriptor)


def _open_lock(path: Path) -> int:
    """Open a lock file, never another file behind a link. Raises DataError if that is impossible."""
    make_folder(path.parent)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise _no_lock_file(path) from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise DataError(
                f"{path} cannot be written ({error.strerror}), so {path.parent} cannot be locked; allow "
                "writing there, or copy the folder"
            ) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_lock_file(path)
    return descriptor


def _no_lock_file(path: Path) -> DataError:
    return DataError(f"{path} is no lock file of lmk, but a link, a folder or a device; remove it")


def _acquire(descriptor: int, path: Path, kind: int, optional: bool) -> bool:
    """Take a lock; return False if another process has it."""
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        return False
    except OSError as error:
        if not (optional and error.errno in _NO_LOCKS):
            raise DataError(
                f"{path.parent} cannot be locked ({error.strerror}); copy it to a file system with locks, "
                "such as a local disk"
            ) from None
    return True


def _is_current(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False
