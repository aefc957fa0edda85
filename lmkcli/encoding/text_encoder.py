"""Encode texts from Python: in memory, or a whole collection into a folder."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Doc, Query
from lmkcli.encoding.artifacts import run_encode
from lmkcli.encoding.encoder import (
    Encoder,
    SparseEncoder,
    open_encoder,
    open_sparse,
    open_sparse_queries,
)
from lmkcli.encoding.jobs import plan
from lmkcli.encoding.resolution import ResolvedRecipe, makes_sparse, resolve
from lmkcli.encoding.static_queries import StaticQueries
from lmkcli.errors import DataError, UsageError
from lmkcli.progress import Report
from lmkcli.spec.recipe import Recipe, RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import WHOLE
from lmkcli.store.sparse import SparseRagged, SparseVectors, open_stored
from lmkcli.store.tokens import tokenized
from lmkcli.store.vectors import Ragged, Vectors

_OPTIONS, _SETTINGS = RecipeOptions(), EncodeSettings()


class _BothSides:
    """Both sides of a recipe. A model is loaded when it is first needed."""

    def __init__(self, resolved: ResolvedRecipe, settings: EncodeSettings) -> None:
        self._resolved, self._settings = resolved, settings

    @property
    def recipe(self) -> Recipe:
        """All settings that determine a vector, for documents (`doc`) and queries (`query`)."""
        return self._resolved.recipe

    @property
    def notes(self) -> list[str]:
        """Settings that were guessed, because the model folder does not declare them."""
        return self._resolved.notes


class TextEncoder(_BothSides):
    """Both sides of a recipe, ready to encode texts. A model is loaded when it is first needed."""

    def encode_documents(self, texts: Iterable[str]) -> Ragged:
        """Return the vectors of documents in their order: float32 `vectors`, and the `starts` of each text.

        Texts are cut to the maximum length. Raises DataError for a vector that is not finite.
        """
        docs = (Doc(str(number), text) for number, text in enumerate(texts))
        rows = tokenized(docs, self._doc.document_tokenizer)
        batches = [self._doc(batch, Report()).vectors for batch in rows]
        if not batches:
            return Ragged.single(np.zeros((0, self._doc.dim), np.float32))
        vectors = np.concatenate([batch.vectors for batch in batches])
        encoded = Ragged.of(vectors, np.concatenate([batch.counts for batch in batches]))
        if not np.isfinite(vectors).all():
            raise DataError("a document's vector has values that are not finite; try dtype='fp32'")
        return encoded

    def encode_queries(self, texts: Sequence[str]) -> Ragged:
        """Return the vectors of queries in their order, by the query side of the recipe; also float32."""
        return self._query.queries([Query(str(n), text) for n, text in enumerate(texts)])

    @cached_property
    def _doc(self) -> Encoder:
        return open_encoder(self.recipe.doc, self._resolved.folder, self._settings)

    @cached_property
    def _query(self) -> Encoder:
        if self.recipe.query == self.recipe.doc:
            return self._doc
        return open_encoder(self.recipe.query, self._resolved.folder, self._settings)


class SparseTextEncoder(_BothSides):
    """Both sides of a recipe with sparse vectors. A model is loaded when it is first needed."""

    def encode_documents(self, texts: Iterable[str]) -> SparseRagged:
        """Return the sparse vectors of documents in their order.

        Texts are cut to the maximum length. Raises DataError for a weight that is not finite.
        """
        docs = (Doc(str(number), text) for number, text in enumerate(texts))
        rows = tokenized(docs, self._doc.document_tokenizer)
        batches = [self._doc(batch, Report()).vectors for batch in rows]
        encoded = SparseRagged.joined(batches, self._doc.dim)
        if encoded.not_finite() is not None:
            raise DataError("a document has weights that are not finite; try dtype='fp32'")
        return encoded

    def encode_queries(self, texts: Sequence[str]) -> SparseRagged:
        """Return the sparse vectors of queries in their order, by the query side of the recipe."""
        return self._query.queries([Query(str(n), text) for n, text in enumerate(texts)])

    def tokens(self, terms: NDArray[np.int32]) -> list[str]:
        """Return the tokens of the vocabulary that some terms stand for."""
        return self._query.tokenizer.tokens(terms)

    @cached_property
    def _doc(self) -> SparseEncoder:
        return open_sparse(self.recipe.doc, self._resolved.folder, self._settings)

    @cached_property
    def _query(self) -> SparseEncoder | StaticQueries:
        if self.recipe.query == self.recipe.doc:
            return self._doc
        return open_sparse_queries(self.recipe.query, self._resolved.folder, self._settings)


def load_encoder(
    model: str,
    options: RecipeOptions = _OPTIONS,
    settings: EncodeSettings = _SETTINGS,
    offline: bool = False,
) -> TextEncoder:
    """Return the encoder of a model folder, a hub name or one of lmk's own models, as for `lmk encode -m`.

    The model folder determines all settings that `options` does not set. Raises UsageError for options that
    the model cannot follow, and for a model of sparse vectors.
    """
    resolved = resolve(replace(options, model=model), offline)
    if makes_sparse(resolved.recipe.doc):
        raise UsageError(f"{model} makes sparse vectors; use load_sparse_encoder")
    return TextEncoder(resolved, settings)


def load_sparse_encoder(
    model: str,
    options: RecipeOptions = _OPTIONS,
    settings: EncodeSettings = _SETTINGS,
    offline: bool = False,
) -> SparseTextEncoder:
    """Return the encoder of a model for learned sparse vectors, such as SPLADE.

    Raises UsageError for options that the model cannot follow, and for a model of dense vectors.
    """
    resolved = resolve(replace(options, model=model), offline)
    if not makes_sparse(resolved.recipe.doc):
        raise UsageError(f"{model} makes dense vectors; use load_encoder, or set pool='splade'")
    return SparseTextEncoder(resolved, settings)


def encode_collection(
    collection: str,
    output: Path,
    model: str,
    options: RecipeOptions = _OPTIONS,
    settings: EncodeSettings = _SETTINGS,
) -> Vectors | SparseVectors:
    """Encode a collection (or tokens folder) into the folder `output`, as `lmk encode`, and open it.

    Continues an earlier call. Raises Mismatch if `output` contains other vectors.
    """
    job = plan(collection, replace(options, model=model), settings, WHOLE)
    run_encode(job, output)
    return open_stored(output)
