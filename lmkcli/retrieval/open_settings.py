"""Settings of a search: the index with its model, and reranking."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from lmkcli.errors import UsageError
from lmkcli.retrieval.engines.index_settings import EngineSearchSettings, engine_options
from lmkcli.spec.settings import Flag, ModelSettings


@dataclass(frozen=True, kw_only=True)
class OpenSettings(EngineSearchSettings, ModelSettings):
    """Settings for opening and searching an index."""

    panel: ClassVar[str] = "Index settings"
    vectors: Annotated[
        str,
        Flag(
            "New location of the index's vectors, if they were moved.",
            role="artifact",
            only="index",
            suggest_for="--embeddings",
        ),
    ] = ""
    aggregate: Annotated[
        Literal["max", "sum", "avg", "first"] | None,
        Flag("How to combine the scores of a document's vectors.", shown="max", only="several"),
    ] = None
    level: Annotated[
        Literal["doc", "chunk"] | None,
        Flag(
            "chunk: rank chunks instead of documents (ids doc#number; -k counts chunks).",
            shown="doc",
            only="several",
            suggest_for="--max-passage --maxp --rank-chunks",
        ),
    ] = None

    def refuse_others(self, index: str, kind: str) -> None:
        """Raise UsageError if a setting of other engines than `kind` was given; '' means all engines."""
        others = {*engine_options()} - {*engine_options(kind)} if kind else {*engine_options()}
        self.refuse(index, *sorted(others))

    def refuse(self, index: str, *names: str) -> None:
        """Raise UsageError if one of the named settings was given, because it has no effect on `index`."""
        given = [f"--{name.replace('_', '-')}" for name in names if getattr(self, name)]
        if given:
            raise UsageError(f"{', '.join(given)} has no effect on {index}; drop it")


@dataclass(frozen=True)
class RerankSettings:
    """Settings of reranking. If `interpolate` is None, the new score replaces the first score."""

    depth: int = 100
    interpolate: float | None = None
