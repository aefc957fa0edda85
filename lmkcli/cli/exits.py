"""Signals and exit codes: every error becomes one message and the documented code."""

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from lmkcli.cli import console
from lmkcli.errors import DataError, LmkError, Stopped
from lmkcli.progress import SAVING
from lmkcli.system.disk import is_full_disk, is_native_write_error, reason

signalled = False  # whether this command has received a signal to stop
# Errors without a file name that a wrong call causes, so bugs of lmk. All others come from the system: a
# device, a file system of the network, a limit.
_WRONG_CALLS = {
    *(
        errno.EBADF,
        errno.EFAULT,
        errno.EINVAL,
        errno.ENOTTY,
        errno.ESPIPE,
        errno.ECHILD,
        errno.ESRCH,
    ),
    *(errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR, errno.ENOTSOCK),
}

_LONGEST = 300  # characters of an error of a library
_AGAIN_SECONDS = 0.05  # until a signal that Python ignored is raised again


class StopSignal(BaseException):
    """A signal to stop arrived, and no running job has to finish its current part first."""


@contextmanager
def raise_on_signal() -> Iterator[None]:
    """Make SIGTERM and SIGUSR1 raise StopSignal in the block, also while the command starts.

    Python ignores exceptions that are raised inside `__del__`, and prints them. In that case a timer raises
    StopSignal again. The signal is also stored in `signalled`, which `watch_signals` reads.
    """
    global signalled
    signalled = False
    arrived = ""

    def handle(number: int, frame: FrameType | None) -> None:
        global signalled
        nonlocal arrived
        signalled = True
        arrived = arrived or signal.Signals(number).name
        raise StopSignal(arrived)

    def ignored(unraisable: "sys.UnraisableHookArgs") -> None:
        if issubclass(unraisable.exc_type, StopSignal):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
        else:
            report(unraisable)

    kinds = (signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)
    before = [signal.signal(kind, handle) for kind in kinds]
    report, sys.unraisablehook = sys.unraisablehook, ignored
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = report
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)


@contextmanager
def watch_signals(before_stop: str = SAVING) -> Iterator[Callable[[], bool]]:
    """Provide a function that returns whether SIGTERM, SIGINT or SIGUSR1 has arrived.

    The job polls it and ends after its current part. A note on stderr contains `before_stop`: what the job
    still does. A second SIGINT interrupts at once.
    """
    stopping = signalled
    signal.setitimer(signal.ITIMER_REAL, 0)  # the job itself ends at a signal that Python ignored

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        if stopping and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopping = True
        console.note(f"{signal.Signals(number).name}: stopping; {before_stop}")

    kinds = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = [signal.signal(kind, handle) for kind in kinds]
    try:
        yield lambda: stopping
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Print an error of the block on stderr and exit with its code; SIGTERM and SIGUSR1 end the block."""
    # a shell can close the streams (`lmk … >&-`); then Python sets them to None
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (open to the end)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    try:
        with raise_on_signal():
            yield
    except StopSignal as stop:
        console.error(f"{stop}: stopped early; run the same command again to continue", label="")
        sys.exit(Stopped.exit_code)
    except LmkError as error:
        if console.verbose:
            console.trace(traceback.format_exc())
        console.error(str(error), label="" if isinstance(error, Stopped) else "error: ")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # the reader of the output has exited (`lmk … | head`), which is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        console.error("interrupted", label="")
        sys.exit(130)
    except MemoryError:
        console.error(
            "out of memory: use a machine with more memory, lower --batch-tokens, or divide the work "
            "with --shard"
        )
        sys.exit(DataError.exit_code)
    except Exception as error:
        message = _file_error(error)
        if not message:
            raise
        if console.verbose:
            console.trace(traceback.format_exc())
        console.error(message)
        sys.exit(DataError.exit_code)


def _file_error(error: Exception) -> str:
    """Describe a problem of a file or a device; empty for errors with another cause."""
    if is_full_disk(error):
        name = getattr(error, "filename", None) or "output"
        return (
            f"{reason(error)} ({name}); complete parts were kept. Free some space and run the "
            "same command again"
        )
    if isinstance(error, UnicodeEncodeError):
        rename = (
            f"a file name that is not UTF-8 cannot be used here ({error.object[-100:]}); rename it"
        )
        return rename if error.reason == "surrogates not allowed" else ""
    if is_native_write_error(error):
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:_LONGEST]
        return (
            f"a file could not be written ({first}); complete parts were kept. Check the disk and its quota, "
            "and run the same command again"
        )
    if not isinstance(error, OSError):
        return ""
    if error.filename is None and error.errno == errno.ENOENT:
        return "the current folder does not exist; change to another one"
    if error.filename is None and (error.errno is None or error.errno in _WRONG_CALLS):
        return ""
    return f"{error.filename2 or error.filename or 'a file'}: {error.strerror}"
