"""Vectors do not depend on batches or order, and equal those of sentence-transformers."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from transformers import AutoModel, AutoTokenizer

import lmkcli
from lmkcli.data.collection import Doc, Query, open_collection
from lmkcli.encoding import encoder
from lmkcli.encoding.encoder import BatchRunner, Encoder, open_encoder
from lmkcli.encoding.jobs import plan
from lmkcli.encoding.resolution import resolve
from lmkcli.encoding.shard_run import run_encode
from lmkcli.errors import DataError, Mismatch, UnknownName, UsageError
from lmkcli.models.transformer import Transformer
from lmkcli.pooling.placement import PlacedBlock
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import WHOLE
from lmkcli.store.token_blocks import TokenRow
from lmkcli.vectors.stored import Vectors
from tests import tiny

Models = Callable[[str], Path]
Floats = NDArray[np.float32]
FP32 = EncodeSettings(dtype="fp32", device="cpu")
TEXTS = [*tiny.STRANGE.values(), *(tiny.sentence(i, 1 + 5 * i) for i in range(12)), ""]
POOLED = [
    *((pool, None) for pool in ("cls", "last", "mean", "mean@3")),
    ("multicls", "5"),
    ("lmk", "5"),
]


def opened(folder: Path, settings: EncodeSettings = FP32, **options: Any) -> Encoder:
    """Return the encoder of documents for a folder and options."""
    resolved = resolve(RecipeOptions(model=str(folder), **options))
    return open_encoder(resolved.recipe.doc, resolved.folder, settings)


def opened_query(folder: Path, **options: Any) -> Encoder:
    resolved = resolve(RecipeOptions(model=str(folder), **options))
    return open_encoder(resolved.recipe.query, resolved.folder, FP32)


def vectors(encoder: Encoder, texts: Sequence[str]) -> Floats:
    """Return the vectors of documents, as `lmk encode` computes them."""
    made = encoder.tokenizer(list(texts))
    rows = [TokenRow(Doc(str(i), ""), b"", *tokens) for i, tokens in enumerate(made)]
    return encoder(rows, Report()).vectors.vectors


def query_vectors(encoder: Encoder, texts: Sequence[str]) -> Floats:
    """Return the vectors of queries, as `lmk search` computes them."""
    return encoder.queries([Query(str(i), text) for i, text in enumerate(texts)]).vectors


def cosines(one: Floats, other: Floats) -> NDArray[np.float64]:
    a, b = one.astype(np.float64), other.astype(np.float64)
    return (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))


def test_a_buffer_is_small_enough_for_a_stop_to_lose_little(
    tiny_model: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = opened(tiny_model("bert"), EncodeSettings(dtype="fp32", device="cpu", batch_tokens=100))
    assert one.buffer_tokens == 3200
    for tokens, buffer in (
        (1000, 1000),
        (10, 100),
    ):  # larger models: fewer tokens, but at least a pack
        big = opened(tiny_model("bert"), one.runner.settings)
        monkeypatch.setitem(encoder.BUFFER_WORK, "cpu", tokens * big.model.weight_bytes)
        assert big.buffer_tokens == buffer


def test_buffers_that_run_ahead_have_the_same_vectors_and_progress(
    tiny_model: Models, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, the passes of the next buffer start before the vectors of the last one are fetched."""
    settings = EncodeSettings(dtype="fp32", device="cpu", batch_tokens=100)
    monkeypatch.setattr(encoder, "BUFFER_PACKS", 2)
    events: list[Any] = []
    states = Transformer.states
    monkeypatch.setattr(Transformer, "states", lambda *a: (events.append("pass"), states(*a))[1])
    made = []
    for name, patches in {
        "at-once": {},
        "launched": {BatchRunner: ("synchronous", False), Encoder: ("ahead", 0)},
        "ahead": {BatchRunner: ("synchronous", False)},
    }.items():
        with monkeypatch.context() as patched:
            for owner, (attribute, value) in patches.items():
                patched.setattr(owner, attribute, value)
            job = plan(str(beir), RecipeOptions(model=str(tiny_model("bert"))), settings, WHOLE)
            report = Report(lambda *event: events.append(event))
            run_encode(job, tmp_path / name, report)
        stored = Vectors(tmp_path / name)
        made.append((stored.at(np.arange(stored.rows)).vectors, events.copy()))
        events.clear()
    (expected, at_once), (_, launched), (vectors_ahead, ahead) = made
    np.testing.assert_array_equal(vectors_ahead, expected)
    assert sorted(map(str, ahead)) == sorted(map(str, at_once))
    done = [event[0] for event in ahead if event != "pass"]
    assert done == sorted(done)
    assert ahead[-1][:2] == (done[-1], done[-1])
    first = next(event for event in at_once if event != "pass")
    # the first vectors are fetched after one pass, after those of a buffer, after those of two buffers
    assert 1 == at_once.index(first) < launched.index(first) < ahead.index(first)


