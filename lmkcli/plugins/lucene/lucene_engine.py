"""The Lucene engine: BM25 as Anserini and pyserini configure it, which reproduces published results.

Differences from the `bm25` engine: Lucene stores the length of a document in one byte, uses Anserini's
analyzers (Porter's stemmer for English), and does not count empty documents. Documents without a query term
are not hits, so a query may have fewer than k hits. The layout of an index is Anserini's: pyserini can read
it, and lmk can search indexes of pyserini.
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

from lmkcli.artifact.manifest import json_differences
from lmkcli.data.collection import Doc, Query
from lmkcli.data.run import Ranking, Run, ranked
from lmkcli.errors import DataError, Mismatch, UnknownName, UsageError
from lmkcli.plugins.lucene.java import java_version
from lmkcli.plugins.lucene.jvm import (
    HOME,
    JavaException,
    cast,
    java_class,
    silence,
)
from lmkcli.plugins.lucene.lucene_settings import LuceneSettings
from lmkcli.progress import Progress
from lmkcli.retrieval.index import DENSE_FIELDS, Index, IndexInfo
from lmkcli.retrieval.lexical.feedback import BETA
from lmkcli.retrieval.lexical.lexical_engine import LexicalEngine, LexicalIndex, expansion
from lmkcli.retrieval.lexical.lexical_settings import Feedback, LexicalSettings
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.system.input_files import read_json

silence()

FOLDER, ANALYSIS, LOCK = "lucene", "analysis.json", "write.lock"
STEMMERS = ("porter", "krovetz", "none")  # for English; the first is the default of Anserini
BUFFER_MB = 256.0  # memory for postings before they are written
REPORT_EVERY = 1000  # documents
ID, CONTENTS = "id", "contents"  # Anserini's names of the two fields
BLANK = "".join(
    map(chr, range(33))
)  # characters that Java trims; Anserini skips texts of only these

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
_anserini_order = _sort(_field.FIELD_SCORE, _field(ID, _text))  # with the order of ties in Anserini


class Lucene(LexicalEngine):
    """BM25 of Lucene over the words of documents."""

    kind = "lucene"
    settings_type = LuceneSettings
    settings: LuceneSettings

    def analysis(self) -> dict[str, Any]:
        """Return all settings that determine terms. Raises the errors of open_analyzer."""
        settings = self.settings
        analyzer = open_analyzer(settings)
        stop = _stop_words(analyzer)
        return {
            "language": settings.language,
            "analyzer": analyzer.getClass().getName(),
            "stemmer": settings.stemmer
            or ("porter" if settings.language == "en" else "the analyzer's"),
            "stop_words": len(stop),
            "stop_words_sha256": hashlib.sha256(" ".join(stop).encode()).hexdigest(),
            "lucene": ".".join(_lucene().split(".")[:2]),  # analyzers may change between versions
        }

    def write(self, docs: Iterable[Doc], folder: Path, progress: Progress) -> dict[str, Any]:
        """Write `folder/lucene/`, and return its facts: counts, bytes, analysis, versions.

        Raises DataError if no document has a term, or if Lucene cannot write, and the errors of
        open_analyzer.
        """
        analyzer, path = open_analyzer(self.settings), folder / FOLDER
        path.mkdir()
        with _java_errors(f"{path} cannot be written"):
            with _writer(path, analyzer) as writer:
                seen, empty = _write(docs, writer, self.settings.docvectors, progress)
            (path / LOCK).unlink(missing_ok=True)  # of the writer; readers need none
            facts = _counts(path)
            analysis = self.analysis()
            (path / ANALYSIS).write_text(json.dumps(analysis, indent=1))
            size = sum(entry.stat().st_size for entry in os.scandir(path))
        facts = {"documents": seen, "empty": empty, **facts, "bytes": size}
        return {**facts, "analysis": analysis, "versions": versions()}

    def open(self, files: Path, feedback: Feedback | None = None) -> "LuceneSearch":
        """Open the index in a folder.

        Raises DataError if it cannot be read, or if it stores no document terms for feedback. Raises
        Mismatch if this installation would analyse queries differently from the indexed documents.
        """
        path = files / FOLDER
        try:
            analysis = read_json(path / ANALYSIS, dict[str, Any], "build the index again")
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read ({error}); build the index again") from None
        if lines := json_differences(analysis, self.analysis()):
            raise Mismatch(
                f"{path} was analysed differently from queries on this machine (index | queries):\n  "
                + "\n  ".join(lines)
                + "\nbuild the index again, or install the pyserini that it was built with"
            )
        return LuceneSearch.read(path, self.settings, feedback)

    @classmethod
    def open_foreign(cls, folder: Path, settings: OpenSettings) -> Index:
        """Open a Lucene index that lmk did not make: English, and scored with the default k1 and b."""
        settings.refuse("a Lucene index", *DENSE_FIELDS)
        commit = max(folder.glob("segments_*"), key=lambda path: path.stat().st_mtime_ns)
        opened = LuceneSearch.read(folder, LexicalSettings(), settings.feedback)
        # The commit file names the segments by random ids, so its digest identifies the index.
        digest = hashlib.sha256(commit.read_bytes()).hexdigest()
        search = LexicalSettings().identity() | expansion(settings)
        info = IndexInfo(str(folder.absolute()), cls.kind, digest, search)
        return LexicalIndex(info, opened, folder)


class LuceneSearch:
    """An opened Lucene index."""

    def __init__(
        self, reader: Any, settings: LexicalSettings, feedback: Feedback | None = None
    ) -> None:
        self._analyzer = open_analyzer(settings)
        self._expansion = _Expansion(self._analyzer, settings, feedback) if feedback else None
        self._searcher = _searcher(cast("org.apache.lucene.index.IndexReader", reader))
        similarity = java_class("org.apache.lucene.search.similarities.BM25Similarity")
        self._searcher.setSimilarity(similarity(settings.k1, settings.b))

    @classmethod
    def read(
        cls, path: Path, settings: LexicalSettings, feedback: Feedback | None = None
    ) -> "LuceneSearch":
        """Open a Lucene index of any origin. Raises DataError if Anserini or pyserini could not search it."""
        with _java_errors(f"{path} cannot be read; a current pyserini must have made it"):
            reader = _open(path)
            fields = java_class("org.apache.lucene.index.FieldInfos").getMergedFieldInfos(reader)
        infos = [fields.fieldInfo(name) for name in (ID, CONTENTS)]
        if None in infos or infos[0].getDocValuesType().toString() != "BINARY":
            raise DataError(
                f"{path} is a Lucene index, but not one of texts by Anserini or pyserini "
                f"(fields '{ID}' and '{CONTENTS}'); index the collection with --kind lucene"
            )
        if feedback and not _has_term_vectors(infos[1]):
            raise DataError(
                f"{path} does not store the terms of its documents, which --{feedback.method} needs; "
                "build the index again with --docvectors (pyserini: --storeDocvectors)"
            )
        return cls(reader, settings, feedback)

    def search(self, queries: list[Query], k: int) -> Run:
        """Rank the documents that share a term with the query, ties by document id."""
        return Run({query.id: self._rank(query.text, k) for query in queries}, tag="lucene")

    def _rank(self, text: str, k: int) -> Ranking:
        text = _storable(text)
        query = _words.buildQuery(CONTENTS, self._analyzer, text)
        if self._expansion:
            query = self._expansion(self._searcher, query, text)
        top = self._searcher.search(query, k, _order, True)
        scored = _scored_docs.fromTopDocs(top, self._searcher)
        return ranked(scored.docids, np.array(scored.scores, dtype=np.float32))


class _Expansion:
    """Expands queries with Anserini's feedback.

    Only the weighted terms are used. Anserini's own search is not used, because it orders ties by ascending
    id.
    """

    def __init__(self, analyzer: Any, settings: LexicalSettings, feedback: Feedback) -> None:
        self._docs = feedback.docs
        self._analyze = partial(java_class("io.anserini.analysis.AnalyzerUtils").analyze, analyzer)
        self._context = java_class("io.anserini.rerank.RerankerContext")
        self._arguments = java_class("io.anserini.search.SearchCollection$Args")()
        self._arguments.hits = 1
        reranker = java_class(f"io.anserini.rerank.lib.{feedback.method.capitalize()}Reranker")
        common = (analyzer, None, CONTENTS, feedback.terms, feedback.docs)
        if feedback.method == "rm3":
            self._feedback = reranker(*common, feedback.weight, False, settings.language == "en")
        else:  # the weight of documents that are not relevant is 0
            self._feedback = reranker(
                *common, feedback.terms, feedback.docs, 1.0, BETA, 0.0, False, False
            )

    def __call__(self, searcher: Any, query: Any, text: str) -> Any:
        """Return the query with the terms that its first documents add, or unchanged without documents."""
        top = searcher.search(query, self._docs, _anserini_order, True)
        scored = _scored_docs.fromTopDocs(top, searcher)
        if not scored.docids:
            return query
        terms = self._analyze(text)
        context = self._context(searcher, "", query, None, text, terms, None, self._arguments)
        self._feedback.rerank(scored, context)
        expanded = java_class("org.apache.lucene.search.BooleanQuery$Builder")()
        for entry in context.feedbackTerms.entrySet().toArray():
            term = _term_query(_term(CONTENTS, entry.getKey()))
            expanded.add(_boosted(term, entry.getValue()), _should)
        return expanded.build()


def open_analyzer(settings: LexicalSettings) -> Any:
    """Return Anserini's analyzer for a language (ISO 639-1).

    Raises UnknownName for an unknown language or stemmer. Raises UsageError for a stemmer or stop words in a
    language with a fixed analyzer.
    """
    if settings.language == "en":
        return _english(settings)
    analyzers = java_class("io.anserini.analysis.AnalyzerMap")
    languages = [entry.getKey() for entry in analyzers.analyzerMap.entrySet().toArray()]
    if settings.language not in languages:
        raise UnknownName("language of Lucene", settings.language, ["en", *languages])
    if settings.stemmer or settings.stopwords is not None:
        raise UsageError(
            f"--kind lucene has one analyzer for --language {settings.language}, with its own stemmer "
            "and stop words; drop --stemmer and --stopwords, or use --kind bm25"
        )
    return analyzers.getLanguageSpecificAnalyzer(settings.language)


def _english(settings: LexicalSettings) -> Any:
    if settings.stemmer not in ("", *STEMMERS):
        raise UnknownName("stemmer of Lucene", settings.stemmer, STEMMERS)
    analyzer = java_class("io.anserini.analysis.DefaultEnglishAnalyzer")
    words = java_class("org.apache.lucene.analysis.CharArraySet")
    if settings.stopwords is None:
        stop = java_class("org.apache.lucene.analysis.en.EnglishAnalyzer").getDefaultStopSet()
    else:
        given = settings.stopwords.split()
        stop = words(len(given), True)  # True: ignore case
        for word in given:
            stop.add(word)
    if settings.stemmer == "none":
        return analyzer.newNonStemmingInstance(stop)
    return analyzer.newStemmingInstance(settings.stemmer or STEMMERS[0], stop)


def _stop_words(analyzer: Any) -> list[str]:
    concrete = cast(analyzer.getClass().getName(), analyzer)  # from the type Analyzer to its class
    if not hasattr(concrete, "getStopwordSet"):
        return []
    return sorted(filter(None, concrete.getStopwordSet().toString()[1:-1].split(", ")))


def versions() -> dict[str, str]:
    """Return the versions of Lucene, pyserini and Java, as facts."""
    java = str(java_version(HOME))
    return {"lucene": _lucene(), "pyserini": version("pyserini"), "java": java}


def _lucene() -> str:
    return str(java_class("org.apache.lucene.util.Version").LATEST.toString())


def _write(
    docs: Iterable[Doc], writer: Any, docvectors: bool, progress: Progress
) -> tuple[int, int]:
    """Write all documents into one segment. Return the number of documents, and of empty documents."""
    seen = empty = 0
    arguments = java_class("io.anserini.index.IndexCollection$Args")()
    arguments.storeDocvectors = docvectors
    fields = java_class("io.anserini.index.generator.DefaultLuceneDocumentGenerator")(arguments)
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
    """A Lucene writer. If the block raises an error, documents that are not committed are discarded."""
    settings = java_class("org.apache.lucene.index.IndexWriterConfig")(analyzer)
    settings.setRAMBufferSizeMB(BUFFER_MB)
    settings.setCommitOnClose(False)
    writer = java_class("org.apache.lucene.index.IndexWriter")(_directory(path), settings)
    try:
        yield writer
    finally:
        writer.close()


def _counts(path: Path) -> dict[str, Any]:
    """Return the counts of a finished index. Raises DataError if it contains no term."""
    reader = _open(path)
    terms = java_class("org.apache.lucene.index.MultiTerms").getTerms(
        cast("org.apache.lucene.index.IndexReader", reader), CONTENTS
    )
    documents = reader.numDocs()
    if terms is None or not terms.size():
        raise DataError(
            f"none of the documents contains a term to index ({documents} have any text); "
            "check the text field of the collection (--fields)"
        )
    tokens = terms.getSumTotalTermFreq()
    facts = {
        "tokens": tokens,
        "vocabulary": terms.size(),
        "postings": terms.getSumDocFreq(),
        "mean_length": tokens / documents,
    }
    reader.close()
    return facts


def _has_term_vectors(info: Any) -> bool:
    name = "hasTermVectors" if hasattr(info, "hasTermVectors") else "hasVectors"  # before Lucene 10
    return bool(getattr(info, name)())


def _open(path: Path) -> Any:
    return java_class("org.apache.lucene.index.DirectoryReader").open(_directory(path))


def _directory(path: Path) -> Any:
    java_path = java_class("java.nio.file.Paths").get(str(path.absolute()))
    return java_class("org.apache.lucene.store.FSDirectory").open(java_path)


@contextmanager
def _java_errors(message: str) -> Iterator[None]:
    """Turn exceptions of Java into a DataError with this message."""
    try:
        yield
    except JavaException as error:
        raise DataError(f"{message} ({error.classname}: {error.innermessage})") from None


def _storable(text: str) -> str:
    """Text that can be passed to Java as UTF-8: a lone surrogate (broken JSON escapes) becomes '?'."""
    return text.encode("utf-8", "replace").decode("utf-8")
