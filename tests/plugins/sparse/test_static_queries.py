"""Sparse queries from a table of weights equal those of sentence-transformers, and need no model."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

from lmkcli import Encode, Search
from lmkcli.data.collection import Query
from lmkcli.encoding import encoder
from lmkcli.encoding.encoder import open_encoder, open_query_encoder
from lmkcli.encoding.resolution import resolve
from lmkcli.encoding.verification import verify
from lmkcli.errors import DataError, Mismatch
from lmkcli.plugins.sparse.static_queries import StaticQueries
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.pipeline import open_index
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings, ModelSettings
from tests import tiny

Models = Callable[[str], Path]
TEXTS = [
    *tiny.STRANGE.values(),
    *(tiny.sentence(i, 1 + 5 * i) for i in range(12)),
    "",
    "bread bread",
]
SETTINGS = EncodeSettings(dtype="fp32", device="cpu")
QUERY, ROUTES = "query_0_SparseStaticEmbedding", "router_config.json"


def table() -> torch.Tensor:
    weights = torch.rand(tiny.VOCABULARY, generator=torch.Generator().manual_seed(3)) * 5
    weights[::7] = 0
    return weights


def routed(model: Path, folder: Path, prompt: str = "") -> SparseEncoder:
    """Save a folder in which queries have static weights."""
    transformer = Transformer(str(model), transformer_task="fill-mask")
    static = SparseStaticEmbedding(transformer.tokenizer, table(), frozen=True)
    documents = [transformer, SpladePooling("max", "log1p_relu")]
    router = Router.for_query_document([static], documents)
    prompts = {"query": prompt, "document": ""}
    made = SparseEncoder(modules=[router], similarity_fn_name="dot", device="cpu", prompts=prompts)
    made.save_pretrained(str(folder))
    return made


def queries(folder: Path, **options: object) -> NDArray[np.float64]:
    resolved = resolve(RecipeOptions(model=str(folder), **options))
    opened = open_query_encoder(resolved.recipe.query, resolved.folder, SETTINGS)
    assert isinstance(opened, StaticQueries)
    encoded = opened.queries([Query(str(i), text) for i, text in enumerate(TEXTS)])
    assert encoded.fault() == ""
    return encoded.matrix()


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert"])
@pytest.mark.parametrize("prompt", ["", "bread: "])
def test_both_sides_equal_sentence_transformers(
    masked_model: Models, tmp_path: Path, name: str, prompt: str
) -> None:
    made = routed(masked_model(name), tmp_path, prompt)
    wanted = made.encode_query(TEXTS, convert_to_sparse_tensor=False).double().numpy()
    assert (wanted > 0).sum(1).max() > 5
    np.testing.assert_allclose(queries(tmp_path), wanted, atol=1e-5)
    resolved = resolve(RecipeOptions(model=str(tmp_path)))
    assert (resolved.recipe.doc.static, resolved.recipe.query.static) == (False, True)
    documents = open_encoder(resolved.recipe.doc, resolved.folder, SETTINGS)
    encoded = documents.queries([Query(str(i), text) for i, text in enumerate(TEXTS)]).matrix()
    wanted = made.encode_document(TEXTS, convert_to_sparse_tensor=False).double().numpy()
    np.testing.assert_allclose(encoded, wanted, atol=1e-5)


def test_lengths_and_pruning(masked_model: Models, tmp_path: Path) -> None:
    routed(masked_model("bert"), tmp_path)
    assert (queries(tmp_path, query_top_terms=3) > 0).sum(1).max() == 3
    whole, cut = queries(tmp_path), queries(tmp_path, query_max_length=2)
    assert (cut > 0).sum(1).max() <= 2
    assert (whole > 0).sum() > (cut > 0).sum() > 10


def test_a_search_runs_no_model(
    masked_model: Models, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = routed(masked_model("bert"), tmp_path / "m")
    Encode(
        str(beir), model=str(tmp_path / "m"), output=tmp_path / "v", dtype="fp32", device="cpu"
    ).run()
    assert verify(tmp_path / "v", 5, ModelSettings(device="cpu")).cosine > 0.99999

    def refused(*_: object) -> None:
        raise AssertionError("a model was opened")

    monkeypatch.setattr(encoder, "open_forward", refused)
    run = Search(str(tmp_path / "v"), str(beir), output=tmp_path / "r.trec", k=5).run()
    assert run.lines == 60
    index = open_index(tmp_path / "v", OpenSettings(device="cpu"))
    ranking = index.search([Query("q", "bread before dawn")], 3).rankings["q"]
    texts = [doc.content for doc in index.texts(ranking.doc_ids).values()]
    names = list(index.texts(ranking.doc_ids))
    wanted = made.similarity(made.encode_query(["bread before dawn"]), made.encode_document(texts))[
        0
    ]
    found = [ranking.scores[ranking.doc_ids.index(name)] for name in names]
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5)
    weights = {"weight": table() + 1}
    save_file(weights, tmp_path / "m" / QUERY / "model.safetensors")
    with pytest.raises(Mismatch, match=r"weights of .*--model"):
        open_index(tmp_path / "v", OpenSettings(device="cpu")).search([Query("q", "bread")], 3)


@pytest.mark.parametrize("place", [QUERY, "."])
def test_weights_in_json(masked_model: Models, tmp_path: Path, place: str) -> None:
    routed(masked_model("bert"), tmp_path)
    wanted = queries(tmp_path)
    (tmp_path / QUERY / "config.json").write_text('{"frozen": true, "path": "some/idf.json"}')
    with pytest.raises(DataError, match=rf"{QUERY}/idf\.json.* missing"):
        queries(tmp_path)
    tokens = Transformer(str(masked_model("bert"))).tokenizer.get_vocab()
    weights = {token: float(table()[term]) for token, term in tokens.items()}
    (tmp_path / place / "idf.json").write_text(json.dumps(weights))
    made = queries(tmp_path)
    np.testing.assert_allclose(made, wanted[:, : made.shape[1]], rtol=1e-6)
    (tmp_path / place / "idf.json").write_text('{"Xyzzy": 3.0}')
    with pytest.raises(DataError, match=r"'Xyzzy' .*vocabulary"):
        queries(tmp_path)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"weight": -table()}, f"{QUERY} .*negative.*finite"),
        ({"weight": table() * torch.inf}, f"{QUERY} .*negative.*finite"),
        ({"weight": table()[:5].clone()}, r"query weights .*\b5 terms, .*term \d"),
        (
            {"weight": table()[None].clone()},
            rf"{QUERY}/model\.safetensors .*'weight' .*one dimension",
        ),
        ({"other": table()}, rf"{QUERY}/model\.safetensors .*'weight' .*one dimension"),
    ],
)
def test_tables_that_cannot_be_used(
    masked_model: Models, tmp_path: Path, weights: dict[str, torch.Tensor], message: str
) -> None:
    routed(masked_model("bert"), tmp_path)
    save_file(weights, tmp_path / QUERY / "model.safetensors")
    with pytest.raises(DataError, match=message):
        queries(tmp_path)


def test_other_routers_are_refused(masked_model: Models, tmp_path: Path) -> None:
    routed(masked_model("bert"), tmp_path)
    whole = json.loads((tmp_path / ROUTES).read_text())
    documents = whole["structure"]["document"]
    for structure, types, message in (
        ({"query": [QUERY]}, {}, "no route 'document'"),
        ({"query": [QUERY, *documents], "document": documents}, {}, "module SparseStaticEmbedding"),
        ({"query": [QUERY], "document": documents[:1]}, {}, "no SpladePooling for documents"),
        ({"query": ["../x"], "document": documents}, {}, "out of the folder"),
        ({"query": ["x"], "document": documents}, {}, "declares no type of 'x'"),
        ({"query": ["x"], "document": documents}, {"x": whole["types"][QUERY]}, "x is missing"),
        ({"query": [1], "document": documents}, {}, "cannot be read"),
    ):
        changed = {**whole, "structure": structure, "types": {**whole["types"], **types}}
        (tmp_path / ROUTES).write_text(json.dumps(changed))
        with pytest.raises(DataError, match=message):
            resolve(RecipeOptions(model=str(tmp_path)))
    (tmp_path / ROUTES).unlink()
    with pytest.raises(DataError, match=r"router_config\.json is missing"):
        resolve(RecipeOptions(model=str(tmp_path)))