@pytest.mark.parametrize(("limit", "at_work"), [(1, 2), (3, 4), (10, 10)])
def test_vectors_in_pinned_memory_are_limited(
    tiny_model: Models, monkeypatch: pytest.MonkeyPatch, limit: int, at_work: int
) -> None:
    """A GPU is `ahead_bytes` ahead of the pack that is fetched, here `limit` of ten packs."""
    one = opened(tiny_model("bert"), replace(FP32, batch_size=4))
    placed = PlacedBlock.of(one.placed(one.tokenizer([tiny.sentence(i, 5) for i in range(40)])))
    passes: list[None] = []
    states = Transformer.states
    monkeypatch.setattr(Transformer, "states", lambda *a: (passes.append(None), states(*a))[1])
    monkeypatch.setattr(BatchRunner, "synchronous", False)
    runner = replace(one.runner, ahead_bytes=limit * 4 * one.dim * 4)
    found = runner(placed.inputs, str, print)
    assert len(passes) == limit
    counts = [len(passes) - fetched for fetched, _ in enumerate(found)]
    assert counts == [min(at_work, 10 - fetched) for fetched in range(10)]


# --- reproducibility -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "mpnet"])
@pytest.mark.parametrize(("pool", "gran"), [("mean", None), ("lmk", "5")])
def test_vectors_do_not_depend_on_batches_or_order(
    tiny_model: Models, name: str, pool: str, gran: str | None
) -> None:
    wanted = vectors(opened(tiny_model(name), pool=pool, gran=gran), TEXTS)
    order = np.random.default_rng(0).permutation(len(TEXTS))
    for tokens, size in ((1, 512), (100, 3), (8192, 1), (8192, 512)):
        settings = EncodeSettings(dtype="fp32", device="cpu", batch_tokens=tokens, batch_size=size)
        encoder = opened(tiny_model(name), settings, pool=pool, gran=gran)
        made = vectors(encoder, [TEXTS[i] for i in order])
        np.testing.assert_allclose(made, wanted[order], rtol=0, atol=1e-6)


