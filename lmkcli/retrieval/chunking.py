"""Chunks of a lexical index: documents are cut without a tokenizer, and each chunk is ranked alone.

To the kind of index a chunk is a document `id#number` whose title is its context (data/contexts.py).
"""

import re
from collections.abc import Iterable, Iterator

from lmkcli.data.collection import CHUNK, Doc
from lmkcli.data.contexts import contexts, fault_of, own_begin
from lmkcli.pooling.placement import SPLITTERS
from lmkcli.recipe import is_count
from lmkcli.retrieval.index import Passage
from lmkcli.settings import Bm25Settings
from lmkcli.text.sentences import sentence_spans

_WORD = re.compile(r"\S+")


def fault(settings: Bm25Settings) -> str:
    """What is wrong with the chunks of an index, or ''."""
    gran, how = settings.gran, settings.context
    if settings.unit != "chunk":
        given = [flag for flag, value in (("--gran", gran), ("--context", how)) if value]
        return f"{' and '.join(given)} is about chunks: add --unit chunk" if given else ""
    if gran not in SPLITTERS and not is_count(gran):
        return "--unit chunk: say how texts are cut with --gran: a number of words, 'sentence' or 'given'"
    said = fault_of(how)
    return f"--context {how}: {said}" if said else ""


def chunk_spans(doc: Doc, settings: Bm25Settings) -> list[tuple[int, int]]:
    """Where the chunks are, in characters of the document's content; there is always one."""
    first = own_begin(doc, settings.context)
    text = doc.content[first:]
    if settings.gran == "given":
        spans = list(_given(text))
    elif settings.gran == "sentence":
        spans = sentence_spans(text.replace(CHUNK, " "))
    else:
        spans = list(_words(text, int(settings.gran)))
    return [(first + begin, first + end) for begin, end in spans or [(0, len(text))]]


def _given(text: str) -> Iterator[tuple[int, int]]:
    begin = 0
    for chunk in text.split(CHUNK):
        yield begin, begin + len(chunk)
        begin += len(chunk) + len(CHUNK)


def _words(text: str, size: int) -> Iterator[tuple[int, int]]:
    words = [match.span() for match in _WORD.finditer(text)]
    for number in range(0, len(words), size):
        yield words[number][0], words[min(number + size, len(words)) - 1][1]


def chunks(docs: Iterable[Doc], settings: Bm25Settings) -> Iterator[Doc]:
    """The chunks of documents, in order, each behind its context."""
    for doc in docs:
        spans = chunk_spans(doc, settings)
        before = [""] * len(spans)
        if settings.context:
            before = contexts(doc, settings.context, [begin for begin, _ in spans])
        for number, ((begin, end), context) in enumerate(zip(spans, before, strict=True)):
            yield Doc(f"{doc.id}#{number}", doc.content[begin:end], context)


def passage_of(doc: Doc, chunk: int, settings: Bm25Settings) -> Passage:
    """One chunk of a document, without its context."""
    spans = chunk_spans(doc, settings)
    begin, end = spans[chunk]
    return Passage(chunk, len(spans), begin, end, doc.content[begin:end])
