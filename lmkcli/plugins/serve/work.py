"""The work of a server on its indexes: searches, documents and vectors of texts.

Each kind of work is a value with a method `run`. Requests with equal work run in one batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Doc, Query
from lmkcli.data.metadata import UnfitCondition
from lmkcli.data.run import Ranking
from lmkcli.errors import Mismatch, UsageError
from lmkcli.plugins.serve.indexes import MODEL, IndexSet, SearchPlan
from lmkcli.plugins.serve.limits import MAX_READ
from lmkcli.retrieval.filtering import FilteredIndex
from lmkcli.retrieval.index import (
    Embedding,
    Index,
    Judges,
    Passage,
    ScoredChunk,
    ScoresChunks,
    query_words,
)
from lmkcli.store.token_blocks import TextTokens
from lmkcli.text.query_words import QueryWords


class BadRequest(Exception):
    """Values of a request that contradict each other or the index."""


DEEPEST = 16_384  # the depth of the ranking that a prefix of ids filters
_AT_ONCE = 1024  # documents that are read before their characters are counted
# What counts as one question, as work. A cross-encoder reads several questions for each document.
_CHARACTERS = 250
_TOKENS = 64
_DOCUMENTS = 50  # whose texts or vectors are read
_PAIR = 4
_CONTRIBUTIONS = 64


class FoundDocument(NamedTuple):
    """One document of a ranking; `doc` is None for a ranking of ids only."""

    id: str
    score: float
    doc: Doc | None = None
    passage: Passage | None = None


class Found(NamedTuple):
    """The ranking for one query.

    `meaning` is what a score is, `answered` whether the best hit probably answers the query (None: unknown),
    and `words` are the words of the query that matter.

    `incomplete` is True if a filter stopped at the depth DEEPEST, so that documents may be missing.
    `query_cut` is True if a model read only the start of the query, because it is too long. `pairs_cut` is
    the number of documents that a cross-encoder read only in part.
    """

    ranking: Ranking
    documents: list[FoundDocument]
    incomplete: bool = False
    query_cut: bool = False
    pairs_cut: int = 0
    meaning: str = ""
    answered: bool | None = None
    words: QueryWords | None = None


@dataclass(frozen=True)
class SearchWork:
    """Searches. `texts` and `passages` select what is read for the documents that were found.

    `whole` shows whole texts, and otherwise only titles and snippets. `characters` is the limit of all texts
    of an answer; 0: none.
    """

    plan: SearchPlan
    k: int
    id_prefix: str = ""
    texts: bool = True
    passages: bool = True
    where: tuple[str, ...] = ()
    whole: bool = False
    characters: int = 0

    def size(self, item: str) -> int:
        """Return how much work a query is."""
        depth = self.plan.reranking.depth if self.plan.reranker else 0
        documents = self.k if self.texts or self.passages else 0
        pairs = _PAIR * depth if self.plan.reranker == MODEL else 0
        questions = 1 + len(item) // _CHARACTERS + (documents + depth) // _DOCUMENTS
        return len(self.plan.names) * questions + pairs

    def check(self, found: Sequence[Found]) -> None:
        """Raise BadRequest if the texts of all queries so far have too many characters."""
        documents = [one for each in found for one in each.documents]
        docs = [one.doc for one in documents if one.doc is not None]
        shown = sum(len(doc.content) if self.whole else len(doc.title) for doc in docs)
        shown += sum(len(one.passage.text) for one in documents if one.passage is not None)
        self._check(shown)

    def _check(self, shown: int) -> None:
        if self.characters and shown > self.characters:
            raise BadRequest(
                f"the texts of this answer have more than {self.characters:,} characters; ask for fewer "
                "documents (k), for snippets (text), for no passages, or for fewer queries"
            )

    def run(self, context: IndexSet, items: list[str]) -> list[Found]:
        """Rank documents for each query. Raises BadRequest for wrong conditions, or too many characters."""
        index = context.pipeline(self.plan, lambda each: self._narrowed(context, each))
        queries = [Query(str(number), text) for number, text in enumerate(items)]
        try:
            run = index.search(queries, self.k)
        except UnfitCondition as error:
            raise BadRequest(str(error)) from error
        rankings = [run.rankings.get(query.id, _EMPTY).cut(self.k) for query in queries]
        docs: dict[str, Doc] = {}
        if self.texts:
            ids = list(dict.fromkeys(name for each in rankings for name in each.doc_ids))
            for first in range(0, len(ids), _AT_ONCE):
                docs |= index.texts(ids[first : first + _AT_ONCE])
                if self.whole:
                    self._check(sum(len(doc.content) for doc in docs.values()))
        found = []
        for query, ranking in zip(queries, rankings, strict=True):
            passages = index.passages(query, ranking.doc_ids) if self.passages else {}
            pairs = zip(ranking.doc_ids, ranking.scores.tolist(), strict=True)
            documents = [
                FoundDocument(name, score, docs.get(name), passages.get(name))
                for name, score in pairs
                if self.texts or self.passages
            ]
            answered = index.is_answered(query, ranking) if isinstance(index, Judges) else None
            words = query_words(index, query.text) if self.texts or self.passages else None
            found.append(
                Found(
                    ranking,
                    documents,
                    query.id in run.incomplete,
                    query.id in run.cut,
                    run.cut_pairs.get(query.id, 0),
                    index.info.meaning,
                    answered,
                    words,
                )
            )
        return found

    def _narrowed(self, context: IndexSet, index: Index) -> Index:
        """Return the index with the filters of the request.

        Raises BadRequest for conditions that cannot be read, or cannot be checked.
        """
        if not self.id_prefix and not self.where:
            return index
        conditions, prefix = None, self.id_prefix
        if self.where:
            try:
                conditions = context.filter(self.plan.names, self.where)
            except (UsageError, Mismatch) as error:
                raise BadRequest(str(error)) from error
        chunks = context.settings.level == "chunk"

        def accepts(name: str) -> bool:
            document = name.rpartition("#")[0] if chunks else name
            return name.startswith(prefix) and (conditions is None or conditions.accepts(document))

        return FilteredIndex(index, accepts, conditions, DEEPEST)


_EMPTY = Ranking([], np.zeros(0, np.float32))


class FoundText(NamedTuple):
    """A stored document with the scores of its chunks for a query; None for an unknown id.

    `contributions` are those of its chunks to the score, if it has one vector. `words` are the words of the
    query that matter, in the forms that the document contains.
    """

    doc: Doc | None
    chunks: Sequence[ScoredChunk] = ()
    passage: Passage | None = None
    contributions: Sequence[ScoredChunk] = ()
    words: Sequence[str] = ()


@dataclass(frozen=True)
class DocumentWork:
    """Reads documents of one index by id; `query` selects their best passage.

    `contributions` also encodes each document again, to divide its score among its chunks.
    """

    name: str
    query: str = ""
    contributions: bool = False

    def size(self, item: str) -> int:
        """Return how much work a document is."""
        more = _CONTRIBUTIONS if self.contributions else 0
        return 1 + len(self.query) // _CHARACTERS + more

    def run(self, context: IndexSet, items: list[str]) -> list[FoundText]:
        """Return a document for each id."""
        index = context.served[self.name].index
        known = index.existing(items) if isinstance(index, ScoresChunks) else items
        docs = index.texts(sorted(set(known)))
        return [self._found(context, index, docs.get(name), name) for name in items]

    def _found(self, context: IndexSet, index: Index, doc: Doc | None, name: str) -> FoundText:
        if doc is None or not self.query:
            return FoundText(doc)
        query = Query("q", self.query)
        words = query_words(index, self.query).forms([doc.content[:MAX_READ]])
        found = FoundText(doc, passage=index.passages(query, [name]).get(name), words=words)
        if not isinstance(index, ScoresChunks):
            return found
        found = found._replace(chunks=index.chunk_scores(query, name))
        vectors = index.dense if isinstance(index, Embedding) else None
        if not self.contributions or vectors is None or not vectors.single:
            return found
        if len(doc.content) > MAX_READ:  # it has more tokens than the chart
            return found
        encoder = context.encoders.of(vectors, False)
        return found._replace(contributions=index.contributions(query, doc, encoder))


class EmbeddedText(NamedTuple):
    """The vector of a text, [dim], and its number of tokens with special tokens."""

    vector: NDArray[np.float32]
    tokens: int


@dataclass(frozen=True)
class EmbedWork:
    """Encodes texts, or token ids of the model, with the model of a dense index."""

    name: str
    side: Literal["query", "document"]

    def size(self, item: str | tuple[int, ...]) -> int:
        """Return how much work a text is."""
        return 1 + len(item) // (_CHARACTERS if isinstance(item, str) else _TOKENS)

    def run(self, context: IndexSet, items: list[str | tuple[int, ...]]) -> list[EmbeddedText]:
        """Return one vector for each text. Raises BadRequest for several vectors of a text, or a bad id."""
        vectors = context.served[self.name].vectors
        if vectors is None:
            raise BadRequest(f"{self.name} is no dense index, so it has no model for embeddings")
        encoder = context.encoders.of(vectors, self.side == "query")
        if encoder.side.unit != "doc":
            other = "query" if self.side == "document" else "document"
            raise BadRequest(
                f"{self.name} has several vectors for a {self.side}; an embedding is one vector "
                f"(if it fits your use, take {self.name}:{other})"
            )
        size = encoder.tokenizer.fast.get_vocab_size()
        bad = next(
            (i for item in items if not isinstance(item, str) for i in item if i >= size), None
        )
        if bad is not None:
            raise BadRequest(f"{bad} is no token of the model, which has {size} tokens")
        texts = encoder.tokenizer([item if isinstance(item, str) else "" for item in items])
        tokens = [
            text if isinstance(item, str) else _given(text, item)
            for text, item in zip(texts, items, strict=True)
        ]
        encoded = encoder.texts(tokens, [f"input {number}" for number in range(len(items))])
        placements = encoder.placed(tokens)
        counts = [sum(len(one.ids) for one in placement.inputs) for placement in placements]
        rows = np.asarray(encoded.vectors, np.float32)
        return [EmbeddedText(row, count) for row, count in zip(rows, counts, strict=True)]


def _given(text: TextTokens, ids: tuple[int, ...]) -> TextTokens:
    """Return the tokens of an empty text with other content ids."""
    spans = np.zeros((len(ids), 2), np.int32)
    ends = None if text.ends is None else np.array([len(ids)], np.int32)
    return text._replace(ids=np.array(ids, np.int32), spans=spans, ends=ends)
