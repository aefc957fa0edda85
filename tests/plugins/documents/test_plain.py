"""Plain text and Markdown."""

import codecs
import re
import struct
from pathlib import Path
from random import Random

import pytest

from lmkcli.data.collection import open_collection
from lmkcli.data.filetext import SAVE_AS, WrongEncoding, check_encoding, decode_text, wide_encoding
from lmkcli.errors import DataError, UsageError
from lmkcli.plugins.documents.document_folder import read_as
from lmkcli.plugins.documents.file_trees import is_known
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


MARKS = {
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-be": codecs.BOM_UTF32_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", *MARKS])
def test_a_byte_order_mark_names_the_encoding(encoding: str) -> None:
    mark = MARKS.get(encoding, b"")
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


WIDE = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
TEXTS = (
    "Bread rises.",
    "id,text\r\n1,\u201ccaf\u00e9\u201d \U0001f600\n",
    "Bánh mì cần được ủ ở nơi ấm áp.\n",
    "Тесто поднимается.",
    "Το ψωμί φουσκώνει.",
    "لحم العجين يرتفع",
    "रोटी फूलती है।\n",
    "ขนมปัง ขึ้นฟู\n",
    "面包一夜之间就发起来了。\n",
    "パンが一晩で\u3000膨らむ ABC\n",
    "빵이 부풀어 오른다.\n",
    "x" * 9999 + "\U0001f600" * 9999,
)
# Bytes with zeros that are no text: what programs write, and texts with a few zeros.
BINARY = [
    b"\1\2\0zebra", b"\0\0lines of text",
    b"bytes\0", b"picture\0", b"a text, and a zero\0 in it", b"\x02\0\x01\0", b"\0" * 64, b"\1\2\3\0",
    bytes(range(256)) * 9, b"RIFF\x24\x08\0\0WAVEfmt \x10\0\0\0\1\0\2\0", b"name\0value\0other\0last\0",
    "zer\0o en fran\u00e7ais".encode("latin-1"), b"\x7fELF\2\1\1\0\0\0\0\0\0\0\0\0\3\0\x3e\0",
]  # fmt: skip


@pytest.mark.parametrize("encoding", WIDE)
@pytest.mark.parametrize("text", TEXTS)
def test_utf_16_and_utf_32_need_no_byte_order_mark(text: str, encoding: str) -> None:
    data = text.encode(encoding)
    assert wide_encoding(data) == encoding
    assert read_as(read_text, data, "") == (("", text.replace("\r", "")), encoding)
    with pytest.raises(WrongEncoding, match=f",encoding={encoding}"):
        decode_text(data, "cp1252")


@pytest.mark.parametrize("data", BINARY)
def test_bytes_with_zeros_are_not_always_text(data: bytes) -> None:
    assert wide_encoding(data) == ""
    with pytest.raises(DataError, match="binary"):
        read_as(read_text, data, "")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"%PDF-1.4 x", "is a .pdf file, not text; rename it"),
        (b"{\\rtf1 x}", "is a .rtf file, not text; save it as .docx"),
    ],
)
def test_files_of_another_kind_are_no_text(data: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=re.escape(reason)):
        read_text(data, "utf-8")


@pytest.mark.parametrize(("suffix", "save"), SAVE_AS.items())
def test_kinds_that_are_not_read_are_refused_with_one_that_is(
    suffix: str, save: str, tmp_path: Path
) -> None:
    place = tmp_path / f"a{suffix.upper()}"
    place.write_bytes(b"PK\x03\x04")
    with pytest.raises(DataError, match=f"does not read .*; save it as {save}, and name that file"):
        open_collection(str(place))
    assert is_known(f"a{save}")
    assert not is_known(f"a{suffix}")


def test_zero_bytes_in_a_text_are_refused_with_the_command_that_removes_them() -> None:
    with pytest.raises(DataError, match=r"binary, not text \(3 zero bytes; .*: tr -d '\\000' <"):
        read_text(b"a log\0\0\0 after a crash", "utf-8")
    with pytest.raises(DataError, match=r"binary, not text$"):  # nothing would be left
        read_text(bytes(500), "utf-8")


def test_lines_of_old_macs() -> None:
    assert decode_text(b"# T\rone\r", "utf-8") == "# T\none\n"
    assert decode_text(b"1 %\r2 %\ndone\r\n", "utf-8") == "1 %\r2 %\ndone\n"


@pytest.mark.parametrize("text", ["“Schön” – 3 € und süß … ", "面包一夜之间就发起来了。"])
def test_a_few_wrong_bytes_do_not_change_the_encoding(text: str) -> None:
    for data in (
        text.encode() + b"\xe2\x82",
        text.encode() + b"\xff\xfe oops",
        text.encode() + b"\xff" + text.encode(),
    ):
        found, encoding = read_as(read_text, data, "")
        assert (found.text, encoding) == (data.decode("utf-8", "replace"), "utf-8 with wrong bytes")
    assert read_as(read_text, "süß, schön, größer".encode("cp1252"), "")[1] == "cp1252"


@pytest.mark.parametrize(
    ("text", "written", "guess"),
    [
        ("Съешь ещё этих мягких французских булок, да выпей же чаю.", "cp866", "cp866"),
        ("ขนมปังขึ้นฟูในตอนกลางคืน แล้วเราก็กินมันในตอนเช้า", "cp874", "cp874"),
        ("パンが一晩で膨らむ。", "iso2022_jp", "iso2022_jp_ext"),
        ("빵이 부풀어 오른다.", "iso2022_kr", "iso2022_kr"),
    ],
)
def test_older_encodings_are_guessed(text: str, written: str, guess: str) -> None:
    assert read_as(read_text, text.encode(written), "") == (("", text), guess)


def test_drawn_bytes_are_no_text() -> None:
    random = Random(3)
    for size in range(104, 4000, 8):  # shorter ones may look like a word
        array = struct.pack(
            f"<{size // 4}i", *(random.randrange(-99, 1000) for _ in range(size // 4))
        )
        audio = struct.pack(
            f"<{size // 2}h", *(round(random.gauss(0, 300)) for _ in range(size // 2))
        )
        assert not any(map(wide_encoding, (random.randbytes(size) + b"\0\0", array, audio)))


FRONT = [
    ("---\ntitle: Renewing certificates\ntags: [ops]\n---\n\nRun it.\n", "Renewing certificates", "Run it."),
    ("---\ntitle: 'It''s: new' # note\n---\n# Other\ntext", "It's: new", "# Other\ntext"),
    ('---\r\ntags:\r\n  - a\r\n  - b\r\nTitle: "A \\"B\\""\r\n...\r\ntext', 'A "B"', "text"),
    ("---\ntitle: >-\n  Long\n  title\ndate: 2026-01-01\n---\ntext", "Long title", "text"),
    ('+++\ntitle = "T"\n[extra]\nx = 1\n+++\ntext', "T", "text"),
    ("+++\ntitle='T'\nx=1\n+++\ntext", "T", "text"),
    ("---\nx=1\n---\ntext", "", "---\nx=1\n---\ntext"),
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


def test_a_table_with_a_few_control_characters_is_utf8(tmp_path: Path) -> None:
    table = tmp_path / "x.csv"
    table.write_text('id,title,text\n1,\'\t,"0\x1f\x00""\x1f0\x80""\x80"\n', newline="")
    assert wide_encoding(table.read_bytes()) == ""
    assert next(iter(open_collection(str(table)).docs())).text == '0\x1f\x00"\x1f0\x80"\x80'
