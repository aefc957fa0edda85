"""Folders and files of documents: their readers, and an index of them in the cache."""

from lmkcli.catalog import CacheRow, ReaderRow, SearchableRow, SourceRow

# Files without a suffix that are text or code by convention.
_TEXTS = (
    "readme license licence changelog changes history news authors contributors contributing copying notice "
    "install todo faq"
)
_SCRIPTS = "makefile gnumakefile dockerfile containerfile justfile rakefile gemfile cmakelists.txt"
_TEXT_SUFFIXES = ".txt .text .org .adoc .tex .bib .srt .vtt"
_CODE_SUFFIXES = (
    ".py .pyi .r .jl .js .mjs .cjs .jsx .ts .tsx .vue .svelte .java .kt .kts .scala .groovy .gradle .go .rs "
    ".c .h .cc .cpp .cxx .hh .hpp .cu .cs .fs .vb .m .mm .swift .dart .rb .php .pl .pm .lua .ex .exs .erl "
    ".hs .ml .clj .lisp .el .sh .bash .zsh .fish .ps1 .bat .cmd .sql .graphql .proto .xml "
    ".yaml .yml .toml .ini .cfg .conf .properties .env .tf .cmake .asm .diff .patch"
)

ROWS = (
    SourceRow(
        "folder",
        "lmkcli.plugins.documents.document_folder:open_folder",
        "the files of a folder: text, notebooks, HTML, PDF, Word, e-books, tables, mail, logs, code",
        prefixes=("folder:",),
        claims="lmkcli.plugins.documents.file_trees:claimed",
    ),
    ReaderRow(
        "text",
        "lmkcli.plugins.documents.plain_text:read_text",
        "plain text",
        suffixes=(*_TEXT_SUFFIXES.split(),),
        names=(*_TEXTS.split(),),
    ),
    ReaderRow(
        "code",
        "lmkcli.plugins.documents.plain_text:read_text",
        "source code and settings",
        suffixes=(*_CODE_SUFFIXES.split(),),
        names=(*_SCRIPTS.split(),),
        headings=False,
    ),
    ReaderRow(
        "log",
        "lmkcli.plugins.documents.plain_text:read_text",
        "logs",
        suffixes=(".log", ".out", ".err"),
        headings=False,
    ),
    ReaderRow(
        "mail",
        "lmkcli.plugins.documents.mail:read",
        "mail messages, and web pages that browsers save in the same format",
        suffixes=(".eml", ".mht", ".mhtml"),
    ),
    ReaderRow(
        "markdown",
        "lmkcli.plugins.documents.plain_text:read_markdown",
        "Markdown",
        suffixes=(".md", ".markdown", ".mdown", ".mkd", ".mdx", ".qmd", ".rmd"),
    ),
    ReaderRow(
        "notebook",
        "lmkcli.plugins.documents.notebook:read",
        "Jupyter notebooks",
        suffixes=(".ipynb",),
    ),
    ReaderRow(
        "html",
        "lmkcli.plugins.documents.web_page:read",
        "HTML pages",
        "files",
        "inscriptis lxml",
        suffixes=(".html", ".htm", ".xhtml", ".shtml"),
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
