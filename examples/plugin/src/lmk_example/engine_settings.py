"""The settings of the engine; they become flags of `lmk index` and `lmk search`."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from lmkcli.spec.settings import Flag, Settings


@dataclass(frozen=True, kw_only=True)
class BlockSettings(Settings):
    """Settings for building the index."""

    panel: ClassVar[str] = "Blocks"
    precision: Annotated[Literal["fp16", "fp32"], Flag("blocks: dtype of the stored vectors.")] = (
        "fp32"
    )


@dataclass(frozen=True, kw_only=True)
class BlockSearchSettings(Settings):
    """Settings for searching the index."""

    panel: ClassVar[str] = "Index settings"
    block_rows: Annotated[
        int,
        Flag(
            "blocks: number of vectors that are compared at once; 0: 4,096.",
            min=0,
            role="speed",  # the results are the same; a run records the other settings of its search
        ),
    ] = 0
