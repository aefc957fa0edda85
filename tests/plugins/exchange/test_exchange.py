"""`lmk export` and `lmk import` on the command line."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmkcli import catalog
from lmkcli.artifact import manifest

Models = Callable[[str], Path]
Lmk = Callable[..., Any]
USAGE, DATA = 2, 3


@pytest.fixture
def bert(tiny_model: Models) -> Path:
    return tiny_model("bert")


@pytest.fixture
def vectors(lmk: Lmk, bert: Path, beir: Path, tmp_path: Path) -> Path:
    lmk(
        "encode", beir, "-m", bert, "-o", tmp_path / "v", "--dtype", "fp32", "--store-dtype", "fp32"
    )
    return tmp_path / "v"


@pytest.fixture
def exported(lmk: Lmk, vectors: Path, tmp_path: Path) -> Path:
    lmk("export", vectors, "--to", "numpy", "-o", tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.parametrize(
    "to", [row.name for row in catalog.EXPORTERS.values() if row.takes == "vectors"]
)
def test_vectors_out(lmk: Lmk, vectors: Path, tmp_path: Path, to: str) -> None:
    out = tmp_path / "out"
    done = lmk("export", vectors, "--to", to, "-o", out)
    assert done.out == f"{out}: 60 documents, 60 vectors, 32 dimensions\n"
    again = lmk("export", vectors, "--to", to, "-o", out, "--json").json
    facts = {"documents": 60, "vectors": 60, "dimensions": 32}
    assert again == {"output": str(out), "to": to, **facts}
    shown = lmk("show", out, "--json").json
    assert (shown["to"], shown["made of"]) == (to, str(vectors))


def test_an_existing_output(lmk: Lmk, vectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("export", vectors, "-o", out)
    lmk(*command, "--to", "numpy")
    assert "another identity" in lmk(*command, "--to", "parquet", code=DATA).err
    assert "exists" in lmk(*command, "--to", "numpy", "--if-exists", "fail", code=DATA).err
    lmk(*command, "--to", "parquet", "--if-exists", "overwrite")
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "vectors.parquet"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("mine")
    words = ("export", vectors, "--to", "numpy", "-o", tmp_path / "mine")
    assert "was not made by lmk" in lmk(*words, "--if-exists", "overwrite", code=DATA).err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes"]


@pytest.mark.parametrize("inside", [False, True])
def test_inputs_are_never_replaced(lmk: Lmk, vectors: Path, exported: Path, inside: bool) -> None:
    def refused(*words: Any) -> None:
        assert "would remove the input" in lmk(*words, "--if-exists", "overwrite", code=USAGE).err

    refused("export", vectors / "." if inside else vectors, "--to", "numpy", "-o", vectors)
    refused("index", vectors, "--kind", "hnsw", "-o", vectors)
    given = [exported / "vectors.npy", "--ids", exported / "ids.txt"] if inside else [exported]
    refused("import", *given, "--from", "numpy", "-o", exported)
    assert lmk("show", vectors, "--json").json["documents"]
    assert len(list(exported.iterdir())) == 3


def test_a_model_out_and_in(lmk: Lmk, bert: Path, beir: Path, tmp_path: Path) -> None:
    recipe = ("--pool", "lmk", "--gran", "8", "--max-length", "40", "--doc-prompt", "passage: ")
    out = tmp_path / "st"
    to = ("export", "--to", "sentence-transformers", "-o", out)
    done = lmk(*to, "-m", bert, *recipe)
    load = "SentenceTransformer(folder, trust_remote_code=True)"
    assert done.out == f"{out}: {bert}, pool lmk gran 8; load it with {load}\n"
    made = lmk(*to, "-m", bert, *recipe, "--json").json
    assert made["trust_remote_code"] is True
    assert made["modules"][0] == "lmkcli.sentence_modules.PlacedTransformer"
    assert "gran: '8' | '16'" in lmk(*to, "-m", bert, "--pool", "lmk", "--gran", 16, code=3).err
    assert lmk("show", out, "--json").json["to"] == "sentence-transformers"
    lmk("encode", beir, "-m", bert, *recipe, "-o", tmp_path / "native")
    assert "pool lmk gran 8" in lmk("encode", beir, "-m", out, "-o", tmp_path / "back").err
    native, back = manifest.read(tmp_path / "native"), manifest.read(tmp_path / "back")
    assert native.identity == back.identity


def test_a_folder_that_sentence_transformers_knows(lmk: Lmk, bert: Path, tmp_path: Path) -> None:
    out = tmp_path / "st"
    done = lmk("export", "--to", "sentence-transformers", "-m", bert, "--pool", "cls", "-o", out)
    assert done.out.endswith("load it with SentenceTransformer(folder)\n")


def test_vectors_in(
    lmk: Lmk, bert: Path, beir: Path, vectors: Path, exported: Path, tmp_path: Path
) -> None:
    made = tmp_path / "in"
    command = ("import", exported, "--from", "numpy", "-o", made, "-m", bert)
    assert lmk(*command).out == f"{made}: 60 documents, 32 dimensions\n"
    facts = {"documents": 60, "dim": 32, "normalized": 0}
    assert lmk(*command, "--json").json == {"output": str(made), **facts}
    assert lmk("show", made, "--json").json["documents"]["pool"] == "mean"
    runs = []
    for name in (vectors, made):
        lmk("search", name, beir, "-k", 10, "-o", tmp_path / "run")
        runs.append((tmp_path / "run").read_text())
        (tmp_path / "run").unlink()
        (tmp_path / "run.json").unlink()
    assert runs[0] == runs[1]
    assert "no texts" in lmk("verify", made, code=DATA).err


def test_vectors_without_a_model_cannot_be_searched_with_text(
    lmk: Lmk, exported: Path, tmp_path: Path
) -> None:
    made = tmp_path / "in"
    done = lmk("import", exported, "--from", "numpy", "-o", made)
    assert "not searched with text" in done.err
    refused = lmk("search", made, "-q", "copper", code=DATA)
    assert "imported without a model" in refused.err
    lmk("export", made, "--to", "numpy", "-o", tmp_path / "again")
    arrays = [np.load(folder / "vectors.npy") for folder in (exported, tmp_path / "again")]
    np.testing.assert_array_equal(*arrays)
    pytest.importorskip("faiss")
    lmk("index", made, "-o", tmp_path / "index")


def test_a_model_that_did_not_make_them(
    lmk: Lmk, bert: Path, exported: Path, tmp_path: Path
) -> None:
    np.save(exported / "vectors.npy", np.zeros((60, 7), np.float32))
    words = ("import", exported, "--from", "numpy", "-o", tmp_path / "in", "-m", bert)
    assert "7 dimensions" in lmk(*words, code=DATA).err
    assert not (tmp_path / "in").exists()


def test_normalised_vectors_are_reported(
    lmk: Lmk, bert: Path, exported: Path, tmp_path: Path
) -> None:
    np.save(exported / "vectors.npy", 3 * np.load(exported / "vectors.npy"))
    done = lmk("import", exported, "--from", "numpy", "-o", tmp_path / "in", "-m", bert)
    assert "60 vectors" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "V", "--to", "numpy"], "-o/--output .*-o exported/"),
        (["export", "--to", "numpy", "-o", "X"], "--to numpy .*vectors folder"),
        (["export", "V", "--to", "faiss", "-o", "X"], "--to 'faiss': .*numpy, parquet, .*hub"),
        (
            ["export", "V", "--to", "numpy", "--pool", "cls", "-o", "X"],
            "--pool .*no effect.*--to numpy",
        ),
        (["export", "V", "--to", "numpy", "-m", "M", "-o", "X"], "--model .*no effect.*--to numpy"),
        (
            ["export", "V", "--to", "sentence-transformers", "-o", "X"],
            "--to sentence-transformers .*model.* -m",
        ),
        (
            ["export", "--to", "sentence-transformers", "-o", "X"],
            "--to sentence-transformers .*model.* -m",
        ),
        (
            ["export", "V", "--to", "sentence-transformers", "-m", "M", "-o", "X"],
            "--to sentence-transformers .*model.* -m",
        ),
        (
            ["import", "I", "-o", "X"],
            "--from .*missing.* numpy, pyserini or anserini-json",
        ),
        (
            ["import", "I", "--from", "tevatron", "-o", "X"],
            "--from 'tevatron': .*numpy, pyserini or anserini-json",
        ),
        (["import", "I", "--from", "numpy"], "-o/--output .*-o vectors/"),
        (["import", "I", "--from", "numpy", "--gran", "8", "-o", "X"], "--gran .*no effect.*-m"),
        (["import", "I/vectors.npy", "--from", "numpy", "-o", "X"], "--ids FILE"),
    ],
)
def test_usage(
    lmk: Lmk, bert: Path, vectors: Path, exported: Path, tmp_path: Path,
    words: list[str], message: str,
) -> None:  # fmt: skip
    places = {"V": vectors, "I": exported, "M": bert, "X": tmp_path / "x"}
    places["I/vectors.npy"] = exported / "vectors.npy"
    done = lmk(*(places.get(word, word) for word in words), code=USAGE)
    assert re.search(message, done.err)
    assert not (tmp_path / "x").exists()


def test_missing_inputs(lmk: Lmk, exported: Path, tmp_path: Path) -> None:
    for source in (tmp_path / "none", exported):
        words = ("export", source, "--to", "numpy", "-o", tmp_path / "x")
        assert "Traceback" not in lmk(*words, code=DATA).err
    lmk("import", tmp_path / "none", "--from", "numpy", "-o", tmp_path / "x", code=DATA)
    assert not (tmp_path / "x").exists()


def test_flags_from_the_environment(
    lmk: Lmk, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMK_IMPORT_FROM", "numpy")
    lmk("import", exported, "-o", tmp_path / "in")
    monkeypatch.setenv("LMK_EXPORT_TO", "parquet")
    lmk("export", tmp_path / "in", "-o", tmp_path / "x")
    assert json.loads((tmp_path / "x" / "manifest.json").read_text())["identity"]["to"] == "parquet"
