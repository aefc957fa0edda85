"""Settings of FAISS indexes: building and searching them."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from lmkcli.errors import UsageError
from lmkcli.retrieval.engines.kind_setting import KindSettings
from lmkcli.retrieval.vectors.hnsw import HnswSearchSettings, HnswSettings
from lmkcli.spec.settings import Flag
from lmkcli.spec.values import NO_LIMIT, NO_MUVERA, Muvera, Size


@dataclass(frozen=True, kw_only=True)
class FaissSettings(HnswSettings, KindSettings):
    """Settings for building a FAISS index."""

    panel: ClassVar[str] = "FAISS"
    ef_search: int = 0  # hnsw: breadth of the search; 0 means max(128, 2k), and it is at least k
    nprobe: int = 0  # ivf: number of searched lists; 0 grows with k
    max_memory: Annotated[
        Size,
        Flag(
            "Stop with an error if building needs more memory than this, such as 16GB.",
            metavar="SIZE",
            often=True,
            shown="free memory",
            only="vectors",
            role="mode",
            suggest_for="--memory --max-ram",
        ),
    ] = NO_LIMIT
    muvera: Annotated[
        Muvera,
        Flag(
            "Index one encoding of each document's vectors, such as 20x5x16 (MUVERA).",
            metavar="RxBxD",
            only="vectors",
            suggest_for="--fde",
        ),
    ] = NO_MUVERA
    seed: int = 0  # of the training sample

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.ef_search, self.nprobe, self.max_memory) < 0:
            raise UsageError("--ef-search, --nprobe and --max-memory cannot be negative")


@dataclass(frozen=True, kw_only=True)
class FaissSearchSettings(HnswSearchSettings):
    """Settings for searching a FAISS index."""

    panel: ClassVar[str] = "Index settings"
    nprobe: Annotated[
        int, Flag("ivf: number of lists to search; 0: grows with k.", min=0, only="index")
    ] = 0
