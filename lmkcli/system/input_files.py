"""Guarded reading of input files from any origin.

Only regular files and the pipes of running commands are read, lines and files have a maximum size, JSON is
validated against a type, and the depth of JSON and TOML is bounded.
"""

import hashlib
import json
import os
import re
import stat
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from lmkcli.errors import DataError, LmkError

MAX_LINE = 1 << 20  # characters or bytes in a line of ids and numbers (a run, judgements)
MAX_RECORD_LINE = (
    256 << 20
)  # in a line of a collection or a log, which can contain a whole document
MAX_FILE = 256 << 20  # bytes of a file that is read at once, such as a manifest
_BLOCK = 1 << 20  # bytes
_MOST_LINKS = 40  # that Linux follows
_EMPTY = 2  # characters or bytes of an empty line, at most
_MOST_EMPTY = 1_000_000  # empty lines in a row
# levels of JSON: functions that visit its values take several frames of the stack for each
_MAX_DEPTH = 200
_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[][{}]', re.DOTALL)  # or a string, to skip it

_NAME = r"""(?:(?<![\w-])[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"{_NAME}(?:[ \t]*+\.[ \t]*+{_NAME}){{100}}", re.ASCII)  # of a TOML file

LFS_POINTER = b"version https://git-lfs.github.com/spec/"

Text = TypeVar("Text", str, bytes)
Read = TypeVar("Read", str, bytes, covariant=True)
Shape = TypeVar("Shape")


class OpenFile(Protocol[Read]):
    """An open text or binary file, compressed or not."""

    def read(self, size: int, /) -> Read: ...
    def readline(self, size: int, /) -> Read: ...


def check_finite(path: Path) -> None:
    """Raise DataError unless the path is a file, or the pipe of a command: `<(command)` in a shell.

    Folders and devices, such as /dev/zero, are refused. So are named pipes: without a writer, opening one
    would wait for ever. Raises OSError if the path is missing.
    """
    if stat.S_ISFIFO(path.stat().st_mode) and not os.path.exists(os.path.realpath(path)):
        return  # a pipe without a name, such as /dev/fd/63
    if fault := not_a_file(path):
        raise DataError(f"{path} is {fault}")


def not_a_file(path: Path) -> str:
    """Return '' for a regular file or a missing path; else what the path is, with advice."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return ""
    if stat.S_ISREG(mode):
        return ""
    kinds = ((stat.S_ISDIR, "folder"), (stat.S_ISFIFO, "pipe"), (stat.S_ISSOCK, "socket"))
    kind = next((kind for is_kind, kind in kinds if is_kind(mode)), "device")
    return f"a {kind}; name a file instead"


def is_descriptor(path: str | Path) -> bool:
    """Return whether a path names a file that this process has open, such as /dev/stdin, directly or by
    links.
    """
    place = os.path.expanduser(path)
    for _ in range(_MOST_LINKS):
        folder = os.path.realpath(os.path.dirname(os.path.abspath(place)))
        if folder == "/dev/fd" or folder.startswith("/proc/"):
            return True
        place = os.path.join(folder, os.path.basename(place))
        if not os.path.islink(place):
            return False
        place = os.path.join(folder, os.readlink(place))
    return False


def check_not_pointer(start: bytes | bytearray, path: Path) -> None:
    """Raise DataError if the first bytes of a file are those of a pointer that Git LFS has not replaced."""
    if start.startswith(LFS_POINTER):
        raise DataError(
            f"{path} is a Git LFS pointer, not the file itself; run git lfs pull in its repository, or "
            "download the file again"
        )


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def bounded_lines(file: OpenFile[Text], name: object, limit: int = MAX_LINE) -> Iterator[Text]:
    """Iterate over the lines of an open file, with their line ends.

    Raises DataError for a line that is longer than `limit`, and for a million empty lines in a row: a
    compressed file of some kilobytes can have them.
    """
    empty = 0
    for number, line in enumerate(iter(partial(file.readline, limit), file.read(0)), 1):
        if len(line) == limit:
            raise DataError(
                f"{name} line {number} is longer than {limit:,} characters; is it the right file?"
            )
        empty = empty + 1 if len(line) <= _EMPTY and line.isspace() else 0
        if empty > _MOST_EMPTY:
            raise DataError(
                f"{name} line {number}: {_MOST_EMPTY:,} lines before it are empty; remove them"
            )
        yield line


def whole_file(path: Path, limit: int = MAX_FILE) -> bytes:
    """Read a file. Raises DataError if it has more than `limit` bytes, OSError if it is missing."""
    check_finite(path)
    data = bytearray()
    with open(path, "rb") as file:
        # In blocks: a pipe has no size, and read() reserves as much memory as it may read.
        while block := file.read(_BLOCK):
            data += block
            if len(data) > limit:
                raise DataError(f"{path} is larger than {limit:,} bytes; is it the right file?")
    check_not_pointer(data, path)
    return bytes(data)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    by_key = dict(pairs)
    if len(by_key) < len(pairs):
        repeated, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key '{repeated[:40]}' is in one object twice")
    return by_key


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys)


