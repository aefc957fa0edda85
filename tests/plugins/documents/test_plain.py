"""Plain text and Markdown."""

import codecs

import pytest

from lmkcli.data.filetext import check_encoding, decode_text
from lmkcli.errors import DataError, UsageError
from lmkcli.plugins.documents.plain_text import read_markdown, read_rst, read_text


@pytest.mark.parametrize(
    ("text", "title", "rest"),
    [
        ("# Knots\n\nTie.", "Knots", "Tie."),
        ("\n# Knots\nTie.\n", "Knots", "Tie."),
        ("words first\n\n## Splices ##\n", "Splices", "words first\n\n## Splices ##"),
        ("   ### a # b\n", "a # b", ""),
        ("Ropes\n=====\n# Knots\n", "Ropes", "# Knots"),
        ("---\ntitle: x\n---\n# Knots", "x", "# Knots"),
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


@pytest.mark.parametrize(
    ("text", "title", "rest"),
    [
        ("Knots\n=====\n\nTie.\n", "Knots", "Tie."),
        ("=====\nKnots\n=====\nTie.", "Knots", "Tie."),
        ("\n Knots \n--------\nTie.", "Knots", "Tie."),
        ("Knots\n===\nTie.", "", "Knots\n===\nTie."),
        ("words first\n\nKnots\n=====\n", "", "words first\n\nKnots\n=====\n"),
        ("x" * 9999 + " " * 9999, "", "x" * 9999 + " " * 9999),
        ("", "", ""),
    ],
)
def test_the_title_of_restructuredtext_is_its_first_line(text: str, title: str, rest: str) -> None:
    assert read_rst(text.encode(), "utf-8") == (title, rest)


def test_plain_text_is_read_whole_without_a_title() -> None:
    assert read_text("# é\r\n\fpage two\n".encode(), "utf-8") == ("", "# é\n\fpage two\n")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_a_byte_order_mark_names_the_encoding(encoding: str) -> None:
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    assert decode_text(mark + "über".encode(encoding), "ascii") == "über"


def test_another_encoding_must_be_named() -> None:
    assert decode_text("über".encode("cp1252"), "cp1252") == "über"
    with pytest.raises(DataError, match=r"is not utf-8 \(byte 2\).*,encoding=cp1252"):
        decode_text(b"a\xfcb", "utf-8")
    with pytest.raises(DataError, match="declares the encoding utf-8-sig"):
        decode_text(codecs.BOM_UTF8 + b"a\xfcb", "cp1252")
    check_encoding("shift_jis")
    for name in ("klingon", "rot13", "hex", ""):
        with pytest.raises(UsageError, match="no such encoding"):
            check_encoding(name)


@pytest.mark.parametrize(
    "data", [b"a\0b", b"\x89PNG\r\n\x1a\n\0", codecs.BOM_UTF16_LE + b"a\0\0\0"]
)
def test_binary_data_is_refused(data: bytes) -> None:
    with pytest.raises(DataError, match="is binary, not text"):
        decode_text(data, "utf-8")


FRONT = [
    ("---\ntitle: Renewing certificates\ntags: [ops]\n---\n\nRun it.\n", "Renewing certificates", "Run it."),
    ("---\ntitle: 'It''s: new' # note\n---\n# Other\ntext", "It's: new", "# Other\ntext"),
    ('---\r\ntags:\r\n  - a\r\n  - b\r\nTitle: "A \\"B\\""\r\n...\r\ntext', 'A "B"', "text"),
    ("---\ntitle: >-\n  Long\n  title\ndate: 2026-01-01\n---\ntext", "Long title", "text"),
    ('+++\ntitle = "T"\n[extra]\nx = 1\n+++\ntext', "T", "text"),
    ("---\ndate: 1\n---\n# Head\ntext", "Head", "text"),
    ("---\ntitle: Head\n---\n# Head\ntext", "Head", "text"),
    ("---\n\nA rule, then text\n\n---\nmore", "", "---\n\nA rule, then text\n\n---\nmore"),
    ("---\ntitle: never closed\n\ntext", "", "---\ntitle: never closed\n\ntext"),
    ("<!-- old\n# Draft -->\n# Real title\ntext\n", "Real title", "text"),
    ("# T\n```\n<!-- code -->\n```\na <!-- b --> c", "T", "```\n<!-- code -->\n```\na <!-- b --> c"),
    ("<!-- never closed\n# T\ntext", "T", "<!-- never closed\n# T\ntext"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "title", "rest"), FRONT)
def test_metadata_and_comments_of_markdown_are_no_text(text: str, title: str, rest: str) -> None:
    assert read_markdown(text.encode(), "utf-8") == (title, rest)
