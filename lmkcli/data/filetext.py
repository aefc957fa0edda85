"""The interface of the readers of files: from the bytes of one file to its title and text."""

import codecs
from typing import NamedTuple, Protocol

from lmkcli.errors import DataError, UsageError

BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class FileText(NamedTuple):
    """The title and the text of a file; the title is empty if the file has none."""

    title: str
    text: str


class FileReader(Protocol):
    """A function that extracts the text of a file from its bytes; listed in the catalog's READERS.

    `encoding` applies to text that does not declare its own. Raises DataError, with only the reason as
    message, if the file is unreadable or has no text. An empty file gives an empty text.
    """

    def __call__(self, data: bytes, encoding: str) -> FileText: ...


class WrongEncoding(DataError):
    """The bytes of a file are text in another encoding than the one that was named."""


def check_encoding(name: str) -> None:
    """Raise UsageError if Python has no text encoding of this name."""
    try:
        b"a".decode(name, "replace")
    except (LookupError, UnicodeError):
        raise UsageError(
            f"encoding={name}: Python has no such encoding of text; write utf-8, cp1252 or shift_jis, "
            "for instance"
        ) from None


def decode_text(data: bytes, encoding: str, declared: str = "") -> str:
    """Decode the bytes of a text file.

    A byte order mark has the highest priority, then the encoding that the file declares, then `encoding`.
    Raises WrongEncoding if the bytes have another encoding, and DataError if they are not text.
    """
    mark = next((name for mark, name in BYTE_ORDER_MARKS.items() if data.startswith(mark)), "")
    tried = [mark] if mark else [*filter(None, (declared, encoding))]
    failure: UnicodeError | None = None
    for each in tried:
        try:
            text = data.decode(each)
        except UnicodeError as error:
            failure = failure or error
            continue
        if "\0" in text:
            raise DataError("is binary, not text")
        return text.replace("\r\n", "\n")
    if b"\0" in data:
        raise DataError("is binary, not text") from failure
    place = f" (byte {failure.start + 1:,})" if isinstance(failure, UnicodeDecodeError) else ""
    if declared or mark:
        raise WrongEncoding(
            f"declares the encoding {mark or declared} but has another one{place}; correct the declaration, "
            "or save the file in that encoding"
        ) from failure
    raise WrongEncoding(
        f"is not {encoding}{place}; name its encoding, such as ',encoding=cp1252'"
    ) from failure
