"""Filters of rankings by the metadata and ids of documents: exact, because rankings become deeper as needed.

The hits are those of the whole ranking of the index that fulfil all conditions, whatever its engine.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from lmkcli.artifact.artifact import Artifact, open_artifact
from lmkcli.artifact.kinds import IndexManifest, Manifest, Origin, VectorsManifest
from lmkcli.data.collection import Collection, Doc, Query, open_collection
from lmkcli.data.metadata import MetadataFilter
from lmkcli.data.run import Ranking, Run
from lmkcli.errors import Mismatch, UsageError
from lmkcli.retrieval.index import Index, IndexInfo, Passage, query_words
from lmkcli.retrieval.index_folder import CollectionStamp, finished_index
from lmkcli.store import parts
from lmkcli.text.query_words import QueryWords

_EMPTY = Ranking([], np.zeros(0, np.float32))


class FilteredIndex:
    """An index without the documents that a filter does not accept. It implements the protocol `Index`.

    `deepest` limits the depth of the rankings that are filtered. After a search, `complete` is False if it
    stopped there, so that documents may be missing.
    """

    def __init__(
        self,
        index: Index,
        accepts: Callable[[str], bool],
        conditions: MetadataFilter | None = None,
        deepest: int | None = None,
    ) -> None:
        """`conditions`: the filter that `accepts` asks, whose names are checked if nothing is found."""
        self._index, self._accepts, self._conditions = index, accepts, conditions
        self._deepest, self.complete = deepest, True

    @property
    def info(self) -> IndexInfo:
        """That of the index, with the conditions in the settings of the search."""
        info = self._index.info
        where = {"where": list(self._conditions.where)} if self._conditions else {}
        return info._replace(search={**info.search, **where})

    def search(self, queries: list[Query], k: int) -> Run:
        """Rank the k best accepted documents for each query.

        Raises UnfitCondition if no document is accepted, and none of those in the ranking has a metadatum of
        a name in the conditions, and for conditions that do not fit the values of the documents.
        """
        deepest = self._deepest
        depth = 8 * k if deepest is None else min(8 * k, deepest)
        while True:
            run = self._index.search(queries, depth)
            whole = [run.rankings.get(query.id, _EMPTY) for query in queries]
            kept = [self._kept(ranking) for ranking in whole]
            short = any(
                len(part.doc_ids) < k and len(ranking.doc_ids) >= depth
                for part, ranking in zip(kept, whole, strict=True)
            )
            if not short or (deepest is not None and depth >= deepest):
                break
            depth = 4 * depth if deepest is None else min(4 * depth, deepest)
        self.complete = not short
        nothing = not any(part.doc_ids for part in kept)
        if self._conditions and nothing and any(ranking.doc_ids for ranking in whole):
            self._conditions.check_names()
        pairs = zip(queries, kept, strict=True)
        rankings = {query.id: part.cut(k) for query, part in pairs if query.id in run.rankings}
        return Run(rankings, run.tag, run.unscored, run.cut, run.cut_pairs)

    def _kept(self, ranking: Ranking) -> Ranking:
        places: Sequence[int] = [i for i, name in enumerate(ranking.doc_ids) if self._accepts(name)]
        return Ranking([ranking.doc_ids[i] for i in places], ranking.scores[[*places]])

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Documents of the index."""
        return self._index.texts(ids)

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """Passages of the index."""
        return self._index.passages(query, ids)

    def query_words(self, question: str) -> QueryWords:
        """Return the words of a question with the weights of the index."""
        return query_words(self._index, question)


def filtered(
    index: Index, where: Sequence[str], parts: Mapping[str, Artifact[Manifest] | None], chunks: bool
) -> FilteredIndex:
    """An index of some parts, whose hits fulfil all conditions; `chunks` if it ranks chunks (`doc#number`).

    Raises UsageError if the parts do not record one collection with metadata, and Mismatch if the files of
    this collection have changed since.
    """
    conditions = MetadataFilter(where, recorded_collection(parts).metadata)

    def accepts(name: str) -> bool:
        return conditions.accepts(name.rpartition("#")[0] if chunks else name)

    return FilteredIndex(index, accepts, conditions)


def recorded_collection(parts: Mapping[str, Artifact[Manifest] | None]) -> Collection:
    """The collection that indexes record, by their names; an artifact is None if lmk did not make it.

    Raises UsageError if they record none or several, and Mismatch if its files have changed since.
    """
    origins = {name: None if part is None else _origin(part) for name, part in parts.items()}
    found: dict[str, Collection] = {}
    for name, origin in origins.items():
        if origin is None or not origin.name:
            raise UsageError(
                f"where: {name} records no collection, so lmk cannot filter its documents; build the index "
                "with lmk index"
            )
        if not origin.stamp:
            raise UsageError(
                f"where: the documents of {name} are in no files, so lmk has no metadata to filter them"
            )
        collection = found.setdefault(origin.name, open_collection(origin.name))
        if collection.file_stats() != origin.stamp:
            raise Mismatch(
                f"where: the files of the collection have changed since {name} was made, so its documents "
                "may have other metadata now; run lmk update first"
            )
    if len(found) > 1:
        raise UsageError(
            f"where: {' and '.join(origins)} are indexes of different collections; filter one of them"
        )
    return next(iter(found.values()))


def _origin(artifact: Artifact[Manifest]) -> Origin | None:
    """The collection of vectors or of an index, and the state of its files; None if none is recorded."""
    described, folder = artifact.manifest, artifact.folder
    if isinstance(described, VectorsManifest):
        generation = parts.read_generation(folder)
        return generation.source if generation else described.execution.source
    if not isinstance(described, IndexManifest):
        return None
    if described.identity.collection is None:
        vectors = Path(folder, described.facts.vectors)
        return _origin(open_artifact(vectors, VectorsManifest, IndexManifest))
    of = finished_index(open_artifact(artifact, IndexManifest)).record.of
    stamp = of.stamp if isinstance(of, CollectionStamp) else {}
    return Origin(name=described.identity.collection.name, stamp=stamp)
