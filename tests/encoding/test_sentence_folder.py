"""Exported folders: sentence-transformers makes the vectors of lmk from them, and lmk reads them back."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ir_measures
import numpy as np
import pytest
import torch

from lmkcli import manifest
from lmkcli.data.collection import Query, join_chunks, open_collection
from lmkcli.encoding.encoder import open_encoder
from lmkcli.encoding.jobs import run_encode
from lmkcli.encoding.planning import plan
from lmkcli.encoding.resolving import resolve
from lmkcli.encoding.sentence_folder import ExportedModel, export_model, resolve_whole
from lmkcli.errors import DataError, Mismatch, UsageError
from lmkcli.models.finding import read_model
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import EncodeSettings
from lmkcli.store.vectors import Vectors
from tests.tiny import WIDTH, wordpiece

sentence_transformers = pytest.importorskip("sentence_transformers", minversion="5.4")

Models = Callable[[str], Path]
SETTINGS = EncodeSettings(dtype="fp32", store_dtype="fp32", device="cpu")
QUERIES = ["copper conducts electricity", "birds migrate south in autumn " * 9, "x", ""]
OWN = {
    "lmk": {"pool": "lmk", "gran": "8"},
    "lmk sentence": {"pool": "lmk", "gran": "sentence"},
    "multicls": {"pool": "multicls", "gran": "8"},
    "mean@3": {"pool": "mean@3"},
}
THEIRS = {name: {"pool": name} for name in ("cls", "mean", "last")}
POOLS = OWN | THEIRS
REST: dict[str, Any] = {
    "max_length": 40,
    "query_max_length": 24,
    "doc_prompt": "passage: ",
    "query_prompt": "ask ",
}


class Made(NamedTuple):
    """Unit vectors [60, dim] of the documents of `beir`, and of QUERIES."""

    docs: np.ndarray
    queries: np.ndarray


def by_lmk(wishes: RecipeOptions, beir: Path, folder: Path) -> Made:
    run_encode(plan(str(beir), wishes, SETTINGS, "0/1"), folder)
    vectors = Vectors(folder)
    side = vectors.recipe.query
    encoder = open_encoder(side, read_model(side.model), SETTINGS)
    queries = encoder.queries([Query(str(n), text) for n, text in enumerate(QUERIES)]).vectors
    return Made(vectors.at(np.arange(vectors.rows)).vectors, queries)


def loaded(folder: Path, made: ExportedModel) -> Any:
    trust = made.trust_remote_code
    return sentence_transformers.SentenceTransformer(
        str(folder), device="cpu", trust_remote_code=trust
    )


def by_theirs(model: Any, beir: Path) -> Made:
    docs = [doc.content for doc in open_collection(str(beir)).docs()]
    return Made(model.encode_document(docs), model.encode_query(QUERIES))


def near(one: Made, other: Made) -> None:
    for mine, yours in zip(one, other, strict=True):
        cosines = (mine * yours).sum(axis=1) / np.linalg.norm(mine, axis=1)
        assert cosines.min() > 0.9999
        np.testing.assert_allclose(mine, yours, atol=1e-4)


def check(model: Path, beir: Path, tmp_path: Path, **wishes: Any) -> Any:
    """Export, and compare what three ways make of it; returns the loaded model."""
    asked = RecipeOptions(model=str(model), **wishes)
    made = export_model(resolve(asked), tmp_path / "st")
    native = by_lmk(asked, beir, tmp_path / "native")
    theirs = loaded(tmp_path / "st", made)
    near(native, by_theirs(theirs, beir))
    near(native, by_lmk(RecipeOptions(model=str(tmp_path / "st")), beir, tmp_path / "back"))
    return theirs


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("kind", ["bert", "roberta", "qwen2"])
def test_the_vectors_are_those_of_lmk(
    tiny_model: Models, beir: Path, tmp_path: Path, kind: str, pool: str
) -> None:
    if (kind, pool) == ("qwen2", "cls"):
        pytest.skip("its tokenizer has no first special token")
    model = check(tiny_model(kind), beir, tmp_path, **POOLS[pool], **REST)
    assert model.get_embedding_dimension() == WIDTH
    assert model.max_seq_length == 40
    assert model.similarity_fn_name == "cosine"


def test_landmarks_make_a_difference(tiny_model: Models, beir: Path, tmp_path: Path) -> None:
    """Were marks lost on the way, every position would be averaged."""
    wishes = {"pool": "lmk", "gran": "8", "max_length": 40}
    model = check(tiny_model("bert"), beir, tmp_path, **wishes)
    text = "rivers carry water from mountains to the sea " * 3 + "birds"
    features = model.preprocess([text, "rivers"])
    landmark = features["input_ids"] == model.tokenizer.sep_token_id
    assert torch.equal(features["marks"], landmark & features["attention_mask"].bool())
    assert features["marks"].sum(dim=1).tolist() == [4, 1]
    plain = by_lmk(
        RecipeOptions(model=str(tiny_model("bert")), max_length=40), beir, tmp_path / "mean"
    )
    assert (by_theirs(model, beir).docs * plain.docs).sum(axis=1).min() < 0.99


@pytest.mark.parametrize("pool", ["lmk", "lmk sentence", "multicls"])
def test_a_window_that_the_folder_declares(
    tiny_model: Models, beir: Path, tmp_path: Path, pool: str
) -> None:
    """Documents are read in windows here and there; a query, and what has a length, is read whole."""
    base, folder = str(tiny_model("bert")), tmp_path / "st"
    whole = resolve_whole(RecipeOptions(model=base, window="16", max_length=40, **POOLS[pool]))
    theirs = loaded(folder, export_model(whole, folder))
    windows = RecipeOptions(model=base, window="16", query_max_length=40, **POOLS[pool])
    native = by_lmk(windows, beir, tmp_path / "native")
    near(native, by_lmk(RecipeOptions(model=str(folder)), beir, tmp_path / "back"))
    near(native, by_theirs(theirs, beir))
    at_once = RecipeOptions(model=base, max_length=40, **POOLS[pool])
    plain = by_lmk(at_once, beir, tmp_path / "plain")
    assert (plain.docs * native.docs).sum(axis=1).min() < 0.9999
    for wishes in (
        RecipeOptions(model=str(folder), max_length=40),
        RecipeOptions(model=str(folder), window="full"),
    ):
        near(plain, by_lmk(wishes, beir, tmp_path / f"{wishes.window}"))
    text = max((doc.content for doc in open_collection(str(beir)).docs()), key=len)
    theirs.save(str(tmp_path / "again"))
    again = loaded(tmp_path / "again", ExportedModel([], trust_remote_code=True))
    assert float(again.encode_document(text) @ theirs.encode_document(text)) > 0.9999


def test_the_window_of_a_folder_is_that_of_its_own_vector(
    tiny_model: Models, tmp_path: Path
) -> None:
    base, folder = str(tiny_model("bert")), str(tmp_path / "st")
    whole = resolve_whole(RecipeOptions(model=base, window="16", **POOLS["lmk"]))
    export_model(whole, Path(folder))
    assert read_model(folder).window == "16"

    def window(**wishes: Any) -> str:
        return resolve(RecipeOptions(model=folder, **wishes)).recipe.doc.window

    assert window() == window(pool="lmk", gran="4") == "16"
    assert window(window="32") == "32"
    assert window(pool="mean") == window(unit="chunk", gran="8") == window(max_length=32) == "full"
    again = resolve_whole(RecipeOptions(model=folder))
    assert (again.folder.window, again.recipe.doc.window) == ("16", "full")
    assert resolve_whole(RecipeOptions(model=folder, window="full")).folder.window == ""
    assert resolve_whole(RecipeOptions(model=folder, pool="mean")).folder.window == ""
    assert resolve_whole(RecipeOptions(model=folder, max_length=12)).folder.window == ""


@pytest.mark.parametrize("declared", [512, True, "chunk", "-1", "512 ", [512], {"a": 1}])
def test_a_window_that_is_no_number_of_positions(
    tiny_model: Models, tmp_path: Path, declared: Any
) -> None:
    whole = resolve_whole(RecipeOptions(model=str(tiny_model("bert")), window="16", **POOLS["lmk"]))
    export_model(whole, tmp_path / "st")
    file = tmp_path / "st" / "sentence_bert_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"window": declared}))
    with pytest.raises(
        DataError, match=r"declares the window .*write a number of positions in quotes"
    ):
        read_model(str(tmp_path / "st"))


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"pool": "mean", "window": "16"}, "--window 16 is nothing that a folder declares"),
        ({"pool": "lmk", "gran": "8", "window": "chunk"}, "--window chunk is nothing"),
        ({"pool": "lmk", "gran": "8", "window": "32", "max_length": 16}, "longer than --max-length 16"),
        ({"pool": "lmk", "gran": "8", "window": "-1"}, "write full, chunk, or a number"),
    ],
)  # fmt: skip
def test_a_window_that_no_folder_declares(
    tiny_model: Models, wishes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_whole(RecipeOptions(model=str(tiny_model("bert")), **wishes))


@pytest.mark.parametrize("pool", OWN)
def test_a_tokenizer_that_was_saved_with_padding_and_truncation(
    tiny_model: Models, beir: Path, tmp_path: Path, pool: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny_model("bert").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tokenizer = wordpiece()
    tokenizer.backend_tokenizer.enable_padding(length=30)
    tokenizer.backend_tokenizer.enable_truncation(10)
    tokenizer.save_pretrained(folder)
    check(folder, beir, tmp_path, **POOLS[pool], max_length=40)


@pytest.mark.parametrize("pool", ["lmk", "mean@3", "mean", "cls"])
def test_prompts_that_are_not_averaged(
    tiny_model: Models, beir: Path, tmp_path: Path, pool: str
) -> None:
    source = tmp_path / "source"
    wishes = RecipeOptions(model=str(tiny_model("bert")), pool="mean", **REST)
    export_model(resolve(wishes), source)
    pooling = source / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps({**json.loads(pooling.read_text()), "include_prompt": False}))
    check(source, beir, tmp_path, **POOLS[pool])


@pytest.mark.parametrize("pool", ["lmk", "mean"])
def test_modules_after_pooling_come_along(
    tiny_model: Models, beir: Path, tmp_path: Path, pool: str
) -> None:
    from sentence_transformers.sentence_transformer import modules

    torch.manual_seed(1)
    transformer = modules.Transformer(str(tiny_model("bert")))
    dense = modules.Dense(WIDTH, 12, activation_function=torch.nn.Tanh())
    pooling, norm = modules.Pooling(WIDTH, "mean"), modules.LayerNorm(12)
    source = sentence_transformers.SentenceTransformer(modules=[transformer, pooling, dense, norm])
    source.similarity_fn_name = "dot"
    source.save(str(tmp_path / "source"))
    model = check(tmp_path / "source", beir, tmp_path, **POOLS[pool], max_length=40)
    assert model.get_embedding_dimension() == 12
    assert model.similarity_fn_name == "dot"
    assert "Normalize" not in str(model)


def test_saved_again_it_stays_what_it_was(tiny_model: Models, beir: Path, tmp_path: Path) -> None:
    model = check(tiny_model("bert"), beir, tmp_path, **POOLS["lmk"], **REST)
    model.save(str(tmp_path / "again"))
    again = loaded(tmp_path / "again", ExportedModel([], trust_remote_code=True))
    near(by_theirs(model, beir), by_theirs(again, beir))
    assert resolve(RecipeOptions(model=str(tmp_path / "again"))).recipe.doc.gran == "8"
    near(
        by_theirs(model, beir),
        by_lmk(RecipeOptions(model=str(tmp_path / "again")), beir, tmp_path / "v"),
    )


def test_it_can_be_trained(tiny_model: Models, tmp_path: Path) -> None:
    """Gradients reach the weights through the marks alone."""
    made = export_model(
        resolve(RecipeOptions(model=str(tiny_model("bert")), **POOLS["lmk"])), tmp_path / "st"
    )
    model = loaded(tmp_path / "st", made).train()
    features = model.preprocess(["copper and iron", "birds migrate south in autumn"])
    model(features)["sentence_embedding"].sum().backward()
    grads = [p.grad for name, p in model.named_parameters() if "layer.0" in name]
    assert all(grad is not None and grad.abs().sum() > 0 for grad in grads)


@pytest.mark.parametrize("pool", POOLS)
def test_what_the_folder_says(tiny_model: Models, tmp_path: Path, pool: str) -> None:
    resolved = resolve(RecipeOptions(model=str(tiny_model("bert")), **POOLS[pool], **REST))
    made = export_model(resolved, tmp_path / "st")
    own = pool in OWN
    assert made.trust_remote_code is own
    assert (made.loaded_by == "SentenceTransformer(folder)") is not own
    listed = json.loads((tmp_path / "st" / "modules.json").read_text())
    assert [module["type"] for module in listed] == made.modules
    assert any("lmkcli" in name for name in made.modules) is own
    settings = json.loads((tmp_path / "st" / "config_sentence_transformers.json").read_text())
    assert settings["prompts"] == {"query": "ask ", "document": "passage: "}
    back = resolve(RecipeOptions(model=str(tmp_path / "st"))).recipe
    assert back == resolved.recipe
    assert manifest.read(tmp_path / "st", "export").identity["to"] == "sentence-transformers"


def test_own_modules_need_trust(tiny_model: Models, tmp_path: Path) -> None:
    """What sentence-transformers 6 asks for before it imports any class but its own."""
    export_model(
        resolve(RecipeOptions(model=str(tiny_model("bert")), **POOLS["lmk"])), tmp_path / "st"
    )
    if int(sentence_transformers.__version__.split(".")[0]) >= 6:
        with pytest.raises(ValueError, match="trust_remote_code=True"):
            loaded(tmp_path / "st", ExportedModel([], trust_remote_code=False))


def test_the_same_export_is_left_and_another_refused(tiny_model: Models, tmp_path: Path) -> None:
    resolved = resolve(RecipeOptions(model=str(tiny_model("bert")), **POOLS["lmk"]))
    export_model(resolved, tmp_path / "st")
    before = (tmp_path / "st" / "model.safetensors").stat().st_mtime_ns
    export_model(resolved, tmp_path / "st")
    assert (tmp_path / "st" / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(Mismatch, match=r"gran: '8' \| '16'"):
        export_model(
            resolve(RecipeOptions(model=str(tiny_model("bert")), pool="lmk", gran="16")),
            tmp_path / "st",
        )


@pytest.mark.parametrize(
    "wishes",
    [{"unit": "chunk", "gran": "8", "pool": "mean"}, {"window": "32"}, {"unit": "token", "pool": "mean"}],
)  # fmt: skip
def test_what_has_no_place_in_one_vector_of_one_input(
    tiny_model: Models, tmp_path: Path, wishes: dict[str, str]
) -> None:
    with pytest.raises(UsageError, match="one vector of one input"):
        export_model(
            resolve(RecipeOptions(model=str(tiny_model("bert")), **wishes)), tmp_path / "st"
        )
    assert not (tmp_path / "st").exists()


def test_minilm(minilm: Path, beir: Path, tmp_path: Path) -> None:
    check(minilm, beir, tmp_path, pool="lmk", gran="64", max_length=512)


def test_texts_alone(tiny_model: Models, tmp_path: Path) -> None:
    made = export_model(
        resolve(RecipeOptions(model=str(tiny_model("bert")), **POOLS["lmk"])), tmp_path / "st"
    )
    with pytest.raises(UsageError, match="list of strings"):
        loaded(tmp_path / "st", made)[0].preprocess([("a", "pair")])


def test_mteb_evaluates_it(tiny_model: Models, beir: Path, tmp_path: Path) -> None:
    """With a task of our own; its score is that of the vectors that lmk makes."""
    mteb = pytest.importorskip("mteb")
    from tests.mteb_task import local_task

    wishes = RecipeOptions(model=str(tiny_model("bert")), **POOLS["lmk"], **REST)
    model = loaded(tmp_path / "st", export_model(resolve(wishes), tmp_path / "st"))
    task = local_task(open_collection(str(beir)))
    made = mteb.evaluate(model, task, cache=None, show_progress_bar=False)
    [scores] = made.task_results[0].scores["test"]
    assert 0 < scores["ndcg_at_10"] < 1
    assert scores["ndcg_at_10"] == pytest.approx(ndcg(wishes, beir, tmp_path / "v"), abs=1e-4)


def ndcg(wishes: RecipeOptions, beir: Path, folder: Path) -> float:
    """nDCG@10 of all documents ranked by dot product."""
    docs = by_lmk(wishes, beir, folder).docs
    names = Vectors(folder).ids(np.arange(len(docs)))
    collection = open_collection(str(beir))
    side = resolve(wishes).recipe.query
    encoder = open_encoder(side, read_model(side.model), SETTINGS)
    asked = collection.judged_queries()
    scores = encoder.queries(asked).vectors @ docs.T
    run = [
        ir_measures.ScoredDoc(query.id, name, float(score))
        for query, row in zip(asked, scores, strict=True)
        for name, score in zip(names, row, strict=True)
    ]
    measure = ir_measures.nDCG @ 10
    qrels = [ir_measures.Qrel(*qrel) for qrel in collection.qrels()]
    return float(ir_measures.calc_aggregate([measure], qrels, run)[measure])


def test_chunks_that_the_collection_gives(tiny_model: Models, tmp_path: Path) -> None:
    wishes = RecipeOptions(model=str(tiny_model("bert")), pool="lmk", gran="given")
    resolved = resolve(wishes)
    model = loaded(tmp_path / "st", export_model(resolved, tmp_path / "st"))
    text = join_chunks(["rivers carry water", "birds migrate", "iron"])
    assert model.preprocess([text])["marks"].sum() == 3
    encoder = open_encoder(resolved.recipe.query, resolved.folder, SETTINGS)
    mine = encoder.queries([Query("q", text)]).vectors[0]
    assert float(mine @ model.encode(text)) > 0.9999
