"""Filters of rankings by the metadata and ids of documents: exact, because rankings become deeper as needed.

The hits are those of the whole ranking of the index that fulfil all conditions, whatever its engine.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path

from lmkcli.artifact.artifact import Artifact, open_artifact
from lmkcli.artifact.kinds import IndexManifest, Manifest, Origin, VectorsManifest
from lmkcli.data.collection import Collection, Doc, Query, is_held, open_collection
from lmkcli.data.metadata import MetadataFilter
from lmkcli.data.run import Ranking, Run
from lmkcli.errors import LmkError, Mismatch, UsageError
from lmkcli.retrieval.index import Index, IndexInfo, Judges, Passage, query_words, unfindable
from lmkcli.retrieval.index_folder import CollectionStamp, finished_index
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.stages import Stages
from lmkcli.store.parts import read_generation
from lmkcli.text.query_words import QueryWords

HITS_AT_ONCE = 1 << 22  # of all rankings that are in memory together: those of a filter can be deep


class FilteredIndex:
    """An index without the documents that a filter does not accept. It implements the protocol `Index`.

    `deepest` limits the depth of the rankings that are filtered. `Run.incomplete` has the queries for which a
    search stopped there, so that documents may be missing.
    """

    def __init__(
        self,
        index: Index,
        accepts: Callable[[str], bool],
        conditions: MetadataFilter | None = None,
        deepest: int | None = None,
    ) -> None:
        """`conditions`: the filter that `accepts` asks, whose names are checked if nothing is found."""
        self._index, self._accepts, self._conditions = index, cache(accepts), conditions
        self._deepest = deepest

    @property
    def info(self) -> IndexInfo:
        """That of the index, with the conditions in the settings of the search."""
        info = self._index.info
        where = {"where": list(self._conditions.where)} if self._conditions else {}
        return info._replace(search={**info.search, **where})

    def search(self, queries: list[Query], k: int) -> Run:
        """Rank the k best accepted documents for each query.

        Only the queries that lack documents are searched again, deeper. So the ranking of a query does not
        depend on the queries that are searched together with it, even if the scores depend on the depth, as
        those of a fusion do. Raises UnfitCondition if no document is accepted, and no document of the
        collection has a metadatum of a name in the conditions, and for conditions that do not fit the values.
        """
        depth, pending = self._limited(8 * k), queries
        found, cut_pairs = dict[str, Ranking](), dict[str, int]()
        cut, tag, some = frozenset[str](), self._index.info.kind, False
        while pending:
            short: list[Query] = []
            at_once = max(1, HITS_AT_ONCE // depth)
            for first in range(0, len(pending), at_once):
                batch = pending[first : first + at_once]
                run = self._index.search(batch, depth)
                tag, cut, cut_pairs = run.tag, cut | run.cut, {**cut_pairs, **run.cut_pairs}
                for query in batch:
                    if (ranking := run.rankings.get(query.id)) is None:
                        continue
                    found[query.id] = self._accepted(ranking, k)
                    some = some or bool(ranking.doc_ids)
                    if len(found[query.id].doc_ids) < k and len(ranking.doc_ids) >= depth:
                        short.append(query)
            pending = short
            if depth == self._deepest:
                break
            depth = self._limited(4 * depth)
        if self._conditions and some and not any(each.doc_ids for each in found.values()):
            self._conditions.check_names()
        incomplete = frozenset(query.id for query in pending)
        return Run(found, tag, cut=cut, cut_pairs=cut_pairs, incomplete=incomplete)

    def _limited(self, depth: int) -> int:
        return depth if self._deepest is None else min(depth, self._deepest)

    def _accepted(self, ranking: Ranking, k: int) -> Ranking:
        """Return the first k accepted documents of a ranking."""
        names = enumerate(ranking.doc_ids)
        places = [*islice((place for place, name in names if self._accepts(name)), k)]
        return Ranking([ranking.doc_ids[place] for place in places], ranking.scores[places])

    def unfindable(self, ids: Sequence[str]) -> list[str]:
        """Return the ids that the whole index cannot return."""
        return unfindable(self._index, ids)

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Documents of the index."""
        return self._index.texts(ids)

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """Passages of the index."""
        return self._index.passages(query, ids)

    def is_answered(self, query: Query, ranking: Ranking) -> bool | None:
        """Return whether the best hit probably answers the query, as the index judges it."""
        index = self._index
        return index.is_answered(query, ranking) if isinstance(index, Judges) else None

    def query_words(self, question: str) -> QueryWords:
        """Return the words of a question with the weights of the index."""
        return query_words(self._index, question)


