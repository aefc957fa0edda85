"""The reduction of the core: the mean of states. `averaging.py` computes it; nothing here imports torch."""

from typing import TYPE_CHECKING, Any

from lmkcli.models.folder import ModelFolder
from lmkcli.models.sentence_classes import SentenceClass
from lmkcli.pooling.table import WindowReduction
from lmkcli.spec.recipe import EncoderConfig, RecipeOptions
from lmkcli.spec.values import Window

if TYPE_CHECKING:  # these import torch
    from lmkcli.models.forward import Model, ModelOptions, Pooling


class Mean:
    """The mean of the marked states, and of the windows of a text: dense vectors."""

    codec, kind, keeps_space, of_terms = "", "dense", False, False
    sentence_class: SentenceClass | None = None
    temperature, regulariser = 0.0, ""

    def check_unit(self, pool: str, unit: str) -> None:
        """Every unit has a mean."""

    def check(self, unit: str, window: Window, options: RecipeOptions) -> None:
        """All options have an effect, but for those of other poolers (`PoolerRow.settings`)."""

    def declared(self, folder: ModelFolder) -> ModelFolder:
        """Return the folder."""
        return folder

    def has_table(self, folder: ModelFolder) -> bool:
        """Return False."""
        return False

    def windows(self, side: EncoderConfig) -> WindowReduction:
        """Return the mean."""
        return "mean"

    def open(
        self, side: EncoderConfig, folder: ModelFolder, options: "ModelOptions"
    ) -> "tuple[Model, Pooling]":
        """Load the model with its token head and its sentence modules."""
        from lmkcli.encoding.averaging import open_averaged

        return open_averaged(side, folder, options)

    def combination(self, side: EncoderConfig, width: int, name: str) -> Any:
        """Return the average of windows, cut to --dim and normalised."""
        from lmkcli.encoding.averaging import Averaging

        return Averaging.of(side, width, name)

    def facts(self, documents: Any, queries: Any) -> dict[str, float]:
        """Return nothing."""
        return {}

    def open_table(self, side: EncoderConfig, folder: ModelFolder) -> Any:
        """Never called."""
        raise NotImplementedError


MEAN = Mean()