def test_documents_and_queries_have_the_same_vectors(tiny_model: Models) -> None:
    encoder = opened(tiny_model("bert"), pool="lmk", gran="5")
    np.testing.assert_allclose(
        query_vectors(encoder, TEXTS), vectors(encoder, TEXTS), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(("pool", "gran"), POOLED)
def test_every_pooler_makes_unit_vectors_of_every_text(
    tiny_model: Models, pool: str, gran: str | None
) -> None:
    encoder = opened(tiny_model("bert"), pool=pool, gran=gran)
    made = vectors(encoder, [*TEXTS, tiny.sentence(3, 400)])
    assert made.shape == (len(TEXTS) + 1, tiny.WIDTH)
    np.testing.assert_allclose(np.linalg.norm(made, axis=1), 1, rtol=1e-6)


def test_the_number_of_kept_tokens(tiny_model: Models) -> None:
    encoder = opened(tiny_model("bert"), max_length=20)
    texts = [tiny.sentence(1, 3), tiny.sentence(2, 300)]
    made = encoder.tokenizer(texts)
    rows = [TokenRow(Doc(str(i), ""), b"", *tokens) for i, tokens in enumerate(made)]
    assert encoder(rows, Report()).kept == [len(made[0].ids), 18]


# --- computed by hand -----------------------------------------------------------------------------


def states(folder: Path, ids: Sequence[int]) -> torch.Tensor:
    model = AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        return model(torch.tensor([list(ids)])).last_hidden_state[0]


def unit(vector: torch.Tensor) -> Floats:
    return torch.nn.functional.normalize(vector, dim=-1).numpy()


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert"])
@pytest.mark.parametrize("gran", [1, 4, 1000])
def test_landmark_pooling_is_the_mean_at_a_sep_after_each_chunk(
    tiny_model: Models, name: str, gran: int
) -> None:
    folder = tiny_model(name)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tiny.sentence(5, 9)
    content = tokenizer(text, add_special_tokens=False).input_ids
    ids = [tokenizer.cls_token_id]
    landmarks = []
    for start in range(0, len(content), gran):
        ids += [*content[start : start + gran], tokenizer.sep_token_id]
        landmarks.append(len(ids) - 1)
    wanted = unit(states(folder, ids)[landmarks].mean(0))
    made = vectors(
        opened(folder, pool="lmk", gran=str(gran)), ["short", text, tiny.sentence(2, 30)]
    )
    np.testing.assert_allclose(made[1], wanted, rtol=0, atol=2e-6)


def test_a_plain_decoder_is_pooled_at_an_appended_eos(tiny_model: Models) -> None:
    folder = tiny_model("qwen2")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [*tokenizer(TEXTS[0]).input_ids, tokenizer.eos_token_id]
    made = vectors(opened(folder), TEXTS[:3])
    np.testing.assert_allclose(made[0], unit(states(folder, ids)[-1]), rtol=0, atol=2e-6)


def test_the_pooling_of_a_plain_folder_is_reported_as_a_guess(tiny_model: Models) -> None:
    encoder = resolve(RecipeOptions(model=str(tiny_model("bert"))))
    decoder = resolve(RecipeOptions(model=str(tiny_model("qwen2"))))
    assert (encoder.recipe.doc.pool, decoder.recipe.doc.pool) == ("mean", "last")
    assert "declares no pooling" in encoder.notes[0]
    assert "--pool" in decoder.notes[0]


def test_vectors_are_cut_before_they_are_normalised(tiny_model: Models) -> None:
    whole = vectors(opened(tiny_model("bert"), normalize=None), TEXTS[:5])
    first = vectors(opened(tiny_model("bert"), dim=7), TEXTS[:5])
    np.testing.assert_allclose(first, unit(torch.from_numpy(whole[:, :7])), rtol=0, atol=1e-6)


# --- sentence-transformers ------------------------------------------------------------------------

PROMPTS = {"query": "river water:", "document": "copper,"}
DEFAULT = {"prompts": {"any": "a river "}, "default_prompt_name": "any"}


def saved(folder: Path, source: Path, more: Sequence[torch.nn.Module] = (), **how: Any) -> Path:
    """Save a folder with sentence-transformers: Transformer, Pooling and `more`."""
    pooling = {key: how.pop(key) for key in ("pooling_mode", "include_prompt") if key in how}
    inner = {key: how.pop(key) for key in ("max_seq_length", "do_lower_case") if key in how}
    transformer = modules.Transformer(str(source), **inner)
    parts = [transformer, modules.Pooling(tiny.WIDTH, **pooling), *more]
    SentenceTransformer(modules=parts, device="cpu", **how).save(str(folder))
    return folder


def dense(width: int = 24) -> modules.Dense:
    torch.manual_seed(3)
    return modules.Dense(tiny.WIDTH, width, activation_function=torch.nn.Tanh())


def check_parity(folder: Path, least: float = 0.99999) -> None:
    """Compare documents and queries, with the prompts of the folder, with sentence-transformers."""
    theirs = SentenceTransformer(str(folder), device="cpu")
    texts = [text for text in TEXTS if text]
    assert cosines(vectors(opened(folder), texts), theirs.encode_document(texts)).min() >= least
    found = query_vectors(opened_query(folder), texts)
    assert cosines(found, theirs.encode_query(texts)).min() >= least


@pytest.mark.parametrize(
    "how",
    [
        {"pooling_mode": "mean"},
        {"pooling_mode": "cls"},
        {"pooling_mode": "lasttoken"},
        {"pooling_mode": "mean", "prompts": PROMPTS},
        {"pooling_mode": "cls", "prompts": PROMPTS},
        {"pooling_mode": "mean", "prompts": PROMPTS, "include_prompt": False},
        {"pooling_mode": "mean", **DEFAULT},
        {"pooling_mode": "mean", "max_seq_length": 11},
        {"pooling_mode": "mean", "max_seq_length": 11, "prompts": PROMPTS, "include_prompt": False},
    ],
    ids=lambda how: "-".join(map(str, [how["pooling_mode"], *list(how)[1:]])),
)
@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_saved_folder_has_the_vectors_of_sentence_transformers(
    tiny_model: Models, tmp_path: Path, name: str, how: dict[str, Any]
) -> None:
    check_parity(saved(tmp_path / "st", tiny_model(name), **how))


def test_dense_and_normalize_follow_the_pooling(tiny_model: Models, tmp_path: Path) -> None:
    more = [dense(), modules.Dense(24, 12, bias=False, activation_function=torch.nn.Identity())]
    folder = saved(
        tmp_path / "st", tiny_model("bert"), [*more, modules.Normalize()], prompts=PROMPTS
    )
    check_parity(folder)
    assert opened(folder).dim == 12
    norms = np.linalg.norm(vectors(opened(folder), TEXTS), axis=1)
    np.testing.assert_allclose(norms, 1, rtol=1e-6)


def test_layer_norm_follows_the_pooling(tiny_model: Models, tmp_path: Path) -> None:
    norm = modules.LayerNorm(tiny.WIDTH)
    torch.nn.init.normal_(norm.norm.weight)
    check_parity(saved(tmp_path / "st", tiny_model("bert"), [norm]))


def test_dim_equals_the_truncation_of_sentence_transformers(
    tiny_model: Models, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "st", tiny_model("bert"), [dense()])
    theirs = SentenceTransformer(str(folder), device="cpu", truncate_dim=9).encode(TEXTS[:8])
    made = vectors(opened(folder, dim=9), TEXTS[:8])
    assert made.shape == (8, 9)
    assert cosines(made, theirs).min() >= 0.99999


def test_dot_similarity_keeps_lengths(tiny_model: Models, tmp_path: Path) -> None:
    folder = saved(tmp_path / "st", tiny_model("bert"), similarity_fn_name="dot")
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS[:8])
    made = opened(folder)
    assert made.side.similarity == "dot"
    assert not made.side.normalize
    np.testing.assert_allclose(vectors(made, TEXTS[:8]), theirs, rtol=1e-4, atol=1e-5)


