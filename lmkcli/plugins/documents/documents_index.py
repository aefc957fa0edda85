"""The fused index of documents on disk: hits with headings, and the file and page or lines of a passage."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from lmkcli.data.collection import CHUNK_BREAK, Collection, divided, open_collection
from lmkcli.data.contexts import has_headings
from lmkcli.data.metadata import MetadataFilter
from lmkcli.models.lookup import MEAN_MINILM
from lmkcli.plugins.documents.document_folder import file_at, first_line
from lmkcli.plugins.documents.file_trees import kind_of
from lmkcli.retrieval.fusion import Fusion
from lmkcli.text.headings import Outline

if TYPE_CHECKING:
    from lmkcli.data.collection import Doc, Query
    from lmkcli.data.run import Ranking, Run
    from lmkcli.retrieval.index import Index, IndexInfo, Passage
    from lmkcli.text.query_words import QueryWords

# The score of documents: 0.6 * cosine similarity of the best passage + 0.4 * share of the question's words.
# On cranfield, SQuAD and SciFact it is better than reciprocal ranks (nDCG@10 +.001, +.013, +.030).
MATCH = Fusion("linear", weights=(0.6, 0.4), scale="bounds")
WORDS = Fusion("linear", weights=(1.0,), scale="bounds")  # without a model
# Model -> the score below which the best hit is probably no answer (docs/search.md has the false alarms).
_LEAST = {MEAN_MINILM: 0.28, "minilm": 0.28, "": 0.18}
_LONG_LINE = 200  # characters that a passage of code can have more than its chunk, at either end

_MEANING = "match, 0 to 1: 60 % cosine similarity, 40 % share of the question's words"


class DocumentsIndex:
    """An index of a collection on disk. It implements the protocol `Index`."""

    unit, dimensions = "chunk", None

    def __init__(
        self,
        index: "Index",
        collection: str,
        model: str | None = None,
        documents: int | None = None,
    ) -> None:
        """`model` is that of the vectors, '' for words alone; None if the scores are not those of MATCH."""
        self._index, self._model, self.documents = index, model, documents
        self._collection = collection
        given, *pairs = divided(collection)
        self._encoding = dict(pair.partition("=")[::2] for pair in pairs).get("encoding", "")
        folder = Path(given.removeprefix("folder:"))
        self.root = folder if given.startswith("folder:") and folder.is_dir() else None
        """The folder that contains the files; None for other collections."""

    @property
    def info(self) -> "IndexInfo":
        """That of the fused indexes; the meaning of a score is that of MATCH or WORDS."""
        meanings = {None: self._index.info.meaning, "": "share of the question's words, 0 to 1"}
        meaning = meanings.get(self._model, _MEANING)
        search = {"meaning": meaning}
        return self._index.info._replace(kind="documents", search=search, meaning=meaning)

    def is_answered(self, query: "Query", ranking: "Ranking") -> bool | None:
        """Return whether the best hit is probably an answer; None if that was not measured for the model."""
        least = None if self._model is None else _LEAST.get(self._model)
        return None if least is None else bool(len(ranking.scores) and ranking.scores[0] >= least)

    def open_files(self, text_bytes: int = 0) -> None:
        """Do nothing: the fused indexes are opened on their own."""

    def filter(self, where: Sequence[str]) -> MetadataFilter:
        """Conditions on the files and records of the documents."""
        return MetadataFilter(where, self._documents)

    @cached_property
    def _documents(self) -> Collection:
        return open_collection(self._collection)

    def search(self, queries: "list[Query]", k: int) -> "Run":
        return self._index.search(queries, k)

    def texts(self, ids: list[str]) -> "dict[str, Doc]":
        return self._index.texts(ids)

    def query_words(self, question: str) -> "QueryWords":
        from lmkcli.retrieval.index import query_words

        return query_words(self._index, question)

    def file(self, doc_id: str) -> Path | None:
        """Return the file that contains a document; None if it does not exist any more,
        or is in an archive.
        """
        path = file_at(self.root, doc_id) if self.root is not None else ""
        return self.root / path if self.root is not None and path else None

    def passages(self, query: "Query", ids: list[str]) -> "dict[str, Passage]":
        """Return the best passages, each with the headings above the answer, its file,
        and its page or lines.
        """
        found, words = self._index.passages(query, ids), self.query_words(query.text)
        docs = self.texts([*found])
        return {name: self._placed(docs[name], part, words) for name, part in found.items()}

    def _placed(self, doc: "Doc", passage: "Passage", words: "QueryWords") -> "Passage":
        path = file_at(self.root, doc.id) if self.root is not None else ""
        kind = kind_of(path) if path else ""
        begin, end = (max(each - _lead(doc), 0) for each in (passage.begin, passage.end))
        page, lines = None, None
        if kind == "pdf":
            pages = doc.text[begin:end].split(CHUNK_BREAK)
            page = 1 + doc.text.count(CHUNK_BREAK, 0, begin) + _best(pages, words)
        elif self.root is not None and path == doc.id:
            first = first_line(self.root, path, doc.text, self._encoding)
            lines = _lines(doc.text, begin, end, first) if first else None
        placed = passage._replace(path=path, page=page, lines=lines)
        if has_headings(doc):
            return placed._replace(heading=_heading(doc, begin, end, words))
        begin, end = _whole_lines(doc.text, begin, end)
        shift = _lead(doc)
        return placed._replace(
            heading="", begin=begin + shift, end=end + shift, text=doc.text[begin:end]
        )


def _lead(doc: "Doc") -> int:
    """Return the characters of a document's content before its text: the title and a space."""
    return len(doc.content) - len(doc.text)


def _best(parts: list[str], words: "QueryWords") -> int:
    """Return the number of the part with the greatest share of the question's words; the
    first one of equals.
    """
    shares = [words.coverage(part) for part in parts]
    return shares.index(max(shares))


def _whole_lines(text: str, begin: int, end: int) -> tuple[int, int]:
    """Return a range of source code or of a log, with the rest of its first and last line, if they are not
    long.
    """
    first, last = text.rfind("\n", 0, begin) + 1, text.find("\n", end)
    last = len(text) if last < 0 else last
    return (
        first if begin - first <= _LONG_LINE else begin,
        last if last - end <= _LONG_LINE and text[end - 1 : end] != "\n" else end,
    )


def _lines(text: str, begin: int, end: int, first: int) -> tuple[int, int]:
    """Return the first and last line of a range without its empty ends; `first` is the number of the first
    line.
    """
    inside = text[begin:end]
    begin += len(inside) - len(inside.lstrip())
    end -= len(inside) - len(inside.rstrip())
    start = first + text.count("\n", 0, begin)
    return start, start + text.count("\n", begin, max(begin, end))


def _heading(doc: "Doc", begin: int, end: int, words: "QueryWords") -> str:
    """Return the headings above the answer in a range of the text, without the title of the document.

    The answer is in the section with the greatest weight of the question's words. The weight of a word that
    is in n sections counts 1/n.
    """
    text = doc.text.replace(CHUNK_BREAK, "\n")
    sections = Outline(text).sections(begin, max(end, 1))
    found = [
        {
            text[start + a : start + b].lower(): weight
            for a, b, weight in words.spans(text[start:stop])
        }
        for start, stop, _ in sections
    ]
    number = {word: sum(word in each for each in found) for each in found for word in each}
    scores = [sum(weight / number[word] for word, weight in each.items()) for each in found]
    *_, path = sections[scores.index(max(scores))]
    return " > ".join(path[1:] if path[:1] == [doc.title] else path)
