"""Runs: ranked documents for each query, read from and written to TREC files.

A line is `query_id Q0 doc_id rank score tag`. The rank column is only for people. As in trec_eval, the
float32 scores determine the order, and documents with equal scores are sorted by id, descending. An id with
white space, which only a file can have, is escaped in the lines of a run and nowhere else (`escaped_id`).
"""

import gzip
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.artifact.manifest import digest
from lmkcli.artifact.outputs import is_artifact
from lmkcli.data.byte_streams import open_stream
from lmkcli.data.collection import (
    CONTROL_CHARACTERS,
    WHOLE,
    Collection,
    Doc,
    DocStream,
    PartOfCollection,
    Shard,
    escaped_id,
    unescaped_id,
)
from lmkcli.data.fields import Fields
from lmkcli.data.pairs import Pair, is_comment, read_pairs
from lmkcli.errors import DataError
from lmkcli.spec.result import Tabular
from lmkcli.system.atomic import atomic_file, destination
from lmkcli.system.input_files import bounded_lines
from lmkcli.system.output_streams import is_stream, open_output
from lmkcli.text.formatting import counted

_COLUMNS = 6
_LONGEST_LINE = 1000  # bytes
_NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?")


class Ranking(NamedTuple):
    """The documents of one query, best first: ids and float32 scores of the same length."""

    doc_ids: list[str]
    """Best first; ties by id, descending."""
    scores: NDArray[np.float32]
    """[documents], not increasing."""

    def cut(self, k: int) -> "Ranking":
        """Return the first k documents."""
        return Ranking(self.doc_ids[:k], self.scores[:k])


def ranked(doc_ids: Iterable[str], scores: NDArray[np.float64] | NDArray[np.float32]) -> Ranking:
    """Sort documents like trec_eval: by float32 score, descending; ties by document id, descending."""
    ids = list(doc_ids)
    with np.errstate(over="ignore"):  # values beyond float32 become infinite, as in C
        values = np.asarray(scores, dtype=np.float32)
    if bool(np.all(values[:-1] > values[1:])):  # already sorted, without ties
        return Ranking(ids, values)
    # Order by id, descending, then stably by score: ties keep the order of their ids.
    by_id = np.array(sorted(range(len(ids)), key=ids.__getitem__, reverse=True))
    order = by_id[np.argsort(-values[by_id], kind="stable")]
    return Ranking([ids[row] for row in order], values[order])


class Scored(NamedTuple):
    """The scores of documents for one query; NaN for documents that cannot be scored.

    cut: how many documents the model read only in part together with the query.
    """

    scores: NDArray[np.float64]
    cut: int = 0


