"""Folders with LandmarkTransformer, the module that pull request 3642 proposes for sentence-transformers."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmkcli.data.collection import Query, open_collection
from lmkcli.encoding.encoder import open_encoder
from lmkcli.encoding.jobs import plan
from lmkcli.encoding.resolution import resolve
from lmkcli.encoding.sentence_folder import export_model, with_landmark_transformer
from lmkcli.encoding.shard_run import run_encode
from lmkcli.errors import DataError, UsageError
from lmkcli.models.lookup import read_model
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import WHOLE
from lmkcli.vectors.stored import Vectors
from tests.tiny import WIDTH

sentence_transformers = pytest.importorskip("sentence_transformers", minversion="6")
from sentence_transformers.base.modules import Transformer  # noqa: E402
from sentence_transformers.sentence_transformer import modules  # noqa: E402

Models = Callable[[str], Path]
SETTINGS = EncodeSettings(dtype="fp32", store_dtype="fp32", device="cpu")
GRAN, LENGTH = 8, 40
QUERIES = ["copper conducts electricity", "birds migrate south in autumn " * 9, "x", ""]


class LandmarkTransformer(Transformer):
    """A double of the proposed module, written from its description: pooling sees only the landmarks."""

    config_keys: list[str] = [  # noqa: RUF012
        *Transformer.config_keys,
        *("eval_splitter_granularity", "train_splitter_granularity", "lmk_token_id"),
    ]

    def __init__(
        self,
        model_name_or_path: str,
        *,
        eval_splitter_granularity: int = 32,
        train_splitter_granularity: int | list[int] | None = None,
        lmk_token_id: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(model_name_or_path, **settings)
        self.eval_splitter_granularity = eval_splitter_granularity
        self.train_splitter_granularity = train_splitter_granularity
        ends = self.tokenizer.sep_token_id, self.tokenizer.eos_token_id
        self.lmk_token_id = next(id_ for id_ in (lmk_token_id, *ends) if id_ is not None)

    def preprocess(
        self, inputs: Sequence[Any], prompt: str | None = None, **settings: Any
    ) -> dict[str, Any]:
        rows = [self._placed((prompt or "") + text) for text in inputs]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": mask, "modality": "text"}

    def _placed(self, text: str) -> list[int]:
        text = text.strip().lower() if self.do_lower_case else text.strip()
        ids = self.tokenizer(text, add_special_tokens=False, truncation=False)["input_ids"]
        starts = self.tokenizer.cls_token_id, self.tokenizer.bos_token_id
        placed = [next(first for first in starts if first is not None)]
        for start in range(0, max(len(ids), 1), self.eval_splitter_granularity):
            placed += [*ids[start : start + self.eval_splitter_granularity], self.lmk_token_id]
        placed = placed[: self.max_seq_length]
        if self.lmk_token_id not in placed[1:]:
            placed[-1] = self.lmk_token_id
        return placed

    def forward(self, features: dict[str, Any], **settings: Any) -> dict[str, Any]:
        landmarks = (features["input_ids"] == self.lmk_token_id) & features["attention_mask"].bool()
        return {**super().forward(features, **settings), "attention_mask": landmarks.long()}


@pytest.fixture(autouse=True)
def proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence-transformers with the module."""
    monkeypatch.setattr(modules, "LandmarkTransformer", LandmarkTransformer, raising=False)


def saved(base: Path, folder: Path, gran: int = GRAN, prompts: dict[str, str] | None = None) -> Any:
    """Save a model with the module, and return it."""
    transformer = LandmarkTransformer(
        str(base), eval_splitter_granularity=gran, train_splitter_granularity=[8, 16]
    )
    transformer.max_seq_length = LENGTH
    parts = [transformer, modules.Pooling(WIDTH, "mean"), modules.Normalize()]
    model = sentence_transformers.SentenceTransformer(
        modules=parts, prompts=prompts, similarity_fn_name="cosine", device="cpu"
    )
    model.save(str(folder))
    file = folder / "modules.json"  # names the double, not the place of the proposal
    own = f"{LandmarkTransformer.__module__}.LandmarkTransformer"
    text = file.read_text()
    assert own in text
    file.write_text(text.replace(own, "sentence_transformers.models.LandmarkTransformer"))
    return model


def by_lmk(model: Path, beir: Path, folder: Path, **options: Any) -> list[np.ndarray]:
    """The vectors of the documents of `beir`, and of QUERIES."""
    recipe = RecipeOptions(model=str(model), **options)
    run_encode(plan(str(beir), recipe, SETTINGS, WHOLE), folder)
    vectors = Vectors(folder)
    side = vectors.recipe.query
    encoder = open_encoder(side, read_model(side.model), SETTINGS)
    queries = encoder.queries([Query(str(n), text) for n, text in enumerate(QUERIES)]).vectors
    return [vectors.at(np.arange(vectors.rows)).vectors, queries]


