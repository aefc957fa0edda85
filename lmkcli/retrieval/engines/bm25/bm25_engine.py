"""The BM25 engine, with bm25s and without Java.

The score of a document is the sum over the query's terms (a repeated term counts each time) of

    ln(1 + (N - df + 0.5) / (df + 0.5)) * tf / (tf + k1 * (1 - b + b * length / mean length))

as in Lucene since version 8, but with exact document lengths; Lucene stores them in one byte. N and the mean
include empty documents. Documents without a query term are not hits, so a query may have fewer than k hits.
"""

import errno
import json
import math
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lmkcli.artifact.manifest import json_differences
from lmkcli.data.collection import Doc, Query
from lmkcli.data.parquet import ColumnReader, parquet_writer
from lmkcli.data.run import Ranking, Run, ranked
from lmkcli.errors import DataError, LmkError, Mismatch
from lmkcli.progress import Progress
from lmkcli.retrieval.engines.bm25.library import bm25s
from lmkcli.retrieval.lexical.feedback import expand, is_expansion_term
from lmkcli.retrieval.lexical.lexical_engine import DOCS, LexicalEngine
from lmkcli.retrieval.lexical.lexical_settings import Feedback, LexicalSettings
from lmkcli.store.doctable import DocTable, take
from lmkcli.system.input_files import int_range, read_json
from lmkcli.system.item_streams import batched
from lmkcli.text.analyzer import Analyzer
from lmkcli.text.query_words import QueryWords

FOLDER, IDS, ANALYSIS, PARAMS = "bm25", "ids.parquet", "analysis.json", "params.index.json"
_AGAIN = "build the index again"
BATCH_CHARACTERS = 1 << 22  # characters of text between two reports of progress


class Bm25(LexicalEngine):
    """BM25 over the words of documents."""

    kind = "bm25"

    def analysis(self) -> dict[str, Any]:
        """Return all settings that determine terms. Raises UnknownName for an unknown language or stemmer."""
        return _analyzer(self.settings).identity()

    def write(self, docs: Iterable[Doc], folder: Path, progress: Progress) -> dict[str, Any]:
        """Write `folder/bm25/`, and return its facts: counts, bytes, analysis, versions.

        Texts are read once. Each term of a text takes four bytes of memory. While scores are computed, each
        distinct term of a document takes about forty bytes. Raises DataError if no document has a term.
        """
        analyzer, settings, path = _analyzer(self.settings), self.settings, folder / FOLDER
        path.mkdir()
        terms = _Terms(analyzer, path / IDS)
        terms.read(docs, progress)
        index = bm25s.BM25(method="lucene", k1=settings.k1, b=settings.b, backend="numpy")
        corpus = (terms.rows, terms.vocabulary)
        index.index(corpus, create_empty_token=False, show_progress=False)
        _save(index, path)
        (path / ANALYSIS).write_text(json.dumps(analyzer.identity(), indent=1))
        size = sum(entry.stat().st_size for entry in os.scandir(path))
        facts = {**terms.counts(), "postings": len(index.scores["data"]), "bytes": size}
        versions = {"bm25s": bm25s.__version__, **analyzer.versions()}
        return {**facts, "analysis": analyzer.identity(), "versions": versions}

    def open(self, files: Path, feedback: Feedback | None = None) -> "Bm25Search":
        """Open the index in a folder, memory-mapped. Feedback reads the documents next to it.

        Raises DataError if it cannot be read, and Mismatch if this installation would analyse queries
        differently from the indexed documents.
        """
        path = files / FOLDER
        analyzer = _analyzer(self.settings)
        with _read_errors(path):
            analysis = read_json(path / ANALYSIS, dict[str, Any], _AGAIN)
            read_json(path / PARAMS, _Params, _AGAIN)
            scores = bm25s.BM25.load(path, mmap=True, show_progress=False)
            with closing(ColumnReader(path / IDS)) as reader:
                ids = reader.read("id")
            if reason := _inconsistency(scores, ids):
                raise ValueError(reason)
        if lines := json_differences(analysis, analyzer.identity()):
            raise Mismatch(
                f"{path} was analysed differently from queries on this machine (index | queries):\n  "
                + "\n  ".join(lines)
                + "\nbuild the index again, or install the PyStemmer that it was built with"
            )
        texts = DocTable(files / DOCS) if feedback else None
        return Bm25Search(scores, ids, analyzer, texts, feedback)


