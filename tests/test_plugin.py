"""Extension by an entry point: the package in examples/plugin adds one part of each kind."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lmkcli import catalog
from lmkcli.errors import UsageError
from tests.forkserver import ForkServer
from tests.test_plugins import run_lines
from tests.tiny import write_jsonl

PLUGIN = Path(__file__).resolve().parents[1] / "examples" / "plugin"
TRIPLES = [
    {"query": f"question {n}", "positive": f"answer {n}", "negatives": [f"other {n + 1}"]}
    for n in range(8)
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages that pip installed the plugin into."""
    folder = tmp_path_factory.mktemp("site")
    source = shutil.copytree(PLUGIN, tmp_path_factory.mktemp("source") / "plugin")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(folder), str(source)], check=True)
    return folder


@pytest.fixture
def lmk(installed: Path, forkserver: ForkServer, tmp_path: Path) -> Callable[..., Any]:
    """Runs lmk in a process that sees the plugin."""
    paths = [str(installed), str(PLUGIN.parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def run(*words: object, code: int = 0) -> Any:
        done = forkserver.run(*words, env=env, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        return done

    return run


def test_its_pooler_is_used_listed_and_recorded(
    lmk: Callable[..., Any], tmp_path: Path, beir: Path, tiny_model: Callable[[str], Path]
) -> None:
    rows = json.loads(lmk("show", "poolers", "--json").stdout)
    assert {
        "poolers": "head@k",
        "description": "the mean over the first k positions",
        "needs": "lmk-example 0.1.0",
    } in rows
    model = tiny_model("bert")
    lmk("encode", beir, "-m", model, "--pool", "head@4", "-o", "v")
    made = json.loads((tmp_path / "v" / "manifest.json").read_text())
    recipe = made["identity"]["recipe"]["doc"]
    assert (recipe["pool"], recipe["pool_package"]) == ("head@4", "lmk-example 0.1.0")
    lmk("search", "v", beir, "-o", "run.trec")
    said = lmk("encode", beir, "-m", model, "--pool", "head@x", "-o", "w", code=2).stderr
    assert "head@k" in said


def test_its_pooler_with_weights_uses_them_and_they_are_part_of_the_model(
    lmk: Callable[..., Any], tmp_path: Path, beir: Path, tiny_model: Callable[[str], Path]
) -> None:
    plain = tiny_model("bert")
    said = lmk("encode", beir, "-m", plain, "--pool", "gate", "-o", "w", code=2).stderr
    assert "has no gate/gate.safetensors" in said
    model = shutil.copytree(plain, tmp_path / "gated")
    (model / "gate").mkdir()
    width = json.loads((model / "config.json").read_text())["hidden_size"]

    def encode(open_gates: int, output: str) -> np.ndarray:
        gates = np.full(width, -30, np.float32)  # closed
        gates[:open_gates] = 30
        save_file({"weights": gates}, model / "gate" / "gate.safetensors")
        lmk("encode", beir, "-m", model, "--pool", "gate", "--dtype", "fp32", "-o", output)
        (part,) = (tmp_path / output / "parts").glob("*/vectors.npy")
        return np.load(part)

    first, second = encode(3, "v3"), encode(5, "v5")
    assert not np.abs(first[:, 3:]).max()
    assert np.abs(second[:, 3:5]).min()
    said = lmk("search", "v3", beir, "-o", "run.trec", code=3).stderr
    assert "the weights of" in said  # not those that made the vectors
    write_jsonl(tmp_path / "triples.jsonl", TRIPLES)
    how = ["-m", plain, "--batch-size", 4, "--pool", "gate"]
    said = lmk("train", "triples.jsonl", *how, "--unit", "token", "-o", "late", code=2).stderr
    assert "--pool gate has weights" in said


@pytest.fixture
def gated(tmp_path: Path, tiny_model: Callable[[str], Path]) -> Path:
    """A model whose gates let only the first three dimensions pass."""
    model = shutil.copytree(tiny_model("bert"), tmp_path / "gated")
    gates = np.full(json.loads((model / "config.json").read_text())["hidden_size"], -30, np.float32)
    gates[:3] = 30
    (model / "gate").mkdir()
    save_file({"weights": gates}, model / "gate" / "gate.safetensors")
    write_jsonl(tmp_path / "triples.jsonl", TRIPLES)
    return model


def vectors_of(folder: Path) -> np.ndarray:
    (part,) = (folder / "parts").glob("*/vectors.npy")
    return np.load(part)


@pytest.mark.parametrize(
    ("line", "folder"),
    [
        ("train triples.jsonl -m gated --pool gate --steps 2 --batch-size 4 -o made", "made"),
        (
            "train triples.jsonl -m gated --pool gate --lora 2 --steps 2 --batch-size 4 -o made",
            "made/adapter",
        ),
        ("export -m gated --pool gate --to sentence-transformers -o made", "made"),
        ("export -m gated --pool gate --to hub -o made", "made"),
    ],
)
def test_a_new_model_declares_the_pooler_and_contains_its_weights(
    line: str,
    folder: str,
    lmk: Callable[..., Any],
    forkserver: ForkServer,
    tmp_path: Path,
    beir: Path,
    gated: Path,
) -> None:
    """No command after it has the flag --pool, and without the package all name what to install."""
    lmk(*line.split())
    lmk("encode", beir, "-m", folder, "--dtype", "fp32", "-o", "v")
    vectors = vectors_of(tmp_path / "v")
    assert np.abs(vectors[:, :3]).min()
    assert not np.abs(vectors[:, 3:]).max()
    lmk("search", "v", "-q", "green tea")
    lmk("verify", "v")
    lmk("export", "-m", folder, "--to", "sentence-transformers", "-o", "again")
    lmk("encode", beir, "-m", "again", "--dtype", "fp32", "-o", "w")
    np.testing.assert_array_equal(vectors_of(tmp_path / "w"), vectors)
    for words in (
        ("encode", beir, "-m", folder, "-o", "x"),
        ("train", "triples.jsonl", "-m", folder, "-o", "x"),
        ("search", "v", "-q", "green tea"),
        ("update", beir, "v"),
        ("verify", "v"),
    ):
        done = forkserver.run(*words, cwd=tmp_path)
        assert done.returncode == 3, (words, done.stderr)
        assert "pip install lmk-example==0.1.0" in done.stderr
    gates = tmp_path / folder / "gate" / "gate.safetensors"
    save_file({"weights": np.ones_like(load_file(gates)["weights"])}, gates)
    for words, fact in (
        (("search", "v", "-q", "green tea"), "the weights of"),
        (("update", beir, "v"), "recipe.doc.weights"),
        (("verify", "v"), "the weights of"),
    ):
        said = lmk(*words, code=3).stderr
        assert fact in said, (words, said)


def test_sentence_transformers_has_the_vectors_of_a_pooler_with_weights(
    installed: Path, lmk: Callable[..., Any], tmp_path: Path, beir: Path, gated: Path
) -> None:
    lmk("export", "-m", gated, "--pool", "gate", "--to", "sentence-transformers", "-o", "made")
    script = (
        "from sentence_transformers import SentenceTransformer as S\n"
        "v = S('made', trust_remote_code=True, device='cpu').encode(['green tea', 'a sky'])\n"
        "assert v[:, :3].all() and abs(v[:, 3:]).max() < 1e-6, v\n"
    )
    paths = os.pathsep.join([str(installed), str(PLUGIN.parents[1])])
    subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
    )


def test_its_codec_stores_vectors_and_travels_with_them(
    lmk: Callable[..., Any], tmp_path: Path, beir: Path, tiny_model: Callable[[str], Path]
) -> None:
    how = ["-m", tiny_model("bert"), "--pool", "mean", "--dtype", "fp32"]
    lmk("encode", beir, *how, "--store-dtype", "fp32", "-o", "exact")
    lmk("encode", beir, *how, "--store-dtype", "bf16", "-o", "v")
    (exact,), (stored,) = ((tmp_path / f).glob("parts/*/vectors.npy") for f in ("exact", "v"))
    assert np.load(stored).dtype == np.uint16
    decoded = (np.load(stored).astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(decoded, np.load(exact), rtol=2**-8)
    lmk("verify", "v")
    for name in ("v", "exact"):
        lmk("search", name, beir, "-o", f"{name}.trec")
    lmk("index", "v", "--kind", "hnsw", "-o", "i")
    lmk("search", "i", beir, "-o", "i.trec")
    runs = [(tmp_path / f"{name}.trec").read_text().split("\n") for name in ("v", "i")]
    assert [line.split()[:5] for line in runs[0]] == [line.split()[:5] for line in runs[1]]
    lmk("compact", "v", "--keep-hours", 0)
    said = lmk("encode", beir, *how, "--store-dtype", "bf17", "-o", "w", code=2).stderr
    assert "did you mean bf16" in said


def test_its_loss_has_a_setting(
    lmk: Callable[..., Any], tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    assert "triplet" in lmk("show", "losses").stdout
    write_jsonl(tmp_path / "triples.jsonl", TRIPLES)
    how = ["-m", tiny_model("bert"), "--steps", 2, "--batch-size", 4]
    lmk("train", "triples.jsonl", *how, "--loss", "triplet:margin=0.3", "-o", "model")
    made = json.loads((tmp_path / "model" / "manifest.json").read_text())
    assert made["identity"]["loss_package"] == "lmk-example 0.1.0"
    assert made["identity"]["settings"]["loss"] == "triplet:margin=0.3"
    lmk("train", "triples.jsonl", *how, "--loss", "triplet:margin=0.4+0.5*infonce", "-o", "other")
    said = lmk("train", "triples.jsonl", *how, "--loss", "triplet:edge=1", "-o", "w", code=2)
    assert "unknown setting 'edge'; its settings are margin" in said.stderr


def test_its_engine_has_flags_and_a_whole_life(
    installed: Path, tmp_path: Path, beir: Path, tiny_model: Callable[[str], Path]
) -> None:
    """In a new process, because flags are composed when it starts."""
    model, blocks = tiny_model("bert"), "--kind blocks -o blocks"
    lines = {
        "index -h": (0, "--precision"),
        "search -h": (0, "--block-rows"),
        f"encode {beir} -m {model} -o v": (0, ""),
        f"index v {blocks} --precision fp16": (0, ""),
        f"search blocks {beir} --block-rows 3 -o blocks.trec": (0, ""),
        f"search blocks {beir} --block-rows 4 -o blocks.trec": (0, "is up to date"),
        f"search v {beir} -o exact.trec": (0, ""),
        "index v --kind hnsw -o hnsw": (0, ""),
        f"search blocks {beir} --with hnsw --fuse rrf --ef-search 40 --block-rows 3 -o f.trec": (
            0,
            "",
        ),
        "verify blocks": (0, ""),
        f"index v {blocks} --precision fp32": (3, "fp16"),
        f"index v {blocks} --if-exists overwrite": (0, "mine.txt"),
        "index v --kind hnsw --precision fp16 -o h": (
            2,
            "--precision has no effect with --kind hnsw",
        ),
        f"search hnsw {beir} --block-rows 3 -o h.trec": (
            *(2, "--block-rows has no effect on an index of kind hnsw"),
        ),
        f"search v {beir} --block-rows 3 -o h.trec": (2, "--block-rows has no effect on vectors"),
    }
    first = [*lines].index(f"index v {blocks} --if-exists overwrite")
    paths = installed, PLUGIN.parents[1]
    found = run_lines([*lines][:first], tmp_path, *paths)
    (tmp_path / "blocks" / "mine.txt").write_text("mine")
    found += run_lines([*lines][first:], tmp_path, *paths)
    for (line, (code, text)), (left, out, err) in zip(lines.items(), found, strict=True):
        assert left == code, f"lmk {line}: {err}"
        assert text in out + err, f"lmk {line}: {out}{err}"
    assert (tmp_path / "blocks" / "mine.txt").read_text() == "mine"
    of_blocks, exact = (
        [line.split()[:4] for line in (tmp_path / name).read_text().splitlines()]
        for name in ("blocks.trec", "exact.trec")
    )
    assert of_blocks == exact


def test_its_reader_reads_files_with_its_suffix(lmk: Callable[..., Any], tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.ini").write_text("[printer]\ncolour = green\n")
    (notes / "b.txt").write_text("the colour of the sky is blue")
    lmk("index", "folder:notes", "--kind", "bm25", "-o", "bm25")
    hits = json.loads(lmk("search", "bm25", "-q", "green printer", "--json").stdout)
    assert [(hit["id"], hit["title"]) for hit in hits] == [("a.ini", "printer")]


def test_its_source_makes_collections_with_shards(lmk: Callable[..., Any], tmp_path: Path) -> None:
    assert "numbers" in lmk("show", "sources").stdout
    lmk("index", "numbers/30", "--kind", "bm25", "-o", "bm25")
    lmk("search", "bm25", "numbers/30", "-o", "run.trec")
    assert json.loads(lmk("eval", "run.trec", "-m", "R@10", "--json").stdout)
    assert "write the number of documents" in lmk("show", "numbers/x", code=2).stderr


def test_its_model_kind_opens_its_folders(
    lmk: Callable[..., Any], tmp_path: Path, beir: Path, tiny_model: Callable[[str], Path]
) -> None:
    folder = tmp_path / "bag"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model("bert") / name, folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "bag-of-words"}))
    table = np.random.default_rng(0).standard_normal((2000, 8)).astype(np.float32)
    save_file({"embeddings": table}, folder / "model.safetensors")
    lmk("encode", beir, "-m", folder, "--pool", "mean", "--dtype", "fp32", "-o", "v")
    lmk("search", "v", "-q", "green tea")
    lmk("verify", "v")
    shown = json.loads(lmk("show", folder, "--json").stdout)
    assert shown["model kind"] == "bag"
    write_jsonl(tmp_path / "triples.jsonl", TRIPLES)
    how = ["--pool", "mean", "--steps", 1, "--batch-size", 4]
    said = lmk("train", "triples.jsonl", "-m", folder, *how, "-o", "trained", code=2)
    assert "its kind of models has no save_pretrained" in said.stderr


def test_its_verb_is_a_command_with_help(lmk: Callable[..., Any], beir: Path) -> None:
    assert "Count the documents of a collection." in lmk("--help").stdout
    assert "--words" in lmk("count", "-h").stdout
    counted = json.loads(lmk("count", "numbers/12", "--words", "--json").stdout)
    assert counted == {"documents": 12, "words": 14}
    assert "did you mean lmk count" in lmk("coumt", code=2).stderr


def test_without_the_package_its_parts_are_unknown(
    forkserver: ForkServer, tmp_path: Path, beir: Path, tiny_model: Callable[[str], Path]
) -> None:
    line = ["encode", beir, "-m", tiny_model("bert"), "--pool", "head@4", "-o", "v"]
    done = forkserver.run(*line, cwd=tmp_path)
    assert done.returncode == 2
    assert "unknown pooler 'head@4'" in done.stderr
    assert forkserver.run("count", "numbers/12", cwd=tmp_path).returncode == 2


class _Point:
    """An entry point of a package with one pooler."""

    def __init__(self, name: str, package: str) -> None:
        self.name = package
        self.dist = type("Dist", (), {"name": package, "version": "2"})
        self.ROWS = (catalog.PoolerRow(name, "somewhere:Thing", "a pooler"),)

    def load(self) -> "_Point":
        return self


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([_Point("lmk", "mine")], "lmk and mine 2 .*'lmk'"),
        ([_Point("x", "mine"), _Point("x", "yours")], "mine 2 and yours 2 .*'x'"),
    ],
)
def test_a_name_that_is_taken_is_refused_with_both_packages(
    monkeypatch: pytest.MonkeyPatch, points: list[_Point], said: str
) -> None:
    monkeypatch.setattr(catalog, "entry_points", lambda group: points)
    catalog.foreign_rows.cache_clear()
    try:
        assert "a landmark after" in catalog.POOLERS["lmk"].help
        with pytest.raises(UsageError, match=said):
            list(catalog.POOLERS)
    finally:
        catalog.foreign_rows.cache_clear()


def test_a_package_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(_Point):
        def load(self) -> _Point:
            raise ImportError("no module named 'theirs'")

    monkeypatch.setattr(catalog, "entry_points", lambda group: [Broken("x", "mine")])
    catalog.foreign_rows.cache_clear()
    try:
        with pytest.raises(UsageError, match="the plug-in mine 2 cannot be used: no module named"):
            list(catalog.POOLERS)
    finally:
        catalog.foreign_rows.cache_clear()
