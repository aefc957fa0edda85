"""The setting that selects an engine."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from lmkcli import catalog
from lmkcli.spec.settings import Flag, Settings

_KINDS = ", ".join(name for name, row in catalog.ENGINES.items() if row.variant)


@dataclass(frozen=True, kw_only=True)
class KindSettings(Settings):
    """The kind of an index: a name of the catalog, or a factory string."""

    panel: ClassVar[str] = "Index"
    kind: Annotated[
        str,
        Flag(
            f"Index kind: {_KINDS}, or a FAISS factory string such as OPQ64,IVF4096,PQ64.",
            often=True,
            suggest_for="--type --factory --index-factory --index-kind --engine --bm25",
        ),
    ] = "hnsw"
