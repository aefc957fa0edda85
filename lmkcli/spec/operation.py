"""Operation: one command with all its settings, as a frozen dataclass.

The shell, config files and Python programs create and run these objects, and manifests store them. The
`Flag` of a field declares its help, its spellings, its role and its effect.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from inspect import Signature, get_annotations
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from lmkcli.catalog import VERBS, source_name
from lmkcli.errors import DataError, UsageError
from lmkcli.progress import Call, Report
from lmkcli.spec.option import Option, members, options
from lmkcli.spec.settings import Settings, check_fields
from lmkcli.spec.signature import described, signature
from lmkcli.spec.values import Shard, Size
from lmkcli.text.formatting import shell_line

Result = TypeVar("Result", covariant=True)
# Roles of fields that describe one call of a command instead of the artifact that it makes.
_OF_A_CALL = ("output", "consent", "secret", "mode")


class _ConstructorSignature:
    """The attribute `__signature__` of operations, which `inspect.signature` and notebooks read."""

    def __get__(self, instance: object, owner: type[Settings]) -> Signature:
        return signature(owner)


class _Docstring:
    """The attribute `__doc__` of an operation: its summary and its settings."""

    def __init__(self, summary: str) -> None:
        self._summary = summary

    def __get__(self, instance: object, owner: type[Settings]) -> str:
        return described(owner, self._summary)


@dataclass(frozen=True)
class Operation(Settings, Generic[Result]):
    """The base of all operations. Subclasses declare fields, `verb` and `execute`.

    Creating an operation checks its values. It raises UsageError for a wrong type, a value out of range, or a
    setting without effect on this variant of the command.
    """

    verb: ClassVar[str]
    version: ClassVar[int] = 1
    unused: ClassVar[tuple[str, ...]] = ()
    """Inherited fields that this operation does not support."""
    per_member: ClassVar[tuple[str, str]] = ("", "")
    """The field that may name a group of collections, and the suffix of the output of a member."""
    summary: ClassVar[str] = ""
    """The docstring of the class as it is written, without the settings."""
    __signature__ = _ConstructorSignature()

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        check_fields(cls)
        if written := vars(cls).get("__doc__"):
            cls.summary = written
            cls.__doc__ = _Docstring(written)  # type: ignore[assignment]
        cls.__repr__ = Operation.__repr__  # type: ignore[method-assign]  # else that of dataclass
        methods = {name for name, value in vars(Operation).items() if callable(value)}
        if taken := sorted(methods & {*get_annotations(cls)}):
            raise TypeError(
                f"{cls.__name__}: '{taken[0]}' is a method of operations; rename the field"
            )

    def __new__(cls, *values: Any, **settings: Any) -> Self:
        """Raise UsageError, with a suggestion, for unknown and for missing settings."""
        names, arguments, required = _names(cls)  # type: ignore[arg-type]  # classes are hashable
        if unknown := [name for name in settings if name not in names]:
            raise UsageError(
                f"{cls.__name__} has no setting '{unknown[0]}'; {_meant(cls, unknown[0])}"
            )
        given = {*arguments[: len(values)], *settings}
        missing = [each for each in required if each.name not in given]
        if missing and given:  # nothing is given if an object is copied
            raise UsageError(f"{cls.__name__} needs {missing[0].name}: {missing[0].flag.help}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for option, default in _with_defaults(kind):
            given = getattr(self, option.name)
            value = default if given is option.field.default else _checked(option, given)
            if value is not given:
                object.__setattr__(self, option.name, value)
        super().__post_init__()
        unused = [field for field in fields(kind) if field.name in self.unused]
        absent = [f.name for f in unused if getattr(self, f.name) != f.default]
        if absent:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in absent)
            raise UsageError(f"lmk {self.verb} has no {flags}; drop it")
        self.check()
        self.check_effect(self.changed())

    def __repr__(self) -> str:
        """Return the call that creates the operation, with the settings that differ from their defaults."""
        changed = self.changed()
        chosen = [each for each in options(type(self)) if each.name in changed]
        shown = [
            f"{'' if each.flag.argument else f'{each.name}='}{_plain(getattr(self, each.name))!r}"
            for each in chosen
            if each.flag.role != "secret"
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def check(self) -> None:
        """Raise UsageError for settings that contradict each other."""

    def run(self, report: Report | None = None) -> Result:
        """Execute the operation and return its result. Its artifacts record the operation.

        Without a report, progress and notes are printed only on a terminal and in a notebook. Errors are
        classes of `lmkcli.errors`. Relative paths start from the current folder.
        """
        if report is None:
            from lmkcli.text.progress_bar import interactive

            report = interactive()
        return self.execute(report.with_call(Call(self.record(), ["lmk", *self.words()])))

    def execute(self, report: Report) -> Result:
        """Do the work of `run`. The call of `report` is this operation."""
        raise NotImplementedError

    def changed(self) -> frozenset[str]:
        """Return the names of the fields that differ from their defaults."""
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
        """Return the reason why a field has no effect on this variant, such as '--kind bm25'.

        Empty if it has an effect.
        """
        flag = option.flag
        if flag.only:
            variant, reason = self.variant()
            if variant not in flag.only.split():
                return reason
        return flag.ineffective(self) if flag.ineffective else ""

    def variant(self) -> tuple[str, str]:
        """Return the variant of the command, in the words of `Flag.only`, and the flag that selects it."""
        return "", ""

    def changed_to(self, **values: Any) -> Self:
        """Return the same operation with other values in some fields."""
        return replace(self, **values)

    def as_json(self) -> dict[str, Any]:
        """Return all settings as JSON values, without consents and secrets. `from_json` reads them."""
        kept = (each for each in options(type(self)) if each.flag.role not in ("consent", "secret"))
        return self._as_json(kept)

    def record(self) -> dict[str, Any]:
        """Return the settings that describe the artifact of the operation, as its manifest stores them."""
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
        """Read an operation that `as_json` or `record` wrote, with some fields replaced by `changes`.

        Raises DataError for unknown fields, wrong types, and consents, which a record never contains.
        """
        known = {each.name: each for each in options(cls)}
        values = {key: item for key, item in data.items() if key not in ("operation", "version")}
        if data.get("operation") != cls.verb:
            raise DataError(
                f"not a record of lmk {cls.verb}, but of {str(data.get('operation'))[:40]!r}"
            )
        if data.get("version") != cls.version:
            raise DataError(
                f"the record of lmk {cls.verb} has version {str(data.get('version'))[:10]}, this lmk writes "
                f"version {cls.version}; install the version of lmk that wrote it"
            )
        if unknown := sorted(map(str, values.keys() - known.keys())):
            raise DataError(
                f"lmk {cls.verb} has no setting {', '.join(unknown)[:80]}; install the version of lmk that "
                "wrote the record"
            )
        forbidden = [n for n in values if known[n].flag.role in ("consent", "secret")]
        if forbidden:
            raise DataError(
                f"a record may not contain {', '.join(forbidden)}; give it on the command line"
            )
        for name, value in values.items():
            texts = value if known[name].repeatable and isinstance(value, list) else [value]
            if known[name].flag.role == "collection" and not all(
                isinstance(t, str | None) for t in texts
            ):
                raise DataError(
                    f"the record of lmk {cls.verb} cannot be used: {name} takes one value, the name of a "
                    f"collection, not {str(value)[:40]}"
                )
        try:
            return cls(**{**values, **changes})
        except (TypeError, UsageError) as error:
            raise DataError(f"the record of lmk {cls.verb} cannot be used: {error}") from error

    @classmethod
    def from_texts(cls, texts: Mapping[str, Sequence[str]], **values: Any) -> Self:
        """Create an operation from the texts of its fields, as in a command line or a grid file.

        `values` are further fields, already in their types. Raises UsageError for invalid texts.
        """
        known = {each.name: each for each in options(cls)}
        return cls(**{name: _read(known[name], text) for name, text in texts.items()}, **values)

    def words(self) -> list[str]:
        """Return the words of a command line for this operation, starting with the verb."""
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
        """Return the command line as a user would type it."""
        return shell_line("lmk", *self.words())


def operation_kind(record: Mapping[str, Any]) -> type[Operation[Any]]:
    """Return the class of a recorded operation. Raises DataError for a name that is unknown to this lmk."""
    name = record.get("operation")
    if not isinstance(name, str) or name not in VERBS:
        raise DataError(
            f"the record names the operation {str(name)[:40]!r}, which this lmk does not have; install the "
            "version of lmk that wrote it"
        )
    kind: type[Operation[Any]] = VERBS.load(name)
    return kind


def named(record: Mapping[str, Any], *roles: str) -> dict[str, list[str]]:
    """Return field -> values for the fields of a record with these roles, such as the artifacts that it
    reads.

    Returns nothing for records of unknown operations. Raises DataError for values that are not text.
    """
    name = record.get("operation")
    if not isinstance(name, str) or name not in VERBS:
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


@cache
def _with_defaults(kind: Any) -> tuple[tuple[Option, Any], ...]:
    """Return all options with their defaults, which are checked once: a grid creates
    thousands of operations.
    """
    return tuple(
        (each, None if each.required else _checked(each, each.field.default))
        for each in options(kind, unused=True)
    )


@cache
def _names(kind: Any) -> tuple[frozenset[str], tuple[str, ...], tuple[Option, ...]]:
    """Return the names of all fields, the names of the arguments in their order, and the required fields."""
    known = options(kind, unused=True)
    return (
        frozenset(field.name for field in fields(kind)),
        tuple(field.name for field in fields(kind) if not field.kw_only),
        tuple(each for each in known if each.required),
    )


def _meant(kind: type[Operation[Any]], name: str) -> str:
    """Return the advice for a setting that an operation does not have: by its meaning first, then its
    spelling.
    """
    flag = f"--{name.replace('_', '-')}"
    own = options(kind)
    for option in own:
        if flag in (*option.flag.aliases.split(), *option.flag.suggest_for.split()):
            return f"use {option.name}{_choices(option)}"
    spellings = {each: option for option in own for each in (option.name, *_words(option))}
    if near := get_close_matches(name, spellings, n=1):
        option = spellings[near[0]]
        return f"did you mean {option.name}{_choices(option)}?"
    return f"help(lmkcli.{kind.__name__}) lists its settings"


def _words(option: Option) -> list[str]:
    """Return the other spellings of a flag as words of Python."""
    spellings = (option.spelling, *option.flag.aliases.split())
    return [each.removeprefix("--").replace("-", "_") for each in spellings]


def _choices(option: Option) -> str:
    return f" ({option.expected})" if option.choices else ""


def _checked(option: Option, value: Any) -> Any:
    """Return the value in the type of the field (a path from a string). Raises UsageError for other types."""
    if option.flag.role != "collection":
        return _converted(option, value)
    value = _named(value, option.repeatable)
    converted = _converted(option, value)
    return value if converted == value else converted  # the name of rows in memory keeps the rows


def _converted(option: Option, value: Any) -> Any:
    import msgspec

    kinds = members(option.kind)
    parse = option.parse
    given_as_text = isinstance(value, str) or (isinstance(value, int) and int not in kinds)
    if parse and given_as_text and not isinstance(value, bool):
        value = parse(value if isinstance(value, str) else str(value))
    if isinstance(value, str | Path) and option.repeatable:
        value = [value]
    if type(value) in (list, tuple, set) and not option.repeatable:
        raise UsageError(
            f"{option.spelling} takes one value, not a {type(value).__name__}; {_of_several(option)}"
        )
    if isinstance(value, Path) and str in kinds and Path not in kinds:
        value = str(value)
    if isinstance(value, list):
        value = [
            str(each) if isinstance(each, Path) and list[str] in kinds else each for each in value
        ]
    try:
        value = msgspec.convert(value, option.kind, strict=True, dec_hook=_from_plain)
    except msgspec.ValidationError as error:
        if option.choices and isinstance(value, str):
            raise UsageError(f"{option.spelling} {value}: write {option.expected}") from None
        raise UsageError(f"{option.spelling}: {error}") from None
    texts = value if isinstance(value, list) else [value]
    if any("\0" in str(text) for text in texts if isinstance(text, str | Path)):
        raise UsageError(f"{option.spelling}: a value contains a null character")
    low, high = option.flag.min, option.flag.max
    number = isinstance(value, int | float) and not isinstance(value, bool)
    too_low = number and low is not None and not value >= low
    if too_low or (number and high is not None and not value <= high):
        raise UsageError(f"{option.spelling} {value}: write {option.expected}")
    return value


def _named(value: Any, repeatable: bool) -> Any:
    """Return the value of a field with collections: tables and texts of a Python program get names."""
    if value is None or isinstance(value, str | Path):
        return value
    several = isinstance(value, list | tuple) and repeatable
    if several and not all(isinstance(each, Mapping) or hasattr(each, "_asdict") for each in value):
        return [_named(each, False) for each in value]
    return source_name(value)


def _of_several(option: Option) -> str:
    """Return the advice for several values of an option that takes one."""
    if option.parse:
        return f"write {option.name}='…' as on the command line"
    role = option.flag.role
    for each in options(option.group):
        if role and each.flag.role == role and each.repeatable:
            return f"write further ones as {each.name}=[…]"
    return "run the operation for each of them"


def _read(option: Option, texts: Sequence[str]) -> Any:
    """Parse texts into the value of a field. Raises UsageError for invalid texts."""
    kinds = members(option.kind)
    if option.repeatable:
        return list(texts)
    if len(texts) != 1:
        raise UsageError(f"{option.spelling} takes one value, not {' '.join(texts)}")
    (text,) = texts
    if bool in kinds:
        if text not in ("true", "false"):
            raise UsageError(f"{option.spelling} is a switch: write true or false, not {text}")
        return text == "true"
    number = next((kind for kind in (int, float) if kind in kinds), None)
    if number is None or option.parse:
        return text
    try:
        return number(text)
    except ValueError:
        raise UsageError(f"{option.spelling} {text!r}: write {option.expected}") from None


def _from_plain(kind: Any, value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    if isinstance(value, kind):
        return value
    raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")


def _plain(value: Any) -> Any:
    """Return the value of a field as a JSON value."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path | Shard | Size | str):
        return str(value)
    return value


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
