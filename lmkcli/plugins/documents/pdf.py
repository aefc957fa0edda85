"""The text of PDF files, read with PDFium. Pictures of text are not recognised."""

import threading

from pypdfium2 import PdfDocument, PdfiumError

from lmkcli.data.collection import join_chunks
from lmkcli.data.filetext import FileText
from lmkcli.errors import DataError

PASSWORD_ERROR = 4  # PDFium's code for a file that needs a password
LINE_END_HYPHEN = "\x02"  # PDFium's character for a hyphen at the end of a line, inside a word
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
        texts = (page.get_textpage().get_text_bounded() for page in document)
        return title, [_clean(text) for text in texts]


def _clean(text: str) -> str:
    return text.replace(LINE_END_HYPHEN, "").replace("\r\n", "\n").replace("\0", "").strip()
