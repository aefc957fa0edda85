"""Chunks of a lexical index: documents are cut without a tokenizer, and each chunk is ranked separately.

The engine indexes a chunk like a document: its id is `id#number`, its title is the context that is added
before it (data/contexts.py).
"""

import re
from collections.abc import Iterable, Iterator

from lmkcli.data.collection import CHUNK_BREAK, Doc
from lmkcli.data.contexts import contexts_of, invalid_reason, own_start
from lmkcli.retrieval.index import Passage
from lmkcli.retrieval.lexical.lexical_settings import LexicalSettings
from lmkcli.spec.values import SPLITTERS, is_count
from lmkcli.text.sentences import sentence_spans

_WORD = re.compile(r"\S+")


def chunking_error(settings: LexicalSettings) -> str:
    """Return the error in the settings of chunks; empty if they are valid."""
    gran, context = settings.gran, settings.context
    if settings.unit != "chunk":
        given = [flag for flag, value in (("--gran", gran), ("--context", context)) if value]
        verb = "apply" if len(given) > 1 else "applies"
        return f"{' and '.join(given)} {verb} only to chunks: add --unit chunk" if given else ""
    if gran not in SPLITTERS and not is_count(gran):
        return (
            "--unit chunk needs a granularity: --gran with a number of words, 'sentence' or 'given'"
        )
    reason = invalid_reason(context)
    return f"--context {context}: {reason}" if reason else ""


def chunk_spans(doc: Doc, settings: LexicalSettings) -> list[tuple[int, int]]:
    """Return the character ranges of chunks in the content of a document; at least one."""
    first = own_start(doc, settings.context)
    text = doc.content[first:]
    if settings.gran == "given":
        spans = list(_given_spans(text))
    elif settings.gran == "sentence":
        spans = sentence_spans(text.replace(CHUNK_BREAK, " "))
    else:
        spans = list(_word_spans(text, int(settings.gran)))
    return [(first + begin, first + end) for begin, end in spans or [(0, len(text))]]


def _given_spans(text: str) -> Iterator[tuple[int, int]]:
    begin = 0
    for chunk in text.split(CHUNK_BREAK):
        yield begin, begin + len(chunk)
        begin += len(chunk) + len(CHUNK_BREAK)


def _word_spans(text: str, size: int) -> Iterator[tuple[int, int]]:
    words = [match.span() for match in _WORD.finditer(text)]
    for number in range(0, len(words), size):
        yield words[number][0], words[min(number + size, len(words)) - 1][1]


def chunks(docs: Iterable[Doc], settings: LexicalSettings) -> Iterator[Doc]:
    """Yield the chunks of documents in order, with their contexts as titles."""
    for doc in docs:
        spans = chunk_spans(doc, settings)
        contexts = [""] * len(spans)
        if settings.context:
            contexts = contexts_of(doc, settings.context, [begin for begin, _ in spans])
        for number, ((begin, end), context) in enumerate(zip(spans, contexts, strict=True)):
            yield Doc(f"{doc.id}#{number}", doc.content[begin:end], context)


def passage_of(doc: Doc, chunk: int, settings: LexicalSettings) -> Passage | None:
    """Return one chunk of a document, without its context; None if there is no such chunk."""
    spans = chunk_spans(doc, settings)
    if chunk >= len(spans):
        return None
    begin, end = spans[chunk]
    return Passage(chunk, len(spans), begin, end, doc.content[begin:end])
