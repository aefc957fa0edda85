"""The `lmk` command: verbs, exit codes, and nothing that takes time to import."""

import sys
from typing import Annotated

import typer

from lmkcli import __version__
from lmkcli.cli import commands, console
from lmkcli.cli.exits import exit_codes

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
    with exit_codes():
        _run()


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