class Bm25Search:
    """An opened BM25 index."""

    def __init__(
        self,
        scores: Any,
        ids: pa.ChunkedArray,
        analyzer: Analyzer,
        texts: DocTable | None = None,
        feedback: Feedback | None = None,
    ) -> None:
        self._scores = scores
        self._ids = ids
        self._analyzer = analyzer
        self._texts = texts  # feedback takes terms from them
        self._feedback = feedback

    def search(self, queries: list[Query], k: int) -> Run:
        """Rank the documents that share a term with the query, ties by document id."""
        try:
            return Run(dict(self._ranked(queries, k)), tag="bm25")
        except IndexError:
            raise DataError(
                f"the index refers to documents that it does not have: {_AGAIN}"
            ) from None

    def greatest_score(self, query: Query) -> float:
        """Return the limit of the score of a document that consists of the terms of the query that matter.

        It is the sum of their inverse document frequencies, as the factor of a term's frequency is below 1.
        Words of questions, such as 'how', do not matter: a document without them can be a perfect match.
        """
        weights = self.query_words(query.text).weights
        return sum(weights.get(term, 0.0) for term in self._analyzer(query.text))

    def _frequency_weight(self, term: str) -> float:
        """Return the inverse document frequency of a term; the greatest for an unknown term."""
        found, total = self._document_share(term) * len(self._ids), len(self._ids)
        return math.log(1 + (total - found + 0.5) / (found + 0.5))

    def query_words(self, question: str) -> QueryWords:
        """Return the words of a question, weighted by inverse document frequency."""
        weights = {term: self._frequency_weight(term) for term in self._analyzer(question)}
        return QueryWords(question, self._analyzer, weights)

    def _ranked(self, queries: list[Query], k: int) -> Iterator[tuple[str, Ranking]]:
        if self._feedback and self._texts:
            for name, weights in self._expanded(queries, self._feedback, self._texts):
                yield name, self._rank_weighted(weights, k)
        else:
            yield from ((query.id, self._rank(query.text, k)) for query in queries)

    def _rank(self, text: str, k: int) -> Ranking:
        terms = self._scores.get_tokens_ids(self._analyzer(text))
        if not terms:
            return ranked([], np.zeros(0, np.float32))
        return self._top(terms, self._scores.get_scores_from_ids(terms), k)

    def _top(
        self, terms: list[int], scores: NDArray[np.float32] | NDArray[np.float64], k: int
    ) -> Ranking:
        """Rank the documents with any of the terms, given the scores [documents] of all."""
        rows = _best(self._matches(terms), scores, k)
        if not np.isfinite(scores[rows]).all():
            raise DataError(f"the index gives scores that are not finite: {_AGAIN}")
        return ranked(take(self._ids, rows), scores[rows]).cut(k)

    def _expanded(
        self, queries: list[Query], feedback: Feedback, texts: DocTable
    ) -> Iterator[tuple[str, dict[str, float]]]:
        """Yield the id of each query, and the weights of its own terms and of the added terms."""
        first = [self._rank(query.text, feedback.docs) for query in queries]
        relevant = dict.fromkeys(name for ranking in first for name in ranking.doc_ids)
        frequencies = {
            doc.id: self._expansion_terms(doc, feedback)
            for doc in texts.docs_by_ids(list(relevant))
        }
        if missing := [name for name in relevant if name not in frequencies]:
            raise DataError(f"{DOCS} of the index has no '{missing[0]}'; build the index again")
        for query, (names, scores) in zip(queries, first, strict=True):
            docs = [frequencies[name] for name in names]
            yield query.id, expand(self._analyzer(query.text), docs, scores.tolist(), feedback)

    def _expansion_terms(self, doc: Doc, feedback: Feedback) -> Counter[str]:
        """Return the terms of a document that can be added to a query, with their frequencies."""
        terms = Counter(self._analyzer(doc.content))
        english = self._analyzer.language == "en"
        for term in list(terms):
            if not is_expansion_term(term, self._document_share(term), feedback, english):
                del terms[term]
        return terms

    def _document_share(self, term: str) -> float:
        """Return the share of all documents that contain a term."""
        starts, number = self._scores.scores["indptr"], self._scores.vocab_dict.get(term)
        return 0.0 if number is None else (starts[number + 1] - starts[number]) / len(self._ids)

    def _rank_weighted(self, weights: dict[str, float], k: int) -> Ranking:
        """Rank documents for a query with weighted terms.

        Postings are a sparse matrix in CSC format: the documents `rows` and scores `data` of term t are in
        the range starts[t] … starts[t + 1].
        """
        data, rows, starts = (self._scores.scores[name] for name in ("data", "indices", "indptr"))
        known = self._scores.vocab_dict
        numbered = {known[term]: weight for term, weight in weights.items() if term in known}
        scores = np.zeros(len(self._ids))
        for number, weight in numbered.items():
            span = slice(starts[number], starts[number + 1])
            scores[rows[span]] += weight * data[span].astype(np.float64)
        return self._top(list(numbered), scores, k)

    def _matches(self, terms: list[int]) -> NDArray[np.int64]:
        """Return the rows with any of the terms.

        The scores do not show this, because rounding may give a match the score 0.
        """
        starts, rows = self._scores.scores["indptr"], self._scores.scores["indices"]
        matches = np.zeros(len(self._ids), dtype=bool)
        for term in set(terms):
            matches[rows[starts[term] : starts[term + 1]]] = True
        return np.flatnonzero(matches)


