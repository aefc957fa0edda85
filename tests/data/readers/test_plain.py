"""Plain text and Markdown."""

import codecs

import pytest

from lmkcli.data.filetext import check_encoding, decoded
from lmkcli.data.readers.plain import read_markdown, read_text
from lmkcli.errors import DataError, UsageError


@pytest.mark.parametrize(
    ("text", "title", "rest"),
    [
        ("# Knots\n\nTie.", "Knots", "Tie."),
        ("\n# Knots\nTie.\n", "Knots", "Tie."),
        ("words first\n\n## Splices ##\n", "Splices", "words first\n\n## Splices ##"),
        ("   ### a # b\n", "a # b", ""),
        ("Ropes\n=====\n# Knots\n", "Ropes", "# Knots"),
        ("---\ntitle: x\n---\n# Knots", "Knots", "---\ntitle: x\n---\n# Knots"),
        ("```sh\n# no\n```\n# Knots", "Knots", "```sh\n# no\n```\n# Knots"),
        ("~~~\n```\n# no\n~~~\n# Knots", "Knots", "~~~\n```\n# no\n~~~\n# Knots"),
        ("#\n#hashtag\n    # code\n", "", "#\n#hashtag\n    # code"),
        ("=====\n\n=====\nx", "", "=====\n\n=====\nx"),
        ("````\n```\n# no\n````\n# Knots", "Knots", "````\n```\n# no\n````\n# Knots"),
        ("<h1>Page</h1>\n", "", "<h1>Page</h1>"),
        ("", "", ""),
    ],
)
def test_the_title_of_markdown_is_its_first_heading(text: str, title: str, rest: str) -> None:
    assert read_markdown(text.encode(), "utf-8") == (title, rest)


def test_plain_text_has_no_title_and_is_whole() -> None:
    assert read_text("# é\r\n\fpage two\n".encode(), "utf-8") == ("", "# é\n\fpage two\n")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_a_byte_order_mark_names_the_encoding(encoding: str) -> None:
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    assert decoded(mark + "über".encode(encoding), "ascii") == "über"


def test_another_encoding_is_named_and_refused_otherwise() -> None:
    assert decoded("über".encode("cp1252"), "cp1252") == "über"
    with pytest.raises(DataError, match=r"is not utf-8 \(byte 2\).*,encoding=cp1252"):
        decoded(b"a\xfcb", "utf-8")
    with pytest.raises(DataError, match="says that it is utf-8-sig, and is not"):
        decoded(codecs.BOM_UTF8 + b"a\xfcb", "cp1252")
    check_encoding("shift_jis")
    for name in ("klingon", "rot13", "hex", ""):
        with pytest.raises(UsageError, match="no such encoding"):
            check_encoding(name)


@pytest.mark.parametrize(
    "data", [b"a\0b", b"\x89PNG\r\n\x1a\n\0", codecs.BOM_UTF16_LE + b"a\0\0\0"]
)
def test_what_is_binary_is_refused(data: bytes) -> None:
    with pytest.raises(DataError, match="is binary, not text"):
        decoded(data, "utf-8")
