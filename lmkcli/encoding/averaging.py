"""Dense vectors: the mean of marked states, and the mean of windows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from lmkcli import catalog
from lmkcli.encoding.representation import PooledPack
from lmkcli.encoding.resolution import lacks_weights, open_pooler
from lmkcli.errors import UsageError
from lmkcli.models.forward import Finish, Model, ModelOpener, ModelOptions, Pooling
from lmkcli.models.heads import open_heads, open_token_head, open_token_weights
from lmkcli.models.model_folder import ModelFolder
from lmkcli.pooling.placement import PlacedBlock
from lmkcli.spec.recipe import EncoderConfig
from lmkcli.vectors.rows import Ragged


@dataclass(frozen=True)
class Averaging:
    """Averages the windows of a text, cuts the vectors to --dim and normalises them.

    width: the number of dimensions of the vectors of windows.
    """

    finish: Finish
    width: int
    large: bool

    @classmethod
    def of(cls, side: EncoderConfig, width: int, name: str) -> Self:
        """Return the end of encoding for one side. Raises UsageError if --dim is larger than `width`."""
        if side.dim > width:
            raise UsageError(f"--dim {side.dim}: {name} makes vectors of {width} dimensions")
        finish = Finish(side.unit == "doc", side.dim or width, side.normalize)
        return cls(finish, width, large=side.unit == "token")

    @property
    def dim(self) -> int:
        """The number of dimensions of a vector."""
        return self.finish.dim

    def __call__(self, placed: PlacedBlock, packs: Iterator[PooledPack]) -> Ragged:
        """Return the vectors of placed texts, float32."""
        pooled = np.empty((int(placed.vectors.sum()), self.width), np.float32)
        for pack in packs:
            pooled[pack.numbers] = pack.vectors.numpy()
        vectors = self.finish(torch.from_numpy(pooled), torch.from_numpy(placed.vectors))
        counts = np.ones_like(placed.vectors) if self.finish.average else placed.vectors
        return Ragged.of(vectors.contiguous().numpy(), counts)


def open_averaged(
    side: EncoderConfig, folder: ModelFolder, options: ModelOptions
) -> tuple[Model, Pooling]:
    """Load the model, its token head, the weights of its tokens, and its sentence modules."""
    open_model: ModelOpener = catalog.MODELS.load(folder.kind)
    model = open_model(folder, options)
    pooler = open_pooler(side.pool)
    new = model.dim if options.trainable and lacks_weights(side.pool, folder) else 0
    head = open_token_head(folder, pooler, model.device, new)
    modules = open_heads(folder, model.device)
    return model, Pooling(head, modules, pooler.reductions, open_token_weights(folder))
