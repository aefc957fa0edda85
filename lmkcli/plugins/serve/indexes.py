"""The indexes of a server: opened once, and opened again when an update has published new files.

An `IndexSet` is one state of all indexes. It is never changed: an update makes a new set, and a batch uses
one set from its start to its end. So every answer comes from one generation of each index. The files of a
set are open, so that a request can finish after an update has removed their names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmkcli.artifact import manifest
from lmkcli.encoding.encoder import Encoder, open_recorded, open_recorded_queries
from lmkcli.errors import UsageError
from lmkcli.plugins.serve.stamps import Stamp, stamp
from lmkcli.retrieval.fusion import FusedIndex, Fusion
from lmkcli.retrieval.index import Embedding, Index, Served
from lmkcli.retrieval.pipeline import Stages, open_all
from lmkcli.retrieval.reranking import ModelReranker, RerankedIndex, Reranker
from lmkcli.retrieval.settings import OpenSettings, RerankSettings
from lmkcli.retrieval.vectors.vector_reranker import VectorReranker
from lmkcli.spec.recipe import EncoderConfig
from lmkcli.vectors.rows import Ragged
from lmkcli.vectors.stored import DenseVectors

TEXT_BYTES = 1 << 26  # of stored texts that stay in memory for each index
MODEL = "model"  # the name of the cross-encoder as a reranker


@dataclass(frozen=True)
class ServedIndex:
    """One index of a server, with the name that requests use."""

    name: str
    path: Path
    index: Index
    stamp: Stamp

    @property
    def vectors(self) -> DenseVectors | None:
        """The vectors of a dense index."""
        return self.index.dense if isinstance(self.index, Embedding) else None

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

    @classmethod
    def open(
        cls,
        paths: Sequence[Path],
        settings: OpenSettings,
        rerank_model: str | None = None,
        before: "IndexSet | None" = None,
    ) -> "IndexSet":
        """Open all indexes, and the models of their queries. Models of the set `before` are used again.

        Raises UsageError for settings without an effect, and DataError for folders that cannot be searched.
        """
        if run := next((path for path in paths if path.is_file()), None):
            raise UsageError(f"{run} is a run, which answers only its own queries; name an index")
        stamps = [stamp(path) for path in paths]
        indexes = open_all(Stages(paths), settings)
        names = _names(paths)
        served = {
            name: ServedIndex(name, path, index, stamped)
            for name, path, index, stamped in zip(names, paths, indexes, stamps, strict=True)
        }
        encoders = before.encoders if before else LoadedEncoders(settings)
        for each in served.values():
            if isinstance(each.index, Served):
                each.index.open_files(TEXT_BYTES)
            if isinstance(each.index, Embedding) and each.index.dense is not None:
                each.index.use_encoder(encoders.of(each.index.dense, True))
        crossed = before._cross_encoders if before else {}
        if rerank_model and not crossed:
            crossed = {MODEL: ModelReranker(indexes[0], rerank_model, settings)}
        return cls(served, encoders, settings, rerank_model, crossed, {})

    def changed(self) -> bool:
        """Whether an update has published new files of an index."""
        return any(stamp(each.path) != each.stamp for each in self.served.values())

    @property
    def rerankers(self) -> list[str]:
        """The names that requests may give as a reranker: folders of vectors, and the cross-encoder."""
        folders = [
            name
            for name, each in self.served.items()
            if each.index.info.kind == "exact" and isinstance(each.index, Embedding)
        ]
        return [*folders, *([MODEL] if self.rerank_model else [])]

    def pipeline(self, plan: SearchPlan) -> Index:
        """Return the stages of a request as one index. Raises UsageError for a wrong number of weights."""
        parts = [self.served[name].index for name in plan.names]
        index: Index = parts[0]
        if plan.fusion is not None:
            index = FusedIndex(parts, plan.fusion)
        if plan.reranker:
            index = RerankedIndex(index, self._reranker(plan.reranker, index), plan.reranking)
        return index

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
        """The indexes without their paths, as GET /v1/indexes lists them."""
        return [
            {
                "name": name,
                "kind": each.index.info.kind,
                "unit": each.description["unit"],
                "documents": each.description["documents"],
                "digest": each.index.info.digest,
                "search": each.index.info.search,
                "dimensions": each.description["dimensions"],
            }
            for name, each in self.served.items()
        ]


def _names(paths: Sequence[Path]) -> list[str]:
    """Name each index after its folder. A second folder of the same name gets a number."""
    names: list[str] = []
    for path in paths:
        name = path.absolute().name or "index"
        number, unique = 2, name
        while unique in [*names, MODEL]:
            unique, number = f"{name}-{number}", number + 1
        names.append(unique)
    return names
