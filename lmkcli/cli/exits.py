"""Exit codes: every error becomes one message and the documented code."""

import errno
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from lmkcli.cli import console
from lmkcli.errors import DataError, LmkError, Stopped


@contextmanager
def exit_codes() -> Iterator[None]:
    """Print the error of the block on stderr and exit with its code; SIGTERM and SIGUSR1 stop it."""
    # a shell can close them (`lmk … >&-`), and then Python has none
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (open to the end)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    try:
        with console.leaving():
            yield
    except console.StopSignal as signal:
        console.error(f"{signal}: stopped early; run the same command again to continue")
        sys.exit(Stopped.exit_code)
    except LmkError as error:
        if console.verbose:
            console.error(traceback.format_exc())
        console.error(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # the reader of our output went away (`lmk … | head`): nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        console.error("interrupted")
        sys.exit(130)
    except MemoryError:
        console.error(
            "memory ran out; give the command more of it, or less to do at once (--batch-tokens, --shard)"
        )
        sys.exit(DataError.exit_code)
    except (OSError, UnicodeEncodeError) as error:
        message = _file_error(error)
        if not message:
            raise
        if console.verbose:
            console.error(traceback.format_exc())
        console.error(message)
        sys.exit(DataError.exit_code)


def _file_error(error: OSError | UnicodeEncodeError) -> str:
    """What is wrong with a file or a device; empty for an error that no file explains."""
    if isinstance(error, UnicodeEncodeError):
        rename = (
            f"a file name that is not UTF-8 cannot be used here ({error.object[-100:]}); rename it"
        )
        return rename if error.reason == "surrogates not allowed" else ""
    if error.errno in console.FULL_DISK:
        return (
            f"no space left on the device ({error.filename or 'output'}); what was written whole "
            "stays. Make room and run the same command again"
        )
    if error.filename is None and error.errno == errno.ENOENT:
        return "the current folder is missing; change into another one"
    if error.filename is None and error.errno not in console.DEVICE:
        return ""
    return f"{error.filename2 or error.filename or 'a file'}: {error.strerror}"
