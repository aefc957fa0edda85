"""The settings of sparse vectors: of a recipe, of training, and of imports."""

from dataclasses import dataclass, fields
from typing import Annotated, ClassVar

from lmkcli.errors import UsageError
from lmkcli.spec.settings import Flag, Settings


@dataclass(frozen=True, kw_only=True)
class TermSettings(Settings):
    """The number of terms that the vectors of a recipe keep."""

    panel: ClassVar[str] = "Recipe"
    top_terms: Annotated[
        int | None,
        Flag(
            "Sparse vectors: number of terms of a document to keep, those of the largest weights.",
            min=1,
            shown="all",
            aliases="--max-active-dims",
            suggest_for="--prune --top-k-terms",
        ),
    ] = None
    query_top_terms: Annotated[
        int | None,
        Flag("Sparse vectors: number of terms of a query to keep.", min=1, shown="all"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class WindowedTermSettings(TermSettings):
    """The settings of poolers that can add the vectors of windows."""

    sum_windows: Annotated[
        bool | None,
        Flag(
            "Sparse vectors: add the weights of a term in all windows, instead of their maximum.",
            suggest_for="--window-aggregation",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SparsitySettings(Settings):
    """Settings for the regularisation of sparse vectors; None selects the default of sparse models."""

    panel: ClassVar[str] = "Sparse vectors"
    doc_flops: Annotated[
        float | None,
        Flag(
            "Weight of FLOPS, sparse documents.",
            min=0,
            shown="3e-5",
            aliases="--document-regularizer-weight",
            suggest_for="--flops --lambda-d",
        ),
    ] = None
    query_flops: Annotated[
        float | None,
        Flag(
            "Weight of FLOPS, sparse queries.",
            min=0,
            shown="5e-5",
            aliases="--query-regularizer-weight",
            suggest_for="--lambda-q",
        ),
    ] = None
    doc_l1: Annotated[float | None, Flag("Weight of L1, sparse documents.", min=0, shown="0")] = (
        None
    )
    query_l1: Annotated[float | None, Flag("Weight of L1, sparse queries.", min=0, shown="0")] = (
        None
    )
    sparsity_warmup: Annotated[
        float | None,
        Flag(
            "Steps until these weights are reached; below 1, a share of all steps.",
            min=0,
            shown="1/3",
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (field.name for field in fields(SparsitySettings)):
            value = getattr(self, name)
            if value is not None and not value < 1e38:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} {value} is out of range; write less than 1e38")


@dataclass(frozen=True, kw_only=True)
class ScaleSettings(Settings):
    """The scale of imported weights."""

    panel: ClassVar[str] = "Sparse vectors"
    scale: Annotated[
        float | None,
        Flag(
            "anserini-json: the numbers of the files are the weights times N.",
            min=1,
            metavar="N",
            shown="100, for whole numbers",
            only="anserini-json",
        ),
    ] = None
