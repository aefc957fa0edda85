"""A finished run in an index's place: it answers the queries that it has."""

import hashlib
from pathlib import Path

import numpy as np

from lmkcli import manifest
from lmkcli.data.collection import Collection, Doc, Query
from lmkcli.data.run import Run, ranked, read_run
from lmkcli.data.subset import Selected
from lmkcli.errors import DataError
from lmkcli.retrieval.index import IndexInfo, Passage


class RunIndex:
    """The run in a TREC file, with the texts of its documents if `texts` is given.

    DataError when the file is no run, or when `texts` has none of its documents.
    """

    def __init__(self, path: Path, texts: Collection | None = None) -> None:
        self._run = read_run(path)
        self._docs = {doc.id: doc for doc in Selected(texts, path).docs()} if texts else {}
        if texts and not self._docs:
            raise DataError(f"{texts.name} has none of the documents of {path}")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        read = sorted((doc.id, doc.content) for doc in self._docs.values())
        how = {"texts": manifest.digest(read)} if read else {}
        self.info = IndexInfo(str(path.absolute()), self._run.tag, digest, how)

    def search(self, queries: list[Query], k: int) -> Run:
        """The run's first k documents of each query; none for a query that it lacks."""
        empty = ranked([], np.zeros(0, np.float32))
        return Run({q.id: self._run.rankings.get(q.id, empty).cut(k) for q in queries})

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Those that it was given; a run itself has ids alone."""
        return {name: self._docs.get(name, Doc(name, "")) for name in ids}

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """None."""
        return {}
