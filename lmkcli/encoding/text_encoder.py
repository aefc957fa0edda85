"""Texts to vectors from Python: in memory, or a whole collection into a folder."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from lmkcli.data.collection import Doc, Query
from lmkcli.encoding.encoder import Encoder, open_encoder
from lmkcli.encoding.jobs import run_encode
from lmkcli.encoding.planning import plan
from lmkcli.encoding.resolving import Resolved, resolve
from lmkcli.errors import DataError
from lmkcli.progress import Report
from lmkcli.recipe import Recipe, RecipeOptions
from lmkcli.settings import EncodeSettings
from lmkcli.store.ragged import Ragged
from lmkcli.store.tokens import tokenized
from lmkcli.store.vectors import Vectors

_OPTIONS, _SETTINGS = RecipeOptions(), EncodeSettings()


class TextEncoder:
    """Both sides of a recipe, ready to encode texts; a model is loaded when it is first needed."""

    def __init__(self, resolved: Resolved, settings: EncodeSettings) -> None:
        self._resolved, self._settings = resolved, settings

    @property
    def recipe(self) -> Recipe:
        """What decides a vector: its `doc` and `query` side."""
        return self._resolved.recipe

    @property
    def notes(self) -> list[str]:
        """What had to be guessed because the model folder does not say it."""
        return self._resolved.notes

    def encode_documents(self, texts: Iterable[str]) -> Ragged:
        """The embeddings of documents, in their order: float32 `vectors` and where each text starts.

        Texts beyond the maximum length are cut. DataError for a vector that is not finite.
        """
        docs = (Doc(str(number), text) for number, text in enumerate(texts))
        batches = [
            self._doc(rows, Report()).vectors for rows in tokenized(docs, self._doc.tokenizer)
        ]
        if not batches:
            return Ragged.single(np.zeros((0, self._doc.dim), np.float32))
        vectors = np.concatenate([batch.vectors for batch in batches])
        encoded = Ragged.of(vectors, np.concatenate([batch.counts for batch in batches]))
        if not np.isfinite(vectors).all():
            raise DataError("a document's vector has values that are not finite; try dtype='fp32'")
        return encoded

    def encode_queries(self, texts: Sequence[str]) -> Ragged:
        """The embeddings of queries, in their order, by the query side of the recipe; likewise float32."""
        return self._query.queries([Query(str(n), text) for n, text in enumerate(texts)])

    @cached_property
    def _doc(self) -> Encoder:
        return open_encoder(self.recipe.doc, self._resolved.folder, self._settings)

    @cached_property
    def _query(self) -> Encoder:
        if self.recipe.query == self.recipe.doc:
            return self._doc
        return open_encoder(self.recipe.query, self._resolved.folder, self._settings)


def load_encoder(
    model: str,
    options: RecipeOptions = _OPTIONS,
    settings: EncodeSettings = _SETTINGS,
    offline: bool = False,
) -> TextEncoder:
    """The encoder of a model folder, a hub name, lmk-minilm or minilm, as `lmk encode -m` resolves it.

    What `options` leaves open, the model folder decides. UsageError for what the model cannot do.
    """
    return TextEncoder(resolve(replace(options, model=model), offline), settings)


def encode_collection(
    collection: str,
    output: Path,
    model: str,
    options: RecipeOptions = _OPTIONS,
    settings: EncodeSettings = _SETTINGS,
) -> Vectors:
    """`lmk encode`: the vectors of a collection (or tokens folder), written to `output` and opened.

    Continues what an earlier call began. Mismatch when `output` holds other vectors.
    """
    job = plan(collection, replace(options, model=model), settings, "0/1")
    run_encode(job, output)
    return Vectors(output)
