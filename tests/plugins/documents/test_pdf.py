"""PDF files."""

import contextlib
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from lmkcli.errors import DataError
from tests import damage, pages

pytest.importorskip("pypdfium2")
from lmkcli.plugins.documents.pdf import read


def test_pages_are_chunks_and_hyphenated_words_are_joined() -> None:
    data = pages.pdf(["Ropes (old) are\nspliced, not knot-\nted.", "Page two."], "On  ropes")
    assert read(data, "utf-8") == ("On ropes", "Ropes (old) are\nspliced, not knotted.\fPage two.")


def test_a_page_without_words_is_an_empty_chunk() -> None:
    assert read(pages.pdf(["one", "", "three"]), "utf-8") == ("", "one\f\fthree")


def test_the_fields_of_a_form_are_text() -> None:
    look = "/Type /XObject /Subtype /Form /BBox [0 0 300 20] /Resources << /Font << /F1 3 0 R >> >>"
    field = "/Type /Annot /Subtype /Widget /FT /Tx /T (f) /V (hemp) /Rect [72 500 372 520] /F 4 /P 5 0 R"
    data = pages.pdf(["Material"])
    data = data.replace(b"/Contents 6 0 R", b"/Annots [7 0 R] /Contents 6 0 R")
    data = data.replace(b"/Type /Catalog", b"/Type /Catalog /AcroForm << /Fields [7 0 R] >>")
    words = "/Tx BMC q BT /F1 12 Tf 2 6 Td (hemp) Tj ET Q EMC"
    filled = f"<< {field} /AP << /N 8 0 R >> >>"
    shown = f"<< {look} /Length {len(words)} >>\nstream\n{words}\nendstream"
    objects = re.findall(rb"\d+ 0 obj\n(.*?)\nendobj", data, re.DOTALL)
    whole = pages.pdf_file([*objects, filled.encode(), shown.encode()], b"/Root 1 0 R")
    assert read(whole, "utf-8").text == "Material\nhemp"


@pytest.mark.parametrize("title", ["untitled", "(anonymous)"])
def test_a_title_that_a_program_filled_in_is_none(title: str) -> None:
    assert read(pages.pdf(["one"], title), "utf-8") == ("", "one")


def test_an_empty_file_is_empty() -> None:
    assert read(b"", "utf-8") == ("", "")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (pages.pdf(["secret"], encrypted=True), "encrypted.*password"),
        (pages.pdf(["", " "]), "no text.*OCR"),
        (pages.pdf([]), "is not a PDF file"),
        (pages.pdf(["cut"])[:200], "is not a PDF file"),
        (b"<html>not found</html>", "is not a PDF file"),
    ],
)
def test_unreadable_files_have_a_reason(data: bytes, why: str) -> None:
    with pytest.raises(DataError, match=why):
        read(data, "utf-8")


def test_threads_wait_for_each_other() -> None:
    files = [pages.pdf([f"page {number}"] * 20) for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        texts = [found.text for found in pool.map(lambda data: read(data, ""), files)]
    assert texts == ["\f".join([f"page {number}"] * 20) for number in range(40)]


def test_damage_gives_a_text_or_a_data_error(tmp_path: Path) -> None:
    for seed in range(200):
        file = tmp_path / f"{seed}" / "file.pdf"
        file.parent.mkdir()
        pages.save_pdf(file, ["Ropes are spliced.\nNot knotted.", "Page two."], "Ropes")
        damage.damage(file, Random(seed))
        if file.is_file():
            with contextlib.suppress(DataError):  # any other error is a bug
                assert isinstance(read(file.read_bytes(), "utf-8").text, str), seed
