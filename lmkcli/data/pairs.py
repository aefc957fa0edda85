"""Pairs of a query and a document with a number: judgements and runs in other formats than TREC's lines.

Tables have a row for each pair, and their columns have names: csv, tsv with a header, parquet, jsonl, and a
JSON array of objects. A JSON object has the form {query id: {document id: number}}, as pytrec_eval, mteb and
ranx use it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from lmkcli.data.byte_streams import FileInput, inner_name, open_stream
from lmkcli.data.columns import plain_name
from lmkcli.errors import DataError
from lmkcli.spec.values import WHOLE
from lmkcli.system.input_files import MAX_FILE, bounded_lines, check_finite, parse_json

QUERY_NAMES = ("query_id", "qid", "q_id", "queryid", "query", "topic", "topic_id", "topicid")
# In tables of PyTerrier, docid is an internal number, and docno the id
DOC_NAMES = (
    *("corpus_id", "doc_id", "docno", "docid", "document_id", "did", "pid", "passage_id"),
    *("doc", "document", "object_id"),
)
# A table of results may have scores and grades: a run reads the first, and judgements the second
_GRADES = ("relevance", "rel", "grade", "label", "judgment", "judgement", "relevancy")
SCORE_NAMES, GRADE_NAMES = ("score", *_GRADES), (*_GRADES, "score")
_SAMPLE = 1000  # first numbers that tell judgements from a run
_ADVICE = (
    "name its columns query_id, doc_id and score (for judgements also relevance, grade or label), or write "
    "TREC's lines"
)


class Pair(NamedTuple):
    """A pair with its place. The file determines the types: csv has texts, and JSON may have any value."""

    where: str
    query_id: Any
    doc_id: Any
    number: Any


def read_pairs(path: Path, numbers: Sequence[str] = SCORE_NAMES) -> Iterator[Pair] | None:
    """Iterate over the pairs of a table or a JSON object; None for a file of lines without a header.

    `numbers` are the possible names of the column with the numbers, in the order of preference. The suffix
    (before that of compression) determines the format, else the first line. Raises DataError for a table
    without such columns.
    """
    check_readable(path)
    if not path.is_file():
        return None  # a pipe, which can be read only once
    suffix = Path(inner_name(path)).suffix
    if suffix == ".parquet":
        return _rows_of_table(path, "parquet", numbers)
    first = first_line(path)
    if suffix == ".csv":
        return _csv_pairs(path, numbers)
    named = suffix in (".json", ".jsonl", ".ndjson")
    if first.startswith((b"{", b"[")) and (named or not _is_record(first)):
        return _json_pairs(path, first, numbers)
    return None


def pairs_of(
    name: str, rows: Iterable[tuple[str, dict[str, Any]]], numbers: Sequence[str]
) -> Iterator[Pair]:
    """Iterate over the pairs of rows with their places. Raises DataError for rows without such columns.

    The only row may also be an object {query id: {document id: number}}. `numbers` are as of `read_pairs`.
    """
    head = list(islice(rows := iter(rows), 2))
    if len(head) == 1 and _is_nested(head[0][1]):
        return _nested(head[0][1], name)
    return _pairs(name, chain(head, rows), numbers)


def _is_record(line: bytes) -> bool:
    """Return whether a line has the columns of a judgement or of a run; an id can start with '[' or '{'."""
    columns, tabs = line.split(), line.split(b"\t")
    if len(columns) in (4, 6):
        return _is_number(columns[3])
    return len(tabs) == 3 and _is_number(tabs[2].strip())


def header_of(line: str) -> tuple[int, int, int] | None:
    """Return the places of query, document and grade in a header of names; None for another line."""
    for names in (line.split("\t"), line.split()):
        plain = [plain_name(name.lstrip("#")) for name in names]
        places = [_place(plain, usual) for usual in (QUERY_NAMES, DOC_NAMES, GRADE_NAMES)]
        if None not in places:
            query, doc, number = places
            return (query or 0, doc or 0, number or 0)
    return None


def check_readable(path: Path) -> None:
    """Raise DataError for a missing file, a folder, a named pipe or a device."""
    if not path.exists():
        raise DataError(f"{path}: no such file")
    check_finite(path)


def looks_like_qrels(path: Path) -> bool:
    """Return whether a file contains judgements and not a run: TREC's 4 columns, BEIR's 3, or only whole
    numbers.
    """
    pairs = read_pairs(path)
    if pairs is not None:
        numbers = [str(pair.number) for pair in islice(pairs, _SAMPLE)]
        return bool(numbers) and all(re.fullmatch(r"-?[0-9]+(\.0*)?", each) for each in numbers)
    first = first_line(path)
    return len(first.split()) in (3, 4) or len(first.split(b"\t")) in (3, 4)


def first_line(path: Path) -> bytes:
    """Return the first line with text, without white space at its ends; comments are skipped."""
    with open_stream(path) as stream:
        lines = (line.strip() for line in bounded_lines(stream.file, path, MAX_FILE))
        lines = (line.removeprefix(b"\xef\xbb\xbf").strip() for line in lines)
        return next((line for line in lines if line and not is_comment(line)), b"")


def is_comment(line: bytes) -> bool:
    """Return whether a line is a comment and not a record of an id that starts with '#'.

    trec_eval skips lines that start with '#' since 2020, pytrec_eval reads them. A comment has not the
    columns of a record. A commented record, such as '# q1 Q0 d1 1 2.0 run', has one column more, so the id
    '#' alone needs the second column of TREC's lines.
    """
    if not line.startswith(b"#"):
        return False
    columns = line.split()
    alone = columns[0] == b"#"
    if len(columns) >= 6:
        ranked = columns[3].isdigit() and _is_number(columns[4])
        return not ranked or (alone and columns[1].upper() != b"Q0")
    tabs = [each.strip() for each in line.split(b"\t")]
    if len(tabs) == 3 and len(columns) >= 3:
        return not _is_number(tabs[2])
    second = len(columns) == 4 and (columns[1].upper() in (b"0", b"Q0") or columns[1].isdigit())
    return not second or not _is_number(columns[3])


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _place(names: Sequence[str], usual: Sequence[str]) -> int | None:
    return next((names.index(each) for each in usual if each in names), None)


def _json_pairs(path: Path, first: bytes, numbers: Sequence[str]) -> Iterator[Pair]:
    """Return the pairs of an object by ids; of a table, if its objects have names of columns."""
    suffix = Path(inner_name(path)).suffix
    try:
        value = parse_json(first.decode("utf-8"))
    except ValueError:  # one value over several lines, or a damaged line
        value = None
    if isinstance(value, dict) and not _is_nested(value) and value:
        return _rows_of_table(path, "jsonl", numbers)
    if isinstance(value, list) or first.startswith(b"["):
        return _rows_of_table(path, "json", numbers)
    if isinstance(value, dict) and suffix in (".jsonl", ".ndjson"):
        return (pair for where, each in _objects(path) for pair in _nested(each, where))
    return _nested(_whole(path), str(path))


def _is_nested(value: dict[str, Any]) -> bool:
    return all(isinstance(each, dict) for each in value.values())


def _objects(path: Path) -> Iterator[tuple[str, Any]]:
    from lmkcli.data.records import FileFormat, open_records  # imports pyarrow

    yield from open_records(str(path), given=FileFormat(kind="jsonl"))


def _whole(path: Path) -> Any:
    with open_stream(path) as stream:
        data = stream.file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise DataError(
            f"{path}: a JSON object of more than {MAX_FILE:,} bytes; convert it to TREC's lines"
        )
    try:
        return parse_json(data.decode("utf-8-sig"))
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON ({error})") from error


def _nested(value: Any, where: str) -> Iterator[Pair]:
    if not isinstance(value, dict) or not _is_nested(value):
        raise DataError(
            f"{where}: this JSON is not of the form {{query id: {{document id: number}}}}; if it has a "
            f"row for each pair, {_ADVICE}"
        )
    yield from nested_pairs(value, where)


def nested_pairs(value: Mapping[Any, Mapping[Any, Any]], where: str) -> Iterator[Pair]:
    """Iterate over the pairs of {query id: {document id: number}}."""
    for query_id, numbers in value.items():
        for doc_id, number in numbers.items():
            yield Pair(f"{where} key {query_id!r}", query_id, doc_id, number)


def has_columns(names: Iterable[str], numbers: Sequence[str]) -> bool:
    """Return whether columns with these names contain queries, documents and numbers."""
    plain = [plain_name(str(name)) for name in names]
    return None not in [_place(plain, usual) for usual in (QUERY_NAMES, DOC_NAMES, numbers)]


def _csv_pairs(path: Path, numbers: Sequence[str]) -> Iterator[Pair]:
    """Return the pairs of a csv file with a header, or with 3 or 4 columns as in BEIR's and TREC's
    judgements.
    """
    from lmkcli.data.records import CsvRecords, FileFormat

    records = CsvRecords(FileInput(path), WHOLE, FileFormat(kind="csv"))
    header = records.header
    if header and _is_number(header[-1].encode()) and len(header) in (3, 4):
        names = ("query_id", *("iteration",)[: len(header) - 3], "corpus_id", "score")
        records = CsvRecords(FileInput(path), WHOLE, FileFormat(kind="csv", names=names))
    return _pairs(str(path), iter(records), numbers)


def _rows_of_table(path: Path, kind: str, numbers: Sequence[str]) -> Iterator[Pair]:
    from lmkcli.data.records import FileFormat, open_records

    rows = iter(open_records(str(path), given=FileFormat(kind=kind)))
    return _pairs(str(path), rows, numbers)


def _pairs(
    name: str, rows: Iterator[tuple[str, dict[str, Any]]], numbers: Sequence[str]
) -> Iterator[Pair]:
    head = list(islice(rows, 1))
    columns = [*head[0][1]] if head else []
    plain = list(map(plain_name, columns))
    places = [_place(plain, usual) for usual in (QUERY_NAMES, DOC_NAMES, numbers)]
    if head and None in places:
        raise DataError(f"{name}: its columns are {', '.join(columns[:8])}; {_ADVICE}")
    query, doc, number = (columns[place] if place is not None else "" for place in places)
    for where, row in chain(head, rows):
        if missing := next((each for each in (query, doc, number) if each not in row), ""):
            raise DataError(f"{where}: the column '{missing}' is missing")
        yield Pair(where, row[query], row[doc], row[number])
