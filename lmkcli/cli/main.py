"""The `lmk` program: its commands, and the errors of the process. It imports nothing that takes time."""

import atexit
import gc
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any

import typer

from lmkcli import __version__
from lmkcli.catalog import VERBS
from lmkcli.cli import console
from lmkcli.cli.exits import exit_codes
from lmkcli.cli.helptext import ParsingError, VerbCommand, VerbGroup
from lmkcli.cli.verbs import verbs
from lmkcli.errors import UsageError

HELP = {"help_option_names": ["-h", "--help"]}


class Commands(Mapping[str, Any]):
    """Verb -> command. A command is created on first use: `lmk show` does not import `lmk train`."""

    def __getitem__(self, verb: str) -> Any:
        if verb not in VERBS:
            raise KeyError(verb)
        return _command(verb)

    def __iter__(self) -> Iterator[str]:
        return iter(verbs())

    def __len__(self) -> int:
        return len(VERBS)


@cache
def _command(verb: str) -> Any:
    from lmkcli.cli.adapter import command

    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    run = command(VERBS.load(verb))
    app.command(verb, cls=VerbCommand, context_settings=HELP)(run)
    return typer.main.get_command(app)


class Lmk(VerbGroup):
    """The group of all commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": Commands()})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first word names. Raises UsageError with a
        suggestion for other words.
        """
        if args[0] not in VERBS and not args[0].startswith("-"):
            from lmkcli.cli import usage

            raise UsageError(usage.unknown_command(args[0]))
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="lmk",
    cls=Lmk,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings=HELP | {"auto_envvar_prefix": "LMK"},
    epilog="Exit codes: 0 done, 1 a bug, 2 usage, 3 bad input or data, 4 a check failed, "
    "75 stopped early (run the same command again), 130 interrupted.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lmk {__version__}")
        raise typer.Exit


@app.callback()
def root(
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print no progress and no notes.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Print more notes, and a traceback for every error."),
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Dense retrieval over documents of any length: tokenize, encode, index, search, eval."""
    console.quiet = quiet
    if quiet:  # libraries such as ir_datasets also print progress and warnings
        logging.disable(logging.WARNING)
        os.environ.setdefault("TQDM_DISABLE", "1")
    console.verbose = verbose


def main() -> None:
    """Run a command line. Every error becomes one message and the documented exit code."""
    # Imported libraries create a million objects, and all of them stay. With Python's thresholds, garbage
    # collections walk them again and again: a fifth of the time of a short command.
    gc.set_threshold(20_000, 100, 20)
    # the last collection would take up to seconds, and frees nothing of use
    atexit.register(gc.freeze)
    console.accept_all_characters()
    with exit_codes():
        try:
            code = app(standalone_mode=False)
        except ParsingError as error:
            if refused := _permission_error(error):
                raise refused from None
            from lmkcli.cli import usage

            raise UsageError(usage.explain(error)) from error
        except typer.Abort as error:  # typer replaces EOFError by Abort; in lmk it is a bug
            raise error.__cause__ or error from None
        except SystemExit as exit_:
            # typer exits with 1, the code of a bug, if the reader of the output has exited
            if isinstance(exit_.__context__, BrokenPipeError):
                raise exit_.__context__ from None
            raise
        sys.stdout.flush()  # raises BrokenPipeError here, inside exit_codes
        if code == 130:  # typer replaces KeyboardInterrupt by this code
            raise KeyboardInterrupt
        sys.exit(code)


def _permission_error(error: BaseException) -> PermissionError | None:
    """Return the error of the system from which typer made a wrong value, if there is one."""
    cause = error.__cause__ or error.__context__
    while cause is not None and not isinstance(cause, PermissionError):
        cause = cause.__cause__ or cause.__context__
    return cause


if __name__ == "__main__":
    main()
