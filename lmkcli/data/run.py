"""Run: ranked documents for each query, in and out of TREC's six columns.

A line is `query_id Q0 doc_id rank score tag`. The rank column is written for people: as in
trec_eval, the order is always that of the scores, held in float32, and equal scores go by document
id, descending.
"""

import gzip
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import CONTROL
from lmkcli.errors import DataError
from lmkcli.reading import bounded_lines, check_finite
from lmkcli.system.atomic import atomic_file, destination


class Ranking(NamedTuple):
    """One query's documents, best first: ids and float32 scores of the same length."""

    doc_ids: list[str]
    """The best first; ties by id, descending."""
    scores: NDArray[np.float32]
    """[documents], never rising."""

    def cut(self, k: int) -> "Ranking":
        """The first k documents."""
        return Ranking(self.doc_ids[:k], self.scores[:k])


def ranked(doc_ids: Iterable[str], scores: NDArray[np.float64] | NDArray[np.float32]) -> Ranking:
    """Sorted as trec_eval sorts: float32 score descending, ties by document id descending."""
    ids = list(doc_ids)
    with np.errstate(over="ignore"):  # beyond float32 is infinite, as in C
        values = np.asarray(scores, dtype=np.float32)
    if bool(np.all(values[:-1] > values[1:])):
        return Ranking(ids, values)
    by_id = np.array(sorted(range(len(ids)), key=ids.__getitem__, reverse=True))
    order = by_id[np.argsort(-values[by_id], kind="stable")]
    return Ranking([ids[row] for row in order], values[order])


@dataclass
class Run:
    """The rankings of some queries, and a tag."""

    rankings: Mapping[str, Ranking] = field(default_factory=dict)
    """Query id -> Ranking, in the order in which the queries were asked."""
    tag: str = "lmk"
    """The last column of the file."""
    unscored: int = 0
    """Documents that a reranker could not score, which stand behind the others."""

    def __repr__(self) -> str:
        return f"<Run {self.tag}: {len(self.rankings):,} queries>"


def read_run(path: str | Path) -> Run:
    """The run in a TREC file (`.gz` too), queries in the order of the file, each one `ranked`.

    Columns are parted by any white space, and what follows the sixth is ignored, as trec_eval does.
    DataError names the file and the line: too few columns, a score that is no number, an id with a
    control character, or a document that comes twice for one query.
    """
    path = Path(path)
    scores: dict[str, dict[str, float]] = {}
    tag = ""
    with _reading(path) as file:
        for number, line in enumerate(bounded_lines(file, path), 1):
            columns = line.split(None, 6)
            if not columns:
                continue
            fault = _fault(columns, scores)
            if fault:
                raise DataError(f"{path} line {number}: {fault}")
            scores.setdefault(columns[0], {})[columns[2]] = float(columns[4])
            tag = tag or columns[5]
    return Run(
        {query_id: _ranking(documents) for query_id, documents in scores.items()}, tag or "lmk"
    )


def _ranking(documents: dict[str, float]) -> Ranking:
    return ranked(documents, np.fromiter(documents.values(), np.float64, len(documents)))


def _fault(columns: list[str], scores: Mapping[str, Mapping[str, float]]) -> str:
    """What is wrong with a line, or ''."""
    if len(columns) < 6:
        return (
            f"{len(columns)} columns instead of the six of a TREC run "
            "(query_id Q0 doc_id rank score tag)"
        )
    query_id, _, doc_id, rank, score, *rest = columns
    if len(rest) > 1 and not rank.isdecimal():
        return f"more than six columns, and the fourth ('{rank}') is no rank: an id with a space?"
    if CONTROL.search(doc_id) or (query_id not in scores and CONTROL.search(query_id)):
        return (
            f"an id of {query_id!r}, {doc_id!r} has a control character or a byte order mark, with which "
            "tools read another id; remove it"
        )
    if doc_id in scores.get(query_id, {}):
        return f"document '{doc_id}' comes twice for query '{query_id}'; keep one of the two lines"
    if "_" in score or not score.isascii():  # which Python reads as numbers, and nobody else
        return f"the score '{score[:40]}' is not a number"
    try:
        return f"the score '{score}' is not a number" if math.isnan(float(score)) else ""
    except ValueError:
        return f"the score '{score}' is not a number"


@contextmanager
def _reading(path: Path) -> Iterator[TextIO]:
    """The lines of a text file or a `.gz`; DataError when it is missing, damaged or not UTF-8."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        check_finite(path)
        with opener(path, "rt", encoding="utf-8-sig") as file:
            yield file
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error.reason}); convert it with iconv") from error
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: the compressed file is damaged or cut short ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def write_run(path: str | Path, run: Run) -> None:
    """Six columns, ranks from 1, scores with the digits that give the same float32 again.

    A suffix `.gz` compresses. The file appears whole or not at all; a pipe or a device is written
    straight. DataError when an id or the tag could not be read back (empty or with white space).
    """
    write_runs(Path(path), [run])


def write_runs(path: Path, runs: Iterable[Run]) -> None:
    """The same for the run that several make, one after another; each is asked for when it is written."""
    compress = path.suffix == ".gz"
    try:
        if path.exists() and not path.is_file():  # asked before it is resolved: a pipe has no name
            _write(path, runs, compress)
            return
        with atomic_file(destination(path)) as temporary:
            _write(temporary, runs, compress)
    except BrokenPipeError:
        raise  # whoever reads has enough
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from error


def _write(path: Path, runs: Iterable[Run], compress: bool) -> None:
    lines = chain.from_iterable(map(_lines, runs))
    with open(path, "wb") as raw:
        if not compress:
            raw.writelines(lines)
            return
        # No name and no time inside: the same run gives the same bytes.
        with gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
            file.writelines(lines)


def _lines(run: Run) -> Iterator[bytes]:
    """One block of lines for each query."""
    for query_id, ranking in run.rankings.items():
        words = [query_id, run.tag, *ranking.doc_ids]
        if " ".join(words).split() != words:
            word = next(word for word in words if word.split() != [word])
            raise DataError(
                f"query '{query_id}': {word!r} cannot stand in a TREC run (empty or with white "
                "space); use --map-ids to replace white space by '_'"
            )
        rows = zip(ranking.doc_ids, map(str, ranking.scores), strict=True)
        yield "".join(
            f"{query_id} Q0 {doc_id} {rank} {score} {run.tag}\n"
            for rank, (doc_id, score) in enumerate(rows, 1)
        ).encode()
