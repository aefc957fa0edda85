"""Reading files that may be anybody's: regular files and pipes alone, lines and sizes within bounds, and
JSON that is checked against a type."""

import hashlib
import json
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    Never,
    NotRequired,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)  # fmt: skip

from lmkcli.errors import DataError

LINE = 1 << 20  # of a run, judgements: ids and numbers
LONG_LINE = 256 << 20  # of a collection or a log: a whole document
WHOLE = 256 << 20  # of a file that is read at once, such as a manifest
_PIECE = 1 << 20
Text = TypeVar("Text", str, bytes)
Read = TypeVar("Read", str, bytes, covariant=True)


class OpenFile(Protocol[Read]):
    """A file, compressed or not, opened for text or bytes."""

    def read(self, size: int, /) -> Read: ...
    def readline(self, size: int, /) -> Read: ...


def check_finite(path: Path) -> None:
    """DataError for what is no file or has no end, such as a folder or /dev/zero; OSError if absent."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        what = "a folder" if stat.S_ISDIR(mode) else "a device"
        raise DataError(f"{path} is {what}, where a file or a pipe is needed")


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def bounded_lines(file: OpenFile[Text], name: object, limit: int = LINE) -> Iterator[Text]:
    """The lines of an open file, with their ends; DataError for one that is longer than `limit`."""
    for number, line in enumerate(iter(partial(file.readline, limit), file.read(0)), 1):
        if len(line) == limit:
            raise DataError(
                f"{name} line {number} is longer than {limit:,} characters; is it the right file?"
            )
        yield line


def whole_file(path: Path, limit: int = WHOLE) -> bytes:
    """What is in a file; DataError where that is more than `limit` bytes. OSError if absent."""
    check_finite(path)
    data = bytearray()
    with open(path, "rb") as file:
        while more := file.read(
            _PIECE
        ):  # a pipe has no size, and reading sets aside what it may read
            data += more
            if len(data) > limit:
                raise DataError(f"{path} is larger than {limit:,} bytes; is it the right file?")
    return bytes(data)


Shape = TypeVar("Shape")
_ABSENT = object()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    by_key = dict(pairs)
    if len(by_key) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key '{twice[:40]}' is in one object twice")
    return by_key


_DECODER = json.JSONDecoder(object_pairs_hook=_once)


_DEEPEST = 500  # levels: the decoder of Python 3.13 may run out of the stack instead of refusing
_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[][{}]', re.DOTALL)  # or a string, to pass over


def parsed(text: str) -> Any:
    """The JSON value that a text is; ValueError for any other, and for a key twice in one object."""
    if text.count("[") + text.count("{") > _DEEPEST and _depth(text) > _DEEPEST:
        raise ValueError("it is nested too deeply")
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _depth(text: str) -> int:
    """How many brackets are open at once, at most."""
    steps = ((each in ("[", "{")) - (each in ("]", "}")) for each in _BRACKET.findall(text))
    return max(accumulate(steps), default=0)


def read_json(path: Path, shape: type[Shape], fix: str) -> Shape:
    """The JSON value in a file, of the given type; DataError, with the key and `fix`, for another one.

    OSError if absent. `shape` is made of plain types, lists, tuples, dictionaries, TypedDict (other keys
    are let through), dataclasses, unions and literals; Annotated[int, range(…)] bounds a number.
    """
    try:
        value = parsed(whole_file(path).decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise DataError(f"{path} cannot be read ({error}); {fix}") from None
    return checked(value, shape, path, fix)


def checked(value: Any, shape: type[Shape], name: object, fix: str) -> Shape:
    """The value itself, if it is of the given type; DataError as of `read_json`."""
    if fault := _fault(value, shape, ""):
        raise DataError(f"{name} cannot be read ({fault}); {fix}")
    return value  # type: ignore[no-any-return]


def _fault(value: Any, shape: Any, at: str) -> str:
    """What of a JSON value is not as `shape` says, and under which key; empty if all is."""
    origin, inner = get_origin(shape), get_args(shape)
    if shape is Any or (shape is float and type(value) is int and abs(value) <= sys.float_info.max):
        return ""
    if origin is NotRequired:
        return _fault(value, inner[0], at)
    if origin is Annotated:
        return _fault(value, inner[0], at) or _outside(value, inner[1:], at)
    if origin in (Union, UnionType):
        faults = [_fault(value, each, at) for each in inner]
        return "" if "" in faults else faults[0]
    if origin is Literal:
        return "" if value in inner else f"{at} is {str(value)[:20]!r}, which is none of {inner}"
    if origin in (list, dict) or shape in (list, dict):
        items = _items(value, origin or shape, inner, at)
    elif origin is tuple:
        items = _places(value, inner, at)
    elif is_typeddict(shape) or is_dataclass(shape):
        items = _fields(value, shape, at)
    else:
        items = [] if type(value) is shape else None
    if items is None:
        needed = getattr(origin or shape, "__name__", str(shape))
        return f"{at or 'it'} is a {type(value).__name__}, where a {needed} is needed"
    missing = next((f"{key} is missing" for each, _, key in items if each is _ABSENT), "")
    return missing or next((wrong for item in items if (wrong := _fault(*item))), "")


def _outside(value: Any, notes: tuple[Any, ...], at: str) -> str:
    bounds = next((each for each in notes if isinstance(each, range)), None)
    outside = bounds is not None and value not in bounds
    return f"{at} is {str(value)[:20]}, which cannot be" if outside else ""


Items = list[tuple[Any, Any, str]]  # values within a value, the shape of each, its key


def _items(value: Any, kind: type, inner: tuple[Any, ...], at: str) -> Items | None:
    if type(value) is not kind:
        return None
    within: Any = value
    pairs: Iterable[tuple[Any, Any]] = within.items() if kind is dict else enumerate(within)
    return [(each, inner[-1], f"{at}[{key}]") for key, each in pairs] if inner else []


def _places(value: Any, inner: tuple[Any, ...], at: str) -> Items | None:
    if not isinstance(value, list | tuple):
        return None
    shapes = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
    if len(shapes) != len(value):
        return None
    return [
        (each, shape, f"{at}[{n}]")
        for n, (each, shape) in enumerate(zip(value, shapes, strict=True))
    ]


def _fields(value: Any, shape: Any, at: str) -> Items | None:
    if not isinstance(value, dict):
        return None
    hints = get_type_hints(shape, include_extras=True)
    if is_typeddict(shape):
        needed = shape.__required_keys__
    else:
        known = [each for each in fields(shape) if each.init]
        needed = {
            each.name
            for each in known
            if each.default is MISSING and each.default_factory is MISSING
        }
        if strange := sorted(value.keys() - {each.name for each in known}):
            return [(strange[0], Never, f"{at}.{strange[0]}".lstrip("."))]
    absent: Items = [
        (_ABSENT, hints[key], f"{at}.{key}".lstrip(".")) for key in sorted(needed - value.keys())
    ]
    return absent + [
        (value[key], hint, f"{at}.{key}".lstrip(".")) for key, hint in hints.items() if key in value
    ]
