"""Read files of training examples in common layouts. The fields of a record identify its layout.

- FlagEmbedding: query, pos, neg (lists), pos_scores, neg_scores, prompt
- tevatron: query, positive_passages, negative_passages (lists of title and text)
- sentence-transformers: columns anchor or query, positive, negative or negative_1 …, score
- plain pairs: jsonl or parquet with a query and a positive, or tsv with two or three columns
"""

import math
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from lmkcli.data.byte_streams import PipeInput
from lmkcli.data.collection import WHOLE
from lmkcli.data.fields import QUERY_ID_FIELDS, Record
from lmkcli.data.records import Records, open_records
from lmkcli.errors import DataError
from lmkcli.text.formatting import listed
from lmkcli.training.data.examples import Example, ScoredText

QUERY = ("query", "anchor", "question")
POSITIVES = ("pos", "positive_passages", "positives", "positive", "answer", "passage")
NEGATIVES = ("neg", "negative_passages", "negatives", "negative")
NUMBERED = tuple(f"negative_{number}" for number in range(200))
LABELS = ("label", "labels")  # of a pair: 1 for a positive pair; with negatives: scores
SCORES = ("score", "scores", *LABELS)
COLUMNS = (("query", "positive"), ("query", "positive", "negative"))  # of a tsv without a header
WANTED = frozenset(
    {*QUERY_ID_FIELDS, *QUERY, *POSITIVES, *NEGATIVES, *NUMBERED, *SCORES}
    | {"pos_scores", "neg_scores", "prompt"}
)
_LARGEST = 3.4e38  # the largest score, because training computes in float32


def read_examples(path: str) -> Iterator[Example]:
    """Yield the examples of a jsonl, tsv or parquet file, compressed or not, or of stdin ('-').

    Raises DataError with file and line if a record lacks the query or the positive, or has a field of the
    wrong type. Texts may be empty.
    """
    return as_examples(_records(path))


def as_examples(records: Iterable[tuple[str, Record]]) -> Iterator[Example]:
    """Yield the examples of records with their places. Errors are those of `read_examples`."""
    for number, (where, record) in enumerate(records, start=1):
        yield _example(record, number, where)


def _records(path: str) -> Records:
    if path == "-":
        pipe = PipeInput(sys.stdin.buffer)
        records = open_records(pipe, WHOLE, WANTED, COLUMNS)
        pipe.close_head()
        return records
    return open_records(os.path.expanduser(path), WHOLE, WANTED, COLUMNS)


def _example(record: Record, number: int, where: str) -> Example:
    query, kept = _first(record, QUERY), _first(record, POSITIVES)
    if query is None or kept is None:
        raise DataError(
            f"{where}: the record has no known layout; it needs a query ({', '.join(QUERY)}) and a "
            f"positive ({', '.join(POSITIVES)}), but has {listed(record) or 'no fields'}"
        )
    positives = _texts(record[kept], f"{where}, {kept}")
    negatives = _negatives(record, where)
    scores = _scores(record, len(positives), len(negatives), where)
    passages = [ScoredText(*pair) for pair in zip(positives + negatives, scores, strict=True)]
    name, prompt = _first(record, QUERY_ID_FIELDS), record.get("prompt")
    return Example(
        str(number if name is None else record[name]),
        _text(record[query], f"{where}, {query}"),
        tuple(passages[: len(positives)]),
        tuple(passages[len(positives) :]),
        prompt if isinstance(prompt, str) else None,
    )


def _first(record: Record, names: tuple[str, ...]) -> str | None:
    """Return the first of the names with a value in the record."""
    return next((name for name in names if record.get(name) is not None), None)


def _negatives(record: Record, where: str) -> list[str]:
    names = [name for name in (*NEGATIVES, *NUMBERED) if record.get(name) is not None]
    return [text for name in names for text in _texts(record[name], f"{where}, {name}")]


def _texts(value: Any, where: str) -> list[str]:
    return [_text(each, where) for each in (value if isinstance(value, list) else [value])]


def _text(value: Any, where: str) -> str:
    """Return a text. If the value has a title and a text, join them with a space, as for a document."""
    if isinstance(value, dict):
        title, text = value.get("title") or "", value.get("text", value.get("contents"))
        return f"{title} {_text(text, where)}" if title else _text(text, where)
    if not isinstance(value, str):
        raise DataError(f"{where}: {value!r:.60} is not a text; write a string")
    return value


def _scores(record: Record, positives: int, negatives: int, where: str) -> list[float]:
    """Return a score for each positive and each negative; NaN means no score."""
    name = _first(record, SCORES)
    if name in LABELS and not negatives:
        _check_label(record[name], where)
    elif name is not None:
        return _column_scores(record[name], positives, negatives, f"{where}, {name}")
    scores = []
    for name, count in (("pos_scores", positives), ("neg_scores", negatives)):
        given = record.get(name) or [None] * count
        if not isinstance(given, list) or len(given) != count:
            raise DataError(f"{where}: {name} must be a list of {count} scores, one for each text")
        scores += [_number(score, f"{where}, {name}") for score in given]
    return scores


def _check_label(value: Any, where: str) -> None:
    """Raise DataError if a pair is labelled as negative."""
    if value not in (1, [1]):
        raise DataError(
            f"{where}: the label {value!r:.60} marks a passage that does not answer the query; write such "
            "passages as 'neg' of a query that has a 'pos'"
        )


def _column_scores(value: Any, positives: int, negatives: int, where: str) -> list[float]:
    """Return scores from one column: all scores, the margin over each negative, or the score of a pair."""
    given = [_number(each, where) for each in (value if isinstance(value, list) else [value])]
    if len(given) == positives + negatives:
        return given
    if positives == 1 and len(given) == negatives:
        return [0.0, *(-margin for margin in given)]
    raise DataError(
        f"{where}: {len(given)} scores for {positives} positives and {negatives} negatives; write one "
        "score for each text, or the margin of the positive over each negative"
    )


def _number(value: Any, where: str) -> float:
    if value is None:
        return math.nan
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if not known or abs(value) > _LARGEST:
        raise DataError(f"{where}: the score {value!r:.60} is not a number in the range of float32")
    return float(value)
