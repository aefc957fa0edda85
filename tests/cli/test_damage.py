"""Damaged artifacts are refused with exit code 3 and the name of the file, and never searched."""

import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import tiny

Models = Callable[[str], Path]
Lmk = Callable[..., Any]


@pytest.fixture
def vectors(lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path) -> Path:
    """A copy of vectors that the test may damage."""
    lmk("encode", beir, "-m", tiny_model("bert"), "--pool", "mean", "-o", tmp_path / "vectors")
    return tmp_path / "vectors"


def part(folder: Path, name: str) -> Path:
    (found,) = (folder / "parts").glob(f"0*/{name}")
    return found


def saved(array: Any, **how: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **how)
    return file.getvalue()


DAMAGES: dict[str, Callable[[Any], bytes]] = {
    "rows": lambda array: saved(array[:10]),
    "width": lambda array: saved(array[:, :5]),
    "flat": lambda array: saved(array.ravel()),
    "dtype": lambda array: saved(array.astype(np.float64)),
    "byte order": lambda array: saved(array.astype(">f2")),
    "nothing finite": lambda array: saved(np.full_like(array, np.nan)),
    "objects": lambda array: saved(array.astype(object), allow_pickle=True),
    "empty": lambda array: b"",
    "cut": lambda array: saved(array)[:-100],
    "header without an end": lambda array: saved(array).replace(b"), }", b", , ("),
    "header": lambda array: saved(array)[:20],
    "archive": lambda array: b"PK\x05\x06" + bytes(18),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_array_that_contradicts_its_part(lmk: Lmk, vectors: Path, damage: str) -> None:
    path = part(vectors, "vectors.npy")
    array = np.array(np.load(path))
    path.write_bytes(DAMAGES[damage](array))
    for line in (["search", vectors, "-q", "rivers"], ["verify", vectors]):
        assert str(path) in lmk(*line, code=3).err


def rewritten(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path)


TABLES: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-50]),
    "page": lambda path: path.write_bytes(b"PAR1" + bytes(300) + path.read_bytes()[304:]),
    "no ids": lambda path: rewritten(path, lambda table: table.drop_columns(["id"])),
    "numbers": lambda path: rewritten(
        path, lambda table: table.set_column(0, "id", pa.array(range(len(table))))
    ),
    "missing ids": lambda path: rewritten(
        path, lambda table: table.set_column(0, "id", pa.nulls(len(table), pa.string()))
    ),
}


@pytest.mark.parametrize("damage", TABLES)
def test_a_table_of_documents_that_cannot_be_read(lmk: Lmk, vectors: Path, damage: str) -> None:
    path = part(vectors, "docs.parquet")
    TABLES[damage](path)
    assert str(path) in lmk("search", vectors, "-q", "rivers", code=3).err


@pytest.mark.parametrize("name", ["id", "hash", "tokens", "lost", "vectors", "title", "text"])
def test_verify_reads_every_column_of_the_documents(lmk: Lmk, vectors: Path, name: str) -> None:
    path = part(vectors, "docs.parquet")
    group = pq.ParquetFile(path).metadata.row_group(0)
    column = group.column(pq.ParquetFile(path).schema_arrow.names.index(name))
    start = column.dictionary_page_offset or column.data_page_offset
    changed = bytearray(path.read_bytes())
    changed[start + column.total_compressed_size - 1] ^= 1
    path.write_bytes(changed)
    assert str(path) in lmk("verify", vectors, "--sample", 1, code=3).err


@pytest.mark.parametrize("section", ["identity", "execution"])
def test_verify_notices_another_manifest(lmk: Lmk, vectors: Path, section: str) -> None:
    path = vectors / "manifest.json"
    recorded = json.loads(path.read_text())
    if section == "identity":
        recorded["identity"]["recipe"]["query"]["prompt"] = "a query: "
    else:
        recorded["execution"]["source"]["name"] = "elsewhere"
    path.write_text(json.dumps(recorded))
    err = lmk("verify", vectors, code=3).err
    assert str(path) in err
    assert "has changed" in err


