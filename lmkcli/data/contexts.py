"""Contexts of chunks: text before a chunk that is encoded or indexed alone.

Few queries find a chunk such as "it was founded there". More queries find it together with the title of its
document, the headings above it, or a sentence that a language model wrote about it (Anthropic, "Introducing
contextual retrieval", 2024; ConTEB, arXiv 2505.24782, section 2.2).

The setting of contexts is '' (none), 'title', 'headings', or 'field:NAME' with a field of the documents.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import PurePosixPath

from lmkcli import catalog
from lmkcli.data.collection import CHUNK_BREAK, Doc, map_id
from lmkcli.errors import DataError
from lmkcli.text.headings import Outline

TITLE, HEADINGS, FIELD = "title", "headings", "field:"


def invalid_reason(setting: str) -> str:
    """Return the error in a setting of contexts; '' if it is valid."""
    if setting in ("", TITLE, HEADINGS) or (setting.startswith(FIELD) and setting != FIELD):
        return ""
    return f"write {TITLE}, {HEADINGS}, or {FIELD}NAME with a field of the documents"


def field_of(setting: str) -> str:
    """Return the field of the documents in a setting 'field:NAME'; '' for other settings."""
    return setting.removeprefix(FIELD) if setting.startswith(FIELD) else ""


def own_start(doc: Doc, setting: str) -> int:
    """Return the position in a document's content at which its chunks start.

    A title that serves as context is not part of the chunks.
    """
    return len(doc.title) + 1 if setting == TITLE and doc.title else 0


def has_headings(doc: Doc) -> bool:
    """Return whether a document can have headings: not if it is a file of source code or a log.

    A folder gives such a file its path as id and its name without the suffix as title. So the id `Node.js` of
    a record is no file, also if the record has the title Node.js. Stored documents keep both, so an update or
    a verification finds the same contexts.
    """
    path = PurePosixPath(doc.id.removesuffix(".gz").removesuffix(".GZ"))
    if map_id(doc.title) != map_id(path.stem):
        return True
    return not {path.suffix.lower(), path.name.lower()} & _without_headings()


@cache
def _without_headings() -> frozenset[str]:
    """Return the suffixes and names of files without headings."""
    rows = [row for row in catalog.READERS.values() if not row.headings]
    return frozenset(name for row in rows for name in (*row.suffixes, *row.names))


def contexts_of(doc: Doc, setting: str, starts: Sequence[int]) -> list[str]:
    """Return the context of each chunk; `starts` are the positions of the chunks in the document's content.

    Raises DataError if the document has a list of contexts of another length than its chunks.
    """
    if setting == TITLE:
        return [doc.title] * len(starts)
    if setting == HEADINGS and not has_headings(doc):
        return [""] * len(starts)
    if setting == HEADINGS:
        outline = Outline(doc.text.replace(CHUNK_BREAK, "\n"))
        lead = len(doc.content) - len(
            doc.text
        )  # positions count from the title, the outline from the text
        return ["\n".join(outline.above(start - lead)) for start in starts]
    if isinstance(doc.context, str):
        return [doc.context] * len(starts)
    if not doc.context and not doc.content.strip():
        return [""] * len(starts)
    if len(doc.context) != len(starts):
        raise DataError(
            f"document {doc.id} has {len(starts)} chunks and {len(doc.context)} contexts in the field "
            f"'{field_of(setting)}'; give one text for all chunks, or a list with one text for each chunk"
        )
    return list(doc.context)
