"""Mailboxes: every message is a document."""

from pathlib import Path

import pytest

from lmkcli.data.collection import Doc, Shard, open_collection
from lmkcli.data.mbox import read_message
from lmkcli.errors import DataError

MAIL = b"""From ann@example.org Mon Jan  1 00:00:00 2024
From: Ann <ann@example.org>
Subject: =?utf-8?q?Sch=C3=B6ne?= knots
Message-ID: <1@example.org>
Content-Type: text/plain; charset=latin-1

Two ropes, sch\xf6n.
>From here on.

From bob@example.org Mon Jan  1 00:00:00 2024
Subject: page
Message-ID: <1@example.org>
MIME-Version: 1.0
Content-Type: multipart/alternative; boundary=x

--x
Content-Type: text/html; charset=utf-8

<html><body><p>Hemp.</p><p>Flax.</p></body></html>
--x
Content-Type: application/pdf
Content-Transfer-Encoding: base64

AAAA
--x--

From x Mon Jan  1 00:00:00 2024
Content-Type: text/plain; charset=klingon

words\xff

From y Mon Jan  1 00:00:00 2024
Subject: empty
Content-Type: image/png

\x89PNG
"""


def test_messages_are_documents(tmp_path: Path) -> None:
    pytest.importorskip("inscriptis")
    path = tmp_path / "mail.mbox"
    path.write_bytes(MAIL)
    collection = open_collection(str(path))
    docs = list(collection.docs())
    assert docs == [
        Doc("1@example.org", "Two ropes, schön.\n>From here on.", "Schöne knots"),
        Doc("1@example.org-2", "Hemp.\n\nFlax.", "page"),
        Doc("message-3", "wordsÿ"),
        Doc("message-4", "", "empty"),
    ]
    shards = [list(collection.docs(Shard(number, 3))) for number in range(3)]
    assert sum(shards, []) == docs  # noqa: RUF017
    senders = open_collection(f"{path},text=from+text")
    assert next(iter(senders.docs())).text.startswith("Ann <ann@example.org> Two ropes")
    assert path.read_bytes() == MAIL


def test_another_file_is_no_mailbox(tmp_path: Path) -> None:
    path = tmp_path / "mail.mbox"
    path.write_bytes(b"words\n")
    with pytest.raises(DataError, match="no message"):
        list(open_collection(str(path)).docs())
    path.write_bytes(b"")
    assert not list(open_collection(str(path)).docs())


def parts(kind: str, *inner: str) -> str:
    lines = "".join(f"--{kind}b\r\n{each}\r\n" for each in inner)
    return f"Content-Type: multipart/{kind}; boundary={kind}b\r\n\r\n{lines}--{kind}b--\r\n"


def part(text: str, kind: str = "text/plain; charset=utf-8", more: str = "") -> str:
    return f"Content-Type: {kind}\r\n{more}\r\n{text}"


PICTURE = part("iVBORw0KGgo", "image/png", "Content-Transfer-Encoding: base64\r\n")
FILE = "Content-Disposition: attachment; filename=a.txt\r\n"
FORWARDED = f"Subject: inner\r\nFrom: Bob\r\n{part('forwarded')}"
MESSAGES = {
    "texts around a picture": (parts("mixed", part("one"), PICTURE, part("two")), "one\n\ntwo"),
    "an attachment": (parts("mixed", part("one"), part("no", more=FILE)), "one"),
    "a forwarded message": (
        parts("mixed", part("one"), part(FORWARDED, "message/rfc822")),
        "one\n\ninner\nBob\n\nforwarded",
    ),
    "alternatives": (
        parts(
            "mixed", parts("alternative", part("plain"), part("<p>no", "text/html")), part("list")
        ),
        "plain\n\nlist",
    ),
    "an empty alternative": (
        parts("alternative", part(" "), parts("related", part("<p>page", "text/html"), PICTURE)),
        "page",
    ),
    "signed": (parts("signed", part("one"), part("x", "application/pgp-signature")), "one"),
    "an empty alternative and a calendar": (
        parts(
            "alternative", part(" "), part("<p>page", "text/html"), part("BEGIN", "text/calendar")
        ),
        "page",
    ),
    "Markdown and a calendar": (
        parts("mixed", part("# T", "text/markdown"), part("BEGIN", "text/calendar")),
        "# T\n\nBEGIN",
    ),
    "parts without a boundary": ("Content-Type: multipart/mixed\r\n\r\none", "one"),
    "lines": (part("one\r\ntwo"), "one\ntwo"),
}


HEADERS = {
    "Sch\u00f6n".encode(): "Schön",
    "Sch\u00f6n \u201cx\u201d".encode("cp1252"): "Schön “x”",
    b"=?iso-8859-1?Q?=93q=94?=": "“q”",
    b"=?klingon?q?abc?=": "abc",
}


@pytest.mark.parametrize("header", HEADERS)
def test_encodings_of_headers(header: bytes) -> None:
    for start in (b"", b"\xef\xbb\xbf", b"\r\n"):
        assert read_message(start + b"Subject: " + header + b"\n\nx")["title"] == HEADERS[header]


@pytest.mark.parametrize("kind", MESSAGES)
def test_all_texts_of_a_message_are_its_text(kind: str) -> None:
    pytest.importorskip("inscriptis")
    message, text = MESSAGES[kind]
    assert read_message(f"Subject: s\r\n{message}".encode())["text"] == text


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        ("text/plain; charset=iso-8859-1", b"\x93\xe9\x94", "\u201cé\u201d"),
        ("text/plain; charset=us-ascii", b"\xc3\xa9", "é"),
        ("text/plain", b"\xe9", "é"),
        ("text/plain; charset=utf-8", b"\xe9", "é"),
        ("text/plain; charset=koi8-r", b"\xc1", "а"),
        ("text/plain; charset=hex", b"ab", "ab"),
        ("text/html; charset=utf-8", b"<meta charset=iso-8859-1><p>\xc3\xa9", "é"),
        ("text/html", b"<meta charset=koi8-r><p>\xc1", "а"),
        ("text/html", b"<p>\xe9", "é"),
    ],
)
def test_encodings_of_mail(kind: str, data: bytes, text: str) -> None:
    pytest.importorskip("inscriptis")
    head = f"Subject: s\nContent-Type: {kind}\nContent-Transfer-Encoding: 8bit\n\n"
    assert read_message(head.encode() + data)["text"] == text