@pytest.mark.parametrize("side", ["doc", "query"])
def test_a_unit_that_does_not_exist(lmk: Lmk, vectors: Path, side: str) -> None:
    path = vectors / "manifest.json"
    recorded = json.loads(path.read_text())
    recorded["identity"]["recipe"][side]["unit"] = "page"
    path.write_text(json.dumps(recorded))
    assert "unit 'page'" in lmk("search", vectors, "-q", "rivers", code=3).err


@pytest.mark.parametrize("shards", [0, -1, 10**12, "1", None, 1.5, True])
def test_a_number_of_shards_that_cannot_be(lmk: Lmk, vectors: Path, shards: Any) -> None:
    path = vectors / "manifest.json"
    recorded = json.loads(path.read_text())
    recorded["execution"]["shards"] = shards
    path.write_text(json.dumps(recorded))
    for line in (["search", vectors, "-q", "x"], ["show", vectors], ["verify", vectors]):
        assert "execution.shards" in lmk(*line, code=3).err


def test_a_parquet_collection_that_is_damaged(lmk: Lmk, tmp_path: Path) -> None:
    path = tmp_path / "docs.parquet"
    texts = [f"river number {i}" for i in range(500)]
    pq.write_table(pa.table({"id": [str(i) for i in range(500)], "text": texts}), path)
    whole = path.read_bytes()
    for broken in (b"", whole[:100], whole[:-8], b"PAR1" + bytes(200) + whole[204:]):
        path.write_bytes(broken)
        out = tmp_path / "bm25"
        err = lmk("index", path, "--kind", "bm25", "-o", out, code=3).err
        assert str(path) in err
        assert not out.exists()
        shutil.rmtree(out, ignore_errors=True)


