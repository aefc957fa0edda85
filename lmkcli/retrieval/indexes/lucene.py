"""Lexical search: BM25 with Lucene, as Anserini and pyserini set it up, so that published figures
are reproduced.

What differs from `bm25`: Lucene keeps one byte of a document's length, its analyzers are those of
Anserini (English: Porter's stemmer), and empty documents are not counted. A document without any
term of the query is not a result, so a query may have fewer than k. The index is Anserini's own
layout: pyserini can read it, and what pyserini made can be searched here.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from lmkcli.data.collection import Doc, Query
from lmkcli.data.run import Ranking, Run, ranked
from lmkcli.errors import DataError, Mismatch, UnknownName, UsageError
from lmkcli.manifest import json_differences
from lmkcli.progress import Progress
from lmkcli.reading import read_json
from lmkcli.retrieval.feedback import BETA
from lmkcli.retrieval.indexes.jvm import (
    HOME,
    JavaException,
    cast,
    java_class,
    silence,
)
from lmkcli.retrieval.kinds import LexicalKind
from lmkcli.settings import Bm25Settings, Feedback
from lmkcli.system.atomic import atomic_folder
from lmkcli.system.java import java_version

silence()

FOLDER, ANALYSIS = "lucene", "analysis.json"
STEMMERS = ("porter", "krovetz", "none")  # of English; the first is Anserini's own choice
BUFFER_MB = 256.0  # of postings in memory before they are written
REPORT_EVERY = 1000  # documents
ID, CONTENTS = "id", "contents"  # Anserini's names of the two fields
BLANK = "".join(map(chr, range(33)))  # what Java trims: a text of nothing else is empty to Anserini

_searcher = java_class("org.apache.lucene.search.IndexSearcher")
_searcher.setMaxClauseCount(2**31 - 1)  # a query may be a whole document
_scored_docs = java_class("io.anserini.search.ScoredDocs")
_words = java_class("io.anserini.search.query.BagOfWordsQueryGenerator")()
_field = java_class("org.apache.lucene.search.SortField")
_text = java_class("org.apache.lucene.search.SortField$Type").STRING_VAL
_sort = java_class("org.apache.lucene.search.Sort")
_order = _sort(_field.FIELD_SCORE, _field(ID, _text, True))
_term = java_class("org.apache.lucene.index.Term")
_term_query = java_class("org.apache.lucene.search.TermQuery")
_boosted = java_class("org.apache.lucene.search.BoostQuery")
_should = java_class("org.apache.lucene.search.BooleanClause$Occur").SHOULD
_anserinis = _sort(_field.FIELD_SCORE, _field(ID, _text))  # the order of ties at Anserini


class Lucene(LexicalKind):
    """An opened Lucene index."""

    def __init__(
        self, reader: Any, settings: Bm25Settings, feedback: Feedback | None = None
    ) -> None:
        self._analyzer = open_analyzer(settings)
        self._grow = _Growth(self._analyzer, settings, feedback) if feedback else None
        self._searcher = _searcher(cast("org.apache.lucene.index.IndexReader", reader))
        similarity = java_class("org.apache.lucene.search.similarities.BM25Similarity")
        self._searcher.setSimilarity(similarity(settings.k1, settings.b))

    @staticmethod
    def analysis(settings: Bm25Settings) -> dict[str, Any]:
        """Everything that decides terms; errors as of open_analyzer."""
        analyzer = open_analyzer(settings)
        stop = _stop_words(analyzer)
        return {
            "language": settings.language,
            "analyzer": analyzer.getClass().getName(),
            "stemmer": settings.stemmer
            or ("porter" if settings.language == "en" else "the analyzer's"),
            "stop_words": len(stop),
            "stop_words_sha256": hashlib.sha256(" ".join(stop).encode()).hexdigest(),
            "lucene": ".".join(_lucene().split(".")[:2]),  # analyzers may change with it
        }

    @classmethod
    def build(
        cls, docs: Iterable[Doc], folder: Path, settings: Bm25Settings, progress: Progress
    ) -> dict[str, Any]:
        """Write `folder/lucene/` whole or not at all; returns facts: counts, bytes, analysis, versions.

        DataError when there are no terms at all, or when Lucene cannot write; others as of
        open_analyzer.
        """
        analyzer = open_analyzer(settings)
        path = folder / FOLDER
        with atomic_folder(path) as growing, _refusals(f"{path} cannot be written"):
            with _writer(growing, analyzer) as writer:
                seen, empty = _write(docs, writer, settings.docvectors, progress)
            facts = _counts(growing)
            analysis = cls.analysis(settings)
            (growing / ANALYSIS).write_text(json.dumps(analysis, indent=1))
            size = sum(entry.stat().st_size for entry in os.scandir(growing))
        facts = {"documents": seen, "empty": empty, **facts, "bytes": size}
        return {**facts, "analysis": analysis, "versions": versions()}

    @classmethod
    def open(
        cls, folder: Path, settings: Bm25Settings, feedback: Feedback | None = None
    ) -> "Lucene":
        """The index in `folder`: lmk's own, or whatever Lucene index the folder itself is.

        DataError when it cannot be read, or holds no terms of documents for feedback; Mismatch when
        this installation would analyse queries in another way than the documents were.
        """
        if any(folder.glob("segments_*")):
            return cls.read(folder, settings, feedback)
        path = folder / FOLDER
        try:
            analysis = read_json(path / ANALYSIS, dict[str, Any], "build the index again")
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read ({error}); build the index again") from None
        if lines := json_differences(analysis, cls.analysis(settings)):
            raise Mismatch(
                f"{path} was analysed in another way than queries would be here (there | here):\n  "
                + "\n  ".join(lines)
                + "\nbuild the index again, or install the pyserini that it was built with"
            )
        return cls.read(path, settings, feedback)

    @classmethod
    def read(cls, path: Path, settings: Bm25Settings, feedback: Feedback | None = None) -> "Lucene":
        """The Lucene index in the folder `path` itself, whoever made it; DataError when it is none
        that Anserini or pyserini would search by BM25."""
        with _refusals(f"{path} cannot be read; is it made by a pyserini of today?"):
            reader = _open(path)
            known = java_class("org.apache.lucene.index.FieldInfos").getMergedFieldInfos(reader)
        infos = [known.fieldInfo(name) for name in (ID, CONTENTS)]
        if None in infos or infos[0].getDocValuesType().toString() != "BINARY":
            raise DataError(
                f"{path} is a Lucene index, but not of texts as Anserini and pyserini make them "
                f"(fields '{ID}' and '{CONTENTS}'); index the collection with --kind lucene"
            )
        if feedback and not infos[1].hasVectors():
            raise DataError(
                f"{path} does not store the terms of its documents, which --{feedback.method} needs; "
                "build the index again with --docvectors (pyserini: --storeDocvectors)"
            )
        return cls(reader, settings, feedback)

    def search(self, queries: list[Query], k: int) -> Run:
        """The k best documents of each query that share a term with it, ties by document id."""
        return Run({query.id: self._rank(query.text, k) for query in queries}, tag="lucene")

    def _rank(self, text: str, k: int) -> Ranking:
        text = _storable(text)
        query = _words.buildQuery(CONTENTS, self._analyzer, text)
        if self._grow:
            query = self._grow(self._searcher, query, text)
        top = self._searcher.search(query, k, _order, True)
        scored = _scored_docs.fromTopDocs(top, self._searcher)
        return ranked(scored.docids, np.array(scored.scores, dtype=np.float32))


class _Growth:
    """A query and the one that Anserini's feedback makes of it.

    Only its terms are taken: Anserini's own search with them breaks ties the other way.
    """

    def __init__(self, analyzer: Any, settings: Bm25Settings, how: Feedback) -> None:
        self._docs = how.docs
        self._analyze = partial(java_class("io.anserini.analysis.AnalyzerUtils").analyze, analyzer)
        self._context = java_class("io.anserini.rerank.RerankerContext")
        self._arguments = java_class("io.anserini.search.SearchCollection$Args")()
        self._arguments.hits = 1
        reranker = java_class(f"io.anserini.rerank.lib.{how.method.capitalize()}Reranker")
        common = (analyzer, None, CONTENTS, how.terms, how.docs)
        if how.method == "rm3":
            self._feedback = reranker(*common, how.weight, False, settings.language == "en")
        else:  # documents that are not relevant weigh nothing
            self._feedback = reranker(*common, how.terms, how.docs, 1.0, BETA, 0.0, False, False)

    def __call__(self, searcher: Any, query: Any, text: str) -> Any:
        """The query with the terms that the first documents add to it; itself if it finds none."""
        top = searcher.search(query, self._docs, _anserinis, True)
        scored = _scored_docs.fromTopDocs(top, searcher)
        if not scored.docids:
            return query
        terms = self._analyze(text)
        context = self._context(searcher, "", query, None, text, terms, None, self._arguments)
        self._feedback.rerank(scored, context)
        grown = java_class("org.apache.lucene.search.BooleanQuery$Builder")()
        for entry in context.feedbackTerms.entrySet().toArray():
            term = _term_query(_term(CONTENTS, entry.getKey()))
            grown.add(_boosted(term, entry.getValue()), _should)
        return grown.build()


def open_analyzer(settings: Bm25Settings) -> Any:
    """Anserini's analyzer for a language (ISO 639-1).

    UnknownName for a language or a stemmer that it has not; UsageError for a stemmer or stop words of
    one's own in a language whose analyzer takes none.
    """
    if settings.language == "en":
        return _english(settings)
    known = java_class("io.anserini.analysis.AnalyzerMap")
    languages = [entry.getKey() for entry in known.analyzerMap.entrySet().toArray()]
    if settings.language not in languages:
        raise UnknownName("language of Lucene", settings.language, ["en", *languages])
    if settings.stemmer or settings.stopwords is not None:
        raise UsageError(
            f"--kind lucene has one analyzer for --language {settings.language}, with its own stemmer "
            "and stop words; drop --stemmer and --stopwords, or use --kind bm25"
        )
    return known.getLanguageSpecificAnalyzer(settings.language)


def _english(settings: Bm25Settings) -> Any:
    if settings.stemmer not in ("", *STEMMERS):
        raise UnknownName("stemmer of Lucene", settings.stemmer, STEMMERS)
    analyzer = java_class("io.anserini.analysis.DefaultEnglishAnalyzer")
    words = java_class("org.apache.lucene.analysis.CharArraySet")
    if settings.stopwords is None:
        stop = java_class("org.apache.lucene.analysis.en.EnglishAnalyzer").getDefaultStopSet()
    else:
        given = settings.stopwords.split()
        stop = words(len(given), True)  # whatever the case
        for word in given:
            stop.add(word)
    if settings.stemmer == "none":
        return analyzer.newNonStemmingInstance(stop)
    return analyzer.newStemmingInstance(settings.stemmer or STEMMERS[0], stop)


def _stop_words(analyzer: Any) -> list[str]:
    itself = cast(analyzer.getClass().getName(), analyzer)  # not merely an Analyzer
    if not hasattr(itself, "getStopwordSet"):
        return []
    return sorted(filter(None, itself.getStopwordSet().toString()[1:-1].split(", ")))


def versions() -> dict[str, str]:
    """What was at work, as facts."""
    java = str(java_version(HOME))
    return {"lucene": _lucene(), "pyserini": version("pyserini"), "java": java}


def _lucene() -> str:
    return str(java_class("org.apache.lucene.util.Version").LATEST.toString())


def _write(
    docs: Iterable[Doc], writer: Any, docvectors: bool, progress: Progress
) -> tuple[int, int]:
    """All documents into one segment; returns how many came by, and how many of them were empty."""
    seen = empty = 0
    stored = java_class("io.anserini.index.IndexCollection$Args")()
    stored.storeDocvectors = docvectors
    fields = java_class("io.anserini.index.generator.DefaultLuceneDocumentGenerator")(stored)
    source = java_class("io.anserini.collection.JsonCollection$Document")
    for seen, doc in enumerate(docs, 1):
        content = _storable(doc.content)
        if content.strip(BLANK):
            writer.addDocument(fields.createDocument(source.fromFields(doc.id, content)))
        else:
            empty += 1
        if seen % REPORT_EVERY == 0:
            progress(seen, None, "documents")
    writer.forceMerge(1)
    writer.commit()
    progress(seen, None, "documents")
    return seen, empty


@contextmanager
def _writer(path: Path, analyzer: Any) -> Iterator[Any]:
    """A Lucene writer; what was not committed when the block ends badly is dropped."""
    settings = java_class("org.apache.lucene.index.IndexWriterConfig")(analyzer)
    settings.setRAMBufferSizeMB(BUFFER_MB)
    settings.setCommitOnClose(False)
    writer = java_class("org.apache.lucene.index.IndexWriter")(_directory(path), settings)
    try:
        yield writer
    finally:
        writer.close()


def _counts(path: Path) -> dict[str, Any]:
    """What the finished index says of itself; DataError when it holds no term."""
    reader = _open(path)
    terms = java_class("org.apache.lucene.index.MultiTerms").getTerms(
        cast("org.apache.lucene.index.IndexReader", reader), CONTENTS
    )
    held = reader.numDocs()
    if terms is None or not terms.size():
        raise DataError(
            f"none of the documents holds a term to index ({held} have any text); "
            "look at the collection's text field (--fields)"
        )
    tokens = terms.getSumTotalTermFreq()
    facts = {
        "tokens": tokens,
        "vocabulary": terms.size(),
        "postings": terms.getSumDocFreq(),
        "mean_length": tokens / held,
    }
    reader.close()
    return facts


def _open(path: Path) -> Any:
    return java_class("org.apache.lucene.index.DirectoryReader").open(_directory(path))


def _directory(path: Path) -> Any:
    where = java_class("java.nio.file.Paths").get(str(path.absolute()))
    return java_class("org.apache.lucene.store.FSDirectory").open(where)


@contextmanager
def _refusals(what: str) -> Iterator[None]:
    """What Java throws becomes a DataError that begins with `what`."""
    try:
        yield
    except JavaException as error:
        raise DataError(f"{what} ({error.classname}: {error.innermessage})") from None


def _storable(text: str) -> str:
    """UTF-8 alone crosses over to Java: a lone surrogate (broken json escapes) becomes '?'."""
    return text.encode("utf-8", "replace").decode("utf-8")
