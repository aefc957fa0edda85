"""Plain text, Markdown and reStructuredText; nothing is rendered."""

import re

from lmkcli.data.filetext import FileText, decode_text
from lmkcli.text.headings import markdown_headings

# A title: a line, and below it a line of one repeated punctuation mark; a line like it may be above.
_RST_TITLE = re.compile(
    r"\s*(?:(?P<above>[!-/:-@[-`{-~])(?P=above)+[ ]*\n)?(?P<title>[^\n]*\S)[ ]*\n"
    r"(?P<below>(?P<mark>[!-/:-@[-`{-~])(?P=mark)+)[ ]*(?:\n|\Z)"
)


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
    """Read Markdown without rendering it; the title is the first heading that is not empty.

    If the file starts with this heading, the text starts after it, so the title does not occur twice.
    """
    text = decode_text(data, encoding)
    first = next(iter(markdown_headings(text)), None)
    if first and not text[: first.start].strip():
        text = text[first.end :]
    return FileText(first.words if first else "", text.strip("\n"))