def test_verify_reads_every_number(lmk: Lmk, vectors: Path) -> None:
    """Change one value of one row, which only the digest detects."""
    lmk("verify", vectors, "--sample", 3)
    path = part(vectors, "vectors.npy")
    array = np.array(np.load(path))
    array[len(array) // 2, 0] *= 0.5
    path.write_bytes(saved(array))
    assert "its digest differs" in lmk("verify", vectors, "--sample", 3, code=3).err


@pytest.mark.parametrize(
    "array", [np.float32(1), np.zeros(3, "M8[s]"), np.zeros(3, "V4"), np.zeros(3, "S0")]
)
@pytest.mark.parametrize("name", ["vectors.npy", "spans.npy"])
def test_an_array_of_a_part_that_is_no_rows_of_numbers(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path, name: str, array: np.ndarray
) -> None:
    chunks = tmp_path / "chunks"
    how = ("--pool", "lmk", "--gran", 8, "--unit", "chunk")
    lmk("encode", beir, "-m", tiny_model("bert"), *how, "-o", chunks)
    part(chunks, name).write_bytes(saved(array))
    for line in (["verify", chunks], ["search", chunks, "-q", "x"]):
        assert name in lmk(*line, code=3).err


def test_verify_notices_a_part_of_another_folder(
    lmk: Lmk, vectors: Path, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    lmk("encode", beir, "-m", tiny_model("bert"), "--pool", "cls", "-o", other)
    shutil.copy(part(other, "vectors.npy"), part(vectors, "vectors.npy"))
    assert "its digest differs" in lmk("verify", vectors, code=3).err


def edited(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.fixture
def model(lmk: Lmk, tiny_model: Models, tmp_path: Path) -> Path:
    """A folder in the layout of sentence-transformers that the test may damage."""
    words = ["export", "--to", "sentence-transformers", "-m", tiny_model("bert"), "--pool", "mean"]
    lmk(*words, "-o", tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("file", "field", "value"),
    [
        ("config.json", "hidden_size", "x"),
        ("config.json", "num_hidden_layers", -1),
        ("config.json", "num_attention_heads", {}),
        ("sentence_bert_config.json", "max_seq_length", "x"),
        ("config.json", "vocab_size", []),
        ("1_Pooling/config.json", "include_prompt", []),
        ("config_sentence_transformers.json", "prompts", [1]),
    ],
)
def test_a_model_folder_with_a_field_of_another_type(
    lmk: Lmk, model: Path, beir: Path, tmp_path: Path, file: str, field: str, value: Any
) -> None:
    edited(model / file, **{field: value})
    for verb in ("encode", "tokenize"):
        err = lmk(verb, beir, "-m", model, "-o", tmp_path / "out", code=3).err
        assert str(model / file) in err
        assert field in err
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("file", ["tokenizer.json", "model.safetensors", "config.json"])
@pytest.mark.parametrize("content", [b"", b"[" * 5000, b"\xff\xfe{}", b'{"model": {"type": 3}}'])
def test_a_model_folder_with_a_file_that_is_another(
    lmk: Lmk, model: Path, beir: Path, tmp_path: Path, file: str, content: bytes
) -> None:
    (model / file).write_bytes(content)
    lmk("encode", beir, "-m", model, "-o", tmp_path / "out", code=3)
    assert not (tmp_path / "out").exists()


def test_a_value_that_is_not_finite_is_never_ranked(
    lmk: Lmk, vectors: Path, beir: Path, tmp_path: Path
) -> None:
    """The damaged row is not among the rows that are checked when the folder is opened."""
    lmk("index", beir, "--kind", "bm25", "-o", tmp_path / "bm25")
    lmk("index", vectors, "-o", tmp_path / "hnsw")
    path = part(vectors, "vectors.npy")
    array = np.array(np.load(path))
    array[1:8] = np.nan  # eight of sixty rows are checked on opening
    path.write_bytes(saved(array))
    for line in (
        ["search", vectors, "-q", "rivers"],
        ["search", vectors, beir, "-o", tmp_path / "run"],
        ["search", tmp_path / "bm25", beir, "--rerank", vectors, "-o", tmp_path / "run"],
        ["index", vectors, "--kind", "Flat", "-o", tmp_path / "flat"],
        ["verify", vectors],
    ):
        assert "not finite" in lmk(*line, code=3).err
    assert not (tmp_path / "flat").exists()


def test_a_part_of_another_folder_is_noticed_when_opened(
    lmk: Lmk, vectors: Path, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    """The same model and number of documents, but other texts."""
    mine, other = tmp_path / "beir", tmp_path / "other"
    shutil.copytree(beir, mine)
    corpus = mine / "corpus.jsonl"
    corpus.write_text(corpus.read_text().replace("landmark", "beacon"))
    lmk("encode", mine, "-m", tiny_model("bert"), "--pool", "mean", "-o", other)
    shutil.rmtree(part(vectors, "part.json").parent)
    strange = part(other, "part.json").parent
    shutil.copytree(strange, vectors / "parts" / strange.name)
    for line in (["search", vectors, "-q", "rivers"], ["show", vectors], ["verify", vectors]):
        assert str(vectors / "parts" / strange.name) in lmk(*line, code=3).err


def test_a_table_of_other_documents_than_its_part(lmk: Lmk, vectors: Path) -> None:
    path = part(vectors, "docs.parquet")
    rewritten(path, lambda table: pa.concat_tables([table, table]))
    for line in (
        ["search", vectors, "-q", "rivers"],
        ["verify", vectors],
        ["export", vectors, "--to", "parquet", "-o", vectors / "out"],
    ):
        err = lmk(*line, code=3).err
        assert re.search(rf"{path}.* 120 .* 60", err)


def test_tokens_with_inconsistent_rows(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    bert, tokens = tiny_model("bert"), tmp_path / "tokens"
    lmk("tokenize", beir, "-m", bert, "-o", tokens)
    path = part(tokens, "starts.npy")
    whole = np.load(path)
    for broken in (whole[::-1], np.full_like(whole, -1), whole + 10**9):
        np.save(path, broken)
        err = lmk("encode", tokens, "-m", bert, "--pool", "mean", "-o", tmp_path / "v", code=3).err
        assert "starts.npy does not match" in err
        assert not (tmp_path / "v").exists()


def test_compact_keeps_other_files_in_a_part(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    mine, vectors = tmp_path / "beir", tmp_path / "vectors"
    shutil.copytree(beir, mine)
    words = ["encode", mine, "-m", tiny_model("bert"), "--pool", "mean", "-o", vectors]
    lmk(*words)
    with open(mine / "corpus.jsonl", "a") as file:
        file.write('{"_id": "new", "text": "a heron by the river"}\n')
    lmk(*words, "--if-exists", "update")
    kept = min((vectors / "parts").glob("0*of00001*"))
    (kept / "thesis.tex").write_text("mine")
    err = lmk("compact", vectors, "--keep-hours", 0).err
    assert "thesis.tex" in err
    assert [path.name for path in kept.iterdir()] == ["thesis.tex"]
    assert lmk("compact", vectors, "--keep-hours", 0, "--json").json["deleted"] == 0
    hits = lmk("search", vectors, "-q", "a heron by the river", "--json").json
    assert hits[0]["id"] == "new"  # the query is the text itself, so it is first with any model


LOG_LINES = [
    "{}", "[]", "3", '{"scores": []}', '{"scores": {"nDCG@10": "high"}}', '{"scores": {"nDCG@10": true}}',
    '{"scores": {}, "run": 3}', '{"scores": {}, "lineage": {}}', '{"scores": {}, "lineage": [{}]}',
    '{"scores": {}, "qrels": 1}', '{"scores": {}, "scores": {}}', '{"scores": ' + "[" * 5000, '{"scores"',
]  # fmt: skip


@pytest.mark.parametrize("line", LOG_LINES)
def test_a_line_that_is_no_entry_is_named(lmk: Lmk, tmp_path: Path, line: str) -> None:
    log = tmp_path / "scores.jsonl"
    log.write_text(f'{{"scores": {{"nDCG@10": 0.5}}}}\n{line}\n')
    plot = ["plot", log, "--x", "k", "-o", tmp_path / "curve.svg"]
    for words in (["show", log], plot, ["repro", f"{log}#1"]):
        assert f"{log} line 2" in lmk(*words, code=3).err


@pytest.mark.parametrize(
    ("key", "value"),
    [("command", 3), ("command", [3]), ("directory", 1), ("packages", []), ("operation", []), ("machine", 1),
     ("python", None), ("environment", "x")],
)  # fmt: skip
def test_facts_of_another_type(lmk: Lmk, vectors: Path, key: str, value: Any) -> None:
    path = vectors / "manifest.json"
    recorded = json.loads(path.read_text())
    recorded["facts"][key] = value
    path.write_text(json.dumps(recorded))
    for line in (["show", vectors], ["repro", vectors]):
        err = lmk(*line, code=3).err
        assert str(path) in err
        assert key in err


def test_a_key_that_comes_twice_is_named(
    lmk: Lmk, vectors: Path, beir: Path, tmp_path: Path
) -> None:
    path = vectors / "manifest.json"
    path.write_text(path.read_text().replace('"kind":', '"kind": "tokens", "kind":', 1))
    err = lmk("search", vectors, "-q", "x", code=3).err
    assert "'kind'" in err
    (tmp_path / "docs.jsonl").write_text('{"_id": "a", "_id": "b", "text": "x"}\n')
    err = lmk("index", tmp_path / "docs.jsonl", "--kind", "bm25", "-o", tmp_path / "i", code=3).err
    assert "docs.jsonl line 1" in err
    assert "the key '_id'" in err


def test_links_that_lead_to_themselves(lmk: Lmk, beir: Path, tmp_path: Path) -> None:
    lmk("index", beir, "--kind", "bm25", "-o", tmp_path / "bm25")
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for line in (
        ["search", tmp_path / "bm25", beir, "-o", loop],
        ["search", tmp_path / "bm25", "--with", loop, "--fuse", "rrf", beir, "-o", tmp_path / "r"],
        ["search", loop, "-q", "x"],
        ["index", loop, "--kind", "bm25", "-o", tmp_path / "i"],
        ["index", beir, "--kind", "bm25", "-o", loop],
        ["eval", loop],
        ["show", loop],
    ):
        assert "Traceback" not in lmk(*line, code=3).err
    assert loop.is_symlink()


def test_an_index_without_a_list_of_its_files_is_reported(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    mine, vectors, index = tmp_path / "beir", tmp_path / "vectors", tmp_path / "index"
    shutil.copytree(beir, mine)
    encode = ["encode", mine, "-m", tiny_model("bert"), "--pool", "mean", "-o", vectors]
    update = ["index", vectors, "--kind", "hnsw", "-o", index, "--if-exists", "update"]
    lines = (mine / "corpus.jsonl").read_text().splitlines(keepends=True)
    for kept in (lines, lines[1:], [*lines[2:], '{"_id": "new", "text": "a heron"}\n']):
        (mine / "corpus.jsonl").write_text("".join(kept))
        lmk(*encode, "--if-exists", "update")
        lmk(*update)
        assert lmk("verify", index, "--json").json["files"] == 1
    (listed,) = index.glob("*/files.json")
    listed.unlink()
    for line in (["search", index, "-q", "heron"], ["verify", index]):
        assert f"{listed} is missing" in lmk(*line, code=3).err


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_model: Models, beir: Path) -> Path:
    """A folder for the artifacts of `LINES`."""
    folder = tmp_path_factory.mktemp("made") / "own"
    shutil.copytree(beir, folder / "beir")
    shutil.copytree(tiny_model("bert"), folder / "bert")
    pairs = [{"query": f"river {i}", "pos": f"River {i} carries water."} for i in range(4)]
    tiny.write_jsonl(folder / "pairs.jsonl", pairs)
    return folder


LINES = [
    "export --to sentence-transformers -m ./bert --pool mean -o model",
    "encode ./beir -m ./model -o vectors",
    "encode ./beir -m ./model --pool lmk --gran 8 --unit chunk -o chunks",
    "tokenize ./beir -m ./model -o tokens",
    "tokenize ./beir -m ./model --pool lmk --gran sentence -o sentences",
    "index vectors -o hnsw",
    "index vectors --kind IVF1,Flat -o ivf",
    "index ./beir --kind bm25 -o bm25",
    "search bm25 ./beir -k 10 -o run.trec",
    "eval run.trec -m nDCG@10 --log scores.jsonl",
    "train pairs.jsonl -m ./model --steps 2 --batch-size 2 -o trained",
]


@pytest.fixture
def own(lmk: Lmk, made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, which the test may damage; the next test finds it as it was made."""
    monkeypatch.chdir(made.parent)
    whole = made.with_name("whole")
    if not whole.exists():
        monkeypatch.chdir(made)
        for line in LINES:
            lmk(*line.split())
        shutil.copytree(made, whole)
    shutil.rmtree(made)
    shutil.copytree(
        whole, made
    )  # in the same place, since artifacts record the paths of their inputs
    monkeypatch.chdir(made)
    return made


def put(path: Path, keys: str, value: Any) -> None:
    """Replace the value of a JSON file that the keys lead to; `...` removes it."""
    whole = within = json.loads(path.read_text())
    *above, last = keys.split("/")
    for key in above:
        within = within[int(key) if isinstance(within, list) else key]
    within[last] = value
    if value is ...:
        del within[last]
    path.write_text(json.dumps(whole))


ENCODE = "encode ./beir -m ./model -o vectors"
HNSW = "index vectors -o hnsw"
BM25 = "index ./beir --kind bm25 -o bm25"
METADATA = "eval run.trec --ir-metadata"
TOKENS = "encode tokens -m ./model -o out"
UPDATE = "--if-exists update"
NULL = "bm25\0"


@pytest.mark.parametrize(
    ("file", "keys", "value", "line", "named"),
    [
        ("vectors/manifest.json", "execution/source", 5, ENCODE, "source"),
        ("vectors/manifest.json", "execution/shards", "x", f"{ENCODE} {UPDATE}", "shards"),
        ("vectors/manifest.json", "execution/shards", ..., f"{ENCODE} {UPDATE}", "shards"),
        ("vectors/manifest.json", "facts/operation/operation", [], "repro vectors", "makes no artifact"),
        ("vectors/manifest.json", "identity/recipe/query/dim", 16, "search vectors -q x", "16"),
        ("vectors/manifest.json", "identity/recipe/doc/dim", 16, "verify vectors", "16"),
        ("vectors/manifest.json", "identity/recipe/query/prefix_token", 9999, "search vectors -q x", "token"),
        ("vectors/manifest.json", "identity/recipe/query/expansion", -1, "search vectors -q x", "expansion"),
        ("chunks/manifest.json", "identity/recipe/doc/overlap", 1.5, "search chunks -q x", "overlap"),
        ("tokens/manifest.json", "execution/source", {}, TOKENS, "source.name"),
        ("tokens/manifest.json", "identity/splitter", ..., TOKENS, "splitter"),
        ("tokens/manifest.json", "identity/text", 5, TOKENS, "text"),
        ("tokens/manifest.json", "identity/recipe", [], "update ./beir tokens", "identity.recipe is unknown"),
        ("hnsw/manifest.json", "kind", "x", "show hnsw", "kind"),
        ("hnsw/manifest.json", "identity/family", [], "verify hnsw", "family"),
        ("hnsw/manifest.json", "identity/family", ..., "verify hnsw", "family"),
        ("hnsw/manifest.json", "facts/vectors", ..., "show hnsw", "vectors"),
        ("hnsw/built.json", "of/unfinished_shards", 5, "search hnsw -q x", "built.json"),
        ("hnsw/built.json", "of", {"stamp": None}, f"{HNSW} {UPDATE}", "built.json"),
        ("bm25/built.json", "at", "9" * 5000, f"{BM25} {UPDATE}", "built.json"),
        ("bm25/built.json", "of/stamp", ..., BM25, "built.json"),
        ("bm25/manifest.json", "identity/collection", ..., "show bm25", "collection"),
        ("bm25/manifest.json", "identity/collection", "x", "repro bm25", "collection"),
        ("bm25/manifest.json", "identity/analysis", 5, METADATA, "analysis"),
        ("run.trec.json", "facts/machine/memory", 10**400, METADATA, "memory"),
        ("run.trec.json", "facts/operation/index", NULL, "repro run.trec", "null character"),
        ("run.trec.json", "identity/search/fuse", 5, METADATA, "fuse"),
        ("run.trec.json", "identity/search/rerank", {}, METADATA, "rerank"),
        ("scores.jsonl", "lineage/0/path", NULL, "repro scores.jsonl", "null character"),
        ("scores.jsonl", "lineage/0/identity/collection", "x", "repro scores.jsonl", "collection"),
        ("trained/manifest.json", "identity/settings/steps", ..., "show trained", "steps"),
        ("trained/training.json", "steps", ..., "show trained", "steps"),
        ("trained/training.json", "curve", 5, "show trained", "curve"),
        ("trained/training.json", "dev", None, "show trained", "dev"),
        ("model/config.json", "architectures", [5], "search bm25 ./beir --rerank-model ./model -o out",
         "architectures"),
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_a_value_that_lmk_does_not_write(
    lmk: Lmk, own: Path, file: str, keys: str, value: Any, line: str, named: str
) -> None:
    put(own / file, keys, value)
    assert named in lmk(*line.split(), code=3).err
    assert not (own / "out").exists()


def test_a_line_of_a_log_with_more_or_fewer_keys(lmk: Lmk, own: Path) -> None:
    """Keys that this version does not know, or does not need, are no obstacle."""
    put(own / "scores.jsonl", "lineage/0/new", 1)
    put(own / "scores.jsonl", "operation", ...)
    lmk("repro", "scores.jsonl")


def test_a_training_without_a_curve_is_shown(lmk: Lmk, own: Path) -> None:
    put(own / "trained/training.json", "curve", [])
    lmk("show", "trained")


def test_deep_values_in_a_manifest(lmk: Lmk, own: Path) -> None:
    path = own / "vectors/manifest.json"
    put(path, "identity/text/x", "here")
    path.write_text(path.read_text().replace('"here"', '{"a":' * 400 + "1" + "}" * 400))
    assert "nested too deeply" in lmk("search", "vectors", "-q", "x", code=3).err


def test_the_digest_of_the_documents_of_a_part(lmk: Lmk, own: Path) -> None:
    for value in ("x", "1:zz", f"{'9' * 5000}:0"):
        edited(part(own / "vectors", "part.json"), collection=value)
        assert "part.json" in lmk("show", "vectors", code=3).err


@pytest.mark.parametrize("first", [-5, 0, 2**31 - 1])
def test_impossible_numbers_of_vectors(lmk: Lmk, own: Path, first: int) -> None:
    """Vectors of the first document, where the total of the first two stays the same if it can."""
    path = part(own / "chunks", "docs.parquet")
    table = pq.read_table(path)
    counts = table.column("vectors").to_pylist()
    counts[:2] = [first, max(1, sum(counts[:2]) - first)]
    at = table.column_names.index("vectors")
    pq.write_table(table.set_column(at, "vectors", pa.array(counts, pa.int32())), path)
    for line in ("search chunks -q x", "export chunks --to parquet -o out", "verify chunks"):
        assert str(path.relative_to(own)) in lmk(*line.split(), code=3).err


@pytest.mark.parametrize("name", ["-1", "2**30", "backwards"])
def test_ends_of_chunks_that_are_outside_of_their_text(lmk: Lmk, own: Path, name: str) -> None:
    path = part(own / "sentences", "ends.npy")
    ends = np.load(path)
    np.save(path, {"-1": ends * 0 - 1, "2**30": ends * 0 + 2**30, "backwards": ends[::-1]}[name])
    words = ["encode", "sentences", "-m", "./model", "--pool", "lmk", "--gran", "sentence"]
    assert "does not match" in lmk(*words, "-o", "out", code=3).err


def test_tokens_that_the_model_does_not_have(lmk: Lmk, own: Path) -> None:
    path = part(own / "tokens", "ids.npy")
    ids = np.load(path)
    ids[3] = 9999
    np.save(path, ids)
    assert "token" in lmk(*TOKENS.split(), code=3).err
    path = own / "model/tokenizer.json"
    whole = json.loads(path.read_text())
    numbers = whole["model"]["vocab"]
    numbers |= {word: number + 9000 for word, number in numbers.items() if number > 100}
    path.write_text(json.dumps(whole))
    for line in (ENCODE.replace("vectors", "out"), "train pairs.jsonl -m ./model --steps 1 -o out"):
        assert "token" in lmk(*line.split(), code=3).err
        assert not (own / "out").exists()


@pytest.mark.parametrize("name", ["faiss.ivfdata", "faiss-00000.index"])
def test_lists_next_to_an_index_without_lists(lmk: Lmk, own: Path, name: str) -> None:
    shutil.copyfile(own / "hnsw/1/faiss.index", own / "hnsw/1" / name)
    assert "faiss.index" in lmk("search", "hnsw", "-q", "x", code=3).err


def test_an_index_with_numbers_of_other_vectors(lmk: Lmk, own: Path) -> None:
    """The bytes of an index that is opened are not compared with their digest."""
    path = own / "ivf/1/faiss.index"
    before = path.read_bytes()
    for number in range(60):
        found = before.find(number.to_bytes(8, "little") + (number + 1).to_bytes(8, "little"))
        if found > 0:
            path.write_bytes(before[:found] + (10**6).to_bytes(8, "little") + before[found + 8 :])
            break
    assert "does not have" in lmk("search", "ivf", "./beir", "-k", 60, "-o", "out", code=3).err


def test_a_damaged_shard_is_not_joined(lmk: Lmk, own: Path) -> None:
    words = ["index", "vectors", "--kind", "IVF1,Flat", "-o", "joined"]
    for number in range(2):
        lmk(*words, "--shard", f"{number}/2")
    path = own / "joined.shards/00000of00002-shard.index"
    path.write_bytes(path.read_bytes()[:-100])
    assert "joined.shards" in lmk(*words, code=3).err
    assert not (own / "joined").exists()


def test_a_term_that_the_postings_do_not_have(lmk: Lmk, own: Path) -> None:
    path = own / "bm25/1/bm25/vocab.index.json"
    terms = json.loads(path.read_text())
    last = str(len(terms))
    word = next(word for word, number in terms.items() if len(str(number)) == len(last))
    path.write_text(re.sub(rf'("{word}": ?)\d+', rf"\g<1>{last}", path.read_text()))
    assert "vocabulary" in lmk("search", "bm25", "-q", word, code=3).err


def test_an_array_of_very_many_empty_rows(lmk: Lmk, own: Path) -> None:
    empty = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (10**18, 0), (0, 4))
    np.save(part(own / "vectors", "part.json").with_name("more.npy"), empty)
    assert "digest differs" in lmk("verify", "vectors", code=3).err


def test_damaged_weights_are_no_reproduction(lmk: Lmk, own: Path) -> None:
    path = own / "trained/model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    assert "cannot be read" in lmk("repro", "trained", code=4).err


def test_a_ranked_chunk_without_a_number(lmk: Lmk, own: Path) -> None:
    lmk(*"search chunks ./beir --level chunk -o chunks.trec".split())
    lines = (own / "chunks.trec").read_text().splitlines()
    for place, number in enumerate(("x", "9" * 5000, "\u00b2")):
        fields = lines[place].split()
        lines[place] = " ".join([*fields[:2], f"d001#{number}", *fields[3:]])
    (own / "chunks.trec").write_text("\n".join(lines) + "\n")
    lmk("browse", "chunks.trec", "-o", "page.html")


def test_chunks_of_indexes_with_other_documents(lmk: Lmk, own: Path) -> None:
    tiny.write_jsonl(own / "more.jsonl", [{"_id": "new", "text": "rivers carry water " * 9}])
    lmk(*"index more.jsonl --kind bm25 --unit chunk --gran 8 -o other".split())
    for first, second in (("chunks", "other"), ("other", "chunks")):
        line = f"search {first} --with {second} --level chunk --fuse rrf -q rivers --json"
        assert any(hit["id"].startswith("new#") for hit in lmk(*line.split()).json)


def test_a_matrix_that_is_too_wide_leaves_nothing(lmk: Lmk, own: Path) -> None:
    np.save(own / "wide.npy", np.zeros((1, 1 << 20), np.float16))
    (own / "ids.txt").write_text("d1\n")
    line = "import wide.npy --from numpy --ids ids.txt -o out"
    assert "dimensions" in lmk(*line.split(), code=3).err
    assert not (own / "out").exists()


def test_settings_with_a_null_character(lmk: Lmk, own: Path) -> None:
    for name in ("stopwords", "output"):
        (own / "settings.toml").write_text(f'[index]\n{name} = "a\\u0000b"\n')
        line = "index ./beir --kind bm25 --config settings.toml"
        words = line.split() if name == "output" else [*line.split(), "-o", "out"]
        assert "null character" in lmk(*words, code=2).err
