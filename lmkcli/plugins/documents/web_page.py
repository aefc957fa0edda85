"""HTML pages as a browser without pictures would show them (inscriptis, based on lxml)."""

import re
from typing import Any

from inscriptis.css_profiles import RELAXED_CSS_PROFILE
from inscriptis.html_engine import Inscriptis
from inscriptis.html_properties import Display
from inscriptis.model.config import ParserConfig
from inscriptis.model.html_element import HtmlElement
from lxml import etree, html

from lmkcli.data.filetext import FileText, decode_text
from lmkcli.errors import DataError
from lmkcli.plugins.documents.web_encodings import LABELS

TITLES = ("head/title", ".//h1")
HEAD = 1024  # by the HTML standard, the first bytes declare the encoding
_COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
_META = re.compile(rb"<meta[\s/]([^>]*)", re.IGNORECASE)
_ATTRIBUTE = re.compile(rb"""([^\s"'=/>]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
_CHARSET = re.compile(rb"""charset\s*=\s*["']?\s*([^\s"';]+)""", re.IGNORECASE)
_XML = re.compile(rb"""\A\s*<\?xml\s[^>]*?encoding\s*=\s*["']([^"'>]*)["']""")
# Elements for browsers without scripts, frames, video or ruby, elements that only scripts use, and the
# readings of ruby, which would divide words.
_NEVER_SHOWN = frozenset(
    "template noscript noembed noframes datalist iframe audio video canvas rp rt rtc".split()
)
# Elements that inscriptis would show in a line with their neighbours, without a space (HTML standard, 15.3).
_BLOCKS = (
    "button caption center dd details dialog dir dl dt fieldset form hr legend menu optgroup option search "
    "section select summary textarea"
).split()
_LAYOUT = ParserConfig(
    css=RELAXED_CSS_PROFILE | {name: HtmlElement(display=Display.block) for name in _BLOCKS}
)
_HIDING_STYLE = re.compile(r"(?:display\s*:\s*none|visibility\s*:\s*hidden)\b", re.IGNORECASE)
EMPTY_LINES = re.compile(r"\n{3,}")
# Bytes that browsers show nothing for, and that Python's cp1252 refuses.
_UNDEFINED = bytes((0x81, 0x8D, 0x8F, 0x90, 0x9D))


def read(data: bytes, encoding: str) -> FileText:
    """Read the text that a browser would show; the title is <title>, else the first <h1>.

    A first line that repeats the title is removed.
    """
    declared = _declared_encoding(data[:HEAD])
    page = decode_text(
        data.translate(None, _UNDEFINED) if declared == "cp1252" else data, encoding, declared
    )
    if not page.strip():
        return FileText("", "")
    tree = _parse(page)
    for each in [each for each in tree.iter(etree.Element) if _is_hidden(each)]:
        if each is not tree and each.getparent() is not None:
            each.drop_tree()
    # Remove the padding of table cells and the empty lines of margins.
    lines = "\n".join(line.rstrip() for line in Inscriptis(tree, _LAYOUT).get_text().split("\n"))
    text = EMPTY_LINES.sub("\n\n", lines).strip()
    titles = (_words(each.text_content()) for path in TITLES for each in tree.iterfind(path))
    title = next(filter(None, titles), "")
    if not text:
        raise DataError("has no text, unless a browser runs its scripts")
    first, _, rest = text.partition("\n")
    return FileText(title, rest.lstrip() if _words(first) == title else text)


def _declared_encoding(head: bytes) -> str:
    """Return the encoding that a page declares in its first bytes, as browsers understand it; '' without one.

    Source: HTML standard, section 13.2.3.2 (prescan a byte stream). Labels that browsers do not know are
    ignored, even if Python knows them.
    """
    head = _COMMENT.sub(b"", head)
    labels = [_label(_attributes(each[1])) for each in _META.finditer(head)]
    labels += [each[1] for each in _XML.finditer(head)]
    names = (each.decode("ascii", "replace").strip().lower() for each in labels)
    return next((LABELS[each] for each in names if each in LABELS), "")


def _attributes(tag: bytes) -> dict[bytes, bytes]:
    """Return the attributes of a tag; the first of a name counts."""
    found: dict[bytes, bytes] = {}
    for each in _ATTRIBUTE.finditer(tag):
        found.setdefault(each[1].lower(), each[2] or each[3] or each[4] or b"")
    return found


def _label(meta: dict[bytes, bytes]) -> bytes:
    """Return the label of an encoding in a <meta>; empty if it declares none."""
    if b"charset" in meta:
        return meta[b"charset"]
    if meta.get(b"http-equiv", b"").strip().lower() != b"content-type":
        return b""
    match = _CHARSET.search(meta.get(b"content", b""))
    return match[1] if match else b""


def _parse(page: str) -> Any:
    """Return the element tree of a page. Raises DataError if the page is empty or cannot be parsed to its
    end.
    """
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
    """Return whether a browser with scripts shows nothing of an element."""
    if element.tag in _NEVER_SHOWN or (element.tag == "dialog" and "open" not in element.attrib):
        return True
    hidden = element.get("hidden")
    if hidden is not None and hidden.strip().lower() != "until-found":
        return True
    return _HIDING_STYLE.search(element.get("style", "")) is not None


def _words(text: str) -> str:
    return " ".join(text.split())
