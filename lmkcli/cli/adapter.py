"""From an operation to a command: a flag for each field, and the result as text or JSON."""

import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.models import ArgumentInfo

from lmkcli.cli import completion, configfile, console, tables
from lmkcli.cli.exits import exit_codes
from lmkcli.errors import LmkError, UsageError
from lmkcli.operations.options import OutputOptions, expand, shadowed_folders
from lmkcli.operations.search import Session
from lmkcli.settings import Flag, Settings
from lmkcli.spec.operation import Operation, Option, options, split
from lmkcli.spec.result import Format, Result, Table
from lmkcli.system import network

OFTEN = "Most used"  # the first panel of a help page
_CONFIG = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A TOML file with a table of flags for this command.",
        callback=configfile.read,
        is_eager=True,
        expose_value=False,
    ),
]


@dataclass(frozen=True)
class _Shown(Settings):
    """How every command prints its result."""

    json: Annotated[bool, Flag("Print JSON.")] = False


def command(kind: type[Operation[Any]]) -> Callable[..., None]:
    """The function that typer reads for an operation: its signature has a parameter for each field."""

    def operation(context: typer.Context, values: dict[str, Any], json: bool) -> Operation[Any]:
        """The operation that a command line means; UsageError for flags without effect."""
        if "form" in values:
            values = {**values, "form": tables.form_of(values["form"], json)}
        known = {name: _at_home(value) for name, value in values.items() if value is not None}
        made = kind(**known)
        made.check_effect(_given(context) & values.keys())
        return made

    def run(typer_context: typer.Context, json: bool, **values: Any) -> None:
        execute(operation(typer_context, values, json), json)

    panel = "Output" if issubclass(kind, OutputOptions) else None
    flat = [
        _parameter("typer_context", typer.Context, inspect.Parameter.empty),
        *(_of_option(kind.verb, option) for option in options(kind)),
        *(_of_option(kind.verb, option, panel) for option in options(_Shown)),
        _parameter("config", _CONFIG, None),
    ]
    flat.sort(key=_place)
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    run.__doc__ = kind.__doc__
    run.__name__ = kind.__name__
    run.operation = operation  # type: ignore[attr-defined]  # for tests, which read words and run nothing
    return run


def variable(verb: str, long: str) -> str:
    """The environment variable of a flag: LMK_<VERB>_<FLAG>."""
    return f"LMK_{verb}_{long.removeprefix('--')}".upper().replace("-", "_")


def execute(operation: Operation[Any], json: bool) -> None:
    """Run an operation, or one for each member of the group that it names, and print the results."""
    if getattr(operation, "offline", False):
        network.forbid()
    for line in shadowed_folders(operation):
        console.note(line)
    members = expand(operation)
    for name, member in members:
        console.note(f"{name}:")
        _run(member, json)
    if not members:
        _run(operation, json)


def _run(operation: Operation[Any], json: bool) -> None:
    def step(result: Any) -> None:
        show(result, False)

    ignore = (lambda result: None) if json else step
    show(operation.run(console.report(ignore)), json)


def show(result: Result | None, json: bool) -> None:
    """Print a result, then raise the error that it carries (a failed check)."""
    if result is None:
        return None
    if isinstance(result, Session):
        return _prompt(result, json)
    if json or result.form is Format.json:
        console.plain_json(result.as_json())
    else:
        for block in result.details() if console.verbose else result.blocks():
            if isinstance(block, Table):
                tables.table(block.columns, block.rows, result.form, block.title)
            else:
                tables.text(block, result.form)
    for line in result.notes():
        console.note(line)
    failure = getattr(result, "failure", None)
    if isinstance(failure, LmkError):
        raise failure


def run_alone(operation: Operation[Any]) -> None:
    """Run an operation as the only one of this process: JSON on stdout, errors as exit codes."""
    with exit_codes():
        execute(operation, json=True)


def _prompt(session: Session, json: bool) -> None:
    """Answer the questions of stdin, a line each."""
    while True:
        if sys.stdin.isatty():
            sys.stderr.write("? ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            show(session.ask(line.strip()), json)


def _of_option(verb: str, option: Option, panel: str | None = None) -> inspect.Parameter:
    """The parameter that typer sees for a field. A switch that is on can also be turned off."""
    flag, type_ = option.flag, option.kind
    default = inspect.Parameter.empty if option.required else option.field.default
    complete = completion.of(option)
    if flag.argument:
        argument = typer.Argument(metavar=flag.metavar, help=flag.help, autocompletion=complete)
        return _parameter(option.name, Annotated[type_, argument], default)
    spelling = option.spelling
    if type_ in (bool, bool | None) and default is not False:
        spelling += f"/--no-{spelling.removeprefix('--')}"
    parse = flag.parse or (partial(_path, option.spelling) if Path in _kinds(type_) else None)
    declared = typer.Option(
        *filter(None, (spelling, flag.short)),
        help=flag.help,
        min=flag.min,
        max=flag.max,
        metavar=flag.metavar,
        parser=_of_text(parse) if parse else None,
        show_default=flag.shown or default != "",
        autocompletion=complete,
        rich_help_panel=OFTEN if flag.often else panel or option.group.panel or None,
        envvar=variable(verb, option.spelling),
    )
    return _parameter(option.name, Annotated[type_, declared], default)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=annotation)


def _place(parameter: inspect.Parameter) -> int:
    """The position in help: arguments first, then the flags that are used most."""
    _, marks = split(parameter.annotation)
    if any(isinstance(mark, ArgumentInfo) for mark in marks):
        return 0
    return 1 if any(getattr(mark, "rich_help_panel", "") == OFTEN for mark in marks) else 2


def _kinds(kind: Any) -> Iterator[Any]:
    """The type itself, or the types in a list or a union."""
    inner = get_args(kind)
    yield from itertools.chain.from_iterable(map(_kinds, inner)) if inner else (kind,)


def _path(flag: str, text: str) -> Path:
    """The path; UsageError for an empty one, which Python takes for the current folder."""
    if not text:
        raise UsageError(f"{flag} is empty; name a file or a folder, or drop it")
    return Path(text)


def _of_text(parse: Callable[[str], object]) -> Callable[[Any], Any]:
    """The same for typer, which also parses defaults."""
    return lambda value: parse(value) if isinstance(value, str) else value


def _at_home(value: Any) -> Any:
    """Paths with '~' and '~name' replaced, which a shell leaves unchanged in '--flag=~/x'."""
    if isinstance(value, list | tuple):
        return type(value)(map(_at_home, value))
    return Path(os.path.expanduser(value)) if isinstance(value, Path) else value


def _given(context: typer.Context) -> frozenset[str]:
    """The names of the parameters that were given: on the command line, by a variable or a file."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(
        name for name, source in sources.items() if source and source.name != "DEFAULT"
    )
