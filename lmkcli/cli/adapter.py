"""Turn an operation into a command: one flag per field, and the result as text or JSON."""

import inspect
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.models import ArgumentInfo

from lmkcli.cli import completion, configfile, console, library_output
from lmkcli.cli.exits import exit_codes, watch_signals
from lmkcli.cli.helptext import MOST_USED
from lmkcli.errors import DataError, LmkError, UsageError
from lmkcli.operations.options import OutputOptions, expand, shadowed_folders
from lmkcli.operations.search import Session
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.spec.option import Option, options, split
from lmkcli.spec.result import Format, Result, Table
from lmkcli.spec.settings import Flag, Settings
from lmkcli.spec.values import check_utf8
from lmkcli.system import network
from lmkcli.system.caches import lmk_cache
from lmkcli.system.disk import fits, is_full_disk, number
from lmkcli.system.output_streams import is_standard_output

_PATHS = (
    "collection",
    "model",
    "artifact",
    "run",
    "file",
    "output",
)  # roles; a path may have any bytes
_LITTLE = 1 << 20  # bytes; a disk without them is full
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
class _ResultOptions(Settings):
    """Output options of every command."""

    json: Annotated[bool, Flag("Print JSON.")] = False


def command(kind: type[Operation[Any]]) -> Callable[..., None]:
    """Make the function of a command, with one parameter per field. typer turns it into a command."""

    def operation(context: typer.Context, values: dict[str, Any], json: bool) -> Operation[Any]:
        """Create the operation of a command line. Raises UsageError for flags without effect."""
        if "form" in values:
            values = {**values, "form": console.form_of(values["form"], json)}
        for option in options(kind):
            value = values.get(option.name)
            if option.flag.role not in _PATHS and isinstance(value, str):
                check_utf8(value, option.spelling)
        known = {name: _expand_user(value) for name, value in values.items() if value is not None}
        made = kind(**known)
        # A flag with its default value is refused as well if it has no effect.
        sources = {name: context.get_parameter_source(name) for name in values}
        made.check_effect(n for n, source in sources.items() if source and source.name != "DEFAULT")
        return made

    def run(typer_context: typer.Context, json: bool, **values: Any) -> None:
        execute(operation(typer_context, values, json), json)

    panel = "Output" if issubclass(kind, OutputOptions) else None
    parameters = [
        _parameter("typer_context", typer.Context, inspect.Parameter.empty),
        *(_parameter_of(kind.verb, option) for option in options(kind)),
        *(_parameter_of(kind.verb, option, panel) for option in options(_ResultOptions)),
        _parameter("config", _CONFIG, None),
    ]
    parameters.sort(key=_position)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = kind.summary
    run.__name__ = kind.__name__
    run.operation = operation  # type: ignore[attr-defined]  # for tests, which parse without running
    run.kind = kind  # type: ignore[attr-defined]  # for usage errors
    aliases = {option.name: option.flag.aliases.split() for option in options(kind)}
    run.aliases = aliases  # type: ignore[attr-defined]  # for the parser
    return run


def variable(verb: str, long: str) -> str:
    """Return the environment variable of a flag: LMK_<VERB>_<FLAG>."""
    return f"LMK_{verb}_{long.removeprefix('--')}".upper().replace("-", "_")


def execute(operation: Operation[Any], json: bool) -> None:
    """Run an operation and print its result. If its collection is a group, run it for each member."""
    library_output.escape_control_characters()
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
    """Run one operation with notes and progress on stderr, and print its result."""
    output = getattr(operation, "output", None)
    if json and output is not None and is_standard_output(output):
        raise UsageError(
            f"--json and -o {output} both write to standard output; drop one of them, or name a file for -o"
        )

    def show_step(result: Any) -> None:
        if not json:  # JSON output is one value, the final result
            show(result, False)

    report = Report(note=console.note, show=show_step, open=_open_job)
    try:
        result = operation.run(report)
    except Exception as error:
        named = isinstance(error, LmkError) or getattr(error, "filename", None)
        if named or not is_full_disk(error):
            raise
        raise OSError(number(error), str(error), str(_full_place(operation))) from error
    show(result, json)


def _full_place(operation: Operation[Any]) -> Path:
    """Return the path of an operation on a full disk: its output, an artifact that it changes, or a cache."""
    declared = options(type(operation))
    roles = ("output", "artifact")  # most commands only read an artifact
    values = [getattr(operation, o.name) for role in roles for o in declared if o.flag.role == role]
    named = [each for value in values for each in (value if isinstance(value, list) else [value])]
    places = [*(Path(each) for each in named if each), lmk_cache(), Path(tempfile.gettempdir())]
    for place in places:
        folder = next(each for each in place.absolute().parents if each.is_dir())
        if not fits(folder, _LITTLE):
            return place
    return places[0]


