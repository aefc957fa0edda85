"""HTML pages as a browser without pictures would show them (inscriptis, over lxml)."""

import re
from typing import Any

from inscriptis.html_engine import Inscriptis
from lxml import etree, html

from lmkcli.data.filetext import FileText, decoded
from lmkcli.errors import DataError

TITLES = ("head/title", ".//h1")
HEAD = 1024  # bytes in which the HTML standard looks for the encoding
DECLARED = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
EMPTY_LINES = re.compile(r"\n{3,}")
# What pages that say these are written in, by the Encoding standard.
MEANT = {"iso-8859-1": "cp1252", "latin1": "cp1252", "us-ascii": "cp1252", "ascii": "cp1252"}


def read(data: bytes, encoding: str) -> FileText:
    """The text that a browser would show; its title is <title>, else the first <h1>.

    A first line that says the title again is left out.
    """
    page = decoded(data, encoding, _declared(data[:HEAD]))
    if not page.strip():
        return FileText("", "")
    tree = _tree(page)
    text = _unpadded(Inscriptis(tree).get_text())
    titles = (_words(each.text_content()) for path in TITLES for each in tree.iterfind(path))
    title = next(filter(None, titles), "")
    if not text:
        raise DataError("has no text that a browser would show without its scripts")
    first, _, rest = text.partition("\n")
    return FileText(title, rest.lstrip() if _words(first) == title else text)


def _declared(head: bytes) -> str:
    """The encoding that a page says it has, if Python has it."""
    match = DECLARED.search(head)
    name = match[1].decode("ascii", "replace").lower() if match else ""
    try:
        b"a".decode(name, "replace")
    except (LookupError, UnicodeError):
        return ""
    # Somebody who could read this line as ASCII was not reading UTF-16.
    return "utf-8" if name.startswith("utf-16") else MEANT.get(name, name)


def _tree(page: str) -> Any:
    parser = html.HTMLParser(encoding="utf-8")
    try:
        tree = html.document_fromstring(page.encode("utf-8", "replace"), parser=parser)
    except etree.ParserError:
        raise DataError("has no text: there is no element in it") from None
    fatal = next((each.message for each in parser.error_log if each.level_name == "FATAL"), "")
    if fatal:  # the rest would be missing
        raise DataError(f"cannot be read to its end ({fatal.split(', ')[0].strip()})")
    return tree


def _unpadded(text: str) -> str:
    """Without the spaces that fill table cells up, and the empty lines that margins make."""
    lines = "\n".join(line.rstrip() for line in text.split("\n"))
    return EMPTY_LINES.sub("\n\n", lines).strip()


def _words(text: str) -> str:
    return " ".join(text.split())
