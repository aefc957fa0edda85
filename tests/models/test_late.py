"""Declarations of ColBERT folders in both layouts, compared with sentence-transformers."""

import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import MultiVectorEncoder
from transformers import AutoModel

from lmkcli.data.collection import Doc, Query
from lmkcli.encoding.encoder import open_encoder
from lmkcli.encoding.resolution import resolve
from lmkcli.encoding.token_stream import tokenized
from lmkcli.errors import DataError
from lmkcli.models.heads import open_token_head
from lmkcli.models.late import LateInteraction
from lmkcli.models.lookup import read_model
from lmkcli.pooling.table import MEAN
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.vectors.rows import Ragged
from tests import tiny

Make = Callable[..., Path]
SKIPPED = [",", "landmark", "no such token"]
PYLATE = {
    "model_type": "ColBERT", "prompts": {}, "similarity_fn_name": "MaxSim",
    "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 24, "document_length": 90,
    "do_query_expansion": True, "attend_to_expansion_tokens": False, "skiplist_words": SKIPPED,
}  # fmt: skip


def put(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def dense(path: Path) -> None:
    torch.manual_seed(1)
    put(path / "config.json", {
        "in_features": tiny.WIDTH, "out_features": 8, "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    })  # fmt: skip
    save_file({"linear.weight": torch.randn(8, tiny.WIDTH)}, path / "model.safetensors")


@pytest.fixture
def pylate(tmp_path: Path) -> Make:
    """Create a tiny ColBERT as PyLate saves it, with changed settings."""

    def make(kind: str = "bert", **settings: Any) -> Path:
        tiny.save(tmp_path, kind)
        tokenizer = tiny.KINDS[kind].tokenizer()
        tokenizer.add_special_tokens({"additional_special_tokens": ["[Q] ", "[D] "]})
        tokenizer.save_pretrained(tmp_path)
        kinds = ["sentence_transformers.models.Transformer", "pylate.models.Dense.Dense"]
        put(tmp_path / "modules.json", [
            {"idx": i, "name": str(i), "path": ["", "1_Dense"][i], "type": kind}
            for i, kind in enumerate(kinds)
        ])  # fmt: skip
        put(tmp_path / "sentence_bert_config.json", {"max_seq_length": 89, "do_lower_case": False})
        put(tmp_path / "config_sentence_transformers.json", {**PYLATE, **settings})
        dense(tmp_path / "1_Dense")
        return tmp_path

    return make


def late(folder: Path) -> LateInteraction:
    made = read_model(str(folder)).late
    assert made is not None
    return made


def test_pylate_settings_are_read(pylate: Make) -> None:
    folder = pylate()
    tokenizer = tiny.KINDS["bert"].tokenizer()
    made = read_model(str(folder))
    new = len(tokenizer)
    skip = (tokenizer.vocab["landmark"],)
    assert made.late == LateInteraction(new, new + 1, skip, 24, 90, tokenizer.mask_token_id, False)
    assert (made.pool, made.normalize, made.similarity, made.max_length) == (
        "mean", True, "cosine", 90,
    )  # fmt: skip
    assert made.query_length == 24
    assert made.modules == ()
    assert [module.folder.name for module in made.projections] == ["1_Dense"]


def test_missing_settings_have_pylates_defaults(pylate: Make) -> None:
    folder = pylate()
    put(folder / "config_sentence_transformers.json", {"model_type": "ColBERT"})
    made = late(folder)
    vocabulary = tiny.KINDS["bert"].tokenizer().vocab
    assert (made.query_length, made.doc_length) == (32, 180)
    assert made.query_prefix_id is not None
    assert made.expansion_id is not None
    assert made.skip == tuple(sorted(vocabulary[c] for c in string.punctuation if c in vocabulary))


def test_expansion_and_prefixes_can_be_off(pylate: Make) -> None:
    made = late(pylate(do_query_expansion=False, query_prefix="", document_prefix=None))
    assert (made.expansion_id, made.query_prefix_id, made.doc_prefix_id) == (None, None, None)


def test_queries_are_expanded_with_eos_without_a_mask_token(pylate: Make) -> None:
    assert late(pylate("roberta")).expansion_id == tiny.KINDS["roberta"].tokenizer().eos_token_id


def test_a_mask_token_without_its_text_is_refused(pylate: Make) -> None:
    folder = pylate()
    put(folder / "tokenizer_config.json", {"mask_token": {"special": True}})
    with pytest.raises(DataError, match=r"tokenizer_config\.json .*mask_token\.content"):
        late(folder)


def test_a_prefix_that_is_no_token_is_refused(pylate: Make) -> None:
    with pytest.raises(DataError, match=r"'\[X\] '"):
        late(pylate(query_prefix="[X] "))


def test_a_missing_tokenizer_is_refused(pylate: Make) -> None:
    folder = pylate()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"tokenizer\.json is missing"):
        late(folder)


def test_sentence_transformers_reads_the_same(pylate: Make) -> None:
    folder = pylate()
    made, reference = late(folder), MultiVectorEncoder(str(folder), device="cpu")
    mask = next(module for module in reference if type(module).__name__ == "MultiVectorMask")
    assert made.skip == tuple(sorted(mask._skiplist_ids.tolist()))
    assert reference[0].query_expansion["length"] == made.query_length
    assert reference[0].query_expansion["attend"] == made.attend_expansion
    assert reference[0].document_length == made.doc_length
    tokens = reference.preprocess(["landmark pooling"], prompt="[Q] ", task="query")["input_ids"][
        0
    ].tolist()
    assert tokens[1] == made.query_prefix_id
    assert tokens[-1] == made.expansion_id


@pytest.mark.parametrize(
    ("settings", "skips"),
    [({}, True), ({"unit": "token", "gran": "given"}, False),
     ({"unit": "token", "gran": "given", "window": "chunk"}, True)],
)  # fmt: skip
def test_late_chunking_of_tokens_skips_none(
    pylate: Make, settings: dict[str, str], skips: bool
) -> None:
    """ConTEB, App. B.2: no skip list, and one prefix for all chunks of a document."""
    folder = pylate()
    recipe = resolve(RecipeOptions(model=str(folder), **settings)).recipe
    assert recipe.doc.skip == (late(folder).skip if skips else ())


@pytest.mark.parametrize("attend", [False, True])
def test_vectors_equal_those_of_sentence_transformers(pylate: Make, attend: bool) -> None:
    """Expanded queries, prefix tokens, skipped punctuation and the projection."""
    folder = pylate(attend_to_expansion_tokens=attend)
    model = AutoModel.from_pretrained(folder)
    model.resize_token_embeddings(tiny.VOCABULARY + 2)  # the prefixes have embeddings
    model.save_pretrained(folder)
    reference = MultiVectorEncoder(str(folder), device="cpu")
    resolved = resolve(RecipeOptions(model=str(folder)))
    fp32 = EncodeSettings(dtype="fp32", device="cpu")
    queries = [Query("1", "landmark pooling of a long document"), Query("2", "birds")]
    encoder = open_encoder(resolved.recipe.query, resolved.folder, fp32)
    same(encoder.queries(queries), reference.encode_query([query.text for query in queries]))
    docs = [Doc("1", tiny.sentence(3, 60)), Doc("2", tiny.sentence(5, 20) + " , rivers .")]
    encoder = open_encoder(resolved.recipe.doc, resolved.folder, fp32)
    [rows] = tokenized(docs, encoder.tokenizer)
    same(encoder(rows, Report()).vectors, reference.encode_document([doc.text for doc in docs]))


def same(made: Ragged, wanted: Any) -> None:
    assert made.counts.tolist() == [len(one) for one in wanted]
    every = np.concatenate([np.asarray(torch.as_tensor(one).cpu()) for one in wanted])
    np.testing.assert_allclose(made.vectors, every, atol=2e-6)


def test_the_layout_of_sentence_transformers_is_read(pylate: Make, tmp_path: Path) -> None:
    MultiVectorEncoder(str(pylate()), device="cpu").save_pretrained(str(tmp_path / "saved"))
    before, made = late(tmp_path), read_model(str(tmp_path / "saved"))
    assert made.late == LateInteraction(
        None, None, before.skip, before.query_length, 90, before.expansion_id, False
    )
    assert (made.query_prompt, made.doc_prompt) == ("[Q] ", "[D] ")
    head, other = (
        open_token_head(read_model(str(path)), MEAN, torch.device("cpu"))
        for path in (tmp_path, tmp_path / "saved")
    )
    states = torch.randn(5, tiny.WIDTH)
    torch.testing.assert_close(head(states), other(states))


def saved(pylate: Make, tmp_path: Path, name: str, change: dict[str, Any]) -> Path:
    """A folder in the layout of sentence-transformers, with one file changed."""
    MultiVectorEncoder(str(pylate()), device="cpu").save_pretrained(str(tmp_path / "saved"))
    file = tmp_path / "saved" / name
    put(file, {**json.loads(file.read_text()), **change})
    return tmp_path / "saved"


def test_expansion_without_a_fixed_length_is_refused(pylate: Make, tmp_path: Path) -> None:
    change = {"query_expansion": {"strategy": "min", "attend": False, "token": None, "length": 8}}
    folder = saved(pylate, tmp_path, "sentence_bert_config.json", change)
    with pytest.raises(DataError, match="'min'"):
        late(folder)


def test_a_folder_without_expansion(pylate: Make, tmp_path: Path) -> None:
    folder = saved(pylate, tmp_path, "sentence_bert_config.json", {"query_expansion": None})
    assert late(folder).expansion_id is None


def test_other_masks_are_refused(pylate: Make, tmp_path: Path) -> None:
    change = {"skiplist_tasks": ["query", "document"]}
    folder = saved(pylate, tmp_path, "2_MultiVectorMask/config.json", change)
    with pytest.raises(DataError, match="skip list"):
        late(folder)


def test_ordinary_folders_are_not_late(tiny_model: Callable[[str], Path]) -> None:
    made = read_model(str(tiny_model("bert")))
    assert (made.late, made.projections, made.latent) == (None, (), None)
