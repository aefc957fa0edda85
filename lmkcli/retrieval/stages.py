"""The stages of one search, before anything is opened. The client of a server needs no more."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from lmkcli.artifact import manifest
from lmkcli.artifact.artifact import Artifact, open_artifact
from lmkcli.artifact.kinds import IndexManifest, Manifest, VectorsManifest
from lmkcli.retrieval.fusion import Fusion
from lmkcli.retrieval.open_settings import RerankSettings


@dataclass(frozen=True)
class Stages:
    """The stages of one search: indexes or runs, their fusion, conditions on documents, and a reranker."""

    paths: Sequence[Path]
    fusion: Fusion | None = None
    rerank: Path | None = None  # a vectors folder
    rerank_model: str | None = None  # a cross-encoder
    reranking: RerankSettings = field(default_factory=RerankSettings)
    where: Sequence[str] = ()

    @cached_property
    def artifacts(self) -> dict[Path, Artifact[Manifest]]:
        """The artifacts among the stages, opened once. Runs and indexes of other tools are missing."""
        paths = [*self.paths, *([self.rerank] if self.rerank is not None else [])]
        return {
            path: open_artifact(path, VectorsManifest, IndexManifest)
            for path in paths
            if (path / manifest.NAME).is_file()
        }

    def opened(self, path: Path) -> Path | Artifact[Manifest]:
        """Return the opened artifact at a path, or the path if there is none."""
        return self.artifacts.get(path, path)
