"""The conformance table: each family of models makes the vectors of sentence-transformers.

Or lmk refuses the model with a sentence. Vectors are compared alone, in packs with long texts, and in
another order; sentence-transformers reads each text alone.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

import lmkcli
from lmkcli.data.collection import WHOLE, open_collection
from lmkcli.data.run import read_run
from lmkcli.encoding.resolution import UNDECLARED, resolve
from lmkcli.encoding.sentence_folder import export_model
from lmkcli.errors import DataError, UsageError
from lmkcli.models.forward import ModelOptions
from lmkcli.models.lookup import read_model
from lmkcli.models.transformer import open_model
from lmkcli.spec.recipe import RecipeOptions
from tests import tiny
from tests.conftest import Lmk
from tests.levels import pairs, sample
from tests.models.families import FAMILIES, WIDTH, add_pooling, save

LENGTH = 48
TEXTS = [
    "green tea",
    tiny.sentence(3, 200),  # longer than the length
    "",
    " a space at both ends \n",
    tiny.sentence(7, 30),
    "x",
    "\n\n",
    "Straße, café  and   spaces",
    "a [MASK] or <mask>, </s> or [SEP] in the text",
]
PROMPTS = {
    "none": {},
    "both": {"query": "query: ", "document": "text: "},
    "other": {"passage": "p: "},
}
NEAR = 1e-5


def by_sentence_transformers(folder: Path, side: str, texts: list[str]) -> NDArray[np.float32]:
    """Return the vectors of sentence-transformers, each text read alone by a model without a history."""
    made = []
    fp32 = {"dtype": torch.float32}
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs=fp32)
    config = folder / "config.json"
    stateful = config.is_file() and "dynamic" in config.read_text()
    for text in texts:
        if stateful:
            model = SentenceTransformer(str(folder), device="cpu", model_kwargs=fp32)
        encode = getattr(model, f"encode_{side}")
        made.append(encode([text], normalize_embeddings=True, show_progress_bar=False)[0])
    return np.stack(made)


def check(folder: Path, side: str, texts: list[str] = TEXTS) -> None:
    """Compare the vectors of all texts together, in another order, and each alone."""
    expected = by_sentence_transformers(folder, side, texts)
    encoder = lmkcli.load_encoder(
        str(folder), settings=lmkcli.EncodeSettings(dtype="fp32", device="cpu"), offline=True
    )
    encode = encoder.encode_documents if side == "document" else encoder.encode_queries
    together = encode(texts).vectors
    turned = encode(texts[::-1]).vectors[::-1]
    alone = np.concatenate([encode([text]).vectors for text in texts])
    for name, made in (("together", together), ("turned", turned), ("alone", alone)):
        apart = np.abs(made - expected).max(1)
        wrong = {texts[i][:20]: float(apart[i]) for i in np.flatnonzero(apart > NEAR)}
        assert not wrong, f"{name}: {wrong}"


POOLINGS: list[str | list[str]] = [
    *("mean", "cls", "lasttoken", "max", "weightedmean", "mean_sqrt_len_tokens"),
    ["cls", "mean"],
    ["mean", "max"],
    ["lasttoken", "weightedmean", "cls"],
]
CASES = itertools.product(FAMILIES, ["mean", "cls", "lasttoken"], PROMPTS, ["document", "query"])


@pytest.mark.parametrize(("family", "pool", "prompts", "side"), sample("families", CASES, 5))
def test_families(tmp_path: Path, family: str, pool: str, prompts: str, side: str) -> None:
    row = FAMILIES[family]
    if pool == "cls" and row.tokenizer()("x").input_ids[0] not in (0, 1, 2):
        pool = "mean"  # the tokenizer has no special token before a text
    folder = add_pooling(save(tmp_path / "model", family), pool, LENGTH, prompts=PROMPTS[prompts])
    read = row.tokenizer()
    check(
        folder, side, [text for text in TEXTS if read(text).input_ids]
    )  # the library needs a token


@pytest.mark.parametrize(
    ("family", "pool", "prompted", "padding"),
    pairs(
        family=("BERT", "Qwen3", "T5"),
        pool=tuple(range(len(POOLINGS))),
        prompted=(True, False),
        padding=("left", "right"),
    ),
)
def test_poolings(tmp_path: Path, family: str, pool: int, prompted: bool, padding: str) -> None:
    """Each pooling, with and without the states of the prompt, for both sides of padding."""
    folder = save(tmp_path / "model", family)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"padding_side": padding}))
    more = {"include_prompt": prompted, "prompts": PROMPTS["both"]}
    add_pooling(folder, POOLINGS[pool], LENGTH, **more)
    texts = [text for text in TEXTS if text.strip() or prompted]
    if "cls" in POOLINGS[pool] and FAMILIES[family].tokenizer()("x").input_ids[0] not in (0, 1, 2):
        with pytest.raises(
            UsageError, match="needs a tokenizer with a special token before the text"
        ):
            check(folder, "document", texts)
        return
    check(folder, "document", texts)
    resolved = resolve(RecipeOptions(model=str(folder)), offline=True)
    export_model(resolved, tmp_path / "out")
    made = by_sentence_transformers(tmp_path / "out", "document", texts)
    np.testing.assert_allclose(made, by_sentence_transformers(folder, "document", texts), atol=NEAR)


# Where the length of a text is declared: max_seq_length, and model_max_length of the tokenizer
LENGTHS: dict[str, tuple[int | None, int | None]] = {
    "larger than the positions": (4096, None),
    "nowhere": (None, None),
    "by the tokenizer": (None, 21),
    "by both": (LENGTH, 21),
    "larger in the tokenizer": (LENGTH, 1000),
}


def longest(folder: Path, text: str) -> int:
    """Return the length at which sentence-transformers cuts a text, or the longest one that it can read."""
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    declared = model.max_seq_length
    assert declared is not None
    if declared > 10**6:
        return UNDECLARED  # neither the model nor its tokenizer declares a length, and lmk notes it
    for length in (declared, *range(130, 100, -1)):
        model.max_seq_length = length
        try:
            model.encode([text], show_progress_bar=False)
        except (IndexError, RuntimeError):  # its table of positions is shorter
            continue
        return length
    raise AssertionError


ALL_LENGTHS = itertools.product(FAMILIES, LENGTHS, ["left", "right"])


@pytest.mark.parametrize(("family", "declared", "padding"), sample("lengths", ALL_LENGTHS, 5))
def test_lengths_of_families(tmp_path: Path, family: str, declared: str, padding: str) -> None:
    """The declared length, up to the last position of the model, for both sides of padding."""
    length, by_tokenizer = LENGTHS[declared]
    folder = add_pooling(save(tmp_path / "model", family), "mean", length)
    file = folder / "tokenizer_config.json"
    changes = {"padding_side": padding} | (
        {"model_max_length": by_tokenizer} if by_tokenizer else {}
    )
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    texts = [text for text in TEXTS if FAMILIES[family].tokenizer()(text).input_ids]
    limit = longest(folder, TEXTS[1])
    resolved = resolve(RecipeOptions(model=str(folder)), offline=True)
    assert min(resolved.recipe.doc.max_length, 4096) == limit
    assert any("declares a length" in note for note in resolved.notes) == (limit == UNDECLARED)
    encoder = lmkcli.load_encoder(
        str(folder), settings=lmkcli.EncodeSettings(dtype="fp32", device="cpu"), offline=True
    )
    made = encoder.encode_documents(texts).vectors
    shown = folder / "sentence_bert_config.json"
    shown.write_text(json.dumps({"max_seq_length": limit, "do_lower_case": False}))
    expected = by_sentence_transformers(folder, "document", texts)
    np.testing.assert_allclose(made, expected, atol=NEAR)


@pytest.mark.parametrize("family", ["OPT", "GPT-J", "RoFormer", "RoBERTa", "GPT-2"])
def test_a_length_has_at_most_the_positions_of_the_table(tmp_path: Path, family: str) -> None:
    folder = add_pooling(save(tmp_path / "model", family), "mean", 4096)
    doc = resolve(RecipeOptions(model=str(folder)), offline=True).recipe.doc
    assert doc.max_length == (126 if family == "RoBERTa" else 128)


WEIGHTS = itertools.product(
    FAMILIES, ["bfloat16", "float16", "float64", "in parts", "pickled", "pickled in parts"]
)


@pytest.mark.parametrize(("family", "kind"), sample("weights", WEIGHTS, 5))
def test_weights_of_families(tmp_path: Path, family: str, kind: str) -> None:
    """Each dtype and each form of a checkpoint; both libraries compute in fp32."""
    dtype = kind if kind.startswith(("bfloat", "float")) else "float32"
    parts = {"max_shard_size": 20_000} if kind.endswith("in parts") else {}
    folder = save(tmp_path / "model", family, dtype=dtype, **parts)
    if kind.startswith("pickled"):
        for file in folder.glob("*.safetensors"):
            name = file.name.replace("model", "pytorch_model", 1).replace(".safetensors", ".bin")
            torch.save(load_file(file), folder / name)
            file.unlink()
        for index in folder.glob("*.safetensors.index.json"):
            listed = index.read_text().replace(".safetensors", ".bin")
            (folder / "pytorch_model.bin.index.json").write_text(
                listed.replace("model-", "pytorch_model-")
            )
            index.unlink()
    assert kind.endswith("in parts") == bool(list(folder.glob("*.index.json")))
    add_pooling(folder, "mean", LENGTH)
    check(
        folder,
        "document",
        [text for text in TEXTS[:5] if FAMILIES[family].tokenizer()(text).input_ids],
    )


@pytest.mark.parametrize("family", sample("runs", FAMILIES, 3))
def test_each_family_runs_as_the_table_says(tmp_path: Path, family: str) -> None:
    model = open_model(read_model(str(save(tmp_path, family))), ModelOptions("fp32", "cpu"))
    runs = "packed" if model.packed else {"any": "padded", "equal": "equal"}[model.together]
    assert runs == FAMILIES[family].runs


# Settings of files that change vectors, for a tokenizer of bytes: the keys of sentence_bert_config.json, then
# those of tokenizer_config.json
OBEYED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cut at the left": ({}, {"truncation_side": "left"}),
    "cut at the left, by options": ({"processor_kwargs": {"truncation_side": "left"}}, {}),
    "old options": ({"tokenizer_args": {"truncation_side": "left", "padding_side": "left"}}, {}),
    "length by options": ({"processor_kwargs": {"model_max_length": 20}}, {}),
    "lengths of both sides": ({"query_length": 9, "document_length": 17}, {}),
    "length of texts": ({"processing_kwargs": {"text": {"max_length": 11}}}, {}),
    "lower case": ({"do_lower_case": True}, {}),
    "no length": ({"max_seq_length": None}, {}),
    "length of the tokenizer": ({"max_seq_length": None}, {"model_max_length": 13}),
    "padding at the left": ({}, {"padding_side": "left"}),
}


SIDES = itertools.product(OBEYED, ["document", "query"])


@pytest.mark.parametrize(("name", "side"), sample("obeyed", SIDES, 5))
def test_settings_are_obeyed(tmp_path: Path, name: str, side: str) -> None:
    settings, tokenizer = OBEYED[name]
    folder = save(tmp_path / "model", "Qwen3")
    add_pooling(folder, "mean", LENGTH, settings=settings, prompts=PROMPTS["both"])
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | tokenizer))
    check(folder, side)


REFUSED: dict[str, dict[str, Any]] = {
    "message": {
        "modality_config": {
            kind: {"method": "forward", "method_output_name": "last_hidden_state"}
            for kind in ("text", "message")
        },
        "module_output_name": "token_embeddings",
    },
    "transformer_task fill-mask": {"transformer_task": "fill-mask"},
    "model_kwargs rotary_base": {"model_kwargs": {"rotary_base": 3}},
    "config_kwargs is_causal": {"config_args": {"is_causal": False}},
    "processor_kwargs do_lower_case": {"processor_kwargs": {"do_lower_case": True}},
    "processing_kwargs text.add_special_tokens": {
        "processing_kwargs": {"text": {"add_special_tokens": False}}
    },
    "tokenizer_name_or_path": {"tokenizer_name_or_path": "other"},
    "query_expansion": {"query_expansion": {"strategy": "fixed", "length": 8}},
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_lmk_lacks_are_refused(tmp_path: Path, name: str) -> None:
    folder = add_pooling(save(tmp_path / "model", "BERT"), "mean", LENGTH, settings=REFUSED[name])
    with pytest.raises(DataError, match=name):
        read_model(str(folder))


def test_unknown_keys_are_noted(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "BERT")
    add_pooling(folder, "mean", LENGTH, settings={"strange_key": 1})
    assert any("strange_key" in note for note in read_model(str(folder)).notes)


def test_unknown_keys_are_printed_with_v(lmk: Lmk, tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "BERT")
    add_pooling(folder, "mean", LENGTH, settings={"strange_key": 1})
    (tmp_path / "d.jsonl").write_text('{"_id": "a", "text": "tea"}\n')
    words = ("encode", tmp_path / "d.jsonl", "-m", folder, "--device", "cpu", "-o")
    assert "strange_key" not in lmk(*words, tmp_path / "quiet").err
    assert "strange_key" in lmk("-v", *words, tmp_path / "more").err


@pytest.mark.parametrize("name", ["BertTokenizer", "PreTrainedTokenizerFast"])
def test_a_class_that_contradicts_the_file_is_refused(tmp_path: Path, name: str) -> None:
    """transformers gives BertTokenizer its own normalizer and splitter, whatever the file has."""
    folder = add_pooling(save(tmp_path / "model", "BERT"), "mean", LENGTH)
    for file, changes in (
        ("tokenizer.json", {"normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}}),
        ("tokenizer_config.json", {"tokenizer_class": name}),
    ):
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    if name == "BertTokenizer":
        with pytest.raises(DataError, match="split texts differently"):
            lmkcli.load_encoder(str(folder), offline=True).encode_documents(["tea"])
    else:
        check(folder, "document")


def test_an_exported_folder_keeps_white_space(tmp_path: Path) -> None:
    folder = add_pooling(save(tmp_path / "model", "Qwen3"), "lasttoken", LENGTH)
    resolved = resolve(RecipeOptions(model=str(folder)), offline=True)
    export_model(resolved, tmp_path / "out")
    expected = by_sentence_transformers(folder, "document", TEXTS)
    made = by_sentence_transformers(tmp_path / "out", "document", TEXTS)
    np.testing.assert_allclose(made, expected, atol=NEAR)
    check(tmp_path / "out", "document")


def write_modules(folder: Path, **configs: dict[str, Any]) -> None:
    """Write the folders and configurations of modules, such as `d2_Normalize={}`."""
    for name, config in configs.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config))


def write_dense(folder: Path, wide: int, narrow: int, kind: str = "float32", **config: Any) -> None:
    """Write a Dense from `wide` to `narrow` dimensions, with random weights of this dtype."""
    declared = {"in_features": wide, "out_features": narrow, **config}
    write_modules(folder.parent, **{folder.name: declared})
    generator = torch.Generator().manual_seed(wide + narrow)
    shapes = {"linear.weight": (narrow, wide)}
    shapes |= {"linear.bias": (narrow,)} if config.get("bias", True) else {}
    if config.get("use_residual") and wide != narrow:
        shapes["residual.weight"] = (narrow, wide)
    dtype = getattr(torch, kind)
    weights = {
        name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()
    }
    if dtype == torch.float32:
        save_file(weights, folder / "model.safetensors")
    else:
        torch.save(weights, folder / "pytorch_model.bin")


_ACTIVATION = "torch.nn.modules.activation"
# Modules after Pooling: for each its kind, and for a Dense its dimensions, its dtype and its configuration
AFTER: dict[str, list[tuple[Any, ...]]] = {
    "nothing": [],
    "Normalize": [("Normalize",)],
    "Dense, its defaults": [("Dense", 8, "float32", {})],
    "Dense, Sigmoid": [("Dense", 8, "float32", {"activation_function": f"{_ACTIVATION}.Sigmoid"})],
    "Dense, Mish, fp16": [("Dense", 8, "float16", {"activation_function": f"{_ACTIVATION}.Mish"})],
    "Dense, linear, Normalize": [
        (
            *("Dense", 8, "bfloat16"),
            {"activation_function": "torch.nn.modules.linear.Identity", "bias": False},
        ),
        ("Normalize",),
    ],
    "Dense with a residual": [("Dense", WIDTH, "float32", {"use_residual": True})],
    "Dense with a mapped residual": [("Dense", 8, "float32", {"use_residual": True})],
    "two Dense": [
        ("Dense", 48, "float32", {"activation_function": f"{_ACTIVATION}.ReLU"}),
        ("Dense", 8, "float32", {"bias": False}),
    ],
    "LayerNorm, Dropout, Dense, LayerNorm": [
        ("LayerNorm",), ("Dropout",), ("Dense", 8, "float32", {}), ("LayerNorm",)
    ],
}  # fmt: skip


def add_modules(folder: Path, pool: str | list[str], after: list[tuple[Any, ...]]) -> Path:
    """Add Pooling and these modules, with random weights."""
    width = WIDTH * (1 if isinstance(pool, str) else len(pool))
    for number, (kind, *facts) in enumerate(after, 2):
        path = folder / f"{number}_{kind}"
        if kind == "Dense":
            wide, width = width, facts[0]
            write_dense(path, wide, width, facts[1], **facts[2])
        else:
            configs = {"LayerNorm": {"dimension": width}, "Dropout": {"dropout": 0.5}}
            write_modules(folder, **{path.name: configs.get(kind, {})})
        if kind == "LayerNorm":
            generator = torch.Generator().manual_seed(width)
            names = ("norm.weight", "norm.bias")
            weights = {name: torch.randn(width, generator=generator) for name in names}
            save_file(weights, path / "model.safetensors")
    names = [(f"{number}_{kind}", kind) for number, (kind, *_) in enumerate(after, 2)]
    return add_pooling(folder, pool, LENGTH, modules=names)


CHAINS = itertools.product(AFTER, ["BERT", "Qwen3", "T5"], ["mean", "lasttoken", ["max", "mean"]])


@pytest.mark.parametrize(("after", "family", "pool"), sample("modules", CHAINS, 6))
def test_modules_after_pooling(
    tmp_path: Path, after: str, family: str, pool: str | list[str]
) -> None:
    folder = add_modules(save(tmp_path / "model", family), pool, AFTER[after])
    check(folder, "document")
    resolved = resolve(RecipeOptions(model=str(folder)), offline=True)
    export_model(resolved, tmp_path / "out")
    made = by_sentence_transformers(tmp_path / "out", "document", TEXTS)
    np.testing.assert_allclose(made, by_sentence_transformers(folder, "document", TEXTS), atol=NEAR)


REFUSED_MODULES: dict[str, tuple[str, dict[str, Any]]] = {
    # sentence-transformers replaces an activation outside torch, also a bare name, by Tanh
    "unknown activation ReLU": ("Dense", {"activation_function": "ReLU"}),
    "unknown activation mine.GELU": ("Dense", {"activation_function": "mine.GELU"}),
    "input or output token_embeddings": ("Dense", {"module_input_name": "token_embeddings"}),
    "input or output other": ("Dense", {"module_output_name": "other"}),
    # the pooled vector keeps its length
    "the input or output token_embeddings": (
        "Normalize", {"module_input_name": "token_embeddings"}
    ),
    "the input or output vector": ("Normalize", {"module_output_name": "vector"}),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED_MODULES)
def test_modules_that_lmk_lacks_are_refused(tmp_path: Path, message: str) -> None:
    kind, config = REFUSED_MODULES[message]
    after = ("Dense", 8, "float32", config) if kind == "Dense" else (kind,)
    folder = add_modules(save(tmp_path / "model", "BERT"), "mean", [after])
    if kind != "Dense":
        write_modules(folder, **{f"2_{kind}": config})
    with pytest.raises(DataError, match=message):
        check(folder, "document")


@pytest.mark.parametrize("kind", ["Transformer", "Pooling"])
def test_modules_of_the_models_own_code_are_refused(tmp_path: Path, kind: str) -> None:
    """A class may have the name of a class of sentence-transformers, and compute other things."""
    folder = add_pooling(save(tmp_path / "model", "BERT"), "mean", LENGTH)
    file = folder / "modules.json"
    file.write_text(
        file.read_text().replace(f"sentence_transformers.models.{kind}", f"custom_st.{kind}")
    )
    with pytest.raises(DataError, match=rf"custom_st\.{kind}, which is code of the model"):
        read_model(str(folder))


@pytest.mark.parametrize(
    "pool", ["mean", "max", "weightedmean", "mean_sqrt_len_tokens", "lasttoken"]
)
def test_weights_of_words(tmp_path: Path, pool: str) -> None:
    """WordWeights, with the idf of a few words and a default for all others."""
    folder = add_pooling(
        save(tmp_path / "model", "BERT"), pool, LENGTH, before=[("w_WordWeights", "WordWeights")]
    )
    vocabulary = FAMILIES["BERT"].tokenizer().get_vocab()
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    weights = {word: number % 7 / 3 for number, word in enumerate(words) if number % 3}
    config = {"vocab": words, "word_weights": weights, "unknown_word_weight": 0.25}
    write_modules(folder, w_WordWeights=config)
    torch.save({}, folder / "w_WordWeights/pytorch_model.bin")
    if pool == "lasttoken":
        with pytest.raises(UsageError, match="weights its tokens"):
            check(folder, "document")
        return
    check(folder, "document")
    resolved = resolve(RecipeOptions(model=str(folder)), offline=True)
    export_model(resolved, tmp_path / "out")
    made = by_sentence_transformers(tmp_path / "out", "document", TEXTS)
    np.testing.assert_allclose(made, by_sentence_transformers(folder, "document", TEXTS), atol=NEAR)


def by_route(folder: Path, last: bool) -> Path:
    """Write a model whose queries have another encoder than documents, or only another last layer."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(2)
    for side, family, pool in (("query", "DistilBERT", "cls"), ("document", "BERT", "mean")):
        encoder = save(folder / f"r/{side}_0_Transformer", family)
        settings = {"max_seq_length": 20 if side == "query" else LENGTH}
        (encoder / "sentence_bert_config.json").write_text(json.dumps(settings))
        pooling = {"word_embedding_dimension": WIDTH, "pooling_mode": pool}
        dense = {"in_features": WIDTH, "out_features": 8, "bias": False}
        dense |= {"activation_function": "torch.nn.modules.linear.Identity"}
        write_modules(folder / "r", **{f"{side}_1_Pooling": pooling, f"{side}_2_Dense": dense})
        weight = torch.randn(8, WIDTH, generator=generator)
        save_file({"linear.weight": weight}, folder / f"r/{side}_2_Dense/model.safetensors")
    kinds = ("Dense",) if last else ("Transformer", "Pooling", "Dense")
    names = {"Transformer": 0, "Pooling": 1, "Dense": 2}
    structure = {
        side: [f"{side}_{names[kind]}_{kind}" for kind in kinds] for side in ("query", "document")
    }
    home = "sentence_transformers.models"
    types = {name: f"{home}.{name.split('_')[2]}" for each in structure.values() for name in each}
    (folder / "r/router_config.json").write_text(
        json.dumps({"types": types, "structure": structure, "parameters": {}})
    )
    modules = [("r", "Router"), ("n", "Normalize")]
    if last:
        modules = [
            ("r/document_0_Transformer", "Transformer"),
            ("r/document_1_Pooling", "Pooling"),
            *modules,
        ]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"{home}.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    declared = {"prompts": PROMPTS["both"], "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(declared))
    return folder


