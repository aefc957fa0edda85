"""Dense vectors: means of states. `averaging.py` computes them; nothing here imports torch."""

from typing import TYPE_CHECKING

from lmkcli.encoding.representation import Combination, Representation
from lmkcli.models.model_folder import ModelFolder
from lmkcli.spec.recipe import EncoderConfig
from lmkcli.vectors.rows import Ragged

if TYPE_CHECKING:  # these import torch
    from lmkcli.models.forward import Model, ModelOptions, Pooling


class Dense(Representation[Ragged]):
    """The mean of the marked states, and of the windows of a text: dense vectors."""

    kind = "dense"

    def open(
        self, side: EncoderConfig, folder: ModelFolder, options: "ModelOptions"
    ) -> "tuple[Model, Pooling]":
        """Load the model with its token head and its sentence modules."""
        from lmkcli.encoding.averaging import open_averaged

        return open_averaged(side, folder, options)

    def combination(self, side: EncoderConfig, width: int, name: str) -> Combination[Ragged]:
        """Return the average of windows, cut to --dim and normalised."""
        from lmkcli.encoding.averaging import Averaging

        return Averaging.of(side, width, name)


DENSE = Dense()
