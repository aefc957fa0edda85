"""Mailboxes (mbox): one record per message, with id, subject, text, sender and date."""

import codecs
import mailbox
from collections import Counter, deque
from collections.abc import Iterator
from email import message_from_bytes
from email.message import EmailMessage, Message
from email.policy import EmailPolicy
from pathlib import Path
from typing import cast

from lmkcli import catalog
from lmkcli.data.collection import WHOLE, Shard
from lmkcli.data.fields import Record
from lmkcli.data.filetext import FileReader, WrongEncoding
from lmkcli.errors import DataError
from lmkcli.system.input_files import bounded_lines

MAX_MESSAGE = 64 << 20  # bytes; Python's parser takes eleven times as much memory
# Control characters, where a mail program calls cp1252 Latin-1, and their letters
_LETTERS = {code: bytes([code]).decode("cp1252", "replace") for code in range(0x80, 0xA0)}
MAX_HEADER = 4096  # characters of a header; the time of the parser grows with their square


class _Bounded(EmailPolicy):
    """Decodes headers, of long ones the start; bytes that are not UTF-8 are cp1252."""

    def header_fetch_parse(self, name: str, value: str) -> str:
        data = value[:MAX_HEADER].encode("utf-8", "surrogateescape")
        text = _decoded(data, "utf-8") or data.decode("cp1252", "replace")
        return str(super().header_fetch_parse(name, text)).translate(_LETTERS)


def read_mailbox(path: Path, shard: Shard = WHOLE) -> Iterator[tuple[str, Record | DataError]]:
    """Yield (where, record) for the messages of a shard, in the order of the file.

    The id is the Message-ID without brackets, else 'message-N'. A repeated id gets '-2', '-3', … The text is
    that of all parts, without attachments; of a part in several forms, the plain one counts. For a message
    that cannot be read, the record is the error. Raises DataError for a file without messages.
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
    """Return the record of one message in a file of its own (.eml): title, text, sender, receiver and date.

    Raises DataError, with only the reason, if the bytes are no message.
    """
    data = data.removeprefix(codecs.BOM_UTF8).lstrip(b"\r\n")
    message: EmailMessage = message_from_bytes(data, policy=_Bounded())  # type: ignore[arg-type]
    if not {"from", "to", "subject", "date"} & {name.lower() for name in message}:
        raise DataError("is no mail message: it has neither a sender nor a subject")
    try:
        return _record(message, "") | {"to": _header(message, "to")}
    except RecursionError:
        raise DataError("has parts that are nested too deeply") from None


def _message(box: mailbox.mbox, key: str, where: str) -> EmailMessage:
    """Return a message of a mailbox. Raises DataError for a huge one."""
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


def _header(message: Message, name: str) -> str:
    """Return a decoded header; empty if it is missing or malformed."""
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
    """Return the text of a message: its parts in order, without attachments; empty if it has none."""
    return "\n\n".join(filter(None, (_clean(text) for text in _texts(message))))


def _texts(part: Message) -> Iterator[str]:
    """Yield the texts of a part. Of alternatives, the plain one counts, unless it is empty."""
    kind, inner = part.get_content_type(), cast(list[Message] | str, part.get_payload())
    if part.get_content_disposition() == "attachment":
        return
    if isinstance(inner, list):
        if kind == "multipart/alternative":
            forms = sorted(inner, key=_preference)
            found = ("\n\n".join(_texts(each)) for each in forms)
            yield next(filter(str.strip, found), "")
        else:
            if kind == "message/rfc822":  # a message that was forwarded as a part
                yield "\n".join(
                    filter(None, (_header(inner[0], name) for name in ("subject", "from")))
                )
            root = inner[:1] if kind == "multipart/related" else inner
            for each in root:
                yield from _texts(each)
    elif kind == "text/html":
        yield _page_text(part)
    elif part.get_content_maintype() in ("text", "multipart"):  # a multipart one without a boundary
        data = _bytes(part)
        names = (*_charsets(part), "utf-8", "cp1252")
        whole = next((text for name in names if (text := _decoded(data, name)) is not None), None)
        yield data.decode("utf-8", "replace") if whole is None else whole


def _preference(part: Message) -> int:
    """Return the place of a part among alternatives: a text, a page, and other forms, such as a calendar."""
    kind = part.get_content_type()
    if kind == "text/plain":
        return 0
    return 1 if kind == "text/html" or part.is_multipart() else 2


def _page_text(part: Message) -> str:
    """Return the text of a page in HTML; empty if it has none."""
    read_page: FileReader = catalog.READERS.load("html")
    data = _bytes(part)
    for name in _charsets(part):
        if (text := _decoded(data, name)) is not None:
            data = codecs.BOM_UTF8 + text.encode(
                "utf-8", "replace"
            )  # the page may declare another one
            break
    for encoding in ("utf-8", "cp1252", "latin-1"):
        try:
            return "\n".join(filter(None, read_page(data, encoding)))
        except WrongEncoding:
            continue
        except DataError:  # a page without text
            return ""
    return ""


def _bytes(part: Message) -> bytes:
    payload = part.get_payload(decode=True)
    return payload if isinstance(payload, bytes) else b""


def _charsets(part: Message) -> tuple[str, ...]:
    """Return the encoding that a part declares; mail programs use the letters of cp1252
    in Latin-1 and ASCII.
    """
    try:
        name = str(part.get_content_charset("")).lower()
        codec = codecs.lookup(name).name if name else ""
    except (LookupError, ValueError, TypeError, AttributeError):
        return ()
    return {"iso8859-1": ("cp1252", "latin-1"), "ascii": (), "": ()}.get(codec, (name,))


def _decoded(data: bytes, encoding: str) -> str | None:
    try:
        return data.decode(encoding)
    except (LookupError, ValueError):
        return None


def _clean(text: str) -> str:
    """Return the text with U+FFFD for bytes that are not text."""
    return (
        text.encode("utf-8", "replace")
        .decode("utf-8")
        .replace("\0", "")
        .replace("\r\n", "\n")
        .strip()
    )
