"""Contexts of chunks: a chunk with its context is encoded as the text of both, and keeps its span."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lmkcli.data.collection import Doc, doc_hash, join_chunks
from lmkcli.encoding.encoder import DocumentVectors, Encoder, open_encoder
from lmkcli.encoding.forecast import forecast
from lmkcli.encoding.jobs import plan
from lmkcli.encoding.resolution import resolve
from lmkcli.encoding.shard_run import run_encode, run_tokenize
from lmkcli.encoding.vector_updates import compact, run_update
from lmkcli.encoding.verification import verify
from lmkcli.errors import DataError, Mismatch, UsageError
from lmkcli.progress import Report, silent
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings, ModelSettings
from lmkcli.spec.values import WHOLE
from lmkcli.store.token_blocks import TokenRow
from lmkcli.vectors.stored import Vectors
from tests import tiny

Models = Callable[[str], Path]
FP32 = EncodeSettings(dtype="fp32", store_dtype="fp32", device="cpu")
ALONE: dict[str, Any] = {"unit": "chunk", "window": "chunk"}
WORDS = st.lists(st.sampled_from(tiny.WORDS), max_size=9).map(" ".join)
EVERY = {"derandomize": True, "deadline": None, "max_examples": 8}


def opened(folder: Path, **options: Any) -> Encoder:
    resolved = resolve(RecipeOptions(model=str(folder), **options))
    return open_encoder(resolved.recipe.doc, resolved.folder, FP32)


def encoded(encoder: Encoder, *docs: Doc) -> DocumentVectors:
    made = encoder.tokenizer([doc.content for doc in docs])
    rows = [TokenRow(doc, doc_hash(doc), *tokens) for doc, tokens in zip(docs, made, strict=True)]
    return encoder(rows, Report())


def of_texts(encoder: Encoder, texts: list[str]) -> NDArray[np.float32]:
    return encoded(encoder, *(Doc(str(n), text) for n, text in enumerate(texts))).vectors.vectors


def shown(doc: Doc, made: DocumentVectors) -> list[str]:
    assert made.spans is not None
    return [doc.content[start:end] for start, end in made.spans.tolist()]


@pytest.mark.parametrize("name", ["bert", "roberta", "qwen2"])
@pytest.mark.parametrize(
    "pool", [{"pool": "mean"}, {"pool": "cls"}, {"pool": "lmk"}, {"pool": "mean@3"}]
)
def test_a_chunk_with_its_context_is_encoded_as_the_text_of_both(
    tiny_model: Models, name: str, pool: dict[str, str]
) -> None:
    """The collection gives a context for each chunk; a line break separates them."""
    if name == "qwen2" and pool["pool"] == "cls":
        pytest.skip("it has no first special token")
    folder = tiny_model(name)
    alone = opened(folder, **pool, **ALONE, gran="given", context="field:why", max_length=100)
    as_text = {"gran": "90"} if pool["pool"] == "lmk" else {}
    whole = opened(folder, **pool, **as_text, max_length=100)
    plain = opened(folder, **pool, **ALONE, gran="given", max_length=100)

    @settings(**EVERY, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(st.tuples(WORDS, WORDS.filter(bool)), min_size=1, max_size=4))
    def holds(pairs: list[tuple[str, str]]) -> None:
        text = join_chunks(chunk for _, chunk in pairs)
        doc = Doc("d", text, context=tuple(context for context, _ in pairs))
        made = encoded(alone, doc)
        wanted = of_texts(
            whole, [f"{context}\n{chunk}" if context else chunk for context, chunk in pairs]
        )
        np.testing.assert_allclose(made.vectors.vectors, wanted, atol=2e-6)
        without = encoded(plain, doc)
        assert made.spans is not None
        np.testing.assert_array_equal(made.spans, without.spans)
        assert shown(doc, made) == [chunk for _, chunk in pairs]
        assert made.kept == without.kept

    holds()


@settings(**EVERY)
@given(title=WORDS, text=WORDS, size=st.integers(1, 4))
def test_a_title_precedes_each_chunk_and_is_in_none(
    tiny_model: Models, title: str, text: str, size: int
) -> None:
    folder = tiny_model("bert")
    doc, bare = Doc("d", text, title), Doc("d", text)
    made = encoded(opened(folder, pool="mean", **ALONE, gran=str(size), context="title"), doc)
    without = encoded(opened(folder, pool="mean", **ALONE, gran=str(size)), bare)
    assert made.spans is not None
    assert without.spans is not None
    if text:
        lead = len(doc.content) - len(text)
        np.testing.assert_array_equal(made.spans, without.spans + lead)
    assert shown(doc, made) == shown(bare, without)
    whole = opened(folder, pool="mean")
    if all(
        chunk == " ".join(chunk.split()) and f" {chunk} " in f" {text} "
        for chunk in shown(doc, made)
    ):
        titled = [f"{title}\n{chunk}" for chunk in shown(doc, made)]
        np.testing.assert_allclose(made.vectors.vectors, of_texts(whole, titled), atol=2e-6)


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_title_that_is_a_sentence_or_the_start_of_one(tiny_model: Models, name: str) -> None:
    encoder = opened(tiny_model(name), pool="mean", **ALONE, gran="sentence", context="title")
    for title in ("Rivers", "Rivers carry water."):
        doc = Doc("d", "Birds migrate south. Bakers knead bread.", title)
        # a byte-level token starts with the space before its word
        found = [chunk.strip() for chunk in shown(doc, encoded(encoder, doc))]
        assert found == ["Birds migrate south.", "Bakers knead bread."]
    empty = Doc("d", "", "Rivers")
    made = encoded(encoder, empty)
    assert made.vectors.counts.tolist() == [1]
    assert made.kept == [len(encoder.tokenizer(["Rivers "])[0].ids)]  # none is lost


def test_given_chunks_keep_their_numbers_after_a_title(
    tiny_model: Models,
) -> None:
    encoder = opened(tiny_model("bert"), pool="mean", **ALONE, gran="given", context="title")
    doc = Doc("d", join_chunks(["", "copper", "", "iron"]), "Lead")
    made = encoded(encoder, doc)
    assert shown(doc, made)[1::2] == ["copper", "iron"]
    assert made.vectors.counts.tolist() == [4]


def test_headings_precede_the_chunks_of_their_sections(tiny_model: Models) -> None:
    folder = tiny_model("bert")
    encoder = opened(folder, pool="mean", **ALONE, gran="given", context="headings")
    chunks = ["# Rivers\ncarry water", "to the sea", "## Lead\ncopper", "# Birds", "migrate"]
    doc = Doc("d", join_chunks(chunks), "Title")
    contexts = ["", "Rivers\n", "Rivers\n", "", "Birds\n"]
    wanted = [f"{a}{b}" for a, b in zip(contexts, ["Title " + chunks[0], *chunks[1:]], strict=True)]
    made = encoded(encoder, doc)
    np.testing.assert_allclose(
        made.vectors.vectors, of_texts(opened(folder, pool="mean"), wanted), atol=2e-6
    )


@pytest.mark.parametrize("pool", ["mean", "cls", "lmk", "multicls"])
def test_a_context_is_cut_to_the_positions_that_its_chunk_leaves(
    tiny_model: Models, pool: str
) -> None:
    """Its end is cut. A chunk that fills the input has no context. Lost tokens are counted."""
    folder = tiny_model("bert")
    encoder = opened(folder, pool=pool, **ALONE, gran="given", context="field:f", max_length=16)
    context = "copper conducts electricity better than iron or lead " * 3
    chunks = ["birds migrate south", " ".join(["water"] * 20)]
    made = encoded(encoder, Doc("d", join_chunks(chunks), context=context))
    [ids] = encoder.tokenizer.contexts([context])
    placed, [of_contexts] = encoder.documents(
        [
            TokenRow(
                Doc("d", join_chunks(chunks), context=context),
                b"",
                *encoder.tokenizer([join_chunks(chunks)])[0],
            )
        ]
    )
    first, second = placed.inputs
    own = encoder.tokenizer([chunks[0]])[0].ids
    assert len(first.ids) == 16
    kept = len(ids) * 2 - of_contexts.lost
    assert first.ids.tolist()[1 : 1 + kept] == ids[:kept].tolist()
    assert first.ids.tolist()[1 + kept : 1 + kept + len(own)] == own.tolist()
    assert made.contexts == [of_contexts]
    assert of_contexts.tokens == 2 * len(ids)
    assert len(second.ids) == 16
    plain = opened(folder, pool=pool, **ALONE, gran="given", max_length=16)
    without = encoded(plain, Doc("d", join_chunks(chunks)))
    assert made.kept == without.kept
    np.testing.assert_allclose(made.vectors.vectors[1], without.vectors.vectors[1], atol=1e-6)


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_prompt_precedes_the_context(tiny_model: Models, name: str) -> None:
    folder = tiny_model(name)
    prompt = {"doc_prompt": "passage: "}
    alone = opened(folder, pool="mean", **ALONE, gran="given", context="field:f", **prompt)
    made = encoded(alone, Doc("d", join_chunks(["", "copper", "iron"]), context="Lead"))
    wanted = of_texts(opened(folder, pool="mean", **prompt), ["Lead\ncopper", "Lead\niron"])
    np.testing.assert_allclose(made.vectors.vectors[1:], wanted, atol=2e-6)


def test_queries_have_no_context(tiny_model: Models) -> None:
    recipe = resolve(
        RecipeOptions(
            model=str(tiny_model("bert")), pool="mean", **ALONE, gran="5", context="title"
        )
    ).recipe
    assert (recipe.doc.context, recipe.query.context) == ("title", "")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"unit": "chunk", "gran": "5"}, "--context title .*--window chunk .*--window full"),
        (
            {"unit": "chunk", "gran": "5", "window": "20"},
            "--context title .*--window chunk .*--window 20",
        ),
        ({}, "--context title .*--window chunk .*--window full"),
        (
            {"unit": "token", "gran": "5", "window": "chunk"},
            "--context title: .*--unit token, .*--unit chunk",
        ),
    ],
)
def test_contexts_need_separate_chunks(
    tiny_model: Models, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        resolve(
            RecipeOptions(model=str(tiny_model("bert")), pool="mean", context="title", **options)
        )


def test_an_unknown_context_is_refused(tiny_model: Models) -> None:
    with pytest.raises(UsageError, match=r"--context titel: .*field:NAME"):
        resolve(
            RecipeOptions(
                model=str(tiny_model("bert")), pool="mean", **ALONE, gran="5", context="titel"
            )
        )


# --- artifacts ------------------------------------------------------------------------------------


def corpus(path: Path, contexts: list[object]) -> str:
    lines = [
        json.dumps({"_id": f"d{n}", "chunks": ["copper", "iron ore"], "why": context})
        for n, context in enumerate(contexts)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def options_for(tiny_model: Models, context: str) -> RecipeOptions:
    return RecipeOptions(
        model=str(tiny_model("bert")), pool="mean", **ALONE, gran="given", context=context
    )


def test_an_update_encodes_a_changed_context(tiny_model: Models, tmp_path: Path) -> None:
    options = options_for(tiny_model, "field:why")
    file, folder = tmp_path / "c.jsonl", tmp_path / "v"
    source = corpus(file, ["rivers", ["birds", "bakers"], None])
    assert run_update(plan(source, options, FP32, WHOLE), folder)[1:] == (0, 3, 0)
    before = Vectors(folder).at(np.arange(3)).vectors
    corpus(file, ["rivers", ["birds", "bread"], None])
    assert run_update(plan(source, options, FP32, WHOLE), folder)[1:] == (2, 1, 1)
    found = Vectors(folder)
    assert found.docs(np.array([2])) == [Doc("d1", "copper\firon ore", context=("birds", "bread"))]
    fresh = tmp_path / "fresh"
    run_encode(plan(source, options, FP32, WHOLE), fresh)
    order = [Vectors(fresh).numbers()[name] for name in found.numbers()]
    after = found.at(np.arange(3)).vectors
    np.testing.assert_allclose(after, Vectors(fresh).at(np.array(order)).vectors, atol=1e-6)
    assert not np.allclose(after[5], before[3])
    counts = found.counts()
    assert counts == Vectors(fresh).counts()
    assert counts.context_tokens > 0 == counts.context_lost
    assert compact(folder, 0).written == 1
    assert Vectors(folder).counts() == counts
    assert Vectors(folder).docs(np.arange(3)) == found.docs(np.arange(3))
    assert verify(folder, 10, ModelSettings(device="cpu")).cosine > 0.99999


def test_a_list_of_contexts_of_another_length_is_refused(
    tiny_model: Models, tmp_path: Path
) -> None:
    source = corpus(tmp_path / "c.jsonl", ["rivers", ["birds"]])
    with pytest.raises(DataError, match=r"d1 .*2 chunks.*1 contexts.*'why'"):
        run_encode(plan(source, options_for(tiny_model, "field:why"), FP32, WHOLE), tmp_path / "v")


def test_another_context_is_another_recipe(tiny_model: Models, tmp_path: Path) -> None:
    source = corpus(tmp_path / "c.jsonl", ["rivers"])
    folder = tmp_path / "v"
    run_encode(plan(source, options_for(tiny_model, "headings"), FP32, WHOLE), folder)
    assert Vectors(folder).counts().context_tokens == 0
    with pytest.raises(Mismatch, match="context: 'headings'"):
        run_encode(plan(source, options_for(tiny_model, "title"), FP32, WHOLE), folder)


def test_tokens_can_be_encoded_with_contexts(
    tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    plain = RecipeOptions(model=str(tiny_model("bert")), pool="mean", **ALONE, gran="6")
    options = RecipeOptions(
        model=str(tiny_model("bert")), pool="mean", **ALONE, gran="6", context="title"
    )
    run_tokenize(plan(str(beir), plain, FP32, WHOLE), tmp_path / "t")
    run_encode(plan(str(tmp_path / "t"), options, FP32, WHOLE), tmp_path / "a")
    run_encode(plan(str(beir), options, FP32, WHOLE), tmp_path / "b")
    one, other = Vectors(tmp_path / "a"), Vectors(tmp_path / "b")
    assert one.collection_digest() == other.collection_digest()
    rows = np.arange(one.rows)
    np.testing.assert_allclose(one.at(rows).vectors, other.at(rows).vectors, atol=1e-6)
    assert one.counts() == other.counts()
    planned = forecast(plan(str(beir), options, FP32, WHOLE), silent)
    assert planned.vectors == one.counts().vectors
    assert planned.context_tokens == one.counts().context_tokens
    assert (planned.lost, planned.tokens) == (one.counts().lost, one.counts().tokens)
    with_field = RecipeOptions(
        model=str(tiny_model("bert")), pool="mean", **ALONE, gran="6", context="field:f"
    )
    with pytest.raises(UsageError, match="field 'f'"):
        plan(str(tmp_path / "t"), with_field, FP32, WHOLE)
    bare = EncodeSettings(store_text=False)
    run_tokenize(plan(str(beir), plain, bare, WHOLE), tmp_path / "bare")
    with pytest.raises(UsageError, match="--context title needs texts"):
        plan(str(tmp_path / "bare"), options, FP32, WHOLE)


def test_a_field_only_in_the_name_of_the_collection_is_refused(
    tiny_model: Models, tmp_path: Path
) -> None:
    source = corpus(tmp_path / "c.jsonl", ["rivers"])
    with pytest.raises(UsageError, match="add --context field:why"):
        plan(f"{source},context=why", options_for(tiny_model, "title"), FP32, WHOLE)