class OpenedCollections:
    """The collections that filters have read, by their names: each keeps the metadata of its documents.

    A collection whose files have changed is opened again, so there is one for each name.
    """

    def __init__(self) -> None:
        self._known: dict[str, Collection] = {}

    def current(self, now: Collection) -> Collection:
        """Return the collection of this name that was read before if its files are the same, else `now`."""
        known = self._known.get(now.name)
        if known is None or known.file_stats() != now.file_stats():
            known = self._known[now.name] = now
        return known


def filtered(
    index: Index,
    where: Sequence[str],
    stages: Stages,
    settings: OpenSettings,
    opened: OpenedCollections | None = None,
) -> FilteredIndex:
    """Return an index of the indexes in `stages`, opened with these settings, whose hits fulfil all
    conditions.

    `opened` keeps the metadata for other conditions.

    Raises UsageError if the indexes do not record one collection with metadata, and Mismatch if the files of
    this collection have changed since.
    """
    parts = {str(path): stages.artifacts.get(path) for path in stages.paths}
    collection = recorded_collection(parts, settings.vectors)
    conditions = MetadataFilter(where, opened.current(collection) if opened else collection)
    chunks = settings.level == "chunk"

    def accepts(name: str) -> bool:
        return conditions.accepts(name.rpartition("#")[0] if chunks else name)

    return FilteredIndex(index, accepts, conditions)


def recorded_collection(
    parts: Mapping[str, Artifact[Manifest] | None], moved: str = ""
) -> Collection:
    """Return the collection that indexes record, by their names; an artifact is None if lmk did not make it.

    `moved` is the new location of the vectors of the indexes, if they were moved.

    Raises UsageError if they record none or several, Mismatch if its files have changed since, and DataError
    if it was in the memory of a program that does not keep it.
    """
    origins = {name: None if part is None else _origin(part, moved) for name, part in parts.items()}
    found: list[Collection] = []
    for name, origin in origins.items():
        if origin is None or not origin.name:
            raise UsageError(
                f"where: {name} records no collection, so lmk cannot filter its documents; search an "
                "index or vectors that lmk made"
            )
        if not origin.stamp and not is_held(origin.name):
            raise UsageError(
                f"where: the documents of {name} are in no files, so lmk has no metadata to filter them"
            )
        collection = open_collection(origin.name)
        if collection.file_stats() != origin.stamp:
            raise Mismatch(
                f"where: the files of the collection have changed since {name} was made, so its documents "
                "may have other metadata now; run lmk update first"
            )
        found.append(collection)
    # Collections of the same documents can have other names: those of other splits, or without queries.
    # Rows in memory have no files, and their name is a digest.
    documents = [
        (each.settings, each.file_stats() or each.name.partition(",")[0]) for each in found
    ]
    if any(each != documents[0] for each in documents):
        raise UsageError(
            f"where: {' and '.join(origins)} are indexes of different collections; filter one of them"
        )
    return found[0]


def other_files(parts: Mapping[str, Artifact[Manifest] | None], moved: str = "") -> str:
    """Return a sentence if indexes record collections in different files, else ''.

    Ids are unique in one collection only, so a fusion of such indexes may add the scores of different
    documents. Indexes that record no files are left out. `moved` is as for `recorded_collection`.
    """
    stamps: dict[str, dict[str, list[int]]] = {}
    for name, part in parts.items() if len(parts) > 1 else ():
        with suppress(LmkError):  # its vectors are gone, and with them the name of the collection
            origin = None if part is None else _origin(part, moved)
            if origin is not None and origin.stamp:
                stamps[name] = origin.stamp
    first = next(iter(stamps), "")
    other = next((name for name in stamps if stamps[name] != stamps[first]), "")
    if not other:
        return ""
    return f"{first} and {other} were made from different files: documents with the same id count as one"


def _origin(artifact: Artifact[Manifest], moved: str) -> Origin | None:
    """Return the collection of vectors or of an index, and the state of its files; None
    if none is recorded.
    """
    described, folder = artifact.manifest, artifact.folder
    if isinstance(described, VectorsManifest):
        generation = read_generation(folder)
        return generation.source if generation else described.execution.source
    if not isinstance(described, IndexManifest):
        return None
    if described.identity.collection is None:
        vectors = Path(moved or folder / described.facts.vectors)
        return _origin(open_artifact(vectors, VectorsManifest), moved)
    of = finished_index(open_artifact(artifact, IndexManifest)).record.of
    stamp = of.stamp if isinstance(of, CollectionStamp) else {}
    return Origin(name=described.identity.collection.name, stamp=stamp)
