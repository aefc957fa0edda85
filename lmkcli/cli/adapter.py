"""From an operation to a command: a flag for each field, and the result as text or JSON."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import typer

from lmkcli.cli import completion, console, tables
from lmkcli.cli.flags import Config, _given, _option, _parameter, _place, _settings
from lmkcli.errors import LmkError
from lmkcli.operations.options import OutputOptions, expand
from lmkcli.settings import Flag
from lmkcli.spec.operation import Operation, Option, options
from lmkcli.spec.result import Result

_JSON = Flag("Print JSON.")


def command(kind: type[Operation[Any]]) -> Callable[..., None]:
    """The function that typer reads for an operation: its signature has a parameter for each field."""
    found = options(kind)
    parameters = [_of_option(option) for option in found]

    def run(typer_context: typer.Context, json: bool, **values: Any) -> None:
        given = _given(typer_context)
        operation: Operation[Any] = _settings(kind, parameters, values)
        operation.check_effect(given & values.keys())
        execute(operation, json)

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
    run.settings = lambda values: values  # type: ignore[attr-defined]
    return run


def _of_option(option: Option) -> inspect.Parameter:
    """The parameter that typer sees for a field."""
    flag, type_ = option.flag, option.type
    default = inspect.Parameter.empty if option.required else option.field.default
    if flag.argument:
        complete = completion.collections if flag.role == "collection" else None
        argument = typer.Argument(metavar=flag.metavar, help=flag.help, autocompletion=complete)
        return _parameter(option.name, Annotated[type_, argument], default)
    if flag.ineffective and default not in (None, False, inspect.Parameter.empty):
        # None stands for "not given", so that help can show the default without setting it
        flag = replace(flag, shown=flag.shown or str(default))
        type_, default = type_ | None, None
    panel = option.group.panel or None
    return _parameter(
        option.name, _option(option.name, type_, default, flag, panel), default
    )


def execute(operation: Operation[Any], json: bool) -> None:
    """Run an operation, or one for each member of the group that it names, and print the results."""
    members = expand(operation)
    for name, member in members:
        console.note(f"{name}:")
        show(member.run(console.report(member.record())), json)
    if not members:
        show(operation.run(console.report(operation.record())), json)


def show(result: Result | None, json: bool) -> None:
    """Print a result, then raise the error that it carries (a failed check)."""
    if result is None:
        return
    if json:
        console.plain_json(result.as_json())
    elif table := result.table():
        tables.table(table.columns, table.rows, tables.Format.table)
    elif text := str(result):
        console.say(text)
    failure = getattr(result, "failure", None)
    if isinstance(failure, LmkError):
        raise failure
