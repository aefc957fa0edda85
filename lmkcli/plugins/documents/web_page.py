"""HTML pages as a browser without pictures would show them (inscriptis, based on lxml)."""

import re
from typing import Any

from inscriptis.html_engine import Inscriptis
from lxml import etree, html

from lmkcli.data.filetext import FileText, decode_text
from lmkcli.errors import DataError

TITLES = ("head/title", ".//h1")
HEAD = 1024  # by the HTML standard, the first bytes declare the encoding
DECLARED = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
# Elements for browsers without scripts, frames or video, and elements that only scripts use.
_NEVER_SHOWN = frozenset(
    "template noscript noembed noframes datalist iframe audio video canvas".split()
)
_HIDING_STYLE = re.compile(r"(?:display\s*:\s*none|visibility\s*:\s*hidden)\b", re.IGNORECASE)
EMPTY_LINES = re.compile(r"\n{3,}")
# By the Encoding standard, pages that declare the first encoding have the second.
ACTUAL_ENCODINGS = {
    "iso-8859-1": "cp1252",
    "latin1": "cp1252",
    "us-ascii": "cp1252",
    "ascii": "cp1252",
}


def read(data: bytes, encoding: str) -> FileText:
    """Read the text that a browser would show; the title is <title>, else the first <h1>.

    A first line that repeats the title is removed.
    """
    page = decode_text(data, encoding, _declared_encoding(data[:HEAD]))
    if not page.strip():
        return FileText("", "")
    tree = _parse(page)
    for each in [each for each in tree.iter(etree.Element) if _is_hidden(each)]:
        if each is not tree and each.getparent() is not None:
            each.drop_tree()
    # Remove the padding of table cells and the empty lines of margins.
    lines = "\n".join(line.rstrip() for line in Inscriptis(tree).get_text().split("\n"))
    text = EMPTY_LINES.sub("\n\n", lines).strip()
    titles = (_words(each.text_content()) for path in TITLES for each in tree.iterfind(path))
    title = next(filter(None, titles), "")
    if not text:
        raise DataError("has no text, unless a browser runs its scripts")
    first, _, rest = text.partition("\n")
    return FileText(title, rest.lstrip() if _words(first) == title else text)


def _declared_encoding(head: bytes) -> str:
    """The encoding that a page declares; empty if Python does not know it."""
    match = DECLARED.search(head)
    name = match[1].decode("ascii", "replace").lower() if match else ""
    try:
        b"a".decode(name, "replace")
    except (LookupError, UnicodeError):
        return ""
    # A declaration that is readable as ASCII cannot be part of a UTF-16 file.
    return "utf-8" if name.startswith("utf-16") else ACTUAL_ENCODINGS.get(name, name)


def _parse(page: str) -> Any:
    """The element tree of a page. Raises DataError if the page is empty or cannot be parsed to its end."""
    parser = html.HTMLParser(encoding="utf-8")
    try:
        tree = html.document_fromstring(page.encode("utf-8", "replace"), parser=parser)
    except etree.ParserError:
        raise DataError("has no text, because it contains no element") from None
    fatal = next((each.message for each in parser.error_log if each.level_name == "FATAL"), "")
    if fatal:  # the rest of the page would be missing
        raise DataError(f"cannot be read to its end ({fatal.split(', ')[0].strip()})")
    return tree


def _is_hidden(element: Any) -> bool:
    """Whether a browser with scripts shows nothing of an element."""
    if element.tag in _NEVER_SHOWN or (element.tag == "dialog" and "open" not in element.attrib):
        return True
    hidden = element.get("hidden")
    if hidden is not None and hidden.strip().lower() != "until-found":
        return True
    return _HIDING_STYLE.search(element.get("style", "")) is not None


def _words(text: str) -> str:
    return " ".join(text.split())