def test_a_decoder_that_declares_lasttoken_gets_no_eos(tiny_model: Models, tmp_path: Path) -> None:
    folder = saved(tmp_path / "st", tiny_model("mistral"), pooling_mode="lasttoken")
    assert not opened(folder).side.append_eos
    check_parity(folder)


def test_the_folder_declares_lower_case(tiny_model: Models, tmp_path: Path) -> None:
    folder = saved(tmp_path / "st", tiny_model("roberta"), do_lower_case=True)
    texts = ["Rivers CARRY water", "\u00c9T\u00c9 \u0130stanbul"]
    theirs = SentenceTransformer(str(folder), device="cpu").encode(texts)
    assert cosines(vectors(opened(folder), texts), theirs).min() >= 0.99999
    assert cosines(vectors(opened(tiny_model("roberta")), texts), theirs).min() < 0.999


def test_minilm_has_the_vectors_of_sentence_transformers(minilm: Path) -> None:
    """With real texts of many lengths: docstrings of this Python."""
    docs = sorted((doc.content for doc in open_collection("stdlib/functions").docs()), key=len)
    texts = docs[:: len(docs) // 24]
    resolved = resolve(RecipeOptions(model="minilm"))
    assert resolved.folder.path == minilm
    theirs = SentenceTransformer(str(minilm), device="cpu").encode(texts)
    # a CPU without instructions for bf16 takes ten times as long, so few texts are compared
    for dtype, least, step in (("fp32", 0.9999, 1), ("bf16", 0.999, 4)):
        settings = EncodeSettings(dtype=dtype, device="cpu")
        encoder = open_encoder(resolved.recipe.doc, resolved.folder, settings)
        assert cosines(vectors(encoder, texts[::step]), theirs[::step]).min() >= least


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("markless", {"pool": "lmk", "gran": "8"}, "SEP or EOS"),
        ("markless", {"pool": "multicls", "gran": "8"}, "CLS or BOS"),
        ("markless", {"pool": "cls"}, "--pool cls .*special token.*mean or last"),
        ("qwen2", {"pool": "cls"}, "--pool cls .*special token.*mean or last"),
        ("bert", {"pool": "lmk"}, "--gran"),
        ("bert", {"pool": "mean", "gran": "8"}, "--gran 8 has no effect"),
        ("bert", {"pool": "lmk", "gran": "0"}, "--gran 0"),
        ("bert", {"pool": "lmk", "gran": "word"}, "--gran word"),
        ("bert", {"pool": "mean@0"}, "mean@k"),
        ("bert", {"dim": 33}, "--dim 33: .*32 dimensions"),
        ("bert", {"max_length": 129}, "--max-length 129: .*128 positions"),
        ("roberta", {"max_length": 129}, "--max-length 129: .*128 positions"),
        ("bert", {"query_max_length": 129}, "--query-max-length 129: .*128 positions"),
        ("bert", {"normalize": False}, "scored by cosine"),
    ],
)
def test_options_that_a_model_cannot_follow_are_usage_errors(
    tiny_model: Models, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        opened(tiny_model(name), **options)


@pytest.mark.parametrize(
    "options",
    [
        {"pool": "lmk", "gran": "4"},
        {"pool": "lmk", "gran": "4", "window": "16", "overlap": "5"},
        {"pool": "lmk", "gran": "sentence", "doc_prompt": "text: "},
        {"pool": "lmk", "gran": "60", "max_length": 30},  # no landmark fits
        {"pool": "multicls", "gran": "5", "dim": 8},
        {"pool": "mean", "window": "12"},
        {"pool": "cls"},
    ],
)
def test_the_shares_of_chunks_sum_to_the_vector(
    tiny_model: Models, options: dict[str, Any]
) -> None:
    one = opened(tiny_model("bert"), **options)
    texts = [*TEXTS[-4:], "One is here. Two is there. " + TEXTS[-3]]
    for text, vector in zip(texts, vectors(one, texts), strict=True):
        (tokens,) = one.tokenizer([text])
        row = TokenRow(Doc("d", text), b"", *tokens)
        shares = one.shares(row, 1000)
        assert shares is not None
        np.testing.assert_allclose(shares.vectors.sum(0), vector, atol=1e-6)
        assert (np.diff(shares.spans[:, 0]) > 0).all()
        if text and "gran" in options and options.get("gran") not in ("60", "sentence"):
            size = int(options["gran"])
            assert len(shares.spans) == -(-len(row.ids) // size)
            ranges = [(at, min(at + size, len(row.ids))) for at in range(0, len(row.ids), size)]
            expected = row.characters(np.array(ranges, np.int32))
            np.testing.assert_array_equal(shares.spans, expected)


def test_a_share_is_that_of_the_state_of_its_landmark(tiny_model: Models, tmp_path: Path) -> None:
    folder = saved(tmp_path / "dot", tiny_model("bert"), similarity_fn_name="dot")
    text = TEXTS[-2]
    apart = opened(folder, pool="lmk", gran="4", unit="chunk")
    (tokens,) = apart.tokenizer([text])
    row = TokenRow(Doc("d", text), b"", *tokens)
    landmarks = apart([row], Report()).vectors.vectors
    shares = opened(folder, pool="lmk", gran="4").shares(row, 1000)
    assert shares is not None
    np.testing.assert_allclose(shares.vectors, landmarks / len(landmarks), atol=1e-6)
    windows = opened(folder, pool="lmk", gran="4", window="16", overlap="5")
    shares = windows.shares(row, 1000)
    assert shares is not None
    np.testing.assert_allclose(shares.vectors.sum(0), vectors(windows, [text])[0], atol=1e-6)


def test_some_vectors_have_no_shares(tiny_model: Models, tmp_path: Path) -> None:
    folder = tiny_model("bert")
    (tokens,) = opened(folder).tokenizer([TEXTS[-2]])
    row = TokenRow(Doc("d", TEXTS[-2]), b"", *tokens)
    assert opened(folder, pool="lmk", gran="4").shares(row, 5) is None  # too long
    assert opened(folder, unit="chunk", gran="4").shares(row, 1000) is None
    tanh = modules.Dense(32, 24, activation_function=torch.nn.Tanh())
    for number, module in enumerate((tanh, modules.LayerNorm(32))):
        other = saved(tmp_path / str(number), folder, [module])
        assert opened(other).shares(row, 1000) is None
    linear = modules.Dense(32, 24, activation_function=torch.nn.Identity())
    one = opened(saved(tmp_path / "linear", folder, [linear]), pool="lmk", gran="4")
    shares = one.shares(row, 1000)
    assert shares is not None
    np.testing.assert_allclose(shares.vectors.sum(0), vectors(one, [TEXTS[-2]])[0], atol=1e-6)


def test_a_declared_length_is_reduced_to_the_positions(tiny_model: Models, tmp_path: Path) -> None:
    assert opened(tiny_model("roberta")).side.max_length == 128  # of 130 rows, two of them unused
    folder = saved(tmp_path / "st", tiny_model("bert"))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 4096}')
    assert opened(folder).side.max_length == 128
    assert opened(tiny_model("modernbert")).side.max_length == 4096


def test_the_error_of_an_unknown_pooler_suggests_the_nearest(tiny_model: Models) -> None:
    with pytest.raises(UnknownName, match="did you mean lmk"):
        opened(tiny_model("bert"), pool="lmkk")


def test_dim_is_limited_by_the_last_module(tiny_model: Models, tmp_path: Path) -> None:
    folder = saved(tmp_path / "st", tiny_model("bert"), [dense(24)])
    with pytest.raises(UsageError, match="makes vectors of 24 dimensions"):
        opened(folder, dim=25)


def test_another_similarity_is_refused(tiny_model: Models, tmp_path: Path) -> None:
    folder = saved(tmp_path / "st", tiny_model("bert"), similarity_fn_name="manhattan")
    with pytest.raises(UsageError, match="manhattan"):
        opened(folder)


@pytest.mark.parametrize(
    ("file", "name"), [("model.safetensors", "weights"), ("tokenizer.json", "tokenizer")]
)
def test_another_model_than_that_of_the_recipe_is_a_mismatch(
    tiny_model: Models, tmp_path: Path, file: str, name: str
) -> None:
    side = resolve(RecipeOptions(model=str(tiny_model("bert")))).recipe.doc
    other = shutil.copytree(tiny_model("bert"), tmp_path / "other")
    data = bytearray((other / file).read_bytes())
    data[-2] ^= 1
    (other / file).write_bytes(bytes(data))
    with pytest.raises(Mismatch, match=f"the {name} of .*--model"):
        open_encoder(side, resolve(RecipeOptions(model=str(other))).folder, FP32)


def test_the_error_of_a_missing_model_shows_the_spelling() -> None:
    with pytest.raises(DataError, match="organisation/name"):
        resolve(RecipeOptions(model="./no-such-folder"))
    with pytest.raises(DataError, match="cache"):
        resolve(RecipeOptions(model="nobody/no-such-model"), offline=True)


def test_the_error_of_a_non_finite_query_names_it(tiny_model: Models, tmp_path: Path) -> None:
    folder = tiny_model("bert")
    model = AutoModel.from_pretrained(folder)
    token = AutoTokenizer.from_pretrained(folder)("copper", add_special_tokens=False).input_ids[0]
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[token] = torch.nan
    shutil.copytree(folder, tmp_path / "nan")
    model.save_pretrained(tmp_path / "nan")
    with pytest.raises(DataError, match=r"query broken .*finite"):
        opened(tmp_path / "nan").queries([Query("fine", "rivers"), Query("broken", "copper")])


def test_missing_weights_are_an_error_and_never_random(tiny_model: Models, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model("bert"), tmp_path / "shape")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(DataError, match=r"lack 16 tensors.*encoder\.layer\.2"):
        opened(folder)


def test_weights_of_another_shape_are_a_data_error(tiny_model: Models, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model("bert"), tmp_path / "shape")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 300}))
    with pytest.raises(DataError, match=r"do not fit.*tensor embeddings\.word_embeddings\.weight"):
        opened(folder)


