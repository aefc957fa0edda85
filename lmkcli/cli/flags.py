"""Flags from settings: a command takes dataclasses, and typer sees an option for each field.

The field is the only declaration of a setting: its name makes the flag (`max_length` is --max-length),
its default and type are the flag's, and its `Flag` says the rest.
"""

import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import cache, partial, wraps
from operator import itemgetter
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, NamedTuple, cast, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo

from lmkcli.cli import completion, configfile
from lmkcli.errors import UsageError
from lmkcli.settings import Flag

OFTEN = "Most used"  # the first panel of a help page
Values = dict[str, Any]
Config = Annotated[
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
class Subset:
    """Beside a dataclass: which of its fields are flags here (all but some, or some alone), and which
    of them must be given. The others keep their defaults.

    `conditional` ones mean something beside some other flag alone; they are not recorded unless given.
    """

    without: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    conditional: bool = False

    def has(self, name: str) -> bool:
        """Whether a field is a flag."""
        return name in self.only if self.only else name not in self.without


class Given(frozenset[str]):
    """The names of the flags that the user gave, on the command line or anywhere else."""


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """`command` as typer reads it: dataclasses stand as their flags, and --config can set them.

    A parameter of type Given receives what was given. Types with a Flag are flags by themselves;
    everything else (arguments, typer's context) stays as it is.
    """
    hints = get_type_hints(command, include_extras=True)
    own = inspect.signature(command).parameters
    parts = {name: _part(name, hints[name], own[name].default) for name in own}

    def settings(values: Values) -> Values:
        """The command's own parameters, from those that typer sees; UsageError as the dataclasses say."""
        return {name: part.value(values) for name, part in parts.items()}

    @wraps(command)
    def run(**values: Any) -> None:
        command(**settings(values))

    flat = [parameter for part in parts.values() for parameter in part.parameters]
    flat.sort(key=_place)
    flat.append(_parameter("config", Config, None))
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    run.settings = settings  # type: ignore[attr-defined]  # for those who check words without running them
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return run


class _Part(NamedTuple):
    """The parameters that typer sees for one of a command's, and what their values become."""

    parameters: list[inspect.Parameter]
    value: Callable[[Values], Any]


def _part(name: str, annotation: Any, default: Any) -> _Part:
    kind, marks = _split(annotation)
    if is_dataclass(kind):
        subset = next((mark for mark in marks if isinstance(mark, Subset)), Subset())
        parameters = list(_of_fields(kind, subset))
        return _Part(parameters, partial(_settings, cast(type, kind), parameters))
    if kind is Given:
        parameters = [_parameter(name, typer.Context, inspect.Parameter.empty)]
        return _Part(parameters, lambda values: _given(values[name]))
    if default is inspect.Parameter.empty and NoneType in get_args(kind):
        default = None  # what may be None may be left out
    flags = [mark for mark in marks if isinstance(mark, Flag)]
    option = _option(name, kind, default, flags[0], None) if flags else annotation
    return _Part([_parameter(name, option, default)], itemgetter(name))


def _settings(kind: type, parameters: list[inspect.Parameter], values: Values) -> Any:
    """The dataclass of the flags' values; None leaves a field's default, whatever it is."""
    given = {each.name: values[each.name] for each in parameters}
    return kind(**{name: value for name, value in given.items() if value is not None})


def _split(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """The type itself, and what Annotated says beside it."""
    if get_origin(annotation) is Annotated:
        kind, *marks = get_args(annotation)
        return kind, tuple(marks)
    return annotation, ()


def _of_fields(settings: Any, subset: Subset) -> Iterator[inspect.Parameter]:
    """A parameter for each field with a Flag, in the help panel that the dataclass names."""
    hints = _hints(settings)
    for field in fields(settings):
        kind, marks = _split(hints[field.name])
        flag = next((mark for mark in marks if isinstance(mark, Flag)), None)
        if flag is None or not subset.has(field.name):
            continue
        default = _default(field, subset)
        if subset.conditional and default not in (None, False):
            flag = replace(flag, shown=flag.shown or str(default))
            kind, default = kind | None, None
        option = _option(field.name, kind, default, flag, getattr(settings, "panel", None))
        yield _parameter(field.name, option, default)


@cache
def _hints(settings: type) -> dict[str, Any]:
    return get_type_hints(settings, include_extras=True)


def _default(field: "Field[Any]", subset: Subset) -> Any:
    required = field.default is MISSING or field.name in subset.required
    return inspect.Parameter.empty if required else field.default


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=annotation)


def _place(parameter: inspect.Parameter) -> int:
    """Where help shows it: arguments first, then what is used most."""
    _, marks = _split(parameter.annotation)
    if any(isinstance(mark, ArgumentInfo) for mark in marks):
        return 0
    return 1 if any(getattr(mark, "rich_help_panel", "") == OFTEN for mark in marks) else 2


def _option(name: str, kind: Any, default: Any, flag: Flag, panel: str | None) -> Any:
    """The type with typer's words for it. A switch that is on, or open, can also be turned off."""
    long = flag.long or f"--{name.replace('_', '-')}"
    switch = kind in (bool, bool | None)
    parse = flag.parse or (partial(_path, long) if Path in _kinds(kind) else None)
    if switch and default is not False:
        long += f"/--no-{long.removeprefix('--')}"
    option = typer.Option(
        *filter(None, (long, flag.short)),
        help=flag.help,
        min=flag.min,
        max=flag.max,
        metavar=flag.metavar,
        parser=_of_text(parse) if parse else None,
        show_default=flag.shown or default != "",
        autocompletion=completion.OF_FLAGS.get(long),
        rich_help_panel=OFTEN if flag.often else panel,
    )
    return Annotated[kind, option]


def _kinds(kind: Any) -> Iterator[Any]:
    """The type itself, or those that a list or a union is of."""
    inner = get_args(kind)
    yield from itertools.chain.from_iterable(map(_kinds, inner)) if inner else (kind,)


def _path(flag: str, text: str) -> Path:
    """The path; UsageError for an empty one, which to Python is the current folder."""
    if not text:
        raise UsageError(f"{flag} is empty; name a file or a folder, or drop it")
    return Path(text)


def _of_text(parse: Callable[[str], object]) -> Callable[[Any], Any]:
    """The same for typer, which parses defaults too."""
    return lambda value: parse(value) if isinstance(value, str) else value


def _given(context: typer.Context) -> Given:
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return Given(name for name, source in sources.items() if source and source.name != "DEFAULT")