@contextmanager
def _open_job(title: str, parent: Report, before_stop: str) -> Iterator[Report]:
    """The report of one long job: it shows progress and, with `before_stop`, stops on a signal."""
    with (
        console.progress(title) as progress,
        watch_signals(before_stop) if before_stop else nullcontext(lambda: False) as stopping,
    ):
        yield parent._replace(progress=progress, stopping=stopping, open=None)


def show(result: Result | None, json: bool) -> None:
    """Print a result, then raise its error if it has one (a failed check)."""
    if result is None:
        return None
    if isinstance(result, Session):
        return _prompt(result, json)
    if json or result.form is Format.json:
        console.plain_json(result.as_json())
    else:
        for block in result.details() if console.verbose else result.blocks():
            if isinstance(block, Table):
                console.table(block.columns, block.rows, result.form, block.title)
            else:
                console.text(block, result.form)
    for line in result.notes():
        console.note(line)
    failure = getattr(result, "failure", None)
    if isinstance(failure, LmkError):
        raise failure


def run_alone(operation: Operation[Any]) -> None:
    """Run an operation as the only one of its process: JSON on stdout, errors as exit codes."""
    with exit_codes():
        execute(operation, json=True)


_LONGEST_QUESTION = 100_000  # characters, as for a server


def _prompt(session: Session, json: bool) -> None:
    """Read questions from stdin, one per line, and print the hits of each."""
    while True:
        if sys.stdin.isatty():
            sys.stderr.write("? ")
            sys.stderr.flush()
        try:
            line = sys.stdin.readline(_LONGEST_QUESTION + 1)
        except UnicodeDecodeError as error:
            raise DataError(
                f"standard input: {error}; convert it: iconv -t UTF-8 | lmk …"
            ) from None
        if not line:
            return
        if len(line) > _LONGEST_QUESTION:
            raise UsageError(
                f"a question has more than {_LONGEST_QUESTION:,} characters; shorten it"
            )
        if line.strip():
            show(session.ask(line.strip()), json)


def _parameter_of(verb: str, option: Option, panel: str | None = None) -> inspect.Parameter:
    """Return the parameter that typer reads for a field. A switch that is on by default also gets --no-…."""
    flag, type_ = option.flag, option.kind
    default = inspect.Parameter.empty if option.required else option.field.default
    complete = completion.completer(option)
    if flag.argument:
        # readable: reading shows whether a file can be read, and its error tells the cause
        argument = typer.Argument(
            metavar=flag.metavar, help=flag.help, autocompletion=complete, readable=False
        )
        return _parameter(option.name, Annotated[type_, argument], default)
    spelling = option.spelling
    if type_ in (bool, bool | None) and default is not False:
        spelling += f"/--no-{spelling.removeprefix('--')}"
    parse = option.parse or (partial(_path, option.spelling) if Path in _kinds(type_) else None)
    declared = typer.Option(
        *filter(None, (spelling, flag.short)),
        help=flag.help,
        min=flag.min,
        max=flag.max,
        metavar=flag.metavar,
        parser=_text_parser(parse) if parse else None,
        show_default=flag.shown or default != "",
        autocompletion=complete,
        rich_help_panel=MOST_USED if flag.often else panel or option.group.panel or None,
        envvar=variable(verb, option.spelling),
    )
    return _parameter(option.name, Annotated[type_, declared], default)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=annotation)


def _position(parameter: inspect.Parameter) -> int:
    """Return the position on the help page: arguments first, then the most used flags."""
    _, marks = split(parameter.annotation)
    if any(isinstance(mark, ArgumentInfo) for mark in marks):
        return 0
    return 1 if any(getattr(mark, "rich_help_panel", "") == MOST_USED for mark in marks) else 2


def _kinds(kind: Any) -> Iterator[Any]:
    """Yield the type itself, or the member types of a list or a union."""
    inner = get_args(kind)
    yield from itertools.chain.from_iterable(map(_kinds, inner)) if inner else (kind,)


def _path(flag: str, text: str) -> Path:
    """Parse a path. Raises UsageError for an empty one, which Python treats as the current folder."""
    if not text:
        raise UsageError(f"{flag} is empty; name a file or a folder, or drop the flag")
    return Path(text)


def _text_parser(parse: Callable[[str], object]) -> Callable[[Any], Any]:
    """Wrap a parser for typer, which also passes default values to it."""
    return lambda value: parse(value) if isinstance(value, str) else value


def _expand_user(value: Any) -> Any:
    """Replace '~' and '~name' in paths; a shell does not expand them in '--flag=~/x'."""
    if isinstance(value, list | tuple):
        return type(value)(map(_expand_user, value))
    return Path(os.path.expanduser(value)) if isinstance(value, Path) else value
