"""PDF files, with PDFium: the text of their pages, as their author wrote it into them."""

import threading

from pypdfium2 import PdfDocument, PdfiumError

from lmkcli.data.collection import join_chunks
from lmkcli.data.filetext import FileText
from lmkcli.errors import DataError

PASSWORD = 4  # PDFium's number for a file that needs one
HYPHEN = "\x02"  # what PDFium makes of one that a line ends with: the word goes on
_ALONE = threading.Lock()  # PDFium may be in one thread at a time


def read(data: bytes, encoding: str) -> FileText:
    """The pages as chunks that the document gives; its title is the one among its properties."""
    if not data.strip():
        return FileText("", "")
    try:
        with _ALONE:
            title, pages = _pages(data)
    except PdfiumError as error:
        # Where PDFium sets no number, that of an earlier file is still there.
        if error.err_code == PASSWORD and b"/Encrypt" in data:
            raise DataError("is encrypted; save it without a password") from None
        raise DataError("is not a PDF, or a damaged one") from None
    if not any(pages):
        raise DataError("has no text, only pictures, it seems; text recognition (OCR) adds one")
    return FileText(title, join_chunks(pages))


def _pages(data: bytes) -> tuple[str, list[str]]:
    with PdfDocument(data) as document:
        title = " ".join(document.get_metadata_dict().get("Title", "").split())
        texts = (page.get_textpage().get_text_bounded() for page in document)
        return title, [_clean(text) for text in texts]


def _clean(text: str) -> str:
    return text.replace(HYPHEN, "").replace("\r\n", "\n").replace("\0", "").strip()
