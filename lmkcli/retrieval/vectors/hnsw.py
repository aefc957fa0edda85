"""Settings of HNSW graphs (Malkov and Yashunin 2018), which several engines build."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from lmkcli.errors import UsageError
from lmkcli.spec.settings import Flag, Settings


def _no_graph(settings: "HnswSettings") -> str:
    return settings.without_graph()


@dataclass(frozen=True, kw_only=True)
class HnswSettings(Settings):
    """Settings for building an HNSW graph."""

    panel: ClassVar[str] = "HNSW graphs"
    m: Annotated[
        int,
        Flag(
            "HNSW: links per vector (M); the lowest level has twice as many.",
            min=2,
            only="vectors database",
            ineffective=_no_graph,
        ),
    ] = 32
    ef_construction: Annotated[
        int,
        Flag(
            "HNSW: candidates kept while building (efConstruction).",
            min=1,
            only="vectors database",
            ineffective=_no_graph,
        ),
    ] = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.m < 2 or self.ef_construction < 1:
            raise UsageError(
                "an HNSW graph needs --m of at least 2 and --ef-construction of at least 1"
            )

    def without_graph(self) -> str:
        """Return the setting that selects an index without a graph; empty if a graph may be built."""
        return ""


@dataclass(frozen=True, kw_only=True)
class HnswSearchSettings(Settings):
    """Settings for searching an HNSW graph."""

    panel: ClassVar[str] = "Index settings"
    ef_search: Annotated[
        int,
        Flag(
            "HNSW: candidates kept during the search; 0: grows with k.",
            min=0,
            only="index",
            suggest_for="--ef",
        ),
    ] = 0
