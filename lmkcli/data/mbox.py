"""Mailboxes (mbox): one record per message, with id, subject, text, sender and date."""

import mailbox
from collections import Counter, deque
from collections.abc import Iterator
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import EmailPolicy
from pathlib import Path

from lmkcli import catalog
from lmkcli.data.collection import WHOLE, Shard
from lmkcli.data.fields import Record
from lmkcli.data.filetext import FileReader
from lmkcli.errors import DataError
from lmkcli.system.input_files import bounded_lines

MAX_MESSAGE = 64 << 20  # bytes; Python's parser takes eleven times as much memory
MAX_HEADER = 4096  # characters of a header; the time of the parser grows with their square


class _Bounded(EmailPolicy):
    """Decodes headers, of long ones the start."""

    def header_fetch_parse(self, name: str, value: str) -> str:
        return str(super().header_fetch_parse(name, value[:MAX_HEADER]))


def read_mailbox(path: Path, shard: Shard = WHOLE) -> Iterator[tuple[str, Record | DataError]]:
    """Yield (where, record) for the messages of a shard, in the order of the file.

    The id is the Message-ID without brackets, else 'message-N'. A repeated id gets '-2', '-3', … The text is
    the plain body, else the text of the HTML body. Attachments are left out. For a message that cannot be
    read, the record is the error. Raises DataError for a file without messages.
    """
    with path.open("rb") as lines:  # Python's reader of mailboxes reads lines of any length
        deque(bounded_lines(lines, path, MAX_MESSAGE), maxlen=0)
    box = mailbox.mbox(path, create=False)
    try:
        keys = box.keys()
        if not keys and path.stat().st_size:
            raise DataError(f"{path}: no message; a mailbox starts with a line 'From …'")
        seen: Counter[str] = Counter()
        mine = shard.rows(len(keys))
        for number, key in enumerate(keys, 1):
            where = f"{path} message {number}"
            try:
                message = _message(box, key, where)
                # All ids are read, because those of earlier shards decide about repeated ones.
                name = _header(message, "message-id").strip("<>") or f"message-{number}"
                name = "".join(name.split())
                seen[name] += 1
                if number - 1 in mine:
                    times = seen[name]
                    yield where, _record(message, f"{name}-{times}" if times > 1 else name)
            except DataError as error:
                if number - 1 in mine:
                    yield where, error
            except RecursionError:
                if number - 1 in mine:
                    yield where, DataError(f"{where}: its parts are nested too deeply")
    finally:
        box.close()


def read_message(data: bytes) -> Record:
    """The record of one message in a file of its own (.eml): title, text, sender, receiver and date.

    Raises DataError, with only the reason, if the bytes are no message.
    """
    message: EmailMessage = message_from_bytes(data, policy=_Bounded())  # type: ignore[arg-type]
    if not {"from", "to", "subject", "date"} & {name.lower() for name in message}:
        raise DataError("is no mail message: it has neither a sender nor a subject")
    try:
        return _record(message, "") | {"to": _header(message, "to")}
    except RecursionError:
        raise DataError("has parts that are nested too deeply") from None


def _message(box: mailbox.mbox, key: str, where: str) -> EmailMessage:
    """A message of a mailbox. Raises DataError for a huge one."""
    with box.get_file(key) as file:
        data = file.read(MAX_MESSAGE + 1)
    if len(data) > MAX_MESSAGE:
        raise DataError(f"{where}: is larger than {MAX_MESSAGE:,} bytes")
    return message_from_bytes(data, policy=_Bounded())  # type: ignore[arg-type]  # its messages are EmailMessage


def _record(message: EmailMessage, name: str) -> Record:
    return {
        "id": name,
        "title": _header(message, "subject"),
        "text": _body(message),
        "from": _header(message, "from"),
        "date": _header(message, "date"),
    }


def _header(message: EmailMessage, name: str) -> str:
    """A decoded header; empty if it is missing or malformed."""
    try:
        return _clean(" ".join(str(message.get(name, "")).split()))
    except (
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
        IndexError,
        RecursionError,
    ):  # of email's own parser
        return ""


def _body(message: EmailMessage) -> str:
    """The text of a message; empty if it has none."""
    try:
        body = message.get_body(("plain", "html"))
        content = "" if body is None else body.get_content()
    except (ValueError, LookupError, AttributeError, TypeError):  # an unknown or wrong encoding
        payload = message.get_payload(decode=True)
        return _clean(payload.decode("utf-8", "replace") if isinstance(payload, bytes) else "")
    text = content if isinstance(content, str) else ""
    if body is not None and body.get_content_subtype() == "html":
        read_page: FileReader = catalog.READERS.load("html")
        try:
            text = "\n".join(filter(None, read_page(text.encode("utf-8", "replace"), "utf-8")))
        except DataError:  # a page without text
            text = ""
    return _clean(text)


def _clean(text: str) -> str:
    """The text with U+FFFD for bytes that are not text."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "").strip()
