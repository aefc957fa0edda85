"""Mailboxes: every message is a document."""

from pathlib import Path

import pytest

from lmkcli.data.collection import Doc, Shard, open_collection
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
        Doc("message-3", "words\ufffd"),
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
