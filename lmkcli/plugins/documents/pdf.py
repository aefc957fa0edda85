"""The text of PDF files, read with PDFium. Pictures of text are not recognised."""

import threading
from contextlib import suppress

from pypdfium2 import PdfDocument, PdfiumError

from lmkcli.data.collection import join_chunks
from lmkcli.data.filetext import FileText
from lmkcli.errors import DataError

PASSWORD_ERROR = 4  # PDFium's code for a file that needs a password
LINE_END_HYPHEN = "\x02"  # PDFium's character for a hyphen at the end of a line, inside a word
_NO_TITLES = ("untitled", "(anonymous)", "unknown")  # of programs that were given none
_PDFIUM_LOCK = threading.Lock()  # PDFium is not thread-safe


def read(data: bytes, encoding: str) -> FileText:
    """Read the pages as chunks of the document; the title comes from the properties of the file."""
    if not data.strip():
        return FileText("", "")
    try:
        with _PDFIUM_LOCK:
            title, pages = _pages(data)
    except PdfiumError as error:
        # PDFium does not always set a code; the code may then be that of an earlier file.
        if error.err_code == PASSWORD_ERROR and b"/Encrypt" in data:
            raise DataError("is encrypted; save it without a password") from None
        raise DataError("is not a PDF file, or a damaged one") from None
    if not any(pages):
        raise DataError("has no text, probably only pictures; text recognition (OCR) can add text")
    return FileText(title, join_chunks(pages))


def _pages(data: bytes) -> tuple[str, list[str]]:
    with PdfDocument(data) as document:
        title = " ".join(document.get_metadata_dict().get("Title", "").split())
        document.init_forms()
        texts = [_clean(_page_text(document, number)) for number in range(len(document))]
        return "" if title.lower() in _NO_TITLES else title, texts


def _page_text(document: PdfDocument, number: int) -> str:
    """Return the text of a page; that of a form includes what is written in its fields."""
    page = document[number]
    if document.formenv is not None:
        with suppress(PdfiumError):
            page.flatten()
        page = document[number]
    return str(page.get_textpage().get_text_bounded())


def _clean(text: str) -> str:
    return text.replace(LINE_END_HYPHEN, "").replace("\r\n", "\n").replace("\0", "").strip()