@pytest.mark.parametrize("side", ["document", "query"])
@pytest.mark.parametrize("last", [True, False])
def test_routes_of_queries_and_documents(tmp_path: Path, last: bool, side: str) -> None:
    check(by_route(tmp_path / "model", last), side)


def test_routes_in_commands(tmp_path: Path, lmk: Lmk, beir: Path) -> None:
    """The stored recipe finds the encoder of queries again."""
    folder = by_route(tmp_path / "model", False)
    lmk("encode", beir, "-m", folder, "--dtype", "fp32", "-o", tmp_path / "v")
    lmk("search", tmp_path / "v", beir, "-o", tmp_path / "r.trec")
    run = read_run(tmp_path / "r.trec").rankings
    collection = open_collection(str(beir))
    docs, queries = list(collection.docs(WHOLE)), {q.id: q for q in collection.queries()}
    vectors = by_sentence_transformers(folder, "document", [doc.content for doc in docs])
    for name, ranking in list(run.items())[:3]:
        query = by_sentence_transformers(folder, "query", [queries[name].text])[0]
        scores = dict(zip((doc.id for doc in docs), vectors @ query, strict=True))
        found = [scores[doc] for doc in ranking.doc_ids]
        np.testing.assert_allclose(found, ranking.scores, atol=1e-3)  # vectors are stored in fp16
    for words in (("train", "x.jsonl"), ("export", "--to", "sentence-transformers")):
        done = lmk(*words, "-m", folder, "-o", tmp_path / "o", code=None)
        assert done.code == 2
        assert "Router" in done.err


