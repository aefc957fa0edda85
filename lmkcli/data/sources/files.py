"""Collections in files: a BEIR folder, or jsonl, tsv, parquet, TREC topics, gzip and stdin."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from lmkcli.data.collection import (
    WHOLE,
    Collection,
    Doc,
    DocStream,
    Qrel,
    Query,
    Shard,
    check_options,
    spell,
)
from lmkcli.data.formats import METADATA, Fields, fact_of
from lmkcli.data.records import ONCE, PipedLines, Records, open_records
from lmkcli.data.trec import read_qrels
from lmkcli.errors import DataError, UnknownName, UsageError

OPTIONS = ("context", "fields", "like", "map_ids", "qrels", "queries")
SUFFIXES = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz", ".parquet")
SPLIT = "test"


def open_files(name: str, options: dict[str, str]) -> "FileCollection":
    """The collection at a path: 'folder', 'folder:split', a file, or '-' for stdin.

    A file may hold documents or queries; it is read as what is asked for. Options: `fields` (text
    fields joined by '+'), `context` (the field with the contexts of chunks), `map_ids` (1: white space in
    ids becomes '_'), `queries` and `qrels`
    (files that stand in for the folder's, or beside a bare file), `like` (the known collection that
    this is a copy of).
    DataError when there is nothing at the path, UnknownName for a split that the folder lacks.
    """
    check_options(name, options, OPTIONS)
    path, split = (
        (name, "") if name == "-" or Path(os.path.expanduser(name)).exists() else _split(name)
    )
    place = Path(os.path.expanduser(path))
    if place.is_dir():
        paths = _folder(place, split)
    elif split:
        raise UsageError(f"'{name}': only a folder has splits; give the file and ',qrels=path'")
    elif path == "-" or place.is_file():
        paths = {"docs": path, "queries": path}
    else:
        raise DataError(f"{name}: no such file or folder")
    for key in {"queries", "qrels"} & options.keys():
        if options[key] != "-" and not Path(os.path.expanduser(options[key])).is_file():
            raise DataError(f"{key}={options[key]}: no such file")
        paths[key] = options[key]
    whole = {key: _absolute(value) if key in paths else value for key, value in options.items()}
    place_again = _absolute(path) + (f":{split}" if split else "")
    return FileCollection(spell(place_again, whole), paths, Fields.parse(options))


def _absolute(path: str) -> str:
    """The name that opens the collection from any folder."""
    return path if path == "-" else os.path.abspath(os.path.expanduser(path))


def _split(name: str) -> tuple[str, str]:
    path, colon, split = name.rpartition(":")
    return (path, split) if colon else (name, "")


def _folder(folder: Path, split: str) -> dict[str, str]:
    """Which of docs, queries and qrels a BEIR folder has, and where."""
    paths = {
        key: str(path)
        for key, stem in (("docs", "corpus"), ("queries", "queries"))
        for path in (folder / f"{stem}{suffix}" for suffix in reversed(SUFFIXES))
        if path.is_file()
    }
    if not paths:
        raise DataError(
            f"{folder}: neither a corpus nor queries in it; expected BEIR's corpus.jsonl, "
            "queries.jsonl and qrels/<split>.tsv (or .jsonl.gz, .tsv, .parquet); a folder whose files "
            f"are the documents is written folder:{folder}"
        )
    qrels = folder / "qrels" / f"{split or SPLIT}.tsv"
    if split and not qrels.is_file():
        raise UnknownName(f"split of {folder}", split, _splits(folder) or ["(no qrels/*.tsv)"])
    return paths | {"folder": str(folder), "qrels": str(qrels)}


def _splits(folder: Path) -> list[str]:
    return sorted(path.stem for path in (folder / "qrels").glob("*.tsv"))


class FileDocs(DocStream):
    """The documents in records; `unchanged` is asked at the end whether they were read from one file."""

    def __init__(self, records: Records, fields: Fields, unchanged: Callable[[], None]) -> None:
        self._records = records
        self._fields = fields
        self._unchanged = unchanged

    def __iter__(self) -> Iterator[Doc]:
        for where, record in self._records:
            yield self._fields.doc(record, where)
        self._unchanged()

    @property
    def fraction(self) -> float | None:
        return self._records.fraction


class FileCollection(Collection):
    """Documents, queries and judgements in files; `paths` holds those of docs, queries, qrels."""

    def __init__(self, name: str, paths: dict[str, str], fields: Fields) -> None:
        self.name = name
        self.settings = fields.settings
        self._paths = paths
        self._fields = fields
        self._stdin: BinaryIO | None = sys.stdin.buffer if "-" in paths.values() else None
        self._stamp = self._look()

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        if "docs" not in self._paths:
            raise DataError(f"{self.name}: there is no corpus.jsonl in it, only queries")
        records = self._open(self._paths["docs"], shard, self._fields)
        return FileDocs(records, self._fields, self._check_unchanged)

    def queries(self) -> Iterator[Query]:
        path = self._paths.get("queries")
        if path is None:
            raise DataError(f"{self.name}: no queries.jsonl in it; add ',queries=path'")
        # Chosen fields are the documents'; a file of queries beside them has its own.
        shared = path == self._paths.get("docs")
        fields = self._fields if shared else Fields(map_ids=self._fields.map_ids)
        return (fields.query(record, at) for at, record in self._open(path, WHOLE, fields))

    def qrels(self) -> Iterator[Qrel]:
        if not self.has_qrels():
            raise DataError(f"{self.name}: no judgements; {self._advice()}")
        return read_qrels(self._paths["qrels"], self._fields.map_ids)

    def _advice(self) -> str:
        folder = self._paths.get("folder")
        splits = _splits(Path(folder)) if folder else []
        if splits:
            return "its splits are " + ", ".join(f"{folder}:{split}" for split in splits)
        return "name a file with ',qrels=path'"

    def has_qrels(self) -> bool:
        return Path(os.path.expanduser(self._paths.get("qrels", "-"))).is_file()

    def query_facts(self, name: str) -> dict[str, str | float]:
        path = self._paths.get("queries", "-")
        if path == "-":
            return {}
        fields = Fields(map_ids=self._fields.map_ids)
        wanted = fields.known | {name, METADATA}
        facts = {}
        for where, record in open_records(path, WHOLE, wanted):
            fact = fact_of(record, name)
            if fact is not None:
                facts[fields.query(record, where).id] = fact
        return facts

    def stamp(self) -> dict[str, list[int]]:
        return self._stamp

    def _check_unchanged(self) -> None:
        if self._look() != self._stamp:
            raise DataError(
                f"{self._paths['docs']} was changed while it was read: run the command again with "
                "--if-exists overwrite (or update) when nothing writes into it any more"
            )

    def _look(self) -> dict[str, list[int]]:
        path = Path(os.path.expanduser(self._paths.get("docs", "-")))
        if not path.is_file():
            return {}
        stat = path.stat()
        return {path.name: [stat.st_size, stat.st_mtime_ns]}

    def _open(self, path: str, shard: Shard, fields: Fields) -> Records:
        if path != "-":
            return open_records(path, shard, fields.known)
        stream, self._stdin = self._stdin, None
        if stream is None:
            raise DataError(ONCE)
        return PipedLines(stream, shard, fields.known)
