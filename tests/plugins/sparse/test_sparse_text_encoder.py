"""Sparse vectors of texts in Python."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from lmkcli import (
    EncodeSettings,
    RecipeOptions,
    Vectors,
    encode_collection,
    load_encoder,
    open_collection,
)
from tests import tiny

Models = Callable[[str], Path]
SETTINGS = EncodeSettings(dtype="fp32", device="cpu")


def test_texts_get_the_vectors_of_a_folder(
    masked_model: Models, beir: Path, tmp_path: Path
) -> None:
    model = str(masked_model("bert"))
    options = RecipeOptions(pool="splade", unit="chunk", gran="8", query_top_terms=4)
    stored = encode_collection(str(beir), tmp_path / "v", model, options, SETTINGS)
    assert isinstance(stored, Vectors)
    encoder = load_encoder(model, options, SETTINGS)
    texts = [doc.content for doc in open_collection(str(beir)).docs()]
    made, wanted = encoder.encode_documents(texts), stored.at(np.arange(stored.rows))
    np.testing.assert_array_equal(made.starts, wanted.starts)
    np.testing.assert_allclose(made.matrix(), wanted.matrix(), atol=1e-5)
    queries = encoder.encode_queries(["bread before dawn", "water"])
    assert queries.lengths.tolist() == [4, 4]
    assert encoder.encode_documents([]).counts.tolist() == []
    assert encoder.encode_queries([]).counts.tolist() == []
    vocabulary = tiny.wordpiece().get_vocab()
    terms = np.array([vocabulary["water"], vocabulary["bread"]], np.int32)
    assert encoder.tokens(terms) == ["water", "bread"]