def test_declared_dimensions(tmp_path: Path) -> None:
    """sentence-transformers cuts vectors to `truncate_dim` of its configuration."""
    folder = add_pooling(save(tmp_path / "model", "BERT"), "mean", LENGTH)
    file = folder / "config_sentence_transformers.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"truncate_dim": 8}))
    check(folder, "document", TEXTS[:3])
    resolved = resolve(RecipeOptions(model=str(folder)), offline=True)
    assert resolved.recipe.query.dim == 8
    assert any("truncate_dim" in note for note in resolved.notes)
    export_model(resolved, tmp_path / "out")
    made = by_sentence_transformers(tmp_path / "out", "document", TEXTS[:3])
    wanted = by_sentence_transformers(folder, "document", TEXTS[:3])
    np.testing.assert_allclose(made, wanted, atol=NEAR)
    assert resolve(RecipeOptions(model=str(folder), dim=4), offline=True).recipe.doc.dim == 4
    for change in ({"similarity_fn_name": "dot"}, {"truncate_dim": "8"}):
        modules = json.loads((folder / "modules.json").read_text())
        normalize = {
            "idx": 2,
            "name": "2",
            "path": "n",
            "type": "sentence_transformers.models.Normalize",
        }
        (folder / "modules.json").write_text(json.dumps([*modules[:2], normalize]))
        file.write_text(json.dumps({"truncate_dim": 8, **change}))
        with pytest.raises(DataError, match="dimensions"):
            read_model(str(folder))
