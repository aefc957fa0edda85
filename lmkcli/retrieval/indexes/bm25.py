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
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lmkcli.data.collection import Doc, Query
from lmkcli.data.run import Ranking, Run, ranked
from lmkcli.errors import DataError, Mismatch
from lmkcli.manifest import json_differences
from lmkcli.progress import Progress
from lmkcli.reading import read_json
from lmkcli.retrieval.kinds import LexicalKind
from lmkcli.settings import Bm25Settings
from lmkcli.system.atomic import atomic_folder
from lmkcli.system.streams import batched
from lmkcli.text.analysis import Analyzer

FOLDER, IDS, ANALYSIS = "bm25", "ids.parquet", "analysis.json"
BATCH_CHARACTERS = 1 << 22  # of text between two reports


class Bm25(LexicalKind):
    """An opened BM25 index."""

    def __init__(self, scores: Any, ids: pa.ChunkedArray, analyzer: Analyzer) -> None:
        self._scores = scores
        self._ids = ids
        self._analyzer = analyzer

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
    def open(cls, folder: Path, settings: Bm25Settings) -> "Bm25":
        """The index in `folder`, memory-mapped.

        DataError when it cannot be read, Mismatch when this installation would analyse queries in
        another way than the documents were.
        """
        path = folder / FOLDER
        analyzer = _analyzer(settings)
        try:
            analysis = read_json(path / ANALYSIS, dict[str, Any], "build the index again")
            scores = bm25s.BM25.load(path, mmap=True, show_progress=False)
            ids = pq.read_table(path / IDS).column("id")
        except (OSError, ValueError, KeyError) as error:  # pa.ArrowInvalid is a ValueError
            raise DataError(f"{path} cannot be read ({error}); build the index again") from None
        if lines := json_differences(analysis, analyzer.identity()):
            raise Mismatch(
                f"{path} was analysed in another way than queries would be here (there | here):\n  "
                + "\n  ".join(lines)
                + "\nbuild the index again, or install the PyStemmer that it was built with"
            )
        return cls(scores, ids, analyzer)

    def search(self, queries: list[Query], k: int) -> Run:
        """The k best documents of each query that share a term with it, ties by document id."""
        return Run({query.id: self._rank(query.text, k) for query in queries}, tag="bm25")

    def _rank(self, text: str, k: int) -> Ranking:
        terms = self._scores.get_tokens_ids(self._analyzer(text))
        if not terms:
            return ranked([], np.zeros(0, np.float32))
        scores = self._scores.get_scores_from_ids(terms)
        rows = _best(self._matches(terms), scores, k)
        return ranked(self._ids.take(pa.array(rows)).to_pylist(), scores[rows]).cut(k)

    def _matches(self, terms: list[int]) -> NDArray[np.int64]:
        """The rows that hold any of the terms (a score can be 0 by rounding, so it does not tell)."""
        starts, rows = self._scores.scores["indptr"], self._scores.scores["indices"]
        hit = np.zeros(len(self._ids), dtype=bool)
        for term in set(terms):
            hit[rows[starts[term] : starts[term + 1]]] = True
        return np.flatnonzero(hit)


def _analyzer(settings: Bm25Settings) -> Analyzer:
    return Analyzer(settings.language, settings.stemmer, settings.stopwords)


def _save(index: Any, folder: Path) -> None:
    """What bm25s writes; OSError with the number of a full disk, which NumPy leaves out."""
    try:
        index.save(folder, show_progress=False)
    except OSError as error:
        raise OSError(error.errno or errno.ENOSPC, str(error), str(folder.parent)) from error


def _best(rows: NDArray[np.int64], scores: NDArray[np.float32], k: int) -> NDArray[np.int64]:
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
