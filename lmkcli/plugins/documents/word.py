"""Word documents (.docx), read with python-docx."""

import io
from collections.abc import Iterator

from docx import Document
from docx.table import Table
from docx.text.paragraph import Paragraph

from lmkcli.data.filetext import FileText
from lmkcli.errors import DataError
from lmkcli.plugins.documents.archives import open_archive

_TITLE_STYLES = ("Title", "Heading")


def read(data: bytes, encoding: str) -> FileText:
    """Read paragraphs and tables; the title is that of the properties, else the first heading.

    Headers, footers and comments are left out. A row of a table is a line with tabs.
    """
    if not data.strip():
        return FileText("", "")
    with open_archive(data, "a Word document"):  # it bounds the size and reports damage
        try:
            document = Document(io.BytesIO(data))
            title = " ".join((document.core_properties.title or "").split())
            blocks = list(document.iter_inner_content())
            paragraphs = (each for each in blocks if isinstance(each, Paragraph))
            heading = next(filter(_is_heading, paragraphs), None)
            if heading is not None and title in ("", " ".join(heading.text.split())):
                title = " ".join(heading.text.split())
                blocks = [each for each in blocks if each is not heading]
            text = "\n".join(line for block in blocks for line in _lines(block)).strip("\n")
        # python-docx raises KeyError for missing parts, and the errors of lxml.
        except (KeyError, ValueError, AttributeError, SyntaxError, OSError) as error:
            raise DataError(f"is not a Word document, or a damaged one ({error})") from None
    if not text.strip() and not title:
        raise DataError("has no text, perhaps only pictures")
    return FileText(title, text)


def _is_heading(paragraph: Paragraph) -> bool:
    """Whether a paragraph is a heading with text."""
    style = "" if paragraph.style is None else str(paragraph.style.name or "")
    return style.startswith(_TITLE_STYLES) and bool(paragraph.text.strip())


def _lines(block: Paragraph | Table) -> Iterator[str]:
    if isinstance(block, Paragraph):
        yield block.text
        return
    for row in block.rows:
        cells = list(dict.fromkeys(row.cells))  # a merged cell occurs several times
        yield "\t".join(" ".join(cell.text.split()) for cell in cells)
