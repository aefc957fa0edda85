"""Word documents (.docx), opened with python-docx. Its texts of paragraphs lack much of what Word shows."""

import io
from collections.abc import Iterator
from itertools import chain
from typing import Any

from docx import Document
from docx.oxml.ns import qn
from docx.oxml.parser import parse_xml

from lmkcli.data.filetext import FileText
from lmkcli.errors import DataError
from lmkcli.plugins.documents.archives import open_archive

_TITLE_STYLES = ("Title", "Heading")
_MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_COMPATIBLE = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_ALTERNATIVES, _CHOICE = f"{_COMPATIBLE}AlternateContent", f"{_COMPATIBLE}Choice"
_PARAGRAPH, _TABLE, _ROW, _CELL = qn("w:p"), qn("w:tbl"), qn("w:tr"), qn("w:tc")
_BOX = qn("w:txbxContent")
_NOTES = {qn("w:footnoteReference"): "footnotes", qn("w:endnoteReference"): "endnotes"}
_TEXTS = frozenset((qn("w:t"), f"{_MATH}t"))
_CHARACTERS = {
    qn("w:tab"): "\t",
    qn("w:ptab"): "\t",
    qn("w:br"): "\n",
    qn("w:cr"): "\n",
    qn("w:noBreakHyphen"): "-",
}
# Elements of which Word shows nothing in the text: deleted words, the place that words were moved from, the
# readings of ruby, and properties, which can contain tabs.
_NOT_SHOWN = frozenset(map(qn, ("w:del", "w:moveFrom", "w:rt", "w:pPr", "w:rPr", "w:sdtPr")))


def read(data: bytes, encoding: str) -> FileText:
    """Read the text that Word shows with all changes accepted, then its footnotes and endnotes.

    The title is that of the properties, else the first heading. Headers, footers, comments, and hidden text
    are left out. A row of a table is a line with tabs, and a text box follows its paragraph.
    """
    if not data.strip():
        return FileText("", "")
    with open_archive(data, "a Word document"):  # it bounds the size and reports damage
        try:
            document: Any = Document(io.BytesIO(data))
            title = " ".join((document.core_properties.title or "").split())
            headings = {
                style.style_id
                for style in document.styles
                if str(style.name or "").startswith(_TITLE_STYLES)
            }
            reader = _Story()
            lines: list[str] = []
            without_heading = True
            for block in _children(document.element.body, (_PARAGRAPH, _TABLE)):
                found = list(reader.block_lines(block))
                words = " ".join(" ".join(found).split())
                if without_heading and words and _style(block) in headings:
                    without_heading = False
                    if title in ("", words):
                        title = words
                        continue
                lines += found
            lines += _note_lines(document.part, reader)
            text = "\n".join(lines).strip("\n")
        # python-docx raises KeyError for missing parts, and the errors of lxml.
        except (
            KeyError,
            ValueError,
            AttributeError,
            SyntaxError,
            OSError,
            RecursionError,
        ) as error:
            raise DataError(f"is not a Word document, or a damaged one ({error})") from None
    if not text.strip() and not title:
        raise DataError("has no text, perhaps only pictures")
    return FileText(title, text)


class _Story:
    """The texts of one story of a document; `notes` are the references to notes, in order."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, str]] = []

    def block_lines(self, block: Any) -> Iterator[str]:
        """Yield the lines of a paragraph, with its text boxes after it, or of a table."""
        if block.tag == _PARAGRAPH:
            yield "".join(self._characters(block))
            for box in _children(block, (_BOX,)):
                yield from self.story_lines(box)
            return
        for row in _children(block, (_ROW,)):
            if row.find(f"{qn('w:trPr')}/{qn('w:del')}") is None:
                yield "\t".join(map(self._cell, _children(row, (_CELL,))))

    def story_lines(self, parent: Any) -> Iterator[str]:
        """Return the lines of all paragraphs and tables in an element."""
        return chain.from_iterable(map(self.block_lines, _children(parent, (_PARAGRAPH, _TABLE))))

    def _cell(self, cell: Any) -> str:
        """Return the words of a cell; '' for the continuation of a cell that spans rows."""
        merged = cell.find(f"{qn('w:tcPr')}/{qn('w:vMerge')}")
        if merged is not None and merged.get(qn("w:val")) != "restart":
            return ""
        return " ".join(" ".join(self.story_lines(cell)).split())

    def _characters(self, parent: Any) -> Iterator[str]:
        """Yield the pieces of the text of a paragraph, without its text boxes."""
        for child in _shown(parent):
            if child.tag in _TEXTS:
                yield child.text or ""
            elif child.tag in _CHARACTERS:
                # a break of a page or a column is no line
                yield (
                    "" if child.get(qn("w:type")) in ("page", "column") else _CHARACTERS[child.tag]
                )
            elif child.tag in _NOTES:
                self.notes.append((_NOTES[child.tag], child.get(qn("w:id"))))
            elif child.tag != _BOX:
                yield from self._characters(child)


def _children(parent: Any, tags: tuple[str, ...]) -> Iterator[Any]:
    """Yield the nearest elements inside an element that have one of the tags, in order."""
    for child in _shown(parent):
        if child.tag in tags:
            yield child
        else:
            yield from _children(child, tags)


def _shown(parent: Any) -> Iterator[Any]:
    """Yield the children of an element that Word shows; of alternatives, the first one."""
    for child in parent:
        if child.tag == _ALTERNATIVES:
            choice = child.find(_CHOICE)
            yield from _shown(child) if choice is None else _shown(choice)
        elif isinstance(child.tag, str) and child.tag not in _NOT_SHOWN and not _is_hidden(child):
            yield child


def _is_hidden(run: Any) -> bool:
    hidden = run.find(f"{qn('w:rPr')}/{qn('w:vanish')}") if run.tag == qn("w:r") else None
    return hidden is not None and hidden.get(qn("w:val")) not in ("0", "false", "off")


def _style(block: Any) -> str:
    """Return the id of the style of a paragraph; '' without one, and for tables."""
    style = block.find(f"{qn('w:pPr')}/{qn('w:pStyle')}")
    return "" if style is None else str(style.get(qn("w:val")))


def _note_lines(part: Any, reader: _Story) -> Iterator[str]:
    """Yield the lines of the notes to which the text refers: footnotes, then endnotes."""
    for kind in _NOTES.values():
        related = [each for each in part.rels.values() if each.reltype.endswith(f"/{kind}")]
        places = [number for name, number in reader.notes if name == kind]
        notes = {
            note.get(qn("w:id")): note
            for each in related
            if not each.is_external
            for note in parse_xml(each.target_part.blob)
        }
        for number in dict.fromkeys(places):
            if number in notes:
                yield from (line.strip() for line in reader.story_lines(notes[number]))
