"""Encode texts from Python: in memory, or a whole collection into a folder."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Doc, Query
from lmkcli.encoding.encoder import Encoder, open_encoder, open_query_encoder
from lmkcli.encoding.jobs import plan
from lmkcli.encoding.representation import QueryEncoder
from lmkcli.encoding.resolution import ResolvedRecipe, representation_of, resolve
from lmkcli.encoding.shard_run import run_encode
from lmkcli.encoding.token_stream import tokenized
from lmkcli.errors import DataError, UsageError
from lmkcli.progress import Report
from lmkcli.spec.recipe import Recipe, RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import WHOLE
from lmkcli.vectors.codec import Codec, open_codec
from lmkcli.vectors.stored import Vectors

_OPTIONS, _SETTINGS = RecipeOptions(), EncodeSettings()


class TextEncoder:
    """Both sides of a recipe, ready to encode texts. A model is loaded when it is first needed.

    The vectors are rows of the codec of the recipe: `Ragged` for all models but those of a plug-in.
    """

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

    def encode_documents(self, texts: Iterable[str]) -> Any:
        """Return the vectors of documents in their order, in float32: usually `Ragged`.

        Texts are cut to the maximum length. Raises UsageError for other values than texts, and DataError for
        a vector that is not finite.
        """
        docs = (Doc(str(number), text) for number, text in enumerate(_texts(texts)))
        batches = tokenized(docs, self._doc.document_tokenizer)
        pieces = (self._doc(batch, Report()).vectors for batch in batches)
        encoded = self._codec.rows.joined(pieces, self._doc.dim)
        if encoded.not_finite() is not None:
            raise DataError("a document's vector has values that are not finite; try dtype='fp32'")
        return encoded

    def encode_queries(self, texts: Sequence[str]) -> Any:
        """Return the vectors of queries in their order, by the query side of the recipe."""
        return self._query.queries([Query(str(n), text) for n, text in enumerate(_texts(texts))])

    def tokens(self, ids: NDArray[np.int32]) -> list[str]:
        """Return the tokens of the vocabulary with these ids, for instance of the terms of a vector."""
        return self._doc.tokenizer.tokens(ids)

    @property
    def _codec(self) -> Codec[Any]:
        codec = representation_of(self.recipe.doc.pool).codec
        return open_codec(codec or self._settings.store_dtype)

    @cached_property
    def _doc(self) -> Encoder[Any]:
        return open_encoder(self.recipe.doc, self._resolved.folder, self._settings)

    @cached_property
    def _query(self) -> QueryEncoder[Any]:
        if self.recipe.query == self.recipe.doc:
            return self._doc
        return open_query_encoder(self.recipe.query, self._resolved.folder, self._settings)


def _texts(given: Any) -> Iterator[str]:
    """Yield texts. Raises UsageError for a single text, a dictionary, a table, and values of other types."""
    table = hasattr(given, "columns") or hasattr(given, "column_names")
    if table or isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise UsageError(
            f"a list of texts is expected, not a {type(given).__name__}; for a single text, give [text]; for "
            "a dictionary or a table, the list of its texts"
        )
    for number, text in enumerate(given):
        if not isinstance(text, str):
            raise UsageError(f"text {number} is a {type(text).__name__}; give only texts")
        yield text


def load_encoder(
    model: str,
    options: RecipeOptions = _OPTIONS,
    settings: EncodeSettings = _SETTINGS,
    offline: bool = False,
) -> TextEncoder:
    """Return the encoder of a model folder, a hub name or one of lmk's own models, as for `lmk encode -m`.

    The model folder determines all settings that `options` does not set. Raises UsageError for options that
    the model cannot follow.
    """
    return TextEncoder(resolve(replace(options, model=model), offline), settings)


def encode_collection(
    collection: str,
    output: Path,
    model: str,
    options: RecipeOptions = _OPTIONS,
    settings: EncodeSettings = _SETTINGS,
) -> Vectors[Any]:
    """Encode a collection (or tokens folder) into the folder `output`, as `lmk encode`, and open it.

    Continues an earlier call. Raises Mismatch if `output` contains other vectors.
    """
    job = plan(collection, replace(options, model=model), settings, WHOLE)
    run_encode(job, output)
    return Vectors(output)