@dataclass
class Run(Tabular):
    """The rankings of a set of queries, and a tag. `run[query_id]` is the Ranking of a query."""

    rankings: Mapping[str, Ranking] = field(default_factory=dict)
    """Query id -> Ranking, in the order of the queries."""
    tag: str = "lmk"
    """The last column of the file."""
    unscored: int = 0
    """Documents that a reranker could not score; they follow the others."""
    cut: frozenset[str] = frozenset()
    """The queries that a model read only in part, because they are longer than its limit for queries."""
    cut_pairs: Mapping[str, int] = field(default_factory=dict)
    """Query id -> how many documents a cross-encoder read only in part together with the query."""
    contradicted: frozenset[str] = frozenset()
    """The queries of a file for which a later rank has a higher score; the scores determine the order."""
    incomplete: frozenset[str] = frozenset()
    """The queries for which a filter stopped at its limit, so that documents may be missing."""

    def __repr__(self) -> str:
        return f"<Run {self.tag}: {counted(len(self.rankings), 'query', 'queries')}>"

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.rankings)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ids of the queries."""
        return iter(self.rankings)

    def __getitem__(self, query_id: str) -> Ranking:
        return self.rankings[query_id]

    def __bool__(self) -> bool:
        return True  # a run without queries is a run

    def as_columns(self) -> Mapping[str, Any]:
        """Return one row per document: query id, document id, rank from 1, and score."""
        lengths = [len(ranking.doc_ids) for ranking in self.rankings.values()]
        scores = [ranking.scores for ranking in self.rankings.values()]
        return {
            "query_id": [
                name for name, count in zip(self, lengths, strict=True) for _ in range(count)
            ],
            "doc_id": list(chain.from_iterable(each.doc_ids for each in self.rankings.values())),
            "rank": list(chain.from_iterable(range(1, count + 1) for count in lengths)),
            "score": np.concatenate([np.zeros(0, np.float32), *scores]),
        }


def is_run(file: Path) -> bool:
    """Return whether a file has the manifest of a run, or a first line with the six columns of one."""
    if is_artifact(file):
        return True
    with (
        suppress(OSError, EOFError, zlib.error),  # a damaged file is no run
        (gzip.open if file.suffix == ".gz" else open)(file, "rb") as opened,
    ):
        words = opened.readline(_LONGEST_LINE).split()
        return len(words) == _COLUMNS and words[1] == b"Q0"
    return False


def read_run(path: str | Path) -> Run:
    """Read a run from a file, compressed or not, queries in the order of the file, each one `ranked`.

    TREC's lines have six columns. As in trec_eval, white space separates the columns, text after the sixth
    column is ignored, and so are comments: lines that start with '#' and are not a hit. Tables and JSON
    objects are those of `pairs.py`. Raises DataError, with file and line, for missing columns, a score that
    is not a number, an id with a control character, or a repeated document of a query.
    """
    path = Path(path)
    scores: dict[str, dict[str, float]] = {}
    try:
        pairs = read_pairs(path)
        if pairs is not None:
            return run_of(pairs)
        tag, contradicted = _read_lines(path, scores)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    return Run(_rankings(scores), tag or "lmk", contradicted=contradicted)


def run_of(pairs: Iterable[Pair]) -> Run:
    """Return the run of hits in any order. Raises DataError, with the place, for an
    invalid or repeated one.
    """
    scores: dict[str, dict[str, float]] = {}
    for pair in pairs:
        _add_pair(pair, scores)
    return Run(_rankings(scores), "lmk")


def _rankings(scores: Mapping[str, Mapping[str, float]]) -> dict[str, Ranking]:
    return {
        query_id: ranked(documents, np.fromiter(documents.values(), np.float64, len(documents)))
        for query_id, documents in scores.items()
    }


def _read_lines(path: Path, scores: dict[str, dict[str, float]]) -> tuple[str, frozenset[str]]:
    """Add the hits of a file in TREC's columns to `scores`.

    Return the tag of the first hit, and the queries for which a later rank has a higher score.
    """
    tag = ""
    contradicted: set[str] = set()
    query, rank, score = "", "", math.inf  # of the last line
    hashed: dict[str, int] = {}  # query id that starts with '#' -> its first line
    with open_stream(path) as stream, _utf8(path):
        file = TextIOWrapper(stream.file, "utf-8-sig")
        for number, line in enumerate(bounded_lines(file, path), 1):
            columns = line.split(None, 6)
            if len(columns) > 5 and line.count("\t") in (4, 5):  # ids and tags can contain spaces
                columns = [column.strip() for column in line.split("\t")]
            if not columns or (line[0] == "#" and is_comment(line.encode())):
                continue
            if len(columns) > 2:
                columns[2] = unescaped_id(columns[2])
            if reason := _invalid_reason(columns, scores):
                raise DataError(f"{path} line {number}: {reason}")
            last = (query, rank, score)
            query, rank, score = columns[0], columns[3], float(columns[4])
            scores.setdefault(query, {})[columns[2]] = score
            if query == last[0] and score > last[2] and _later(rank, score, last):
                contradicted.add(query)
            tag = tag or columns[5]
            if line[0] == "#":
                hashed.setdefault(columns[0], number)
    for query_id, number in hashed.items():
        if query_id[1:] in scores:
            raise DataError(
                f"{path} line {number}: is this a comment, or a hit of the query {query_id!r}? "
                f"{query_id[1:]!r} has hits too; write '# ' with a space for a comment"
            )
    return tag, frozenset(contradicted)


def _later(rank: str, score: float, last: tuple[str, str, float]) -> bool:
    """Return whether a rank follows that of the last line, and its higher score is no rounding of an equal
    one.
    """
    numbers = rank.isdecimal() and last[1].isdecimal()
    ordered = numbers and float(rank) > float(last[1])  # int() refuses numbers of many digits
    with np.errstate(over="ignore"):
        return ordered and bool(np.float32(score) > np.float32(last[2]))


@contextmanager
def _utf8(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error.reason}); convert it with iconv") from error


def _add_pair(pair: Pair, scores: dict[str, dict[str, float]]) -> None:
    """Add a hit of a table or of a JSON object. Raises DataError if it is invalid."""
    query_id = Fields().id(pair.query_id, pair.where, "query")
    doc_id = Fields().ranked_id(pair.doc_id, pair.where)
    text = str(pair.number)
    if reason := _invalid_reason([query_id, "Q0", doc_id, "1", text, "x"], scores):
        raise DataError(f"{pair.where}: {reason}")
    scores.setdefault(query_id, {})[doc_id] = float(text)


def _invalid_reason(columns: list[str], scores: Mapping[str, Mapping[str, float]]) -> str:
    """Return the error in a line, or ''; `scores` are the scores of the earlier lines."""
    if len(columns) < 6:
        return (
            f"{len(columns)} columns instead of the six of a TREC run "
            "(query_id Q0 doc_id rank score tag)"
        )
    query_id, _, doc_id, rank, score, *rest = columns
    if not query_id or not doc_id:  # between tabs
        return "an empty id"
    if " " in query_id:  # between tabs
        return f"the query id {query_id!r} contains a space, which other lines of a run cannot represent"
    if len(rest) > 1 and not rank.isdecimal():
        return f"more than six columns, and the fourth ('{rank}') is not a rank; does an id contain a space?"
    if len(rest) > 1 and _NUMBER.fullmatch(rest[0]):  # the id `Apollo 11`: its rank is 11
        return (
            f"more than six columns, and the sixth ('{rest[0]}') may be the score; does an id contain a "
            "space? separate the columns by tabs"
        )
    if CONTROL_CHARACTERS.search(doc_id) or (
        query_id not in scores and CONTROL_CHARACTERS.search(query_id)
    ):
        return (
            f"the id {query_id!r} or {doc_id!r} contains a control character or a byte order mark, which "
            "other tools would read differently; remove it"
        )
    if doc_id in scores.get(query_id, {}):
        return f"document '{doc_id}' occurs twice for query '{query_id}'; keep one of the two lines"
    if (
        "_" in score or not score.isascii()
    ):  # Python would read it as a number, but other tools do not
        return f"the score '{score[:40]}' is not a number"
    try:
        return f"the score '{score}' is not a number" if math.isnan(float(score)) else ""
    except ValueError:
        return f"the score '{score}' is not a number"


def write_run(path: str | Path, run: Run) -> None:
    """Write a run in TREC's six columns, with ranks from 1 and scores that round-trip as float32.

    A suffix `.gz` compresses the file. The file is either complete or does not exist. A stream is written
    directly: a pipe, a device, or standard output (`-`). Raises DataError if an id or the tag could not be
    read back (empty or with white space).
    """
    write_runs(Path(path), [run])


def write_runs(path: Path, runs: Iterable[Run]) -> None:
    """Write several runs into one file, like `write_run`. Each run is computed when it is written."""
    compress = path.suffix == ".gz"
    try:
        if is_stream(path):
            with open_output(path) as stream:
                _write(stream, runs, compress)
            return
        with atomic_file(destination(path)) as temporary, open(temporary, "wb") as file:
            _write(file, runs, compress)
    except BrokenPipeError:
        raise  # the reader of the pipe has stopped
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from error


def _write(raw: BinaryIO, runs: Iterable[Run], compress: bool) -> None:
    lines = chain.from_iterable(map(_lines, runs))
    if not compress:
        raw.writelines(lines)
        return
    # The gzip header has no name and no time, so equal runs give equal bytes.
    with gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
        file.writelines(lines)


def _lines(run: Run) -> Iterator[bytes]:
    """Yield the lines of each query as one block of bytes."""
    for query_id, ranking in run.rankings.items():
        doc_ids, words = ranking.doc_ids, [query_id, run.tag, *ranking.doc_ids]
        line = " ".join(words)
        if line.split() != words or " ./" in line:  # few ids need an escape
            doc_ids = [escaped_id(name) if name else name for name in doc_ids]
            words = [query_id, run.tag, *doc_ids]
        if " ".join(words).split() != words:
            word = next(word for word in words if word.split() != [word])
            raise DataError(
                f"query '{query_id}': {word!r} is empty or contains white space, which a TREC run cannot "
                "represent; use --map-ids to replace white space by '_'"
            )
        rows = zip(doc_ids, map(str, ranking.scores), strict=True)
        yield "".join(
            f"{query_id} Q0 {doc_id} {rank} {score} {run.tag}\n"
            for rank, (doc_id, score) in enumerate(rows, 1)
        ).encode()


class RunSubset(PartOfCollection):
    """The documents of `whole` that occur in the run in `path`, in source order.

    `ids` are all document ids of the run, including those that the collection lacks, and `digest` is a
    digest of them. Raises DataError if the run is unreadable.
    """

    def __init__(self, whole: Collection, path: Path) -> None:
        super().__init__(whole)
        rankings = read_run(path).rankings.values()
        self.ids = frozenset(name for ranking in rankings for name in ranking.doc_ids)
        self.digest = digest(sorted(self.ids))

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        """Return the documents of the shard that occur in the run."""
        return _SelectedDocs(self._whole.docs(shard), self.ids)


class _SelectedDocs(DocStream):
    def __init__(self, docs: DocStream, ids: frozenset[str]) -> None:
        self._docs, self._ids = docs, ids

    def __iter__(self) -> Iterator[Doc]:
        return (doc for doc in self._docs if doc.id in self._ids)

    @property
    def fraction(self) -> float | None:
        return self._docs.fraction
