"""Word documents and e-books."""

import contextlib
import io
import zipfile

import pytest

pytest.importorskip("docx")
pytest.importorskip("inscriptis")

from docx import Document
from docx.opc.constants import RELATIONSHIP_TYPE
from docx.opc.packuri import PackURI
from docx.opc.part import Part
from docx.oxml.parser import parse_xml

from lmkcli.errors import DataError
from lmkcli.plugins.documents import epub, word


def docx(title: str = "", heading: str = "") -> bytes:
    document = Document()
    document.core_properties.title = title
    if heading:
        document.add_heading(heading)
    document.add_paragraph("Two ropes.")
    table = document.add_table(2, 2)
    for number, cell in enumerate(("a", "b", "c", "d")):
        table.cell(number // 2, number % 2).text = cell
    table.cell(1, 0).merge(table.cell(1, 1))
    document.add_paragraph("The end – schön.")
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("title", "heading", "expected"),
    [("Knots", "", "Knots"), ("", "Ropes", "Ropes"), ("Ropes", "Ropes", "Ropes"), ("", "", "")],
)
def test_paragraphs_and_tables_of_word_in_their_order(
    title: str, heading: str, expected: str
) -> None:
    read = word.read(docx(title, heading), "utf-8")
    assert read.title == expected
    assert read.text == "Two ropes.\na\tb\nc d\nThe end – schön."


W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
SPACES = (
    f'xmlns:w="{W}" xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" '
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
)


def with_body(xml: str, notes: str = "") -> bytes:
    """A document with this body, and with these footnotes."""
    document = Document()
    body = document.element.body
    for child in parse_xml(f"<w:body {SPACES}>{xml}</w:body>"):
        body.insert(len(body) - 1, child)
    if notes:
        name = PackURI("/word/footnotes.xml")
        data = f"<w:footnotes {SPACES}>{notes}</w:footnotes>".encode()
        kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.footnotes+xml"
        part = Part(name, kind, data, document.part.package)
        document.part.relate_to(part, RELATIONSHIP_TYPE.FOOTNOTES)
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def p(*runs: str) -> str:
    return f"<w:p>{''.join(runs)}</w:p>"


def r(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def box(text: str) -> str:
    inside = f"<w:txbxContent>{p(r(text))}</w:txbxContent>"
    return (
        f"<w:r><mc:AlternateContent><mc:Choice Requires='wps'><w:drawing>{inside}</w:drawing></mc:Choice>"
        f"<mc:Fallback><w:pict>{inside}</w:pict></mc:Fallback></mc:AlternateContent></w:r>"
    )


def table(*rows: str) -> str:
    return f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in rows)}</w:tbl>"


def cell(text: str, properties: str = "") -> str:
    return f"<w:tc><w:tcPr>{properties}</w:tcPr>{text}</w:tc>"


def sdt(content: str) -> str:
    return f"<w:sdt><w:sdtPr><w:tab/></w:sdtPr><w:sdtContent>{content}</w:sdtContent></w:sdt>"


