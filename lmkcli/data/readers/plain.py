"""Plain text, and Markdown, which is read as it is written."""

from lmkcli.data.filetext import FileText, decoded
from lmkcli.text.headings import markdown_headings


def read_text(data: bytes, encoding: str) -> FileText:
    """The whole file, without a title."""
    return FileText("", decoded(data, encoding))


def read_markdown(data: bytes, encoding: str) -> FileText:
    """The file as it is written; its title is the first heading that has words.

    Where the file begins with it, the text is what follows, so that it is not there twice.
    """
    text = decoded(data, encoding)
    first = next(iter(markdown_headings(text)), None)
    if first and not text[: first.begin].strip():
        text = text[first.end :]
    return FileText(first.words if first else "", text.strip("\n"))
