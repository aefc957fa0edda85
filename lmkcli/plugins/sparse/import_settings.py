"""The settings of importing sparse vectors."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from lmkcli.spec.settings import Flag, Settings


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
