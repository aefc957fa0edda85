"""Judgements in files: TREC's 4 columns, BEIR's 3, tables with names of columns, and JSON objects."""

import re
from collections.abc import Iterable, Iterator
from numbers import Real
from pathlib import Path
from typing import Any

from lmkcli.data.byte_streams import open_stream
from lmkcli.data.collection import Qrel
from lmkcli.data.fields import Fields
from lmkcli.data.pairs import GRADE_NAMES, Pair, header_of, is_comment, read_pairs
from lmkcli.errors import DataError
from lmkcli.system.input_files import bounded_lines

SUFFIXES = (".tsv", ".csv", ".jsonl", ".json", ".parquet", ".tsv.gz", ".tsv.zst")
"""Of the files in the folder `qrels` of a BEIR folder; the first existing one is read."""
_GRADE = re.compile(r"([+-]?[0-9]{1,9})(\.0*)?", re.ASCII)
_ITERATION = re.compile(r"(0|Q0) ")  # the second of TREC's columns
_FRACTION = re.compile(r"[+-]?[0-9]*\.[0-9]+", re.ASCII)


def read_qrels(path: str | Path, map_ids: bool = False) -> Iterator[Qrel]:
    """Iterate over the judgements of a file, compressed or not.

    A file of lines has TREC's 4 columns (query id, 0, document id, grade) or BEIR's 3 (query id, document
    id, grade), separated by tabs or other white space. A header of names, empty lines and comments are
    skipped; a comment starts with '#' and a space. Tables (csv, parquet, jsonl) need names of columns. A
    JSON object has the form {query id: {document id: grade}}.

    `map_ids` replaces white space in ids by '_'. The order is that of the file, and repeated lines are
    repeated. A grade such as 1.0 is a whole number. Raises DataError, with the place, for anything else.
    """
    path, fields = Path(path), Fields(map_ids=map_ids)
    pairs = read_pairs(path, GRADE_NAMES)
    return _of_lines(path, fields) if pairs is None else qrels_of(pairs, fields)


def qrels_of(pairs: Iterable[Pair], fields: Fields) -> Iterator[Qrel]:
    """Iterate over the judgements of pairs. Raises DataError, with the place, for invalid ids and grades."""
    return (
        Qrel(
            fields.id(pair.query_id, pair.where, "query"),
            fields.ranked_id(pair.doc_id, pair.where),
            _grade(pair.number, pair.where),
        )
        for pair in pairs
    )


def _of_lines(path: Path, fields: Fields) -> Iterator[Qrel]:
    header: tuple[int, ...] | None = None
    hashed: dict[str, str] = {}  # query id that starts with '#' -> its first place
    queries: set[str] = set()
    started = False
    with open_stream(path) as stream:
        for number, line in enumerate(bounded_lines(stream.file, path), start=1):
            where = f"{path} line {number}"
            try:
                text = line.decode("utf-8-sig").strip("\r\n ")
            except UnicodeDecodeError:
                raise DataError(f"{where}: not UTF-8; convert the file") from None
            if not started and text and (header := header_of(text)):
                started = True
                continue
            if not text or is_comment(text.encode()):
                continue
            started = True
            qrel = _of_line(text, where, fields, header)
            queries.add(qrel.query_id)
            if qrel.query_id.startswith("#"):
                hashed.setdefault(qrel.query_id, where)
            yield qrel
    for query_id, where in hashed.items():
        if query_id[1:] in queries:
            raise DataError(
                f"{where}: is this a comment, or a judgement of the query {query_id!r}? "
                f"{query_id[1:]!r} is judged too; write '# ' with a space for a comment"
            )


def _of_line(line: str, where: str, fields: Fields, header: tuple[int, ...] | None) -> Qrel:
    for columns in (line.split("\t"), line.split()):
        if header is None and len(columns) in (3, 4):
            query, doc, grade = columns[0], columns[-2], columns[-1].strip()
            if len(columns) == 3 and _ITERATION.match(doc) and len(line.split()) == 4:
                raise DataError(
                    f"{where}: tabs and spaces are mixed: is the document {doc!r} or {doc.split()[1]!r}? "
                    "separate all columns by tabs"
                )
        elif header is not None and len(columns) > max(header):
            query, doc, grade = (columns[place].strip() for place in header)
        else:
            continue
        if _GRADE.fullmatch(grade) or _FRACTION.fullmatch(grade):
            query_id = fields.id(query.strip(), where, "query")
            return Qrel(query_id, fields.ranked_id(doc.strip(), where), _grade(grade, where))
    raise DataError(
        f"{where}: {line[:80]!r} is not a judgement; write 4 columns (query id, 0, document id, integer "
        "grade) or BEIR's 3 (query id, document id, integer grade)"
    )


def _grade(value: Any, where: str) -> int:
    """Return a grade as an integer. Raises DataError for a fraction, and for a value that is not a number."""
    if isinstance(value, bool) or not isinstance(value, float | Real | str):
        raise DataError(f"{where}: {value!r} is not a judgement: the grade must be an integer")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    found = _GRADE.fullmatch(str(value).strip())
    if found is None:
        raise DataError(
            f"{where}: {str(value)[:40]!r} is not a judgement: the measures need an integer grade; round or "
            "scale the grades"
        )
    return int(found[1])
