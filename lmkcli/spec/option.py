"""Option: one field of an operation, with its type and the Flag that declares its meaning."""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from enum import Enum
from functools import cache
from inspect import get_annotations
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from lmkcli.spec.settings import Flag, Settings
from lmkcli.spec.values import parser_of


class Option(NamedTuple):
    """One field of an operation: its type, its Flag, and the settings class that declares it."""

    field: "Field[Any]"
    kind: Any
    flag: Flag
    group: type[Settings]

    @property
    def name(self) -> str:
        """The field's name."""
        return self.field.name

    @property
    def parse(self) -> Callable[[str], object] | None:
        """The function that parses a text into the field's value, if the field has a special notation."""
        return self.flag.parse or next(filter(None, map(parser_of, members(self.kind))), None)

    @property
    def spelling(self) -> str:
        """The long flag, such as '--max-length', or the metavar of an argument."""
        if self.flag.argument:
            return self.flag.metavar or self.name.upper()
        return self.flag.long or f"--{self.name.replace('_', '-')}"

    @property
    def takes_value(self) -> bool:
        """Whether the flag has a value; a switch has none."""
        return bool not in members(self.kind)

    @property
    def repeatable(self) -> bool:
        """Whether the field is a list of values."""
        return any(get_origin(kind) is list for kind in members(self.kind))

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values, if the field has a fixed set of values; else empty."""
        return _choices(self.kind)

    @property
    def expected(self) -> str:
        """A description of the allowed values, such as 'a whole number that is at least 1'."""
        return expected(self.kind, self.flag.min, self.flag.max)

    @property
    def required(self) -> bool:
        """Whether the field has no default."""
        return self.field.default is MISSING and self.field.default_factory is MISSING


def expected(kind: Any, low: float | None = None, high: float | None = None) -> str:
    """Describe the values of a type, such as 'a whole number that is at least 1'."""
    kinds, choices = members(kind), _choices(kind)
    if choices:
        *others, last = choices
        return f"{', '.join(others)} or {last}" if others else last
    if bool in kinds:
        return "true or false"
    if int not in kinds and float not in kinds:
        return "a path" if Path in kinds else "a text"
    number = "a whole number" if float not in kinds else "a number"
    if high is not None:
        return f"{number} between {low or 0:g} and {high:g}"
    return number if low is None else f"{number} that is at least {low:g}"


def _choices(kind: Any) -> tuple[str, ...]:
    for member in members(kind):
        if get_origin(member) is Literal:
            return tuple(map(str, get_args(member)))
        if isinstance(member, type) and issubclass(member, Enum):
            return tuple(str(each.value) for each in member)
    return ()


def options(kind: type[Settings], unused: bool = False) -> tuple[Option, ...]:
    """Return the fields with a Flag of an operation or of a group of settings; arguments first."""
    return _options(kind) if unused else _used_options(kind)  # type: ignore[arg-type]  # classes are hashable


@cache
def _used_options(kind: Any) -> tuple[Option, ...]:
    absent = getattr(kind, "unused", ())
    return tuple(each for each in _options(kind) if each.name not in absent)


@cache
def _options(kind: Any) -> tuple[Option, ...]:
    found = []
    for field, annotation, group in _declared(kind):
        type_, marks = split(annotation)
        flag = next((mark for mark in marks if isinstance(mark, Flag)), None)
        if flag is not None:
            found.append(Option(field, type_, flag, group))
    return tuple(sorted(found, key=lambda option: not option.flag.argument))


def _declared(kind: Any) -> Iterator[tuple["Field[Any]", Any, type[Settings]]]:
    """Yield each field with its annotation and the class that declares it, which
    determines its help panel.
    """
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        owners = (each for each in kind.__mro__ if field.name in get_annotations(each))
        *_, first = owners
        yield field, hints[field.name], first


def split(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the type of an Annotated, and its metadata."""
    if get_origin(annotation) is Annotated:
        kind, *marks = get_args(annotation)
        return kind, tuple(marks)
    return annotation, ()


def members(kind: Any) -> tuple[Any, ...]:
    """Return the member types of a union, or the type itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
