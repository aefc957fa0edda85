"""Folders and files of documents: their readers, and an index of them in the cache."""

from lmkcli.catalog import CacheRow, ReaderRow, SearchableRow, SourceRow

# Files without a suffix that are text by convention.
_TEXTS = (
    "readme license licence changelog changes history news authors contributors contributing copying notice "
    "install todo faq"
)

ROWS = (
    SourceRow(
        "folder",
        "lmkcli.plugins.documents.folder:open_folder",
        "text, Markdown, HTML, PDF, Word and e-book files of a folder: folder:notes",
        prefixes=("folder:",),
        claims="lmkcli.plugins.documents.file_trees:claimed",
    ),
    ReaderRow(
        "text",
        "lmkcli.plugins.documents.plain_text:read_text",
        "plain text",
        suffixes=(".txt", ".text"),
        names=(*_TEXTS.split(),),
    ),
    ReaderRow(
        "markdown",
        "lmkcli.plugins.documents.plain_text:read_markdown",
        "Markdown",
        suffixes=(".md", ".markdown"),
    ),
    ReaderRow(
        "html",
        "lmkcli.plugins.documents.web_page:read",
        "HTML pages",
        "files",
        "inscriptis lxml",
        suffixes=(".html", ".htm", ".xhtml"),
    ),
    ReaderRow(
        "pdf",
        "lmkcli.plugins.documents.pdf:read",
        "PDF files",
        "files",
        "pypdfium2",
        suffixes=(".pdf",),
    ),
    ReaderRow(
        "rst",
        "lmkcli.plugins.documents.plain_text:read_rst",
        "reStructuredText",
        suffixes=(".rst",),
    ),
    ReaderRow(
        "docx",
        "lmkcli.plugins.documents.word:read",
        "Word documents",
        "files",
        "docx lxml",
        suffixes=(".docx",),
    ),
    ReaderRow(
        "epub",
        "lmkcli.plugins.documents.epub:read",
        "e-books",
        "files",
        "inscriptis lxml",
        suffixes=(".epub",),
    ),
    SearchableRow(
        "documents",
        "lmkcli.plugins.documents.document_search:DOCUMENTS",
        "a folder or file of documents; lmk keeps an index of it in the cache",
        settings="lmkcli.plugins.documents.own_index:OwnIndexOptions",
    ),
    CacheRow(
        "own indexes",
        "lmkcli.plugins.documents.own_index:described",
        "indexes of folders that were searched",
    ),
)
