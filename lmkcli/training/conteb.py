"""Read a ConTEB data set from a folder with the files of the Hugging Face hub (Conti et al. 2025, §4).

A table of chunks has the columns `chunk_id` ('<document>_<number>') and `chunk`. A table of queries has
`query`, and `chunk_id` or `chunk_ids`. The columns identify a table, independent of its path.
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
    """Return the parquet files below a folder, or of one split with 'folder:split'; [] if none exist.

    A file belongs to a split if its name starts with the split's name.
    """
    folder, split = Path(os.path.expanduser(name)), ""
    if not folder.is_dir():
        path, _, split = name.rpartition(":")
        folder = Path(os.path.expanduser(path or "."))
    beir = any(folder.glob("corpus.*"))
    return [] if beir or not folder.is_dir() else sorted(folder.rglob(f"{split}*.parquet"))


def read_conteb(files: list[Path]) -> tuple[Chunks, Answers]:
    """Return the chunks of each document by number, and the answers: (query, document, number).

    Raises DataError with file and row if an id is not '<document>_<number>'.
    """
    chunks: Chunks = {}
    answers: Answers = []
    for where, record in _rows(files):
        if isinstance(record.get("query"), str):
            given = record.get("chunk_ids") or [record.get("chunk_id")]
            answers += [(record["query"], *_parse_id(each, where)) for each in given]
        else:
            document, number = _parse_id(record.get("chunk_id"), where)
            chunks.setdefault(document, {})[number] = str(record.get("chunk") or "")
    return chunks, answers


def _rows(files: list[Path]) -> Iterator[tuple[str, Record]]:
    for file in files:
        yield from open_records(str(file), WHOLE, COLUMNS)


def _parse_id(chunk_id: object, where: str) -> tuple[str, int]:
    document, _, number = str(chunk_id).rpartition("_")
    if not document or not number.isdecimal():
        raise DataError(
            f"{where}: the chunk_id {chunk_id!r} is invalid; write it as '<document>_<number>'"
        )
    return document, int(number)
