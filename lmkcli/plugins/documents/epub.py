"""E-books (.epub): the chapters in reading order, each read as an HTML page."""

import posixpath
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Iterator
from urllib.parse import unquote

from lmkcli import catalog
from lmkcli.data.collection import join_chunks
from lmkcli.data.filetext import FileReader, FileText
from lmkcli.errors import DataError
from lmkcli.plugins.documents.archives import open_archive

_CONTAINER = "META-INF/container.xml"
_RIGHTS = "META-INF/rights.xml"


def read(data: bytes, encoding: str) -> FileText:
    """Read the chapters as chunks of the document; the title is that of the book's metadata."""
    if not data.strip():
        return FileText("", "")
    with open_archive(data, "an e-book") as archive:
        if _RIGHTS in archive.namelist():
            raise DataError("is protected against copying (DRM)")
        try:
            rootfile = _element(archive, _CONTAINER).find(".//{*}rootfile")
            package = "" if rootfile is None else rootfile.get("full-path", "")
            book = _element(archive, package)
            chapters = list(_chapters(archive, book, posixpath.dirname(package), encoding))
        except (KeyError, ElementTree.ParseError) as error:
            raise DataError(f"is not an e-book, or a damaged one ({error})") from None
    if not chapters:
        raise DataError("has no text, perhaps only pictures")
    title = book.findtext(".//{http://purl.org/dc/elements/1.1/}title") or ""
    return FileText(" ".join(title.split()), join_chunks(chapters))


def _element(archive: zipfile.ZipFile, name: str) -> ElementTree.Element:
    return ElementTree.fromstring(archive.read(name))


def _chapters(
    archive: zipfile.ZipFile, book: ElementTree.Element, folder: str, encoding: str
) -> Iterator[str]:
    """Yield the texts of the chapters; those without text, such as a cover, are left out."""
    read_page: FileReader = catalog.READERS.load("html")
    places = {
        item.get("id"): item.get("href", "") for item in book.iterfind(".//{*}manifest/{*}item")
    }
    references = (each.get("idref") for each in book.iterfind(".//{*}spine/{*}itemref"))
    paths = (posixpath.join(folder, unquote(places[each])) for each in references)
    for name in dict.fromkeys(map(posixpath.normpath, paths)):  # a chapter occurs once
        try:
            chapter = read_page(archive.read(name), encoding)
        except DataError:
            continue
        if text := "\n".join(filter(None, chapter)).strip():
            yield text
