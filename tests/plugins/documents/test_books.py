"""Word documents and e-books."""

import contextlib
import io
import zipfile

import pytest

pytest.importorskip("docx")
pytest.importorskip("inscriptis")

from docx import Document

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