# --- memory ---------------------------------------------------------------------------------------


class Small:
    """A model on a device with memory for `capacity` positions. Records the positions of its passes."""

    def __init__(self, model: Any, capacity: int) -> None:
        self._model, self._capacity = model, capacity
        self.ran: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def states(
        self, sequences: list[Any], attended: list[int] | None = None, positions: None = None
    ) -> torch.Tensor:
        assert attended is positions is None
        positions = sum(map(len, sequences))
        if positions > self._capacity:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.ran.append(positions)
        return self._model.states(sequences)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["bert", "mpnet"])  # packed, padded
def test_out_of_memory_halves_the_packs_and_keeps_the_vectors(
    tiny_model: Models, name: str
) -> None:
    encoder = opened(tiny_model(name), EncodeSettings(dtype="fp32", device="cpu", batch_tokens=640))
    texts = [tiny.sentence(i, 5 + i % 40) for i in range(60)]
    wanted = vectors(encoder, texts)
    encoder.runner.forward.model = Small(encoder.model, 200)
    notes: list[str] = []
    made = encoder.tokenizer(texts)
    rows = [TokenRow(Doc(str(i), ""), b"", *tokens) for i, tokens in enumerate(made)]
    for _ in range(2):  # the second time starts with the smaller packs
        again = encoder(rows, Report(note=notes.append)).vectors.vectors
        np.testing.assert_allclose(again, wanted, rtol=0, atol=1e-6)
    assert 1 <= len(notes) <= 3
    assert "out of memory on cpu" in notes[0]
    assert encoder.runner.settings.batch_tokens <= 320
    assert len(encoder.model.ran) < 2 * len(texts)  # packs, not one text at a time
    np.testing.assert_allclose(query_vectors(encoder, texts), wanted, rtol=0, atol=1e-6)


def test_the_error_of_a_text_that_does_not_fit_names_it(tiny_model: Models) -> None:
    encoder = opened(tiny_model("bert"))
    encoder.runner.forward.model = Small(encoder.model, 20)
    with pytest.raises(DataError, match=r"11 alone"):
        vectors(encoder, [tiny.sentence(i, 1 + 5 * i) for i in range(12)])


@pytest.mark.parametrize("side", ["documents", "queries"])
@pytest.mark.parametrize(
    "given",
    ["green tea", b"green tea", None, {"d1": "tea"}, ["tea", None], ["tea", float("nan")], [["tea"]],
     [{"text": "tea"}], pl.DataFrame({"text": ["tea"]}), [1]],
    ids=repr,
)  # fmt: skip
def test_only_texts_are_encoded(tiny_model: Models, given: Any, side: str) -> None:
    """A single text would become a vector for each of its letters, a table one for each column."""
    encoder = lmkcli.load_encoder(str(tiny_model("bert")), offline=True)
    with pytest.raises(UsageError, match=r"a list of texts is expected|give only texts"):
        getattr(encoder, f"encode_{side}")(given)
