"""Units and windows with real models: late chunking, separate chunks, windows, tokens, given chunks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer

from lmkcli.data.collection import CHUNK_BREAK, Doc, Query, join_chunks
from lmkcli.encoding.encoder import DocumentVectors, Encoder, open_encoder
from lmkcli.encoding.resolution import resolve
from lmkcli.errors import UsageError
from lmkcli.pooling.placement import Placer
from lmkcli.pooling.reductions import Marks, pool
from lmkcli.pooling.table import MEAN, SpecialTokens
from lmkcli.progress import Report
from lmkcli.spec.recipe import Recipe, RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.store.token_blocks import TokenRow
from lmkcli.system.input_files import decode
from tests import tiny

Models = Callable[[str], Path]
FP32 = EncodeSettings(dtype="fp32", device="cpu")
TEXT = " ".join(tiny.sentence(i, 9) for i in range(12))


def opened(folder: Path, **options: Any) -> Encoder:
    resolved = resolve(RecipeOptions(model=str(folder), **options))
    return open_encoder(resolved.recipe.doc, resolved.folder, FP32)


def encoded(encoder: Encoder, *texts: str) -> DocumentVectors:
    made = encoder.tokenizer(list(texts))
    rows = [TokenRow(Doc(str(i), ""), b"", *tokens) for i, tokens in enumerate(made)]
    return encoder(rows, Report())


def unit(vectors: Any) -> NDArray[np.float64]:
    made = np.asarray(vectors, np.float64)
    return made / np.linalg.norm(made, axis=-1, keepdims=True)


def states(folder: Path, ids: Any) -> torch.Tensor:
    model = AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        return model(input_ids=torch.tensor([list(map(int, ids))])).last_hidden_state[0]


def test_late_chunking_averages_each_chunk_of_one_forward_pass(tiny_model: Models) -> None:
    folder = tiny_model("bert")
    encoder = opened(folder, pool="mean", unit="chunk", gran="5")
    made = encoded(encoder, TEXT).vectors.vectors
    content = encoder.tokenizer([TEXT])[0].ids
    special = encoder.tokenizer.special
    seen = states(folder, [*special.prefix, *content, *special.suffix])
    first = len(special.prefix)
    bounds = [
        (first + i, min(first + i + 5, first + len(content))) for i in range(0, len(content), 5)
    ]
    bounds[0] = (0, bounds[0][1])  # without a prompt, CLS belongs to the first chunk
    wanted = unit(torch.stack([seen[a:b].mean(0) for a, b in bounds]))
    np.testing.assert_allclose(made, wanted, atol=1e-6)


def test_separate_chunks_have_the_vectors_of_texts(tiny_model: Models) -> None:
    folder = tiny_model("bert")
    sentences = [tiny.sentence(i, 4 + i) for i in range(5)]
    chunks = join_chunks(sentences)
    alone = opened(folder, pool="mean", unit="chunk", gran="given", window="chunk")
    whole = opened(folder, pool="mean")
    made = encoded(alone, chunks)
    np.testing.assert_allclose(
        made.vectors.vectors, encoded(whole, *sentences).vectors.vectors, atol=1e-6
    )
    assert made.spans is not None
    assert [chunks[a:b] for a, b in made.spans.tolist()] == sentences


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert"])
@pytest.mark.parametrize(("pool", "gran"), [("mean", None), ("cls", None), ("lmk", "6")])
def test_a_document_is_the_mean_of_the_vectors_of_its_windows(
    tiny_model: Models, name: str, pool: str, gran: str | None
) -> None:
    folder = tiny_model(name)
    encoder = opened(folder, pool=pool, gran=gran, window="20", normalize=None)
    made = encoded(encoder, TEXT, "short")
    assert made.kept[0] == len(encoder.tokenizer([TEXT])[0].ids)
    assert made.vectors.counts.tolist() == [1, 1]
    [placed] = encoder.placed(encoder.tokenizer([TEXT]))
    assert len(placed.inputs) > 3
    each = [states(folder, one.ids)[one.marks.tolist()].mean(0) for one in placed.inputs]
    np.testing.assert_allclose(made.vectors.vectors[0], unit(torch.stack(each).mean(0)), atol=1e-6)


def test_unit_token_makes_a_vector_for_every_token(tiny_model: Models) -> None:
    folder = tiny_model("bert")
    encoder = opened(folder, pool="mean", unit="token")
    made = encoded(encoder, TEXT, "")
    special = encoder.tokenizer.special
    ids = [*special.prefix, *encoder.tokenizer([TEXT])[0].ids, *special.suffix]
    assert made.vectors.counts.tolist() == [len(ids), 2]
    np.testing.assert_allclose(
        made.vectors.vectors[: len(ids)], unit(states(folder, ids)), atol=1e-6
    )


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "mpnet"])
@pytest.mark.parametrize(
    "options",
    [
        {"pool": "lmk", "gran": "7", "unit": "chunk"},
        {"pool": "mean", "gran": "sentence", "unit": "chunk", "window": "24", "overlap": 8},
        {"pool": "multicls", "gran": "5", "unit": "chunk", "window": "20"},
        {"pool": "mean", "gran": "5", "unit": "chunk", "window": "24", "overlap": "2c"},
        {"pool": "cls", "gran": "9", "unit": "chunk", "window": "chunk"},
        {"pool": "mean", "unit": "token", "window": "16", "overlap": 4},
    ],
)
def test_batches_do_not_change_vectors_and_spans_are_in_the_text(
    tiny_model: Models, name: str, options: dict[str, Any]
) -> None:
    texts = [TEXT, *tiny.STRANGE.values(), "", tiny.sentence(3, 30)]
    encoder = opened(tiny_model(name), **options)
    together = encoded(encoder, *texts)
    starts = together.vectors.starts
    for number, text in enumerate(texts):
        alone = encoded(encoder, text)
        mine = slice(starts[number], starts[number + 1])
        np.testing.assert_allclose(together.vectors.vectors[mine], alone.vectors.vectors, atol=2e-6)
        if together.spans is None:
            assert options["unit"] == "token"
            continue
        spans = together.spans[mine]
        assert (spans[:, 0] <= spans[:, 1]).all()
        assert (spans[:, 1] <= len(text)).all()
        assert (np.diff(spans[:, 0]) >= 0).all()


def test_given_chunks_are_joined_by_the_separator(tiny_model: Models) -> None:
    """[CLS] c0 [SEP] c1 [SEP], tokenized as one text. Spans refer to the original text."""
    for name in ("bert", "roberta", "modernbert"):
        folder = tiny_model(name)
        chunks = ["rivers carry silt", " a second, with a lead", "", "the last one  "]
        encoder = opened(folder, pool="mean", unit="chunk", gran="given")
        [made] = encoder.tokenizer([join_chunks(chunks)])
        tokenizer = AutoTokenizer.from_pretrained(folder)
        wanted = tokenizer(tokenizer.sep_token.join(chunks))["input_ids"]
        [placed] = encoder.placed([made])
        assert placed.inputs[0].ids.tolist() == wanted
        assert made.ends is not None
        assert len(made.ends) == 4
        spans = encoded(encoder, join_chunks(chunks)).spans
        assert spans is not None
        text = join_chunks(chunks)
        assert [text[a:b].strip() for a, b in spans.tolist()] == [c.strip() for c in chunks]


def test_the_span_of_an_empty_chunk_is_empty(tiny_model: Models) -> None:
    encoder = opened(tiny_model("bert"), pool="mean", unit="chunk", gran="given")
    text = join_chunks(["", "rivers carry silt", "", "copper", ""])
    spans = encoded(encoder, text).spans
    assert spans is not None
    assert [text[a:b] for a, b in spans.tolist()] == ["", "rivers carry silt", "", "copper", ""]


def test_form_feeds_within_a_chunk_become_spaces() -> None:
    assert join_chunks([f"a{CHUNK_BREAK}b", "c"]) == f"a b{CHUNK_BREAK}c"


def test_chunk_means_equal_those_of_the_official_conteb_code(parity: Callable[[str], Path]) -> None:
    """With random ids and states (arXiv 2505.24782 §4.1)."""
    numbers = np.load(parity("insent/insent.npz"))
    sep = json.loads(parity("insent/insent.json").read_text())["sep"]
    for ids, hidden, wanted, padding in zip(
        numbers["ids"], numbers["H"], numbers["chunks"], numbers["pad"], strict=True
    ):
        ends = np.flatnonzero(ids == sep)
        text = ids[1 : ends[-1]]
        content = text[text != sep].astype(np.int32)
        stops = (ends - 1 - np.arange(len(ends))).astype(np.int32)
        special = SpecialTokens((int(ids[0]),), (sep,), int(ids[0]), sep, sep)
        placer = Placer(MEAN, special, len(ids), "given", True, "chunk")
        placed = placer.place_text(content, ends=stops)
        [one] = placed.inputs
        assert one.ids.tolist() == ids[: ends[-1] + 1].tolist()
        marks, groups = (torch.from_numpy(each).long() for each in (one.marks, one.groups))
        made = pool(torch.from_numpy(hidden), Marks(marks, groups, np.bincount(one.groups)))
        existing = wanted[~padding]
        official = existing[
            np.linalg.norm(existing, axis=1) > 0
        ]  # the official code adds an empty chunk
        np.testing.assert_allclose(made.numpy(), official, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"pool": "cls", "unit": "chunk", "gran": "4"}, "--pool cls .*one vector.*--window chunk"),
        ({"pool": "mean@4", "unit": "chunk", "gran": "4"}, "--pool mean@4 .*k-th.*--window chunk"),
        ({"pool": "lmk", "unit": "token", "gran": "4"}, "--unit token .*--pool lmk .*--pool mean"),
        ({"pool": "mean", "unit": "chunk"}, "--unit chunk cuts text into chunks"),
        ({"pool": "mean", "window": "chunk"}, "--window chunk cuts text into chunks"),
        ({"pool": "mean", "unit": "word"}, "--unit word: .*doc, chunk, token"),
        ({"pool": "mean", "window": "0"}, "--window 0: .*full, chunk, .*512"),
        ({"pool": "mean", "window": "big"}, "--window big: .*full, chunk, .*512"),
        ({"pool": "mean", "window": "9999"}, "--window 9999: .*128 positions"),
        ({"pool": "mean", "window": "20", "max_length": 40}, "drop --max-length"),
        ({"pool": "mean", "overlap": 3}, "--overlap .*no effect.*--window full"),
        ({"pool": "mean", "window": "20", "overlap": 20}, "--overlap 20 .*smaller.*--window 20"),
        ({"pool": "mean", "window": "20", "overlap": "2c"}, "--overlap 2c .*--gran"),
        ({"pool": "mean", "window": "20", "overlap": "2x"}, "--overlap 2x: .*128, .*10c"),
        ({"pool": "model"}, "bert .*no vector.*--pool mean or cls"),
        (
            {"pool": "mean", "pad_to_max": True},
            "--pad-to-max .*no effect.*bert",
        ),
        ({"pool": "mean", "extend": "grouped"}, "--extend grouped .*--max-length"),
        (
            {"extend": "grouped:400", "max_length": 400},
            "--extend grouped:400: .*grouped, interpolate, recurrent, ntk, selfextend",
        ),
        (
            {"extend": "ntk", "max_length": 400},
            "--extend ntk .*rotary.*128; .*--extend grouped, interpolate or recurrent",
        ),
    ],
)
def test_combinations_without_a_meaning_are_refused_with_the_reason(
    tiny_model: Models, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        resolve(RecipeOptions(model=str(tiny_model("bert")), **options))


def test_queries_have_one_vector_except_with_unit_token(tiny_model: Models) -> None:
    folder = str(tiny_model("bert"))
    chunk = resolve(
        RecipeOptions(model=folder, pool="mean", unit="chunk", gran="sentence", window="chunk")
    ).recipe
    assert (chunk.query.unit, chunk.query.window, chunk.query.gran) == ("doc", "full", "")
    landmarks = resolve(RecipeOptions(model=folder, pool="lmk", unit="chunk", gran="8")).recipe
    assert (landmarks.query.unit, landmarks.query.gran) == ("doc", "8")
    token = resolve(RecipeOptions(model=folder, pool="mean", unit="token")).recipe
    assert token.query.unit == "token"
    for recipe in (chunk, landmarks, token):
        identity = json.loads(json.dumps(recipe.identity()))
        assert decode(identity, Recipe, "the recipe", "") == recipe


def test_unit_token_makes_several_vectors_for_each_query(tiny_model: Models) -> None:
    folder = tiny_model("bert")
    resolved = resolve(RecipeOptions(model=str(folder), pool="mean", unit="token"))
    encoder = open_encoder(resolved.recipe.query, resolved.folder, FP32)
    texts = [Query("1", "rivers"), Query("2", "copper wires in the rain")]
    made = encoder.queries(texts)
    lengths = [len(t.ids) + 2 for t in encoder.tokenizer([query.text for query in texts])]
    assert made.counts.tolist() == lengths


@pytest.mark.parametrize("gran", ["given", "5"])
def test_the_prompt_of_late_chunking_belongs_to_no_chunk(tiny_model: Models, gran: str) -> None:
    """A chunk is the mean over its own tokens (ConTEB, §4.1); the prefix is there once (App. B.1)."""
    folder = tiny_model("bert")
    chosen: dict[str, Any] = {
        "pool": "mean", "unit": "chunk", "gran": gran,
        "doc_prompt": "dense retrieval ", "query_prompt": "query ",
    }  # fmt: skip
    encoder = opened(folder, **chosen)
    text = join_chunks([tiny.sentence(1, 5), tiny.sentence(2, 5)]) if gran == "given" else TEXT
    made = encoded(encoder, text).vectors.vectors
    prompt = AutoTokenizer.from_pretrained(folder)("dense retrieval ")["input_ids"][:-1]
    chunk = AutoTokenizer.from_pretrained(folder)(tiny.sentence(1, 5) if gran == "given" else TEXT)
    first = chunk["input_ids"][1:-1][: None if gran == "given" else 5]
    rest = AutoTokenizer.from_pretrained(folder)(tiny.sentence(2, 5) if gran == "given" else TEXT)
    after = [3, *rest["input_ids"][1:]] if gran == "given" else rest["input_ids"][6:]
    given = states(folder, [*prompt, *first, *after])
    wanted = given[len(prompt) : len(prompt) + len(first)].mean(0)
    np.testing.assert_allclose(made[0], unit(wanted), atol=1e-5)
    recipe = resolve(RecipeOptions(model=str(folder), **chosen)).recipe
    assert (recipe.doc.prompt_apart, recipe.query.prompt_apart) == (True, False)
    assert recipe.doc.identity()["prompt_apart"]  # vectors of both kinds are not mixed
    alone = resolve(RecipeOptions(model=str(folder), window="chunk", **chosen)).recipe
    assert "prompt_apart" not in alone.doc.identity()
