"""Lexical search: BM25 with bm25s, no Java.

The score of a document is the sum over the query's terms (a repeated term counts repeatedly) of

    ln(1 + (N - df + 0.5) / (df + 0.5)) * tf / (tf + k1 * (1 - b + b * length / mean length))

as in Lucene since version 8, with exact document lengths where Lucene keeps one byte of each. N and
the mean count all documents, empty ones too. A document without any term of the query is not a
result, so a query may have fewer than k.
"""

import errno
import json
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import bm25s
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lmkcli.data.collection import Doc, Query
from lmkcli.data.run import Ranking, Run, ranked
from lmkcli.errors import DataError, LmkError, Mismatch
from lmkcli.manifest import json_differences
from lmkcli.progress import Progress
from lmkcli.reading import read_json, within
from lmkcli.retrieval.feedback import expanded, may_join
from lmkcli.retrieval.index_folder import DOCS
from lmkcli.retrieval.kinds import LexicalKind
from lmkcli.settings import Bm25Settings, Feedback
from lmkcli.store.doctable import DocTable, take
from lmkcli.system.atomic import atomic_folder
from lmkcli.system.streams import batched
from lmkcli.text.analysis import Analyzer

FOLDER, IDS, ANALYSIS, PARAMS = "bm25", "ids.parquet", "analysis.json", "params.index.json"
_AGAIN = "build the index again"
BATCH_CHARACTERS = 1 << 22  # of text between two reports


class Bm25(LexicalKind):
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
        self._texts = texts  # which feedback takes its terms from
        self._feedback = feedback

    @staticmethod
    def analysis(settings: Bm25Settings) -> dict[str, Any]:
        """Everything that decides terms; UnknownName for a language or stemmer that is in no list."""
        return _analyzer(settings).identity()

    @classmethod
    def build(
        cls, docs: Iterable[Doc], folder: Path, settings: Bm25Settings, progress: Progress
    ) -> dict[str, Any]:
        """Write `folder/bm25/` whole or not at all; returns facts: counts, bytes, analysis, versions.

        Texts pass by once; what is held is four bytes for each of their terms, and about forty for
        each distinct term of a document while scores are laid out. DataError when there are no terms at all.
        """
        analyzer = _analyzer(settings)
        with atomic_folder(folder / FOLDER) as growing:
            terms = _Terms(analyzer, growing / IDS)
            terms.read(docs, progress)
            index = bm25s.BM25(method="lucene", k1=settings.k1, b=settings.b, backend="numpy")
            corpus = (terms.rows, terms.vocabulary)
            index.index(corpus, create_empty_token=False, show_progress=False)
            _save(index, growing)
            (growing / ANALYSIS).write_text(json.dumps(analyzer.identity(), indent=1))
            size = sum(entry.stat().st_size for entry in os.scandir(growing))
        facts = {**terms.counts(), "postings": len(index.scores["data"]), "bytes": size}
        versions = {"bm25s": bm25s.__version__, **analyzer.versions()}
        return {**facts, "analysis": analyzer.identity(), "versions": versions}

    @classmethod
    def open(cls, folder: Path, settings: Bm25Settings, feedback: Feedback | None = None) -> "Bm25":
        """The index in `folder`, memory-mapped; feedback reads the documents that lie beside it.

        DataError when it cannot be read, Mismatch when this installation would analyse queries in
        another way than the documents were.
        """
        path = folder / FOLDER
        analyzer = _analyzer(settings)
        with _reading(path):
            analysis = read_json(path / ANALYSIS, dict[str, Any], _AGAIN)
            read_json(path / PARAMS, _Params, _AGAIN)
            scores = bm25s.BM25.load(path, mmap=True, show_progress=False)
            ids = pq.ParquetFile(path / IDS).read().column("id")
            if fault := _fault(scores, ids):
                raise ValueError(fault)
        if lines := json_differences(analysis, analyzer.identity()):
            raise Mismatch(
                f"{path} was analysed in another way than queries would be here (there | here):\n  "
                + "\n  ".join(lines)
                + "\nbuild the index again, or install the PyStemmer that it was built with"
            )
        texts = DocTable(folder / DOCS) if feedback else None
        return cls(scores, ids, analyzer, texts, feedback)

    def search(self, queries: list[Query], k: int) -> Run:
        """The k best documents of each query that share a term with it, ties by document id."""
        try:
            return Run(dict(self._ranked(queries, k)), tag="bm25")
        except IndexError:
            raise DataError(
                f"the index refers to documents that it does not have: {_AGAIN}"
            ) from None

    def _ranked(self, queries: list[Query], k: int) -> Iterator[tuple[str, Ranking]]:
        if self._feedback and self._texts:
            for name, terms in self._grown(queries, self._feedback, self._texts):
                yield name, self._weighted(terms, k)
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
        """The k best of the documents with any of the terms, given the scores of all."""
        rows = _best(self._matches(terms), scores, k)
        if not np.isfinite(scores[rows]).all():
            raise DataError(f"the index makes scores that are not finite: {_AGAIN}")
        return ranked(take(self._ids, rows), scores[rows]).cut(k)

    def _grown(
        self, queries: list[Query], how: Feedback, texts: DocTable
    ) -> Iterator[tuple[str, dict[str, float]]]:
        """The id of each query, and the weights of its terms and those that joined."""
        first = [self._rank(query.text, how.docs) for query in queries]
        wanted = dict.fromkeys(name for ranking in first for name in ranking.doc_ids)
        bags = {doc.id: self._joining(doc, how) for doc in texts.docs_by_ids(list(wanted))}
        if missing := [name for name in wanted if name not in bags]:
            raise DataError(f"{DOCS} of the index has no '{missing[0]}'; build the index again")
        for query, (names, scores) in zip(queries, first, strict=True):
            relevant = [bags[name] for name in names]
            yield query.id, expanded(self._analyzer(query.text), relevant, scores.tolist(), how)

    def _joining(self, doc: Doc, how: Feedback) -> Counter[str]:
        """How often the terms of a document that may join a query are in it."""
        terms = Counter(self._analyzer(doc.content))
        english = self._analyzer.language == "en"
        for term in list(terms):
            if not may_join(term, self._share(term), how, english):
                del terms[term]
        return terms

    def _share(self, term: str) -> float:
        """Of all documents, how many hold a term."""
        starts, number = self._scores.scores["indptr"], self._scores.vocab_dict.get(term)
        return 0.0 if number is None else (starts[number + 1] - starts[number]) / len(self._ids)

    def _weighted(self, weights: dict[str, float], k: int) -> Ranking:
        """The k best documents where each term counts by its weight."""
        data, rows, starts = (self._scores.scores[name] for name in ("data", "indices", "indptr"))
        known = self._scores.vocab_dict
        numbered = {known[term]: weight for term, weight in weights.items() if term in known}
        scores = np.zeros(len(self._ids))
        for number, weight in numbered.items():
            span = slice(starts[number], starts[number + 1])
            scores[rows[span]] += weight * data[span].astype(np.float64)
        return self._top(list(numbered), scores, k)

    def _matches(self, terms: list[int]) -> NDArray[np.int64]:
        """The rows that hold any of the terms (a score can be 0 by rounding, so it does not tell)."""
        starts, rows = self._scores.scores["indptr"], self._scores.scores["indices"]
        hit = np.zeros(len(self._ids), dtype=bool)
        for term in set(terms):
            hit[rows[starts[term] : starts[term + 1]]] = True
        return np.flatnonzero(hit)


