"""The interface of the readers of files: from the bytes of one file to its title and text."""

import codecs
import unicodedata
from collections import Counter
from typing import NamedTuple, Protocol

from lmkcli.errors import DataError, UsageError

BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # it starts with the mark of UTF-16
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# First bytes of files that are no plain text -> the suffix of their kind.
_OTHER_KINDS = {
    b"PK\x03\x04": ".zip",
    b"\x1f\x8b": ".gz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"%PDF-": ".pdf",
    b"PAR1": ".parquet",
    b"{\\rtf": ".rtf",
}
# Suffix of a kind that lmk does not read -> kinds that programs of this kind can save, and that lmk reads.
SAVE_AS = {
    **dict.fromkeys((".doc", ".docm", ".odt", ".pages", ".rtf", ".wpd"), ".docx"),
    **dict.fromkeys((".key", ".odp", ".ppt", ".pptx"), ".pdf"),
    **dict.fromkeys((".numbers", ".ods", ".xls", ".xlsm", ".xlsx"), ".csv"),
    **dict.fromkeys((".azw3", ".mobi"), ".epub"),
    ".msg": ".eml",
}
# Sequences of ISO 2022 that change to the letters of a language
_ESCAPES = {
    b"\x1b$B": "iso2022_jp_ext",
    b"\x1b$@": "iso2022_jp_ext",
    b"\x1b$)C": "iso2022_kr",
}
_WIDE = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
_UPPER_BYTES = 0.4  # of all bytes
_SAMPLE = 8000  # bytes that decide about a wide encoding
_MOST_PAIRS = (
    0.6  # of the characters above U+1FFF; of Chinese ones, a fifth are pairs of ASCII characters
)
_FREQUENT = "\u3000\u4e00\uac00"  # of the characters with a low byte of zero: a space, yi, and ga
_MOST_SCRIPTS = 4  # of one text: Japanese has three, and Latin letters


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
    if suffix := other_suffix(data):
        advice = f"save it as {SAVE_AS[suffix]}" if suffix in SAVE_AS else "rename it"
        raise DataError(f"is a {suffix} file, not text; {advice}")
    mark = marked_encoding(data)
    tried = [mark] if mark else [*filter(None, (declared, encoding))]
    failure: UnicodeError | None = None
    for each in tried:
        try:
            text = data.decode(each)
        except UnicodeError as error:
            failure = failure or error
            continue
        if "\0" in text:
            raise DataError("is binary, not text") if mark else _with_zeros(data, each)
        if (escaped := escaped_encoding(data)) and each == "utf-8" and text.isascii():
            raise WrongEncoding(
                f"is not {each} but {escaped}; name its encoding: ',encoding={escaped}'"
            )
        text = text.replace("\r\n", "\n")
        return text if "\n" in text else text.replace("\r", "\n")  # lines as on old Macs
    if b"\0" in data:
        raise _with_zeros(data, mark or declared or encoding) from failure
    place = f" (byte {failure.start + 1:,})" if isinstance(failure, UnicodeDecodeError) else ""
    if declared or mark:
        raise WrongEncoding(
            f"declares the encoding {mark or declared} but has another one{place}; correct the declaration, "
            "or save the file in that encoding"
        ) from failure
    raise WrongEncoding(
        f"is not {encoding}{place}; name its encoding, such as ',encoding=cp1252'"
    ) from failure


def _with_zeros(data: bytes, encoding: str) -> DataError:
    """Return the error for bytes with zeros: another encoding, or no text."""
    wide = wide_encoding(data)
    if not wide:
        remove = f" ({data.count(0):,} zero bytes; to remove them: tr -d '\\000' < FILE > NEW)"
        is_text = _is_utf8(data) and data.strip(b"\0")
        return DataError(f"is binary, not text{remove if is_text else ''}")
    return WrongEncoding(f"is not {encoding} but {wide}; name its encoding: ',encoding={wide}'")


def escaped_encoding(data: bytes) -> str:
    """Return the encoding (ISO 2022) of a text that writes letters as ASCII after escape sequences; else
    empty.
    """
    return next((name for start, name in _ESCAPES.items() if start in data), "")


def other_suffix(data: bytes) -> str:
    """Return the suffix of a file that is no plain text, by its first bytes; empty for others."""
    return next((suffix for start, suffix in _OTHER_KINDS.items() if data.startswith(start)), "")


def marked_encoding(data: bytes) -> str:
    """Return the encoding of which the bytes have a byte order mark; empty if they have none."""
    return next((name for mark, name in BYTE_ORDER_MARKS.items() if data.startswith(mark)), "")


def wide_encoding(data: bytes) -> str:
    """Return the encoding, UTF-16 or UTF-32, of a text without a byte order mark; empty for other bytes.

    Such a text contains zero bytes, because spaces and the ends of lines have them. All its characters are
    printable and assigned, and its letters are from few scripts. The first bytes decide.
    """
    sample = data[:_SAMPLE]
    if 0 not in sample or marked_encoding(sample):
        return ""
    # If such bytes are UTF-8, too, nearly half of them are zero or the upper byte of the letters of a script.
    ((_, most),) = Counter(sample.replace(b"\0", b"")).most_common(1) or ((0, 0),)
    if sample.count(0) + most < _UPPER_BYTES * len(sample) and _is_utf8(sample):
        return ""
    found = {each: text for each in _WIDE if (text := _decoded(sample, each, len(data)))}
    if not found:
        return ""
    # In the wrong byte order, ASCII characters become rare ones.
    return max(found, key=lambda name: sum(map(str.isascii, found[name])))


def _decoded(sample: bytes, encoding: str, size: int) -> str:
    """Return the text of a sample in a wide encoding; empty if it is unlikely to be that of a text."""
    try:
        decoder = codecs.getincrementaldecoder(encoding)()
        text = decoder.decode(sample, final=len(sample) == size)
    except UnicodeError:
        return ""
    ascii_count = sum(map(str.isascii, text))
    low_zeros = sum(not ord(each) & 0xFF and each not in _FREQUENT for each in text)
    if low_zeros >= ascii_count or not all(map(_is_of_texts, set(text))):
        return ""
    # Two characters of ASCII with a zero near them look like one of Chinese.
    high = [ord(each) for each in text if 0x2000 <= ord(each) < 0x10000]
    pairs = sum(0x20 <= code >> 8 < 0x7F and 0x20 <= code & 0xFF < 0x7F for code in high)
    if "16" in encoding and pairs > _MOST_PAIRS * len(high):
        return ""
    letters = [each for each in text if each.isalpha()]
    scripts = Counter(unicodedata.name(each, "").partition(" ")[0] for each in letters)
    usual = sum(count for _, count in scripts.most_common(_MOST_SCRIPTS))
    return text if usual >= 0.95 * len(letters) else ""


def _is_of_texts(character: str) -> bool:
    return character in "\t\n\f\r" or unicodedata.category(character) not in (
        "Cc",
        "Cn",
        "Co",
        "Cs",
    )


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeError:
        return False
    return True
