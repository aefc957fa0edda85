"""Operation: one command with all its settings, as a frozen dataclass.

The shell, config files, manifests and Python programs create, store and run the same objects. Everything
that other code must know about a field is declared on the field by its `Flag`.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from functools import cache
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from lmkcli.catalog import OPERATIONS, load
from lmkcli.errors import DataError, UsageError
from lmkcli.progress import Call, Report
from lmkcli.settings import Flag, Settings

Result = TypeVar("Result", covariant=True)
Group = TypeVar("Group", bound=Settings)
# Roles of fields that describe one call of a command, not the artifact that it makes.
_OF_A_CALL = ("output", "consent", "secret", "mode")


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
    def spelling(self) -> str:
        """The long flag, such as '--max-length', or the argument's word in help."""
        if self.flag.argument:
            return self.flag.metavar or self.name.upper()
        return self.flag.long or f"--{self.name.replace('_', '-')}"

    @property
    def required(self) -> bool:
        """Whether the field has no default."""
        return self.field.default is MISSING and self.field.default_factory is MISSING


@dataclass(frozen=True)
class Operation(Settings, Generic[Result]):
    """The base of all operations. Subclasses declare fields, `verb`, and `run`.

    Creating an operation checks its values: UsageError for a wrong type, a value out of range, or a setting
    that has no effect on this variant of the command.
    """

    verb: ClassVar[str]
    version: ClassVar[int] = 1
    unused: ClassVar[tuple[str, ...]] = ()
    """Inherited fields that this operation does not have."""
    per_member: ClassVar[tuple[str, str]] = ("", "")
    """The field that may name a group of collections, and the suffix of a member's output."""

    def __post_init__(self) -> None:
        for option in options(type(self), unused=True):
            value = _checked(option, getattr(self, option.name))
            object.__setattr__(self, option.name, value)
        super().__post_init__()
        absent = [name for name in self.unused if getattr(self, name) != _default(type(self), name)]
        if absent:
            raise UsageError(f"lmk {self.verb} has no {_flags(absent)}; drop it")
        self.check()
        self.check_effect(self.changed())

    def check(self) -> None:
        """Raise UsageError for settings that contradict each other."""

    def run(self, report: Report | None = None) -> Result:
        """Execute the operation and return its result; artifacts that it makes record it.

        Without a report, progress and notes are shown on a terminal and in a notebook, and nowhere else.
        Errors are those of `lmkcli.errors`. Relative paths start from the current folder.
        """
        if report is None:
            from lmkcli.text.progress_bar import interactive

            report = interactive()
        return self.execute(report.of(Call(self.record(), ["lmk", *self.words()])))

    def execute(self, report: Report) -> Result:
        """What `run` does; `report` already names this operation."""
        raise NotImplementedError

    def changed(self) -> frozenset[str]:
        """The names of the fields that differ from their defaults."""
        return frozenset(
            option.name
            for option in options(type(self))
            if option.required or getattr(self, option.name) != option.field.default
        )

    def check_effect(self, given: Iterable[str]) -> None:
        """Raise UsageError for fields among `given` that have no effect on this variant."""
        useless: dict[str, list[str]] = {}
        given = frozenset(given)
        for option in options(type(self)):
            if option.name in given and (reason := self.ineffective(option)):
                useless.setdefault(reason, []).append(option.spelling)
        for reason, flags in useless.items():
            raise UsageError(f"{', '.join(flags)} has no effect with {reason}; drop it")

    def ineffective(self, option: Option) -> str:
        """Why a field has no effect on this variant, such as '--kind bm25'; empty if it has one."""
        flag = option.flag
        if flag.only:
            variant, reason = self.variant()
            return "" if variant in flag.only.split() else reason
        return flag.ineffective(self) if flag.ineffective else ""

    def variant(self) -> tuple[str, str]:
        """The variant of the command, as `Flag.only` names it, and the flag that selects it."""
        return "", ""

    def changed_to(self, **values: Any) -> Self:
        """The same operation with other values in some fields."""
        return replace(self, **values)

    def part(self, group: type[Group]) -> Group:
        """The inherited fields of one group of settings, as an object of that group's class."""
        return group(**{field.name: getattr(self, field.name) for field in fields(group)})  # type: ignore[arg-type]

    def as_json(self) -> dict[str, Any]:
        """All settings as JSON values, without consents and secrets; `from_json` reads them."""
        kept = (each for each in options(type(self)) if each.flag.role not in ("consent", "secret"))
        return self._as_json(kept)

    def record(self) -> dict[str, Any]:
        """The settings that describe what the operation makes, as its manifest stores them."""
        kept = (each for each in options(type(self)) if each.flag.role not in _OF_A_CALL)
        return self._as_json(kept)

    def _as_json(self, kept: Iterable[Option]) -> dict[str, Any]:
        values = {
            each.name: _plain(getattr(self, each.name))
            for each in kept
            if not self.ineffective(each)
        }
        values = {name: value for name, value in values.items() if value is not None}
        return {"operation": self.verb, "version": self.version, **values}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], **changes: Any) -> Self:
        """The operation that `as_json` or `record` wrote, with some fields replaced by `changes`.

        DataError for unknown fields, wrong types, and consents, which a record never contains.
        """
        known = {each.name: each for each in options(cls)}
        values = {key: item for key, item in data.items() if key not in ("operation", "version")}
        if data.get("operation") != cls.verb:
            raise DataError(
                f"this is no record of lmk {cls.verb}: {str(data.get('operation'))[:40]!r}"
            )
        if data.get("version") != cls.version:
            raise DataError(
                f"the record of lmk {cls.verb} has version {str(data.get('version'))[:10]}, this lmk writes "
                f"{cls.version}; install the lmk that made it"
            )
        if unknown := sorted(map(str, values.keys() - known.keys())):
            raise DataError(
                f"this lmk's {cls.verb} has no setting {', '.join(unknown)[:80]}; install the lmk that made "
                "it"
            )
        forbidden = [n for n in values if known[n].flag.role in ("consent", "secret")]
        if forbidden:
            raise DataError(
                f"a record may not contain {', '.join(forbidden)}; give it on the command line"
            )
        try:
            return cls(**{**values, **changes})
        except (TypeError, UsageError) as error:
            raise DataError(f"the record of lmk {cls.verb} cannot be used: {error}") from error

    @classmethod
    def from_texts(cls, texts: Mapping[str, Sequence[str]], **values: Any) -> Self:
        """The operation with fields as texts, as a command line or a grid file writes them.

        `values` are further fields, in their own types. UsageError for texts that a field cannot have.
        """
        known = {each.name: each for each in options(cls)}
        return cls(**{name: _read(known[name], text) for name, text in texts.items()}, **values)

    def words(self) -> list[str]:
        """The words of the command line that means this operation, starting with the verb."""
        words, arguments = [self.verb], []
        for option in options(type(self)):
            value = _plain(getattr(self, option.name))
            if option.flag.argument:
                arguments += _texts(value)
            elif option.required or value != _plain(option.field.default):
                words += _flag_words(option, value)
        separator = (
            ["--"] if any(word.startswith("-") and word != "-" for word in arguments) else []
        )
        return (
            [*words[:1], *separator, *arguments, *words[1:]]
            if not separator
            else [*words, *separator, *arguments]
        )

    def command_line(self) -> str:
        """The command line as a user would type it."""
        return shlex.join(["lmk", *self.words()])