def check_equal(mine: list[np.ndarray], model: Any, beir: Path) -> None:
    docs = [doc.content for doc in open_collection(str(beir)).docs()]
    theirs = [model.encode_document(docs), model.encode_query(QUERIES)]
    for ours, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(ours, other, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "gran", "prompts"),
    [
        ("bert", GRAN, None),
        ("bert", GRAN, {"query": "birds and bakers: ", "document": "landmark "}),
        ("roberta", LENGTH, {"query": "birds:", "document": ""}),  # no landmark in a cut text
        ("qwen2", GRAN, None),  # the template of its tokenizer has no BOS
    ],
)
def test_lmk_opens_folders_with_the_module(
    tiny_model: Models, beir: Path, tmp_path: Path, kind: str, gran: int, prompts: Any
) -> None:
    theirs = saved(tiny_model(kind), tmp_path / "st", gran, prompts)
    doc = resolve(RecipeOptions(model=str(tmp_path / "st"))).recipe.doc
    assert (doc.pool, doc.gran, doc.max_length) == ("lmk", str(gran), LENGTH)
    check_equal(by_lmk(tmp_path / "st", beir, tmp_path / "v"), theirs, beir)
    file = tmp_path / "st" / "sentence_bert_config.json"
    early = json.loads(file.read_text())
    early["splitter_granularity"] = early.pop("eval_splitter_granularity")
    del early["train_splitter_granularity"]
    file.write_text(json.dumps(early))
    again = resolve(RecipeOptions(model=str(tmp_path / "st"))).recipe.doc
    assert (again.pool, again.gran, again.landmark_token) == ("lmk", str(gran), doc.landmark_token)


def test_a_list_of_granularities_needs_a_choice(tiny_model: Models, tmp_path: Path) -> None:
    """A folder of the first revision can declare a list."""
    saved(tiny_model("bert"), tmp_path / "st")
    file = tmp_path / "st" / "sentence_bert_config.json"
    declared = {**json.loads(file.read_text()), "splitter_granularity": [8, 16]}
    file.write_text(json.dumps(declared))
    with pytest.raises(UsageError, match="--gran 64"):
        resolve(RecipeOptions(model=str(tmp_path / "st")))
    assert resolve(RecipeOptions(model=str(tmp_path / "st"), gran="16")).recipe.doc.gran == "16"


def test_an_export_is_loaded_with_the_module(
    tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    options = {"pool": "lmk", "gran": str(GRAN), "max_length": LENGTH}
    resolved = resolve(RecipeOptions(model=str(tiny_model("bert")), **options))
    made = export_model(with_landmark_transformer(resolved), tmp_path / "st")
    assert made.modules[0] == "sentence_transformers.models.LandmarkTransformer"
    assert made.proposed
    assert not made.trust_remote_code
    mine = by_lmk(tiny_model("bert"), beir, tmp_path / "v", **options)
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "st"), device="cpu")
    check_equal(mine, model, beir)
    check_equal(by_lmk(tmp_path / "st", beir, tmp_path / "w"), model, beir)


def test_a_folder_with_the_module_is_exported_with_the_module(
    tiny_model: Models, tmp_path: Path
) -> None:
    """Prompts included, because the chunks of the folder already count them."""
    saved(tiny_model("bert"), tmp_path / "st", prompts={"query": "ask ", "document": "text "})
    resolved = resolve(RecipeOptions(model=str(tmp_path / "st")))
    export_model(resolved, tmp_path / "again")
    assert resolve(RecipeOptions(model=str(tmp_path / "again"))).recipe == resolved.recipe
    before, after = (
        json.loads((tmp_path / name / "sentence_bert_config.json").read_text())
        for name in ("st", "again")
    )
    assert {**after, **before} == after | {
        name: value for name, value in before.items() if name not in after
    }
    assert after["train_splitter_granularity"] == [8, 16]


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        ("bert", {"pool": "mean"}, "--pool lmk .*number.*--gran"),
        ("bert", {"pool": "lmk", "gran": "sentence"}, "--pool lmk .*number.*--gran"),
        ("bert", {"pool": "lmk", "gran": "8", "doc_prompt": "a "}, "--doc-prompt ''"),
        ("bert", {"pool": "lmk", "gran": "8", "query_max_length": 16}, "--query-max-length 128"),
        ("bert", {"pool": "lmk", "gran": "8", "max_length": 9}, "--max-length 10"),
        ("qwen2", {"pool": "lmk", "gran": "8"}, "CLS or BOS"),
    ],
)
def test_recipes_that_the_module_cannot_express(
    tiny_model: Models, kind: str, options: dict[str, Any], why: str
) -> None:
    resolved = resolve(RecipeOptions(model=str(tiny_model(kind)), **options))
    with pytest.raises(UsageError, match=f"--landmark-transformer: .*{why}"):
        with_landmark_transformer(resolved)


@pytest.mark.parametrize(
    ("file", "changes", "why"),
    [
        ("sentence_bert_config.json", {"lmk_token_id": None}, "no lmk_token_id"),
        ("sentence_bert_config.json", {"lmk_token_id": 511_000}, "does not have"),
        (
            "sentence_bert_config.json",
            {"eval_splitter_granularity": 0},
            "eval_splitter_granularity",
        ),
        ("1_Pooling/config.json", {"pooling_mode": "cls"}, "pools by cls"),
    ],
)
def test_damaged_folders(
    tiny_model: Models, beir: Path, tmp_path: Path, file: str, changes: dict[str, Any], why: str
) -> None:
    saved(tiny_model("bert"), tmp_path / "st")
    path = tmp_path / "st" / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(DataError, match=why):
        by_lmk(tmp_path / "st", beir, tmp_path / "v")


def test_a_prompt_longer_than_a_chunk_is_refused(
    tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    saved(tiny_model("bert"), tmp_path / "st", prompts={"document": "birds " * 9, "query": ""})
    with pytest.raises(UsageError, match=r"prompt.*--gran"):
        by_lmk(tmp_path / "st", beir, tmp_path / "v")
