"""Plain text, Markdown and reStructuredText; nothing is rendered."""

import re
from itertools import takewhile

from lmkcli.data.filetext import FileText, decode_text
from lmkcli.text.headings import fenced_blocks, markdown_headings

# A title: a line, and below it a line of one repeated punctuation mark; a line like it may be above.
_RST_TITLE = re.compile(
    r"\s*(?:(?P<above>[!-/:-@[-`{-~])(?P=above)+[ ]*\n)?(?P<title>[^\n]*\S)[ ]*\n"
    r"(?P<below>(?P<mark>[!-/:-@[-`{-~])(?P=mark)+)[ ]*(?:\n|\Z)"
)


# Metadata at the start of a file: YAML between lines of ---, or TOML between lines of +++.
_FRONT = re.compile(
    r"(?P<mark>---|\+\+\+)[ \t]*\n(?P<block>.*?)^(?:(?P=mark)|\.\.\.)[ \t]*(?:\n|\Z)",
    re.DOTALL | re.MULTILINE,
)
_NAME = r"^(?P<key>[\w-]+|\"[^\"\n]+\")[ \t]*"
_KEYS = {
    "---": re.compile(rf"{_NAME}[:=](?:[ \t]+(?P<value>.*)|[ \t]*)$"),
    "+++": re.compile(rf"{_NAME}=[ \t]*(?P<value>.*)$"),
}
_INSIDE = re.compile(r"[ \t#\-\[\]{}]|\Z")  # how other lines of metadata start
# A comment that starts a line, CommonMark 0.31, section 4.6.
_COMMENT = re.compile(r"^ {0,3}<!--.*?-->[ \t]*\n?", re.DOTALL | re.MULTILINE)
# The bytes of a picture or another file inside a text (RFC 2397), as editors embed it.
_PICTURE = re.compile(r"data:[\w.+-]+/[\w.+-]+(?:;[\w.=+-]+)*;base64,[A-Za-z0-9+/=%_-]+")


def read_text(data: bytes, encoding: str) -> FileText:
    """Read the whole file as text, without a title."""
    return FileText("", decode_text(data, encoding))


def read_rst(data: bytes, encoding: str) -> FileText:
    """Read reStructuredText without rendering it; the title is a first line with an adornment below it.

    The text starts after the title, so that it does not occur twice.
    """
    text = decode_text(data, encoding)
    match = _RST_TITLE.match(text)
    if match is None or len(match["below"]) < len(match["title"].strip()):
        return FileText("", text)
    return FileText(" ".join(match["title"].split()), text[match.end() :].strip("\n"))


def read_markdown(data: bytes, encoding: str) -> FileText:
    """Read Markdown without rendering it; the title is that of its metadata, else the first heading.

    Metadata at the start (front matter), comments, and the bytes of pictures are no text. If the text starts
    with the heading that is the title, it starts after it, so the title does not occur twice.
    """
    return markdown_document(decode_text(data, encoding))


def markdown_document(text: str, title: str = "") -> FileText:
    """Return the document of a text in Markdown; `title` has priority over a title in the text."""
    own, text = _front_matter(text)
    title = title or own
    text = _PICTURE.sub("", _without_comments(text))
    first = next(iter(markdown_headings(text)), None)
    title = title or (first.words if first else "")
    if first and first.words == title and not text[: first.start].strip():
        text = text[first.end :]
    return FileText(title, text.strip("\n"))


def _front_matter(text: str) -> tuple[str, str]:
    """Return the title in the metadata at the start of a text, and the rest; without metadata, '' and the
    text.
    """
    found = _FRONT.match(text)
    lines = found["block"].split("\n") if found else []
    keys = [_KEYS[found["mark"]].match(line) for line in lines] if found else []
    outer = [bool(key or _INSIDE.match(line)) for key, line in zip(keys, lines, strict=True)]
    if found is None or not all(outer) or not any(keys):
        return "", text  # a horizontal rule
    for number, key in enumerate(keys):
        if key and key["key"].strip('"').lower() == "title":
            return _scalar(key["value"] or "", lines[number + 1 :]), text[found.end() :]
    return "", text[found.end() :]


def _scalar(value: str, following: list[str]) -> str:
    """Return a text of YAML or TOML: plain, in quotes, or in the indented lines below it."""
    value = value.strip()
    if not value or value[0] in "|>":
        folded = list(takewhile(lambda line: line[:1] in (" ", "\t"), following))
        return " ".join(" ".join(folded).split())
    if value[0] in "\"'":
        inside = re.match(r"\"((?:[^\"\\]|\\.)*)\"|'((?:[^']|'')*)'", value)
        if inside is not None:
            double = (inside[1] or "").replace('\\"', '"').replace("\\\\", "\\")
            return " ".join((double or (inside[2] or "").replace("''", "'")).split())
    return " ".join(re.sub(r"\s#.*", "", value).split())


def _without_comments(text: str) -> str:
    """Return the text with empty lines for comments; a comment in a fenced block is code, and stays."""
    blocks = fenced_blocks(text)
    return _COMMENT.sub(
        lambda found: (
            found[0]
            if any(start <= found.start() < end for start, end in blocks)
            else "\n" * found[0].count("\n")
        ),
        text,
    )
