"""Tables of embeddings make the vectors of sentence-transformers, in its layout and in that of model2vec."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import lmkcli
from lmkcli.errors import DataError, UsageError
from lmkcli.models.lookup import read_model
from tests.models.families import byte_level, wordpiece
from tests.models.test_conformance import check

KINDS = {"wordpiece": wordpiece, "bytes": byte_level}


def table(folder: Path, kind: str, tensors: dict[str, torch.Tensor], **files: Any) -> Path:
    """Write a table as sentence-transformers does: modules.json, and the folder of the module."""
    where = folder / "0_StaticEmbedding"
    where.mkdir(parents=True)
    KINDS[kind]().backend_tokenizer.save(str(where / "tokenizer.json"))
    save_file(tensors, where / "model.safetensors")
    modules = [("0_StaticEmbedding", "StaticEmbedding"), ("1_Normalize", "Normalize")]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    (folder / "1_Normalize").mkdir()
    (folder / "1_Normalize/config.json").write_text("{}")
    (folder / "modules.json").write_text(json.dumps(listed))
    return folder


def rows(kind: str, more: int = 0) -> torch.Tensor:
    count = KINDS[kind]().backend_tokenizer.get_vocab_size() + more
    return torch.randn(count, 24, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["document", "query"])
def test_vectors_equal_those_of_sentence_transformers(tmp_path: Path, kind: str, side: str) -> None:
    check(table(tmp_path / "model", kind, {"embedding.weight": rows(kind)}), side)


def test_the_layout_of_model2vec(tmp_path: Path) -> None:
    """Each token has the number of a row, and a weight."""
    generator = torch.Generator().manual_seed(2)
    count = len(rows("wordpiece"))
    tensors = {
        "embeddings": torch.randn(50, 24, generator=generator),
        "mapping": torch.randint(50, (count,), generator=generator),
        "weights": torch.rand(count, generator=generator),
    }
    check(table(tmp_path / "model", "wordpiece", tensors), "document")


def test_a_table_with_too_few_rows_is_refused(tmp_path: Path) -> None:
    folder = table(tmp_path / "model", "bytes", {"embedding.weight": rows("bytes", -1)})
    with pytest.raises(DataError, match="and its tokenizer has"):
        lmkcli.load_encoder(str(folder), offline=True).encode_documents(["tea"])


def test_a_tokenizer_that_cuts_texts_is_refused(tmp_path: Path) -> None:
    folder = table(tmp_path / "model", "bytes", {"embedding.weight": rows("bytes")})
    file = folder / "0_StaticEmbedding/tokenizer.json"
    cut = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"truncation": cut}))
    with pytest.raises(DataError, match="cuts texts"):
        read_model(str(folder))


def test_poolings_of_special_tokens_are_refused(tmp_path: Path) -> None:
    folder = table(tmp_path / "model", "bytes", {"embedding.weight": rows("bytes")})
    options = lmkcli.RecipeOptions(pool="cls")
    with pytest.raises(UsageError, match="special token before the text"):
        lmkcli.load_encoder(str(folder), options, offline=True).encode_documents(["tea"])