BODIES = {
    "a content control of blocks": (sdt(p(r("one")) + table(cell(p(r("two"))))), "one\ntwo"),
    "a content control in a line": (p(r("a "), sdt(r("b")), r(" c")), "a b c"),
    "content controls of rows and cells": (
        table("").replace("<w:tr></w:tr>", sdt(f"<w:tr>{sdt(cell(p(r('x'))))}{cell(p(r('y')))}</w:tr>")),
        "x\ty",
    ),
    "an inserted and a deleted word": (
        p(r("a "), f"<w:ins>{r('new')}</w:ins><w:del><w:r><w:delText>old</w:delText></w:r></w:del>"),
        "a new",
    ),
    "an inserted word that was deleted": (p(r("a"), f"<w:ins><w:del>{r('x')}</w:del></w:ins>"), "a"),
    "moved words": (p(f"<w:moveFrom>{r('x')}</w:moveFrom>{r('a ')}<w:moveTo>{r('x')}</w:moveTo>"), "a x"),
    "a deleted row": (
        f"<w:tbl><w:tr><w:trPr><w:del/></w:trPr>{cell(p(r('x')))}</w:tr><w:tr>{cell(p(r('y')))}</w:tr></w:tbl>",
        "y",
    ),
    "a text box": (p(r("before"), box("inside"), r(" and after")), "before and after\ninside"),
    "a table in a cell": (
        table(cell(p(r("a")) + table(cell(p(r("b"))) + cell(p(r("c")))) + p()) + cell(p(r("d")))),
        "a b c\td",
    ),
    "a cell of two rows and one of two columns": (
        table(
            cell(p(r("a")), '<w:vMerge w:val="restart"/>') + cell(p(r("b"))),
            cell(p(), "<w:vMerge/>") + cell(p(r("c"))),
            cell(p(r("d")), '<w:gridSpan w:val="2"/>'),
        ),
        "a\tb\n\tc\nd",
    ),
    "fields, links and tags": (
        p(
            f"<w:hyperlink>{r('a ')}</w:hyperlink><w:fldSimple>{r('b ')}</w:fldSimple>",
            f"<w:smartTag>{r('c ')}</w:smartTag><w:r><w:instrText>PAGE</w:instrText></w:r>{r('7')}",
        ),
        "a b c 7",
    ),
    "a formula": (p(r("x is "), "<m:oMath><m:r><m:t>y+1</m:t></m:r></m:oMath>"), "x is y+1"),
    "tabs, breaks and hyphens": (
        p("<w:pPr><w:tabs><w:tab/></w:tabs></w:pPr><w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:br/><w:t>c</w:t>"
          "<w:noBreakHyphen/><w:t>d</w:t><w:br w:type='page'/></w:r>"),
        "a\tb\nc-d",
    ),
    "hidden text and readings": (
        p(r("x", "<w:vanish/>"), r("a", '<w:vanish w:val="0"/>'),
          f"<w:ruby><w:rt>{r('x')}</w:rt><w:rubyBase>{r('b')}</w:rubyBase></w:ruby>"),
        "ab",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BODIES)
def test_the_text_of_word_is_what_word_shows_with_changes_accepted(kind: str) -> None:
    xml, text = BODIES[kind]
    assert (
        word.read(with_body(p(r("start")) + xml + p(r("end"))), "utf-8").text
        == f"start\n{text}\nend"
    )


def test_footnotes_follow_the_text_in_the_order_of_their_references() -> None:
    refer = '<w:r><w:footnoteReference w:id="{}"/></w:r>'
    deleted = f"<w:del>{refer.format(3)}</w:del>"
    body = p(r("one"), refer.format(2)) + table(cell(p(r("two"), refer.format(1), deleted)))
    note = '<w:footnote w:id="{}">' + p("<w:r><w:footnoteRef/></w:r>", r(" {}")) + "</w:footnote>"
    notes = (
        note.format(0, "line") + note.format(1, "A.") + note.format(2, "B.") + note.format(3, "C.")
    )
    assert word.read(with_body(body, notes), "utf-8").text == "one\ntwo\nB.\nA."


def test_the_title_may_be_in_a_content_control() -> None:
    heading = f'<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr>{r("Knots")}</w:p>'
    assert word.read(with_body(sdt(heading) + p(r("Tie."))), "utf-8") == ("Knots", "Tie.")


CHAPTER = "<html><head><title>{}</title></head><body><p>{}</p></body></html>"
CONTAINER = '<container><rootfiles><rootfile full-path="OPS/b.opf"/></rootfiles></container>'
BOOK = """<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/">
<metadata><dc:title>On  Knots</dc:title></metadata>
<manifest><item id="c" href="cover.xhtml"/><item id="1" href="one%20a.xhtml"/>
<item id="2" href="../two.xhtml"/></manifest>
<spine><itemref idref="c"/><itemref idref="2"/><itemref idref="1"/></spine></package>"""


def book(**files: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        parts = {
            "META-INF/container.xml": CONTAINER,
            "OPS/b.opf": BOOK,
            "OPS/cover.xhtml": "<html><body><img src='x.png'/></body></html>",
            "OPS/one a.xhtml": CHAPTER.format("Ropes", "Hemp."),
            "two.xhtml": CHAPTER.format("Preface", "Schön."),
        } | files
        for name, text in parts.items():
            if text:
                archive.writestr(name, text)
    return out.getvalue()


def test_chapters_of_a_book_are_chunks_in_reading_order() -> None:
    assert epub.read(book(), "utf-8") == ("On Knots", "Preface\nSchön.\fRopes\nHemp.")


@pytest.mark.parametrize("read", [word.read, epub.read])
def test_damage_is_named(read: word.read, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[valid-type]
    whole = docx("T", "H") if read is word.read else book()
    assert read(b"  ", "utf-8") == ("", "")
    for data in (b"PK\x03\x04", b"words", whole[: len(whole) // 2], book(**{"OPS/b.opf": "<x"})):
        with pytest.raises(DataError, match=r"Word document|e-book"):
            read(data, "utf-8")
    for place in range(0, len(whole), 97):  # flipped bits end in a text or in a DataError
        flipped = bytearray(whole)
        flipped[place] ^= 0x55
        with contextlib.suppress(DataError):
            read(bytes(flipped), "utf-8")
    monkeypatch.setattr("lmkcli.plugins.documents.archives.MAX_FILE", 10)
    with pytest.raises(DataError, match="larger than 10 bytes"):
        read(whole, "utf-8")


def test_a_protected_book_and_one_of_pictures_are_refused() -> None:
    with pytest.raises(DataError, match="DRM"):
        epub.read(book(**{"META-INF/rights.xml": "<r/>"}), "utf-8")
    without = {"OPS/one a.xhtml": "<html><body/></html>", "two.xhtml": "<html><body/></html>"}
    with pytest.raises(DataError, match="no text"):
        epub.read(book(**without), "utf-8")
