"""Sparse vectors equal those of sentence-transformers, for any block of logits."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sentence_transformers import SparseEncoder as SentenceSparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sparse_encoder.modules import SpladePooling

from lmkcli.data.collection import Query
from lmkcli.encoding.encoder import open_encoder
from lmkcli.encoding.resolution import resolve
from lmkcli.errors import DataError, UsageError
from lmkcli.models import language_head
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from tests import tiny

Models = Callable[[str], Path]
Floats = NDArray[np.float64]
TEXTS = [*tiny.STRANGE.values(), *(tiny.sentence(i, 1 + 5 * i) for i in range(12)), ""]
POOLERS = {
    "splade": SpladePooling("max"),
    "splade-sum": SpladePooling("sum"),
    "splade-log": SpladePooling("max", "log1p_relu"),
}


def reference(folder: Path, pool: str) -> SentenceSparseEncoder:
    transformer = Transformer(str(folder), transformer_task="fill-mask")
    return SentenceSparseEncoder(modules=[transformer, POOLERS[pool]], device="cpu")


def expected(model: SentenceSparseEncoder) -> Floats:
    return model.encode(TEXTS, convert_to_sparse_tensor=False).double().numpy()


def weights(folder: Path, pool: str = "auto", batch_tokens: int = 0) -> Floats:
    """Return the weights of all texts, [texts, vocabulary]."""
    resolved = resolve(RecipeOptions(model=str(folder), pool=pool))
    settings = EncodeSettings(dtype="fp32", device="cpu", batch_tokens=batch_tokens)
    encoder = open_encoder(resolved.recipe.query, resolved.folder, settings)
    encoded = encoder.queries([Query(str(i), text) for i, text in enumerate(TEXTS)])
    assert encoded.fault() == ""
    return encoded.matrix()


@pytest.mark.parametrize("name", ["bert", "distilbert", "roberta", "modernbert"])
@pytest.mark.parametrize("pool", POOLERS)
def test_vectors_equal_those_of_sentence_transformers(
    masked_model: Models, tmp_path: Path, name: str, pool: str
) -> None:
    model = reference(masked_model(name), pool)
    wanted = expected(model)
    assert 0.1 < (wanted > 0).mean() < 0.98
    # A sum over the tokens of a text also has the sum of their differences (1.3e-5 on one processor).
    summed = {"rtol": 1e-5, "atol": 5e-5}
    tolerance = summed if pool == "splade-sum" else {"rtol": 0, "atol": 1e-5}
    np.testing.assert_allclose(weights(masked_model(name), pool), wanted, **tolerance)
    model.save_pretrained(str(tmp_path / "saved"))
    np.testing.assert_allclose(weights(tmp_path / "saved"), wanted, **tolerance)


def test_older_folders_name_their_transformer_otherwise(
    masked_model: Models, tmp_path: Path
) -> None:
    reference(masked_model("bert"), "splade").save_pretrained(str(tmp_path))
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[0]["type"] = "sentence_transformers.sparse_encoder.models.MLMTransformer"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    recipe = resolve(RecipeOptions(model=str(tmp_path))).recipe
    assert (recipe.doc.pool, recipe.doc.max_length) == ("splade", 20)
    assert (recipe.doc.similarity, recipe.doc.normalize) == ("dot", False)
    (tmp_path / "1_SpladePooling" / "config.json").write_text('{"pooling_strategy": "mean"}')
    with pytest.raises(DataError, match="by mean of relu"):
        resolve(RecipeOptions(model=str(tmp_path)))
    (tmp_path / "1_SpladePooling" / "config.json").write_text('{"activation_function": []}')
    with pytest.raises(DataError, match="activation_function"):
        resolve(RecipeOptions(model=str(tmp_path)))


@pytest.mark.parametrize("pool", POOLERS)
@pytest.mark.parametrize("logits", [1, 5 * tiny.VOCABULARY, 64 * tiny.VOCABULARY])
def test_blocks_of_logits_change_nothing(
    masked_model: Models, monkeypatch: pytest.MonkeyPatch, pool: str, logits: int
) -> None:
    wanted = weights(masked_model("bert"), pool)
    monkeypatch.setitem(language_head.LOGITS, "cpu", logits)
    for tokens in (1, 100, 0):
        made = weights(masked_model("bert"), pool, tokens)
        np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)


def test_a_model_without_a_language_head_is_refused(tiny_model: Models, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no masked-language-model head.*BertModel"):
        weights(tiny_model("bert"), "splade")
    with pytest.raises(UsageError, match="its architecture has none"):
        weights(tiny_model("qwen2"), "splade")
    folder = tiny.save(tmp_path / "bert", "bert")
    config = folder / "config.json"
    config.write_text(config.read_text().replace("BertModel", "BertForMaskedLM"))
    with pytest.raises(DataError, match=r"its weights lack cls\.predictions"):
        weights(folder, "splade")
