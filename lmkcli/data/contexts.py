"""Contexts: what stands before each chunk of a document when the chunk is embedded or indexed alone.

A chunk that says "it was founded there" is found by few questions; with the title of its document, the
headings above it or a sentence that a language model wrote about it, by more (Anthropic, "Introducing
contextual retrieval", 2024; ConTEB, arXiv 2505.24782, section 2.2).
"""

from collections.abc import Sequence

from lmkcli.data.collection import CHUNK, Doc
from lmkcli.errors import DataError
from lmkcli.text.headings import Outline

TITLE, HEADINGS, FIELD = "title", "headings", "field:"


def fault_of(how: str) -> str:
    """What is wrong with a setting of contexts, or ''."""
    if how in ("", TITLE, HEADINGS) or (how.startswith(FIELD) and how != FIELD):
        return ""
    return f"write {TITLE}, {HEADINGS}, or {FIELD}NAME with a field of the documents"


def field_of(how: str) -> str:
    """The field of the documents that a setting names; '' where it names none."""
    return how.removeprefix(FIELD) if how.startswith(FIELD) else ""


def own_begin(doc: Doc, how: str) -> int:
    """Where in a document's content its chunks begin: a title that is their context is in none of them."""
    return len(doc.title) + 1 if how == TITLE and doc.title else 0


def contexts(doc: Doc, how: str, begins: Sequence[int]) -> list[str]:
    """The context of each chunk, given where the chunks begin in the document's content.

    DataError where the document has a list of contexts and not one for each chunk.
    """
    if how == TITLE:
        return [doc.title] * len(begins)
    if how == HEADINGS:
        outline = Outline(doc.text.replace(CHUNK, "\n"))
        lead = len(doc.content) - len(doc.text)
        return ["\n".join(outline.above(begin - lead)) for begin in begins]
    if isinstance(doc.context, str):
        return [doc.context] * len(begins)
    if not doc.context and not doc.content.strip():
        return [""] * len(begins)
    if len(doc.context) != len(begins):
        raise DataError(
            f"document {doc.id} has {len(begins)} chunks and {len(doc.context)} contexts under "
            f"'{field_of(how)}'; give one text for all, or a list with one for each chunk, cut as here"
        )
    return list(doc.context)
