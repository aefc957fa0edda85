"""Reading files that may be anybody's: regular files and pipes alone, lines and sizes within bounds, and
JSON that is checked against a type."""

import hashlib
import json
import re
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from lmkcli.errors import DataError, LmkError

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


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    by_key = dict(pairs)
    if len(by_key) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
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
    """Read a JSON file and validate it against a type.

    Returns the value as `json` decodes it. `shape` is a type that msgspec can validate: plain types,
    lists, tuples, dictionaries, TypedDict (further keys are allowed), dataclasses (further keys are
    refused), unions, literals, and numbers bounded by `within`. Raises DataError, with the key and the
    advice `fix`, for any other value, and OSError if the file is missing.
    """
    try:
        value = parsed(whole_file(path).decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise DataError(f"{path} cannot be read ({error}); {fix}") from None
    return checked(value, shape, path, fix)


def checked(value: Any, shape: type[Shape], name: object, fix: str) -> Shape:
    """Return the value if it has the given type; raise DataError like `read_json` otherwise."""
    if fault := _fault(value, shape):
        raise DataError(f"{name} cannot be read ({fault}); {fix}")
    return value  # type: ignore[no-any-return]


def within(low: int, high: int) -> msgspec.Meta:
    """The bounds of an integer in an annotation: from `low` up to, but not including, `high`."""
    return msgspec.Meta(ge=low, lt=high)


def _fault(value: Any, shape: Any) -> str:
    """The first key of a JSON value that does not fit a type, and why; empty if everything fits."""
    if is_dataclass(shape) and isinstance(value, dict):
        names = {field.name for field in fields(shape) if field.init}
        if unknown := sorted(map(str, value.keys() - names)):
            return f"{unknown[0]} is unknown"
    try:
        msgspec.convert(value, shape, strict=True, str_keys=True)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        key = place.rstrip("`").lstrip(".")
        if missing := re.fullmatch(r"Object missing required field `(.+)`", message):
            return ".".join(filter(None, (key, missing[1]))) + " is missing"
        return f"{key}: {message}" if key else message
    except UnicodeEncodeError:
        return "a key is not valid Unicode"
    except (LmkError, RecursionError) as error:  # a dataclass refuses the combination of its values
        return str(error)
    return ""
