"""Exported folders: sentence-transformers computes the vectors of lmk with them, and lmk reads them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ir_measures
import numpy as np
import pytest
import torch

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import ExportManifest
from lmkcli.data.collection import Query, join_chunks, open_collection
from lmkcli.encoding.encoder import open_encoder
from lmkcli.encoding.jobs import plan
from lmkcli.encoding.resolution import resolve
from lmkcli.encoding.sentence_folder import ExportedModel, export_model, resolve_whole
from lmkcli.encoding.shard_run import run_encode
from lmkcli.errors import DataError, Mismatch, UsageError
from lmkcli.models.lookup import read_model
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import WHOLE
from lmkcli.vectors.stored import Vectors
from tests.tiny import WIDTH, wordpiece

sentence_transformers = pytest.importorskip("sentence_transformers", minversion="5.4")

Models = Callable[[str], Path]
SETTINGS = EncodeSettings(dtype="fp32", store_dtype="fp32", device="cpu")
QUERIES = ["copper conducts electricity", "birds migrate south in autumn " * 9, "x", ""]
PLACED = {  # poolers that need the modules of lmk
    "lmk": {"pool": "lmk", "gran": "8"},
    "lmk sentence": {"pool": "lmk", "gran": "sentence"},
    "multicls": {"pool": "multicls", "gran": "8"},
    "mean@3": {"pool": "mean@3"},
}
NATIVE = {name: {"pool": name} for name in ("cls", "mean", "last")}
POOLS = PLACED | NATIVE
REST: dict[str, Any] = {
    "max_length": 40,
    "query_max_length": 24,
    "doc_prompt": "passage: ",
    "query_prompt": "ask ",
}


class UnitVectors(NamedTuple):
    """Unit vectors [60, dim] of the documents of `beir`, and of QUERIES."""

    docs: np.ndarray
    queries: np.ndarray


def by_lmk(options: RecipeOptions, beir: Path, folder: Path) -> UnitVectors:
    run_encode(plan(str(beir), options, SETTINGS, WHOLE), folder)
    vectors = Vectors(folder)
    side = vectors.recipe.query
    encoder = open_encoder(side, read_model(side.model), SETTINGS)
    queries = encoder.queries([Query(str(n), text) for n, text in enumerate(QUERIES)]).vectors
    return UnitVectors(vectors.at(np.arange(vectors.rows)).vectors, queries)


def loaded(folder: Path, made: ExportedModel) -> Any:
    trust = made.trust_remote_code
    return sentence_transformers.SentenceTransformer(
        str(folder), device="cpu", trust_remote_code=trust
    )


def by_sentence_transformers(model: Any, beir: Path) -> UnitVectors:
    docs = [doc.content for doc in open_collection(str(beir)).docs()]
    return UnitVectors(model.encode_document(docs), model.encode_query(QUERIES))


def check_equal(one: UnitVectors, other: UnitVectors) -> None:
    for mine, yours in zip(one, other, strict=True):
        cosines = (mine * yours).sum(axis=1) / np.linalg.norm(mine, axis=1)
        assert cosines.min() > 0.9999
        np.testing.assert_allclose(mine, yours, atol=1e-4)


def check(model: Path, beir: Path, tmp_path: Path, **settings: Any) -> Any:
    """Export, and compare the vectors of lmk, of sentence-transformers, and of lmk with the folder.

    Returns the loaded model.
    """
    options = RecipeOptions(model=str(model), **settings)
    made = export_model(resolve(options), tmp_path / "st")
    native = by_lmk(options, beir, tmp_path / "native")
    theirs = loaded(tmp_path / "st", made)
    check_equal(native, by_sentence_transformers(theirs, beir))
    check_equal(native, by_lmk(RecipeOptions(model=str(tmp_path / "st")), beir, tmp_path / "back"))
    return theirs


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("kind", ["bert", "roberta", "qwen2"])
def test_the_vectors_equal_those_of_lmk(
    tiny_model: Models, beir: Path, tmp_path: Path, kind: str, pool: str
) -> None:
    if (kind, pool) == ("qwen2", "cls"):
        pytest.skip("its tokenizer has no first special token")
    model = check(tiny_model(kind), beir, tmp_path, **POOLS[pool], **REST)
    assert model.get_embedding_dimension() == WIDTH
    assert model.max_seq_length == 40
    assert model.similarity_fn_name == "cosine"


def test_the_marks_of_landmarks_reach_the_pooling(
    tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    """Without the marks, every position would be averaged."""
    options = {"pool": "lmk", "gran": "8", "max_length": 40}
    model = check(tiny_model("bert"), beir, tmp_path, **options)
    text = "rivers carry water from mountains to the sea " * 3 + "birds"
    features = model.preprocess([text, "rivers"])
    landmark = features["input_ids"] == model.tokenizer.sep_token_id
    assert torch.equal(features["marks"], landmark & features["attention_mask"].bool())
    assert features["marks"].sum(dim=1).tolist() == [4, 1]
    plain = by_lmk(
        RecipeOptions(model=str(tiny_model("bert")), max_length=40), beir, tmp_path / "mean"
    )
    assert (by_sentence_transformers(model, beir).docs * plain.docs).sum(axis=1).min() < 0.99


@pytest.mark.parametrize("window", ["16", "even:16"])
@pytest.mark.parametrize("pool", ["lmk", "lmk sentence", "multicls", "mean", "cls"])
def test_a_declared_window(
    tiny_model: Models, beir: Path, tmp_path: Path, pool: str, window: str
) -> None:
    """lmk and sentence-transformers read documents in windows, and queries as a whole.

    With an explicit length, documents are read as a whole, too.
    """
    base, folder = str(tiny_model("bert")), tmp_path / "st"
    whole = resolve_whole(RecipeOptions(model=base, window=window, max_length=40, **POOLS[pool]))
    theirs = loaded(folder, export_model(whole, folder))
    windows = RecipeOptions(model=base, window=window, query_max_length=40, **POOLS[pool])
    native = by_lmk(windows, beir, tmp_path / "native")
    check_equal(native, by_lmk(RecipeOptions(model=str(folder)), beir, tmp_path / "back"))
    check_equal(native, by_sentence_transformers(theirs, beir))
    at_once = RecipeOptions(model=base, max_length=40, **POOLS[pool])
    plain = by_lmk(at_once, beir, tmp_path / "plain")
    assert (plain.docs * native.docs).sum(axis=1).min() < 0.9999
    for options in (
        RecipeOptions(model=str(folder), max_length=40),
        RecipeOptions(model=str(folder), window="full"),
    ):
        check_equal(plain, by_lmk(options, beir, tmp_path / f"{options.window}"))
    if pool in ("mean", "cls"):  # chunks are too long to be divided in another way
        other = RecipeOptions(model=str(folder), window="16" if window != "16" else "even:16")
        differing = (by_lmk(other, beir, tmp_path / "other").docs * native.docs).sum(axis=1)
        assert differing.min() < 0.9999
    text = max((doc.content for doc in open_collection(str(beir)).docs()), key=len)
    theirs.save(str(tmp_path / "again"))
    again = loaded(tmp_path / "again", ExportedModel([], trust_remote_code=True))
    assert float(again.encode_document(text) @ theirs.encode_document(text)) > 0.9999


def test_a_declared_window_is_for_one_vector_per_text_of_the_declared_length(
    tiny_model: Models, tmp_path: Path
) -> None:
    base, folder = str(tiny_model("bert")), str(tmp_path / "st")
    whole = resolve_whole(RecipeOptions(model=base, window="16", **POOLS["lmk"]))
    export_model(whole, Path(folder))
    assert read_model(folder).window == "16"

    def window(**options: Any) -> str:
        return resolve(RecipeOptions(model=folder, **options)).recipe.doc.window

    assert window() == window(pool="lmk", gran="4") == window(pool="mean") == "16"
    assert window(window="32") == "32"
    assert window(unit="chunk", gran="8") == window(max_length=32) == "full"
    again = resolve_whole(RecipeOptions(model=folder))
    assert (again.folder.window, again.recipe.doc.window) == ("16", "full")
    assert resolve_whole(RecipeOptions(model=folder, window="full")).folder.window == ""
    assert resolve_whole(RecipeOptions(model=folder, pool="mean")).folder.window == "16"
    assert resolve_whole(RecipeOptions(model=folder, max_length=12)).folder.window == ""


@pytest.mark.parametrize("declared", [512, True, "chunk", "-1", "512 ", [512], {"a": 1}])
def test_an_invalid_declared_window_is_refused(
    tiny_model: Models, tmp_path: Path, declared: Any
) -> None:
    whole = resolve_whole(RecipeOptions(model=str(tiny_model("bert")), window="16", **POOLS["lmk"]))
    export_model(whole, tmp_path / "st")
    file = tmp_path / "st" / "sentence_bert_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"window": declared}))
    with pytest.raises(DataError, match=r"window .*positions in quotes"):
        read_model(str(tmp_path / "st"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": "lmk", "gran": "8", "window": "chunk"}, "--window chunk .*declared.*lmk encode"),
        ({"pool": "lmk", "gran": "8", "window": "32", "max_length": 16}, "--window 32 .*--max-length 16"),
        ({"pool": "lmk", "gran": "8", "window": "-1"}, "--window -1: .*full, chunk, .*512"),
    ],
)  # fmt: skip
def test_a_window_that_cannot_be_declared_is_refused(
    tiny_model: Models, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_whole(RecipeOptions(model=str(tiny_model("bert")), **options))


@pytest.mark.parametrize("pool", PLACED)
def test_a_tokenizer_with_padding_and_truncation(
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
def test_prompts_without_marks(tiny_model: Models, beir: Path, tmp_path: Path, pool: str) -> None:
    source = tmp_path / "source"
    options = RecipeOptions(model=str(tiny_model("bert")), pool="mean", **REST)
    export_model(resolve(options), source)
    pooling = source / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps({**json.loads(pooling.read_text()), "include_prompt": False}))
    check(source, beir, tmp_path, **POOLS[pool])


@pytest.mark.parametrize("pool", ["lmk", "mean"])
def test_modules_after_the_pooling_are_exported(
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


def test_a_folder_that_is_saved_again_is_unchanged(
    tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    model = check(tiny_model("bert"), beir, tmp_path, **POOLS["lmk"], **REST)
    model.save(str(tmp_path / "again"))
    again = loaded(tmp_path / "again", ExportedModel([], trust_remote_code=True))
    check_equal(by_sentence_transformers(model, beir), by_sentence_transformers(again, beir))
    assert resolve(RecipeOptions(model=str(tmp_path / "again"))).recipe.doc.gran == "8"
    check_equal(
        by_sentence_transformers(model, beir),
        by_lmk(RecipeOptions(model=str(tmp_path / "again")), beir, tmp_path / "v"),
    )


def test_an_exported_model_can_be_trained(tiny_model: Models, tmp_path: Path) -> None:
    """Gradients reach the weights through the marks."""
    made = export_model(
        resolve(RecipeOptions(model=str(tiny_model("bert")), **POOLS["lmk"])), tmp_path / "st"
    )
    model = loaded(tmp_path / "st", made).train()
    features = model.preprocess(["copper and iron", "birds migrate south in autumn"])
    # One dimension: the sum over all is nearly constant, because the last layer normalises.
    model(features)["sentence_embedding"][:, 0].sum().backward()
    weights = (p for name, p in model.named_parameters() if "layer.0" in name and "weight" in name)
    grads = [p.grad for p in weights]
    assert all(grad is not None and grad.abs().sum() > 1e-4 for grad in grads)


@pytest.mark.parametrize("pool", POOLS)
def test_the_declarations_of_the_folder(tiny_model: Models, tmp_path: Path, pool: str) -> None:
    resolved = resolve(RecipeOptions(model=str(tiny_model("bert")), **POOLS[pool], **REST))
    made = export_model(resolved, tmp_path / "st")
    placed = pool in PLACED
    assert made.trust_remote_code is placed
    assert (made.loaded_by == "SentenceTransformer(folder)") is not placed
    listed = json.loads((tmp_path / "st" / "modules.json").read_text())
    assert [module["type"] for module in listed] == made.modules
    assert any("lmkcli" in name for name in made.modules) is placed
    settings = json.loads((tmp_path / "st" / "config_sentence_transformers.json").read_text())
    assert settings["prompts"] == {"query": "ask ", "document": "passage: "}
    back = resolve(RecipeOptions(model=str(tmp_path / "st"))).recipe
    assert back == resolved.recipe
    assert manifest.read(tmp_path / "st", ExportManifest).identity.to == "sentence-transformers"


def test_the_modules_of_lmk_need_trust_remote_code(tiny_model: Models, tmp_path: Path) -> None:
    """sentence-transformers 6 requires it for all classes of other packages."""
    export_model(
        resolve(RecipeOptions(model=str(tiny_model("bert")), **POOLS["lmk"])), tmp_path / "st"
    )
    if int(sentence_transformers.__version__.split(".")[0]) >= 6:
        with pytest.raises(ValueError, match="trust_remote_code=True"):
            loaded(tmp_path / "st", ExportedModel([], trust_remote_code=False))


def test_the_same_export_is_unchanged_and_another_is_refused(
    tiny_model: Models, tmp_path: Path
) -> None:
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
    "options",
    [{"unit": "chunk", "gran": "8", "pool": "mean"}, {"window": "32"}, {"unit": "token", "pool": "mean"}],
)  # fmt: skip
def test_recipes_with_other_units_or_windows_are_refused(
    tiny_model: Models, tmp_path: Path, options: dict[str, str]
) -> None:
    with pytest.raises(UsageError, match="one vector of one input"):
        export_model(
            resolve(RecipeOptions(model=str(tiny_model("bert")), **options)), tmp_path / "st"
        )
    assert not (tmp_path / "st").exists()


def test_minilm(minilm: Path, beir: Path, tmp_path: Path) -> None:
    check(minilm, beir, tmp_path, pool="lmk", gran="64", max_length=512)


def test_pairs_of_texts_are_refused(tiny_model: Models, tmp_path: Path) -> None:
    made = export_model(
        resolve(RecipeOptions(model=str(tiny_model("bert")), **POOLS["lmk"])), tmp_path / "st"
    )
    with pytest.raises(UsageError, match="list of strings"):
        loaded(tmp_path / "st", made)[0].preprocess([("a", "pair")])


def test_mteb_evaluates_an_exported_model(tiny_model: Models, beir: Path, tmp_path: Path) -> None:
    """With a local task; its score equals that of the vectors of lmk."""
    mteb = pytest.importorskip("mteb")
    from tests.mteb_task import local_task

    options = RecipeOptions(model=str(tiny_model("bert")), **POOLS["lmk"], **REST)
    model = loaded(tmp_path / "st", export_model(resolve(options), tmp_path / "st"))
    task = local_task(open_collection(str(beir)))
    made = mteb.evaluate(model, task, cache=None, show_progress_bar=False)
    [scores] = made.task_results[0].scores["test"]
    assert 0 < scores["ndcg_at_10"] < 1
    assert scores["ndcg_at_10"] == pytest.approx(ndcg(options, beir, tmp_path / "v"), abs=1e-4)


def ndcg(options: RecipeOptions, beir: Path, folder: Path) -> float:
    """Return nDCG@10 of all documents, ranked by dot product."""
    docs = by_lmk(options, beir, folder).docs
    names = Vectors(folder).ids(np.arange(len(docs)))
    collection = open_collection(str(beir))
    side = resolve(options).recipe.query
    encoder = open_encoder(side, read_model(side.model), SETTINGS)
    queries = collection.judged_queries()
    scores = encoder.queries(queries).vectors @ docs.T
    run = [
        ir_measures.ScoredDoc(query.id, name, float(score))
        for query, row in zip(queries, scores, strict=True)
        for name, score in zip(names, row, strict=True)
    ]
    measure = ir_measures.nDCG @ 10
    qrels = [ir_measures.Qrel(*qrel) for qrel in collection.qrels()]
    return float(ir_measures.calc_aggregate([measure], qrels, run)[measure])


def test_given_chunks(tiny_model: Models, tmp_path: Path) -> None:
    options = RecipeOptions(model=str(tiny_model("bert")), pool="lmk", gran="given")
    resolved = resolve(options)
    model = loaded(tmp_path / "st", export_model(resolved, tmp_path / "st"))
    text = join_chunks(["rivers carry water", "birds migrate", "iron"])
    assert model.preprocess([text])["marks"].sum() == 3
    encoder = open_encoder(resolved.recipe.query, resolved.folder, SETTINGS)
    mine = encoder.queries([Query("q", text)]).vectors[0]
    assert float(mine @ model.encode(text)) > 0.9999


def test_an_export_copies_no_file_from_outside_the_model(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    model, out = shutil.copytree(tiny_model("bert"), tmp_path / "model"), tmp_path / "out"
    (tmp_path / "private.txt").write_text("secret")
    (model / "within.txt").symlink_to("tokenizer.json")
    (model / "notes").symlink_to(tmp_path)  # no file of a model
    export_model(resolve(RecipeOptions(model=str(model), pool="mean")), out)
    assert not list(out.rglob("private*"))
    assert not (out / "within.txt").is_symlink()
    (model / "vocab.txt").symlink_to(tmp_path / "private.txt")
    with pytest.raises(DataError, match=r"vocab\.txt is a link out of .*model"):
        export_model(resolve(RecipeOptions(model=str(model), pool="mean")), tmp_path / "other")
    assert not (tmp_path / "other").exists()