def operation_kind(record: Mapping[str, Any]) -> type[Operation[Any]]:
    """The class of a recorded operation; DataError if this lmk has none of that name."""
    name = record.get("operation")
    if not isinstance(name, str) or name not in OPERATIONS:
        raise DataError(
            f"the record names the operation {str(name)[:40]!r}, which this lmk does not have; install the "
            "lmk that made it"
        )
    kind: type[Operation[Any]] = load(OPERATIONS, name, "operation")
    return kind


def named(record: Mapping[str, Any], *roles: str) -> dict[str, list[str]]:
    """The values of a record's fields of some roles, such as the artifacts that it reads, by field.

    Records of unknown operations name nothing. DataError for values that are not text.
    """
    if record.get("operation") not in OPERATIONS:
        return {}
    found: dict[str, list[str]] = {}
    for option in options(operation_kind(record)):
        if option.flag.role not in roles or record.get(option.name) in (None, ""):
            continue
        value = record[option.name]
        texts = value if isinstance(value, list) else [value]
        if not all(isinstance(text, str) for text in texts):
            raise DataError(
                f"the record has {str(value)[:40]!r} as {option.name}, which is not text"
            )
        found[option.name] = texts
    return found


def options(kind: type[Settings], unused: bool = False) -> tuple[Option, ...]:
    """The fields of an operation, or of a group of settings, that have a Flag; arguments first."""
    found = _options(kind)  # type: ignore[arg-type]  # classes are hashable
    absent = () if unused else getattr(kind, "unused", ())
    return tuple(each for each in found if each.name not in absent)


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
    """Each field with its annotation and the class whose help panel it belongs to."""
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        owners = (
            each for each in kind.__mro__ if field.name in vars(each).get("__annotations__", {})
        )
        *_, first = owners
        yield field, hints[field.name], first


