"""Embeddings as OpenAI's client requests them: the vectors of the index's own model."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmkcli

TEXTS = ["rivers carry water", "bakers knead bread before dawn"]


@pytest.fixture(scope="module")
def openai(client: Any) -> Any:
    """OpenAI's client, connected to the server in this process."""
    package = pytest.importorskip("openai")
    return package.OpenAI(
        base_url="http://127.0.0.1/v1", api_key="none", http_client=client, max_retries=0
    )


def rows(answer: Any) -> Any:
    return np.array([each.embedding for each in answer.data], np.float32)


def test_texts_get_the_vectors_of_the_model(openai: Any, tiny_model: Callable[[str], Path]) -> None:
    encoder = lmkcli.load_encoder(str(tiny_model("bert")))
    wanted = encoder.encode_documents(TEXTS).vectors
    for form in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        answer = openai.embeddings.create(model="docs", input=TEXTS, **form)
        found = [
            np.frombuffer(base64.b64decode(each.embedding), "<f4")
            if isinstance(each.embedding, str)
            else each.embedding
            for each in answer.data
        ]
        np.testing.assert_allclose(np.array(found), wanted, atol=1e-2)
    one = openai.embeddings.create(model="docs", input=TEXTS[0])
    np.testing.assert_allclose(rows(one), wanted[:1], atol=1e-2)
    assert one.usage.prompt_tokens == one.usage.total_tokens > 3
    assert [each.id for each in openai.models.list().data] == ["chunks", "docs"]


def test_token_ids_are_those_of_the_model(openai: Any, tiny_model: Callable[[str], Path]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(tiny_model("bert")))
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    texts = rows(openai.embeddings.create(model="docs", input=TEXTS))
    found = rows(openai.embeddings.create(model="docs", input=ids))
    np.testing.assert_array_equal(found, texts)
    alone = rows(openai.embeddings.create(model="docs", input=ids[0]))
    np.testing.assert_allclose(alone, texts[:1], atol=1e-2)
    with pytest.raises(Exception, match="999999 is no token"):
        openai.embeddings.create(model="docs", input=[[999_999]])


def test_dimensions_are_cut_and_normalised(openai: Any) -> None:
    whole = rows(openai.embeddings.create(model="docs", input=TEXTS))
    cut = rows(openai.embeddings.create(model="docs", input=TEXTS, dimensions=8))
    wanted = whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(cut, wanted, atol=1e-3)
    with pytest.raises(Exception, match="have 32"):
        openai.embeddings.create(model="docs", input=TEXTS, dimensions=33)


def test_the_side_of_the_recipe(openai: Any) -> None:
    side = {"extra_body": {"input_type": "query"}}
    query = rows(openai.embeddings.create(model="chunks", input=TEXTS, **side))
    suffix = rows(openai.embeddings.create(model="chunks:query", input=TEXTS))
    np.testing.assert_array_equal(query, suffix)
    for model, more, message in (
        ("chunks", {}, "several vectors for a document"),
        ("bm25", {}, "no dense index"),
        ("docs:query", {"extra_body": {"input_type": "document"}}, "contradict"),
        ("text-embedding-3-small", {}, "no index"),
    ):
        with pytest.raises(Exception, match=message):
            openai.embeddings.create(model=model, input=TEXTS, **more)
