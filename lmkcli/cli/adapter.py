"""From an operation to a command: a flag for each field, and the result as text or JSON."""

import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from lmkcli.cli import completion, console, scoretables, tables
from lmkcli.cli.flags import Config, _given, _option, _parameter, _place, _settings
from lmkcli.errors import LmkError
from lmkcli.operations.eval import Evaluated
from lmkcli.operations.options import OutputOptions, expand
from lmkcli.operations.search import Session
from lmkcli.settings import Flag
from lmkcli.spec.operation import Operation, Option, options
from lmkcli.spec.result import Format, Result

_JSON = Flag("Print JSON.")


def command(kind: type[Operation[Any]]) -> Callable[..., None]:
    """The function that typer reads for an operation: its signature has a parameter for each field."""
    found = options(kind)
    parameters = [_of_option(option) for option in found]

    def operation(context: typer.Context, values: dict[str, Any], json: bool) -> Operation[Any]:
        """The operation that a command line means; UsageError for flags without effect."""
        if "form" in values:
            values = {**values, "form": tables.form_of(values["form"], json)}
        made: Operation[Any] = _settings(kind, parameters, values)
        made.check_effect(_given(context) & values.keys())
        return made

    def run(typer_context: typer.Context, json: bool, **values: Any) -> None:
        execute(operation(typer_context, values, json), json)

    panel = "Output" if issubclass(kind, OutputOptions) else None
    flat = [
        _parameter("typer_context", typer.Context, inspect.Parameter.empty),
        *parameters,
        _parameter("json", _option("json", bool, False, _JSON, panel), False),
        _parameter("config", Config, None),
    ]
    flat.sort(key=_place)
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    run.__doc__ = kind.__doc__
    run.__name__ = kind.__name__
    run.operation = operation  # type: ignore[attr-defined]  # for those who check words without running
    return run


def _of_option(option: Option) -> inspect.Parameter:
    """The parameter that typer sees for a field."""
    flag, type_ = option.flag, option.kind
    default = inspect.Parameter.empty if option.required else option.field.default
    if flag.argument:
        complete = completion.collections if flag.role == "collection" else None
        argument = typer.Argument(metavar=flag.metavar, help=flag.help, autocompletion=complete)
        return _parameter(option.name, Annotated[type_, argument], default)
    panel = option.group.panel or None
    return _parameter(option.name, _option(option.name, type_, default, flag, panel), default)


def execute(operation: Operation[Any], json: bool) -> None:
    """Run an operation, or one for each member of the group that it names, and print the results."""
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
    show(operation.run(console.report(operation.record(), ignore)), json)


def show(result: Result | None, json: bool) -> None:
    """Print a result, then raise the error that it carries (a failed check)."""
    if result is None:
        return None
    if isinstance(result, Session):
        return _prompt(result, json)
    if isinstance(result, Evaluated):
        scoretables.show(result)
    elif json:
        console.plain_json(result.as_json())
    else:
        table = result.table()
        text = "" if table and type(result).__str__ is Result.__str__ else str(result)
        if text:
            console.say(text)
        if table:
            tables.table(table.columns, table.rows, Format.table)
    failure = getattr(result, "failure", None)
    if isinstance(failure, LmkError):
        raise failure


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