class _Params(TypedDict):
    dtype: Literal["float32"]
    int_dtype: Literal["int32", "int64"]
    num_docs: Annotated[int, within(0, 1 << 31)]


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """DataError for whatever bm25s, NumPy and Arrow stumble over in files that are damaged."""
    try:
        yield
    except LmkError:
        raise
    except Exception as error:
        said = str(error) or type(error).__name__
        raise DataError(f"{path} cannot be read ({said}); {_AGAIN}") from error


def _fault(index: Any, ids: pa.ChunkedArray) -> str:
    """How the arrays of an index do not belong together; empty if they do."""
    scores, numbers = index.scores, index.vocab_dict.values()
    data, rows, starts = (scores[name] for name in ("data", "indices", "indptr"))
    for each, kind in ((data, "f"), (rows, "i"), (starts, "i")):
        if each.ndim != 1 or each.dtype.kind != kind:
            return f"an array is of {each.dtype} {list(each.shape)}"
    if (
        len(data) != len(rows)
        or starts[0]
        or starts[-1] != len(data)
        or (np.diff(starts) < 0).any()
    ):
        return "its arrays do not fit each other"
    if set(map(type, numbers)) - {int} or not 0 <= min(numbers, default=0) <= max(
        numbers, default=0
    ) < len(starts):
        return "its vocabulary numbers terms that it does not have"
    if len(ids) != scores["num_docs"] or ids.null_count or ids.type != pa.string():
        return f"it is of {scores['num_docs']} documents, and {IDS} of others"
    return ""


def _analyzer(settings: Bm25Settings) -> Analyzer:
    return Analyzer(settings.language, settings.stemmer, settings.stopwords)


def _save(index: Any, folder: Path) -> None:
    """What bm25s writes; OSError with the number of a full disk, which NumPy leaves out."""
    try:
        index.save(folder, show_progress=False)
    except OSError as error:
        raise OSError(error.errno or errno.ENOSPC, str(error), str(folder.parent)) from error


def _best(
    rows: NDArray[np.int64], scores: NDArray[np.float32] | NDArray[np.float64], k: int
) -> NDArray[np.int64]:
    """The rows with the k best scores, and all that tie with the last of them."""
    if len(rows) <= k:
        return rows
    values = scores[rows]
    kept: NDArray[np.int64] = rows[values >= np.partition(values, -k)[-k]]
    return kept


class _Terms:
    """Documents as rows of term numbers; numbers go by first appearance, so builds repeat."""

    def __init__(self, analyzer: Analyzer, ids: Path) -> None:
        self._analyzer = analyzer
        self._path = ids
        self.rows: list[array[int]] = []
        self.vocabulary: dict[str, int] = {}

    def read(self, docs: Iterable[Doc], progress: Progress) -> None:
        """Number the terms of all documents and write their ids down; DataError without any term."""
        schema = pa.schema([("id", pa.string())])
        with pq.ParquetWriter(self._path, schema) as writer:
            for batch in batched(docs, lambda doc: len(doc.text) + 64, BATCH_CHARACTERS):
                self.rows += [self._number(doc) for doc in batch]
                writer.write_table(pa.table([[doc.id for doc in batch]], schema=schema))
                progress(len(self.rows), None, "documents")
        if not self.vocabulary:
            raise DataError(
                f"none of the {len(self.rows)} documents holds a term to index; "
                "look at the collection's text field (--fields)"
            )

    def _number(self, doc: Doc) -> "array[int]":
        numbers = self.vocabulary
        terms = self._analyzer(doc.content)
        return array("i", [numbers.setdefault(term, len(numbers)) for term in terms])

    def counts(self) -> dict[str, Any]:
        """Documents, how many are empty, terms, distinct terms, mean length."""
        lengths = [len(row) for row in self.rows]
        return {
            "documents": len(lengths),
            "empty": lengths.count(0),
            "tokens": sum(lengths),
            "vocabulary": len(self.vocabulary),
            "mean_length": sum(lengths) / len(lengths),
        }