def split(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """The type of an Annotated, and its metadata."""
    if get_origin(annotation) is Annotated:
        kind, *marks = get_args(annotation)
        return kind, tuple(marks)
    return annotation, ()


def _default(kind: type, name: str) -> Any:
    return next(field.default for field in fields(kind) if field.name == name)


def _flags(names: Iterable[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _checked(option: Option, value: Any) -> Any:
    """The value in the field's type (a path from a string); UsageError for anything else."""
    import msgspec

    if option.flag.parse and isinstance(value, str):
        value = option.flag.parse(value)
    kinds = _members(option.kind)
    if isinstance(value, str | Path) and any(get_origin(kind) is list for kind in kinds):
        value = [value]
    if isinstance(value, Path) and str in kinds and Path not in kinds:
        value = str(value)
    if isinstance(value, list):
        value = [
            str(each) if isinstance(each, Path) and list[str] in kinds else each for each in value
        ]
    try:
        value = msgspec.convert(value, option.kind, strict=True, dec_hook=_from_plain)
    except msgspec.ValidationError as error:
        raise UsageError(f"{option.spelling}: {error}") from None
    low, high = option.flag.min, option.flag.max
    number = isinstance(value, int | float) and not isinstance(value, bool)
    too_low = number and low is not None and not value >= low
    if too_low or (number and high is not None and not value <= high):
        bounds = f"at least {low:g}" if high is None else f"between {low or 0:g} and {high:g}"
        raise UsageError(f"{option.spelling} {value}: write a number that is {bounds}")
    return value


def _read(option: Option, texts: Sequence[str]) -> Any:
    """The value of a field from its texts; UsageError if they mean none."""
    kinds = _members(option.kind)
    if any(get_origin(kind) is list for kind in kinds):
        return list(texts)
    if len(texts) != 1:
        raise UsageError(f"{option.spelling} takes one value, not {' '.join(texts)}")
    (text,) = texts
    if bool in kinds:
        if text not in ("true", "false"):
            raise UsageError(f"{option.spelling} is a switch: write true or false, not {text}")
        return text == "true"
    number = next((kind for kind in (int, float) if kind in kinds), None)
    if number is None or option.flag.parse:
        return text
    try:
        return number(text)
    except ValueError:
        what = "a whole number" if number is int else "a number"
        raise UsageError(f"{option.spelling} {text!r}: write {what}") from None


def _members(kind: Any) -> tuple[Any, ...]:
    """The types that a union consists of."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _from_plain(kind: Any, value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    if isinstance(value, kind):
        return value
    raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")


def _plain(value: Any) -> Any:
    """A field's value as JSON holds it."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _texts(value: Any) -> list[str]:
    if isinstance(value, list):
        return [str(item) for item in value]
    return [] if value is None else [str(value)]


def _flag_words(option: Option, value: Any) -> list[str]:
    name = option.spelling
    if isinstance(value, bool):
        return [name if value else f"--no-{name.removeprefix('--')}"]
    name = option.flag.short or name
    return [
        word
        for text in _texts(value)
        for word in ([f"{option.spelling}={text}"] if text.startswith("-") else [name, text])
    ]