class _Params(TypedDict):
    dtype: Literal["float32"]
    int_dtype: Literal["int32", "int64"]
    num_docs: Annotated[int, int_range(0, 1 << 31)]


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    """Turn any error of bm25s, NumPy and Arrow in damaged files into a DataError."""
    try:
        yield
    except LmkError:
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise DataError(f"{path} cannot be read ({reason}); {_AGAIN}") from error


def _inconsistency(index: Any, ids: pa.ChunkedArray) -> str:
    """Return the reason why the arrays do not belong to the same index; empty if they do."""
    scores, numbers = index.scores, index.vocab_dict.values()
    data, rows, starts = (scores[name] for name in ("data", "indices", "indptr"))
    for column, kind in ((data, "f"), (rows, "i"), (starts, "i")):
        if column.ndim != 1 or column.dtype.kind != kind:
            return f"an array is of {column.dtype} {list(column.shape)}"
    if (
        len(data) != len(rows)
        or starts[0]
        or starts[-1] != len(data)
        or (np.diff(starts) < 0).any()
    ):
        return "its arrays do not fit each other"
    if set(map(type, numbers)) - {int} or not all(0 <= each < len(starts) - 1 for each in numbers):
        return "its vocabulary contains term numbers that do not exist"
    if len(ids) != scores["num_docs"] or ids.null_count or ids.type != pa.string():
        return f"it has {scores['num_docs']} documents, and {IDS} does not match them"
    return ""


def _analyzer(settings: LexicalSettings) -> Analyzer:
    return Analyzer(settings.language, settings.stemmer, settings.stopwords)


def _save(index: Any, folder: Path) -> None:
    """Save the arrays of bm25s. An OSError gets the errno of a full disk, which NumPy omits."""
    try:
        index.save(folder, show_progress=False)
    except OSError as error:
        raise OSError(error.errno or errno.ENOSPC, str(error), str(folder.parent)) from error


def _best(
    rows: NDArray[np.int64], scores: NDArray[np.float32] | NDArray[np.float64], k: int
) -> NDArray[np.int64]:
    """Return the rows with the k best scores, and all ties with the last of them."""
    if len(rows) <= k:
        return rows
    values = scores[rows]
    best: NDArray[np.int64] = rows[values >= np.partition(values, -k)[-k]]
    return best


class _Terms:
    """Documents as rows of term numbers, in the order of first appearance, so builds are reproducible."""

    def __init__(self, analyzer: Analyzer, ids: Path) -> None:
        self._analyzer = analyzer
        self._path = ids
        self.rows: list[array[int]] = []
        self.vocabulary: dict[str, int] = {}

    def read(self, docs: Iterable[Doc], progress: Progress) -> None:
        """Number the terms of all documents, and write the document ids.

        Raises DataError if there is no term.
        """
        schema = pa.schema([("id", pa.string())])
        with parquet_writer(self._path, schema) as writer:
            for batch in batched(docs, lambda doc: len(doc.text) + 64, BATCH_CHARACTERS):
                self.rows += [self._number(doc) for doc in batch]
                writer.write_table(pa.table([[doc.id for doc in batch]], schema=schema))
                progress(len(self.rows), None, "documents")
        if not self.rows:
            raise DataError("the collection has no documents to index")
        if not self.vocabulary:
            raise DataError(
                f"none of the {len(self.rows)} documents contains a term to index; "
                "check the text field of the collection (--fields)"
            )

    def _number(self, doc: Doc) -> "array[int]":
        numbers = self.vocabulary
        terms = self._analyzer(doc.content)
        return array("i", [numbers.setdefault(term, len(numbers)) for term in terms])

    def counts(self) -> dict[str, Any]:
        """Return the counts of documents, empty documents, terms and distinct terms, and the mean length."""
        lengths = [len(row) for row in self.rows]
        return {
            "documents": len(lengths),
            "empty": lengths.count(0),
            "tokens": sum(lengths),
            "vocabulary": len(self.vocabulary),
            "mean_length": sum(lengths) / len(lengths),
        }
