"""Representations: how the states at the marked positions of a text become its vectors.

The row of a pooler names its representation (`Pooler.representation`). The core has one, dense
vectors (dense_vectors.py). Nothing here imports torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Query
from lmkcli.models.model_folder import ModelFolder
from lmkcli.models.sentence_classes import SentenceClass
from lmkcli.pooling.placement import PlacedBlock
from lmkcli.pooling.table import WindowReduction
from lmkcli.spec.recipe import EncoderConfig, PoolerSetting, RecipeOptions
from lmkcli.spec.values import Window
from lmkcli.vectors.rows import AnyRows, RowsOut

if TYPE_CHECKING:  # these import torch
    import torch

    from lmkcli.models.forward import Model, ModelOptions, Pooling


class PooledPack(NamedTuple):
    """The result of one forward pass.

    inputs: the numbers of the inputs. numbers: [n], the numbers of the vectors. vectors: [n, width], in
    float32 on the CPU.
    """

    inputs: list[int]
    numbers: NDArray[np.int64]
    vectors: "torch.Tensor"


class Combination(Protocol[RowsOut]):
    """The end of encoding: the vectors of windows become the vectors of texts.

    dim: the number of dimensions of a vector. large: whether the vectors of a pack take much memory, so that
    few packs are encoded before they are stored.
    """

    @property
    def dim(self) -> int: ...

    @property
    def large(self) -> bool: ...

    def __call__(self, placed: PlacedBlock, packs: Iterator[PooledPack]) -> RowsOut:
        """Return the vectors of placed texts."""


class QueryEncoder(Protocol[RowsOut]):
    """Encodes queries; `Encoder` is the usual one."""

    @property
    def dim(self) -> int:
        """The number of dimensions of a vector."""

    def queries(self, queries: list[Query]) -> RowsOut:
        """Return the vectors of queries."""

    def cut(self, queries: list[Query]) -> frozenset[str]:
        """Return the ids of the queries that lose tokens, because they are too long for the recipe."""


class Representation(ABC, Generic[AnyRows]):
    """How marked states become vectors. The defaults are those of dense vectors that are means.

    kind: the kind of the vectors (`CodecRow.rows`). codec: the codec of all of them; empty if --store-dtype
    selects one. keeps_space: whether sentence-transformers has such vectors, so that white space at the ends
    of texts is tokenized. of_terms: whether the dimensions of the vectors are the terms of the vocabulary.
    sentence_class: the class of sentence-transformers of such models; None for SentenceTransformer.
    temperature: the default of --temperature in training; 0 for that of the objective. regulariser:
    'module:function' of a part of the loss (`training.step.contrastive.Regulariser`), from TrainSettings.
    """

    kind: ClassVar[str]
    codec: ClassVar[str] = ""
    keeps_space: ClassVar[bool] = False
    of_terms: ClassVar[bool] = False
    sentence_class: ClassVar[SentenceClass | None] = None
    temperature: ClassVar[float] = 0.0
    regulariser: ClassVar[str] = ""

    @abstractmethod
    def open(
        self, side: EncoderConfig, folder: ModelFolder, options: "ModelOptions"
    ) -> "tuple[Model, Pooling]":
        """Load the model, and what turns its states into the vectors of windows."""

    @abstractmethod
    def combination(self, side: EncoderConfig, width: int, name: str) -> Combination[AnyRows]:
        """Return the end of encoding, for vectors of windows [n, width] of the model `name`.

        Raises UsageError if the vectors have too few dimensions.
        """

    def windows(self, side: EncoderConfig) -> WindowReduction:
        """Return how the vectors of the windows of a text become one vector in training."""
        return "mean"

    def check_unit(self, pool: str, unit: str) -> None:
        """Raise UsageError for a unit that such vectors cannot have."""

    def check(self, unit: str, window: Window, options: RecipeOptions) -> None:
        """Raise UsageError for options without an effect on such vectors."""

    def settings(self, options: RecipeOptions, query: bool) -> dict[str, PoolerSetting]:
        """Return the settings of the pooler for one side (`EncoderConfig.settings`)."""
        return {}

    def declared(self, folder: ModelFolder) -> ModelFolder:
        """Return the declarations of a folder for such vectors. Raises UsageError if it cannot make them."""
        return folder

    def has_table(self, folder: ModelFolder) -> bool:
        """Return whether queries are encoded with a table of the folder, without the model."""
        return False

    def open_table(self, side: EncoderConfig, folder: ModelFolder) -> QueryEncoder[AnyRows]:
        """Open the table of `has_table`. Raises DataError if it cannot be used."""
        raise NotImplementedError

    def facts(self, documents: AnyRows, queries: AnyRows) -> dict[str, float]:
        """Return facts about the vectors of a development set, for the log of a training."""
        return {}
