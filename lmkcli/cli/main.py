"""The `lmk` command: verbs, exit codes, and nothing that takes time to import."""

import errno
import os
import sys
import traceback
from typing import Annotated

import typer

from lmkcli import __version__
from lmkcli.cli import commands, console
from lmkcli.errors import DataError, LmkError, Stopped

app = typer.Typer(
    name="lmk",
    cls=commands.Lmk,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "LMK"},
    epilog="Exit codes: 0 done, 1 a bug, 2 usage, 3 bad input or data, 4 a check failed, "
    "75 stopped early (run the same command again), 130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lmk {__version__}")
        raise typer.Exit


@app.callback()
def root(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no notes.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Tracebacks for every error.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Dense retrieval over documents of any length: tokenize, encode, index, search, eval."""
    console.quiet = quiet
    console.verbose = verbose


def main() -> None:
    """Run a command line; every error becomes one message and the documented exit code."""
    # a shell can close them (`lmk … >&-`), and then Python has none
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (open to the end)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    try:
        with console.leaving():
            _run()
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
        message = _of_a_file(error)
        if not message:
            raise
        if console.verbose:
            console.error(traceback.format_exc())
        console.error(message)
        sys.exit(DataError.exit_code)


def _of_a_file(error: OSError | UnicodeEncodeError) -> str:
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


def _run() -> None:
    try:
        app()
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):  # typer made it exit code 1, a bug's
            raise left.__context__ from None
        sys.stdout.flush()  # here, where a reader that went away is still caught
        raise


if __name__ == "__main__":
    main()
