"""Lexical indexes: a kind that ranks by words, with the documents that it indexed beside it."""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lmkcli.data.collection import Doc, Query
from lmkcli.data.run import Run
from lmkcli.manifest import Manifest
from lmkcli.reading import checked
from lmkcli.retrieval.index import DENSE, IndexInfo, Passage
from lmkcli.retrieval.index_folder import DOCS
from lmkcli.retrieval.kinds import LexicalKind, lexical_kind
from lmkcli.settings import Bm25Settings, OpenSettings
from lmkcli.store.doctable import DocTable


def open_lexical(
    folder: Path, described: Manifest, built: dict[str, Any], settings: OpenSettings
) -> "LexicalIndex":
    """The index in a folder that `lmk index` made, described by its manifest and built.json."""
    family = described.identity["family"]
    settings.refuse(f"a {family} index", *DENSE)
    checked(
        described.identity["settings"], Bm25Settings, f"the settings of {folder}", "build it again"
    )
    files = folder / built["at"]
    own = Bm25Settings(**described.identity["settings"])
    kind = lexical_kind(family).open(files, own, settings.feedback)
    info = IndexInfo(str(folder.absolute()), family, built["digest"], _how(settings))
    return LexicalIndex(info, kind, files)


def open_foreign(folder: Path, settings: OpenSettings) -> "LexicalIndex":
    """A Lucene index that lmk did not make: English, and scored with the default k1 and b."""
    settings.refuse("a Lucene index", *DENSE)
    commit = max(folder.glob("segments_*"), key=lambda path: path.stat().st_mtime_ns)
    kind = lexical_kind("lucene").open(folder, Bm25Settings(), settings.feedback)
    digest = hashlib.sha256(commit.read_bytes()).hexdigest()  # it names its segments by random ids
    how = Bm25Settings().identity() | _how(settings)
    return LexicalIndex(IndexInfo(str(folder.absolute()), "lucene", digest, how), kind, folder)


def _how(settings: OpenSettings) -> dict[str, Any]:
    """What decides scores beside the index itself, as a run records it."""
    return {"feedback": asdict(settings.feedback)} if settings.feedback else {}


class LexicalIndex:
    """A lexical kind; the documents that it indexed are stored in `folder`."""

    def __init__(self, info: IndexInfo, kind: LexicalKind, folder: Path) -> None:
        self.info = info
        self._kind, self._folder = kind, folder

    def search(self, queries: list[Query], k: int) -> Run:
        """As the kind ranks; documents without a query term are not returned."""
        return self._kind.search(queries, k)

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Reads the stored documents through once; an index that lmk did not make gives ids alone."""
        path = self._folder / DOCS
        if not path.is_file():
            return {name: Doc(name, "") for name in ids}
        table = DocTable(path)
        return {doc.id: doc for doc in table.docs_at(table.rows_by_ids(ids))}

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """None: words are counted over whole documents."""
        return {}
