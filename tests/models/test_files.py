"""The JSON of a model folder is checked against its types; failures of libraries are one error."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmkcli.errors import DataError, UsageError
from lmkcli.models.model_files import (
    Count,
    ListedModule,
    check_files,
    loading,
    read_fields,
    read_json,
)


def test_a_missing_file_declares_nothing_and_fields_may_be_null(tmp_path: Path) -> None:
    assert read_json(tmp_path / "config.json") == {}
    said = {"model_type": "bert", "hidden_size": 32, "prompts": None, "unheard_of": [1]}
    (tmp_path / "config.json").write_text(json.dumps(said))
    assert read_json(tmp_path / "config.json") == said


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", 3), ("hidden_size", "x"), ("hidden_size", 0), ("num_hidden_layers", -1),
        ("num_hidden_layers", 10**9), ("num_attention_heads", [1.5]), ("vocab_size", None),
        ("max_position_embeddings", "512"), ("pad_token_id", [0]), ("model_max_length", "x"),
        ("max_seq_length", "x"), ("max_seq_length", -3), ("query_length", 1.5), ("prompts", []),
        ("prompts", {"query": 1}), ("pooling_mode", 1), ("pool", None), ("include_prompt", "no"),
        ("skiplist_words", "ab"), ("query_expansion", {"length": "32"}), ("text_config", 1),
    ],
)  # fmt: skip
def test_an_error_names_the_field_and_its_file(tmp_path: Path, field: str, value: Any) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({field: value}))
    with pytest.raises(DataError, match=rf"config\.json cannot be read \({field}"):
        read_json(path)


@pytest.mark.parametrize("text", ["", "[]", '"x"', "[" * 9999, '{"a": 1, "a": 2}'])
def test_a_file_without_a_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(DataError, match=r"config\.json cannot be read"):
        read_json(tmp_path / "config.json")


def test_required_fields(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"modules\.json is missing"):
        read_fields(tmp_path / "modules.json", list[ListedModule])
    (tmp_path / "modules.json").write_text('[{"type": "x"}]')
    with pytest.raises(DataError, match=r"path is missing"):
        read_fields(tmp_path / "modules.json", list[ListedModule])
    (tmp_path / "modules.json").write_text("7")
    assert read_fields(tmp_path / "modules.json", Count) == 7


@pytest.mark.parametrize(
    "error", [KeyError("x"), MemoryError(), RecursionError("deep"), OSError(5, "gone")]
)
def test_every_exception_of_a_library_is_a_data_error(error: Exception) -> None:
    with pytest.raises(DataError, match=r"^the model .*: ."), loading("the model"):
        raise error


def test_errors_of_lmk_pass_unchanged() -> None:
    with pytest.raises(UsageError, match=r"^mine$"), loading("the model"):
        raise UsageError("mine")


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 133466304\n"
    (tmp_path / "model.safetensors").write_text(pointer)
    with pytest.raises(DataError, match="a pointer of Git LFS"):
        check_files(tmp_path)
