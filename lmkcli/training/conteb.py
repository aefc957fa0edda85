"""A data set of ConTEB in a folder, with its files as the hub has them (Conti et al. 2025, §4).

A table of chunks has `chunk_id`, which is '<document>_<number>', and `chunk`; a table of queries has
`query`, and `chunk_id` or `chunk_ids`. Tables are known by their columns, wherever they lie.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from lmkcli.data.collection import WHOLE
from lmkcli.data.formats import Record
from lmkcli.data.records import open_records
from lmkcli.errors import DataError

COLUMNS = frozenset({"chunk_id", "chunk_ids", "chunk", "query"})
Chunks = dict[str, dict[int, str]]  # document -> number -> text
Answers = list[tuple[str, str, int]]  # query, document, number


def conteb_files(name: str) -> list[Path]:
    """The parquet tables below a folder, of one split for 'folder:split'; [] where there are none.

    A file belongs to the split that its name begins with.
    """
    folder, split = Path(os.path.expanduser(name)), ""
    if not folder.is_dir():
        path, _, split = name.rpartition(":")
        folder = Path(os.path.expanduser(path or "."))
    beir = any(folder.glob("corpus.*"))
    return [] if beir or not folder.is_dir() else sorted(folder.rglob(f"{split}*.parquet"))


def read_conteb(files: list[Path]) -> tuple[Chunks, Answers]:
    """The chunks of each document by their numbers, and what is asked of them.

    DataError with the row for an id that is not '<document>_<number>'.
    """
    chunks: Chunks = {}
    answers: Answers = []
    for where, record in _rows(files):
        if isinstance(record.get("query"), str):
            given = record.get("chunk_ids") or [record.get("chunk_id")]
            answers += [(record["query"], *_cut(each, where)) for each in given]
        else:
            document, number = _cut(record.get("chunk_id"), where)
            chunks.setdefault(document, {})[number] = str(record.get("chunk") or "")
    return chunks, answers


def _rows(files: list[Path]) -> Iterator[tuple[str, Record]]:
    for file in files:
        yield from open_records(str(file), WHOLE, COLUMNS)


def _cut(chunk_id: object, where: str) -> tuple[str, int]:
    document, _, number = str(chunk_id).rpartition("_")
    if not document or not number.isdecimal():
        raise DataError(f"{where}: the chunk_id {chunk_id!r} is not '<document>_<number>'")
    return document, int(number)
