"""Data dumps of Stack Exchange: the questions and answers of Posts.xml, a line for each post."""

import codecs
import html
import re
import xml.etree.ElementTree as ElementTree

from lmkcli import catalog
from lmkcli.data.fields import Record
from lmkcli.data.filetext import FileReader
from lmkcli.errors import DataError

_KINDS = {"1": "question", "2": "answer"}  # other posts are pages about tags, and elections
_FRAME = re.compile(r"\s*(<\?xml\b.*\?>|</?posts\b[^>]*>)?\s*", re.DOTALL)
_TAG = re.compile(r"[<|]([^<>|]+)")
_OTHER = re.compile(
    rb"\s*(?:<\?xml[^>]*\?>)?\s*<(users|comments|tags|votes|badges|posthistory|postlinks)>"
)


def is_dump(head: bytes) -> bool:
    """Return whether the first bytes of a file are those of Posts.xml. Raises DataError for another table."""
    if other := _OTHER.match(head):
        raise DataError(
            f"the table {other[1].decode()} of a Stack Exchange dump; name its Posts.xml"
        )
    return b"<posts" in head


def parse_post(line: bytes, where: str) -> Record | None:
    """Return the record of a line: id, title, text (of the HTML), kind, tags and parent.

    None for lines and posts without a question or an answer. Raises DataError for a damaged line.
    """
    try:
        text = line.decode("utf-8")
        if _FRAME.fullmatch(text):
            return None
        if "<!" in text:  # inside a post it is escaped; a DTD could define endless entities
            raise DataError(f"{where}: a declaration, which Posts.xml does not have")
        row = ElementTree.fromstring(text)
    except (UnicodeDecodeError, ElementTree.ParseError) as error:
        raise DataError(
            f"{where}: not a row of Posts.xml, which has each post in one line ({error})"
        ) from error
    if row.tag != "row":
        raise DataError(f"{where}: a <{row.tag[:40]}> where Posts.xml has a <row>")
    kind = _KINDS.get(row.get("PostTypeId", ""))
    if kind is None:
        return None
    return {
        "id": row.get("Id", ""),
        "title": row.get("Title", ""),
        "text": _page_text(row.get("Body", "")),
        "kind": kind,
        "tags": _TAG.findall(row.get("Tags", "")),
        "parent": row.get("ParentId", ""),
    }


def _page_text(body: str) -> str:
    """Return the text of a body in HTML; '' if it has only pictures."""
    if "<" not in body:
        return html.unescape(body).strip()
    read_page: FileReader = catalog.READERS.load("html")
    # The title of a page would leave out its first heading.
    page = f"<html><head><title>-</title></head><body>{body}</body></html>"
    try:
        return read_page(codecs.BOM_UTF8 + page.encode("utf-8", "replace"), "utf-8").text
    except DataError:
        return ""
