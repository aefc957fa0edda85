"""The text of one file: what every reader of a kind of file gives, and how bytes become characters."""

import codecs
from typing import NamedTuple, Protocol

from lmkcli.errors import DataError, UsageError

MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class FileText(NamedTuple):
    """What a file says; `title` is empty where it names none."""

    title: str
    text: str


class FileReader(Protocol):
    """What a row of the catalog's READERS is: the bytes of a file to its text.

    `encoding` is that of text that does not say its own. DataError, with the reason alone, for what
    cannot be read or has no text; an empty file is an empty text.
    """

    def __call__(self, data: bytes, encoding: str) -> FileText: ...


def check_encoding(name: str) -> None:
    """UsageError for an encoding of text that Python does not have."""
    try:
        b"a".decode(name, "replace")
    except (LookupError, UnicodeError):
        raise UsageError(
            f"encoding={name}: Python has no such encoding of text; write utf-8, cp1252 or shift_jis, "
            "for instance"
        ) from None


def decoded(data: bytes, encoding: str, declared: str = "") -> str:
    """The characters of a text file; a byte order mark comes before what it declares, that before `encoding`.

    DataError for another encoding, and for what is no text.
    """
    said = next((name for mark, name in MARKS.items() if data.startswith(mark)), declared)
    try:
        text = data.decode(said or encoding)
    except UnicodeError as error:
        if b"\0" in data:
            raise DataError("is binary, not text") from None
        place = f" (byte {error.start + 1:,})" if isinstance(error, UnicodeDecodeError) else ""
        if said:
            raise DataError(
                f"says that it is {said}, and is not{place}; correct that, or save it so"
            ) from None
        raise DataError(
            f"is not {encoding}{place}; name its encoding, such as ',encoding=cp1252'"
        ) from None
    if "\0" in text:
        raise DataError("is binary, not text")
    return text.replace("\r\n", "\n")