def parse_json(text: str) -> Any:
    """Parse JSON. Raises ValueError if the text is not JSON or if an object has a key twice."""
    # Counting brackets is fast and gives an upper bound; the exact depth is computed only above it.
    if text.count("[") + text.count("{") > _MAX_DEPTH and _depth(text) > _MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _depth(text: str) -> int:
    """Return the largest number of brackets that are open at the same time."""
    steps = ((each in ("[", "{")) - (each in ("]", "}")) for each in _BRACKET.findall(text))
    return max(accumulate(steps), default=0)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file. Raises DataError unless it is TOML of a few levels, OSError if it is missing."""
    try:
        text = whole_file(path, MAX_LINE).decode("utf-8")
        # The time of tomllib grows with the square of the names in a key.
        if deep := _LONG_KEY.search(text):
            raise ValueError(f"'{deep[0][:20]}…' is nested too deeply")
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not TOML: {error}") from None


def read_json(path: Path, shape: type[Shape], fix: str) -> Shape:
    """Read a JSON file and validate it against a type.

    Returns the value as `json` decodes it. `shape` is a type that msgspec can validate: plain types,
    lists, tuples, dictionaries, TypedDict (additional keys are allowed), dataclasses (additional keys are
    errors), unions, literals, and numbers bounded by `int_range`. Raises DataError, with the key and the
    advice `fix`, for any other value, and OSError if the file is missing.
    """
    try:
        value = parse_json(whole_file(path).decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise DataError(f"{path} cannot be read ({error}); {fix}") from None
    return validate(value, shape, path, fix)


def validate(value: Any, shape: type[Shape], name: object, fix: str) -> Shape:
    """Return the value if it has the given type; raise DataError like `read_json` otherwise."""
    decode(value, shape, name, fix)
    return value  # type: ignore[no-any-return]


def decode(value: Any, shape: type[Shape], name: object, fix: str) -> Shape:
    """Return a JSON value as an object of the given type, such as a struct of msgspec or a dataclass.

    Raises DataError with the name, the key and the advice `fix` if the value does not fit.
    """
    try:
        made: Shape = _converted(value, shape)
    except ValueError as error:
        raise DataError(f"{name} cannot be read ({error}); {fix}") from None
    return made


def read_struct(path: Path, shape: type[Shape], fix: str) -> Shape:
    """Read a JSON file as an object of the given type. Raises DataError and OSError like `read_json`."""
    return decode(read_json(path, dict[str, Any], fix), shape, path, fix)


def text_like(pattern: str) -> msgspec.Meta:
    """Return the regular expression that a text in an annotation matches."""
    return msgspec.Meta(pattern=pattern)


def int_range(low: int, high: int) -> msgspec.Meta:
    """Return the bounds of an integer in an annotation: from `low` up to, but not including, `high`."""
    return msgspec.Meta(ge=low, lt=high)


def _parsed(kind: Any, value: Any) -> Any:
    """Parse a value of a class of texts with a notation (spec/values.py)."""
    if isinstance(value, kind):
        return value
    if issubclass(kind, str) and type(value) in (str, int):
        try:
            return kind(value)
        except LmkError as error:
            raise ValueError(str(error)) from None
    raise TypeError(
        f"Expected `{kind.__name__}`, got `{type(value).__name__}`"
    )  # msgspec adds the key


def _converted(value: Any, shape: Any) -> Any:
    """Convert a JSON value. Raises ValueError with the first key that does not fit, and the reason."""
    if is_dataclass(shape) and isinstance(value, dict):
        names = {field.name for field in fields(shape) if field.init}
        if unknown := sorted(map(str, value.keys() - names)):
            raise ValueError(f"{unknown[0]} is unknown")
    try:
        return msgspec.convert(value, shape, strict=True, str_keys=True, dec_hook=_parsed)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        key = place.rstrip("`").lstrip(".")
        if missing := re.fullmatch(r"Object missing required field `(.+)`", message):
            reason = ".".join(filter(None, (key, missing[1]))) + " is missing"
        elif added := re.fullmatch(r"Object contains unknown field `(.+)`", message):
            reason = ".".join(filter(None, (key, added[1]))) + " is unknown"
        else:
            reason = f"{key}: {message}" if key else message
        raise ValueError(reason) from None
    except UnicodeEncodeError:
        raise ValueError("a key is not valid Unicode") from None
    except (LmkError, RecursionError) as error:  # __post_init__ of a dataclass rejects the values
        raise ValueError(str(error)) from None
