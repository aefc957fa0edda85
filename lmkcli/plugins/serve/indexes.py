"""The indexes of a server: opened once, and opened again when an update has published new files.

An `IndexSet` is one state of all indexes. It is never changed: an update makes a new set, and a batch uses
one set from its start to its end. So every answer comes from one generation of each index. The files of a
set are open, so that a request can finish after an update has removed their names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lmkcli.artifact import manifest
from lmkcli.artifact.artifact import open_artifact
from lmkcli.artifact.outputs import is_artifact
from lmkcli.data.contexts import has_headings
from lmkcli.data.metadata import MetadataFilter
from lmkcli.encoding.encoder import Encoder, open_recorded, open_recorded_queries
from lmkcli.errors import UsageError
from lmkcli.plugins.documents.documents_index import MATCH, WORDS, DocumentsIndex
from lmkcli.plugins.documents.own_index import OwnIndex
from lmkcli.plugins.serve.stamps import Stamp, stamp
from lmkcli.retrieval.filtering import OpenedCollections, other_files, recorded_collection
from lmkcli.retrieval.fusion import FusedIndex, Fusion
from lmkcli.retrieval.index import Embedding, Filters, Index, Samples, Served
from lmkcli.retrieval.open_settings import OpenSettings, RerankSettings
from lmkcli.retrieval.pipeline import open_all
from lmkcli.retrieval.reranking import ModelReranker, RerankedIndex, Reranker
from lmkcli.retrieval.stages import Stages
from lmkcli.retrieval.vectors.vector_reranker import VectorReranker
from lmkcli.spec.recipe import EncoderConfig
from lmkcli.text.headings import headings
from lmkcli.vectors.rows import Ragged
from lmkcli.vectors.stored import DenseVectors

TEXT_BYTES = 1 << 26  # of stored texts that stay in memory for each index
_SAMPLE = 12  # documents that may give an example of a question
_SHORTEST, _LONGEST = 8, 80  # characters of an example
MODEL = "model"  # the name of the cross-encoder as a reranker


@dataclass(frozen=True)
class ServedIndex:
    """One index of a server, with the name that requests use."""

    name: str
    path: Path
    index: Index
    stamp: Stamp
    part_of: str = ""
    """The name of the index of documents that contains this one."""

    @property
    def vectors(self) -> DenseVectors | None:
        """The vectors of a dense index."""
        return self.index.dense if isinstance(self.index, Embedding) else None

    @cached_property
    def examples(self) -> list[str]:
        """Titles of some documents with their first headings, as examples of questions."""
        if not isinstance(self.index, Samples):
            return []
        found = []
        for doc in self.index.sample(_SAMPLE):
            found_in = headings(doc.text) if has_headings(doc) else []
            heading = next((each.words for each in found_in), "")
            example = " ".join(f"{doc.title} {heading}".split())
            if _SHORTEST <= len(example) <= _LONGEST and " " in example:
                found.append((not heading, example))
        return list(dict.fromkeys(example for _, example in sorted(found)))[:3]

    @property
    def description(self) -> dict[str, Any]:
        """The unit of an entry, and the numbers of documents and dimensions, if known."""
        served = self.index if isinstance(self.index, Served) else None
        return {
            "unit": served.unit if served else "doc",
            "documents": served.documents if served else None,
            "dimensions": served.dimensions if served else None,
        }


class LoadedEncoders:
    """The encoders of all indexes. Indexes with the same recipe share an encoder, and encoders a model."""

    def __init__(self, settings: OpenSettings) -> None:
        self._settings = settings
        self._loaded: dict[str, Encoder[Ragged]] = {}

    def of(self, vectors: DenseVectors, query: bool) -> Encoder[Ragged]:
        """Return the encoder of one side. Raises DataError if its model is missing or not allowed."""
        side = vectors.recipe.query if query else vectors.recipe.doc
        key = self._key(side, vectors)
        if key not in self._loaded:
            loaded = self._loaded.values()
            opener = open_recorded_queries if query else open_recorded
            self._loaded[key] = opener(vectors, self._settings, loaded)  # type: ignore[assignment]
        return self._loaded[key]

    def _key(self, side: EncoderConfig, vectors: DenseVectors) -> str:
        dtype = self._settings.dtype or vectors.manifest.execution.dtype
        return manifest.digest([side.identity(), side.model, dtype])


@dataclass(frozen=True)
class SearchPlan:
    """The stages of a request: names of indexes, their fusion, and a reranker."""

    names: tuple[str, ...]
    fusion: Fusion | None = None
    reranker: str = ""
    reranking: RerankSettings = field(default_factory=RerankSettings)


@dataclass(frozen=True)
class IndexSet:
    """One state of all indexes of a server, by name."""

    served: Mapping[str, ServedIndex]
    encoders: LoadedEncoders
    settings: OpenSettings
    rerank_model: str | None
    _cross_encoders: dict[str, ModelReranker]
    _rerankers: dict[str, VectorReranker]
    note: str = ""
    """A sentence if equal ids may be different documents, because the indexes were made from different
    files."""
    _collections: OpenedCollections = field(default_factory=OpenedCollections)
    """Those whose metadata filters have used, by name."""

    @classmethod
    def open(
        cls,
        sources: Sequence[Path | OwnIndex],
        settings: OpenSettings,
        rerank_model: str | None = None,
        before: "IndexSet | None" = None,
    ) -> "IndexSet":
        """Open all indexes, and the models of their queries. Models of the set `before` are used again.

        Raises UsageError for settings without an effect, and DataError for folders that cannot be searched.
        """
        folders = [each for each in sources if isinstance(each, Path)]
        if run := next((path for path in folders if path.is_file()), None):
            raise UsageError(f"{run} is a run, which answers only its own queries; name an index")
        paths = [path for each in sources for path in _paths(each)]
        stamps = {path: stamp(path) for path in paths}
        stages = Stages(paths)
        opened = dict(zip(paths, open_all(stages, settings), strict=True))
        served: dict[str, ServedIndex] = {}
        for source in sources:
            name, own = _unused(_name(source), served), _paths(source)
            if isinstance(source, Path):
                served[name] = ServedIndex(name, source, opened[source], stamps[source])
                continue
            parts = [opened[path] for path in own]
            fused = FusedIndex(parts, MATCH if source.model else WORDS)
            count = next((each.documents for each in parts if isinstance(each, Served)), None)
            index = DocumentsIndex(fused, source.collection, source.model, count)
            whole = tuple(item for path in own for item in stamps[path])
            served[name] = ServedIndex(name, source.folder, index, whole)
            for path in own:
                part = _unused(f"{name}-{path.name}", served)
                served[part] = ServedIndex(part, path, opened[path], stamps[path], name)
        encoders = before.encoders if before else LoadedEncoders(settings)
        for each in served.values():
            if isinstance(each.index, Served):
                each.index.open_files(TEXT_BYTES)
            if isinstance(each.index, Embedding) and each.index.dense is not None:
                each.index.use_encoder(encoders.of(each.index.dense, True))
        crossed = before._cross_encoders if before else {}
        if rerank_model and not crossed:
            crossed = {MODEL: ModelReranker(opened[paths[0]], rerank_model, settings)}
        main = [name for name, each in served.items() if not each.part_of]
        recorded = [stages.artifacts.get(_paths(source)[0]) for source in sources]
        note = other_files(dict(zip(main, recorded, strict=True)), settings.vectors)
        return cls(served, encoders, settings, rerank_model, crossed, {}, note)

    def changed(self) -> bool:
        """Return whether an update has published new files of an index."""
        plain = (
            each for each in self.served.values() if not isinstance(each.index, DocumentsIndex)
        )
        return any(stamp(each.path) != each.stamp for each in plain)

    @property
    def main(self) -> list[str]:
        """The names of the indexes that are no parts of others."""
        return [name for name, each in self.served.items() if not each.part_of]

    @property
    def rerankers(self) -> list[str]:
        """The names that requests may give as a reranker: folders of vectors, and the cross-encoder."""
        folders = [
            name
            for name, each in self.served.items()
            if each.index.info.kind == "exact" and isinstance(each.index, Embedding)
        ]
        return [*folders, *([MODEL] if self.rerank_model else [])]

    def pipeline(self, plan: SearchPlan, narrowed: Callable[[Index], Index]) -> Index:
        """Return the stages of a request as one index; `narrowed` filters it before it is reranked.

        Raises UsageError for a wrong number of weights.
        """
        parts = [self.served[name].index for name in plan.names]
        index: Index = parts[0]
        if plan.fusion is not None:
            index = FusedIndex(parts, plan.fusion)
        index = narrowed(index)
        if plan.reranker:
            index = RerankedIndex(index, self._reranker(plan.reranker, index), plan.reranking)
        return index

    def filter(self, names: Sequence[str], where: Sequence[str]) -> MetadataFilter:
        """Return conditions on the documents of some indexes, which must be of one collection.

        Raises UsageError for conditions that cannot be read and for indexes without metadata, and Mismatch if
        the files of the collection have changed since the indexes were made.
        """
        wholes = {self.served[name].part_of or name for name in names}
        if len(wholes) == 1 and isinstance(index := self.served[wholes.pop()].index, Filters):
            return index.filter(where)
        paths = {name: self.served[name].path for name in names}
        made = {
            name: open_artifact(path) if is_artifact(path) else None for name, path in paths.items()
        }
        now = recorded_collection(made, self.settings.vectors)
        return MetadataFilter(where, self._collections.current(now))

    def _reranker(self, name: str, index: Index) -> Reranker:
        if name == MODEL and self.rerank_model:
            return self._cross_encoders[MODEL].reading(index)
        if name not in self._rerankers:
            opened = self.served[name].vectors
            if opened is None:
                raise UsageError(f"{name} has no vectors")
            self._rerankers[name] = VectorReranker(
                self.served[name].path, self.settings, self.encoders.of(opened, True)
            )
        return self._rerankers[name]

    def describe(self) -> list[dict[str, Any]]:
        """Return the indexes without their paths, as GET /v1/indexes lists them."""
        return [
            {
                "name": name,
                "part_of": each.part_of or None,
                "examples": each.examples,
                "kind": each.index.info.kind,
                "unit": each.description["unit"],
                "documents": each.description["documents"],
                "digest": each.index.info.digest,
                "search": each.index.info.search,
                "dimensions": each.description["dimensions"],
            }
            for name, each in self.served.items()
        ]


def _paths(source: Path | OwnIndex) -> list[Path]:
    """Return the folders that are opened for an index."""
    return [source] if isinstance(source, Path) else source.paths


def stamp_of(source: Path | OwnIndex) -> Stamp:
    """Return the state of the files of an index."""
    return tuple(item for path in _paths(source) for item in stamp(path))


def _name(source: Path | OwnIndex) -> str:
    return (source.absolute().name or "index") if isinstance(source, Path) else source.name


def _unused(name: str, taken: Mapping[str, object]) -> str:
    """Return the name of an index. A second one of the same name gets a number."""
    number, unique = 2, name
    while unique in (*taken, MODEL):
        unique, number = f"{name}-{number}", number + 1
    return unique
