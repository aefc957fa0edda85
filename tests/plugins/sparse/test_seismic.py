"""Seismic over sparse vectors: exact scores of what it finds, recall, updates, damage and interruptions."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmkcli import BuildIndex, Encode, Search
from lmkcli.data.collection import Query, open_collection
from lmkcli.data.run import Run
from lmkcli.errors import DataError, UsageError
from lmkcli.plugins.exchange.imports import ForeignVector, run_import, unknown_recipe
from lmkcli.plugins.sparse.exact_product import ExactProduct
from lmkcli.plugins.sparse.sparse_imports import SparseForeign
from lmkcli.plugins.sparse.sparse_vectors import SparseRows
from lmkcli.progress import Report
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.pipeline import open_index
from lmkcli.retrieval.vectors.ranked_units import RankedUnits
from lmkcli.retrieval.vectors.vector_index import VectorIndex
from lmkcli.retrieval.vectors.vector_search import RowHits
from lmkcli.vectors.stored import Vectors
from tests import tiny

pytest.importorskip("seismic", reason="the package exists only for Linux on x86-64")

from lmkcli.plugins.sparse import seismic as engine
from lmkcli.plugins.sparse import seismic_builder as builder
from lmkcli.plugins.sparse.seismic import FILE, SMALL, SeismicSearch

Models = Callable[[str], Path]
Rows = list[dict[int, float]]
DIM = 2000


def encode(collection: Path, model: Path, output: Path, **options: Any) -> Vectors:
    settings = {"pool": "splade", "dtype": "fp32", "device": "cpu", **options}
    Encode(str(collection), model=str(model), output=output, **settings).run()
    return Vectors(output)


def build(vectors: Path, output: Path, **options: Any) -> dict[str, Any]:
    built = BuildIndex(str(vectors), kind="seismic", output=output, **options).run()
    facts: dict[str, Any] = built.as_json()
    return facts


def opened(folder: Path, **settings: Any) -> VectorIndex:
    index = open_index(folder, OpenSettings(device="cpu", **settings))
    assert isinstance(index, VectorIndex)
    return index


def ranking(run: Run) -> dict[str, list[tuple[str, np.float32]]]:
    return {
        name: list(zip(each.doc_ids, each.scores, strict=True))
        for name, each in run.rankings.items()
    }


def sparse(rows: Rows, dim: int = DIM) -> SparseRows:
    """A text with one vector for each row of terms and weights."""
    lengths = np.array([len(row) for row in rows], np.int64)
    terms = np.array([term for row in rows for term in sorted(row)], np.int32)
    weights = np.array([row[term] for row in rows for term in sorted(row)], np.float32)
    return SparseRows.of(lengths, terms, weights, np.ones(len(rows), np.int64), dim)


def stored(rows: Rows, folder: Path, dim: int = DIM) -> Vectors:
    folder.mkdir()
    source, vectors = folder / "drawn", sparse(rows, dim)
    source.touch()

    def lines() -> Iterator[ForeignVector]:
        for number, (first, stop) in enumerate(pairwise(vectors.offsets)):
            span = slice(first, stop)
            yield ForeignVector("", str(number), "", vectors.weights[span], vectors.terms[span])

    foreign = SparseForeign("drawn", [source], dim, "float32", False, lines)
    run_import(foreign, unknown_recipe(), folder / "vectors", False, Report())
    return Vectors(folder / "vectors")


def searcher(vectors: Vectors, folder: Path) -> SeismicSearch:
    folder.mkdir()
    SeismicSearch.build(vectors, folder)
    return SeismicSearch(folder, RankedUnits(vectors))


def drawn(count: int) -> Rows:
    """Passages whose terms come from topics, as those of a sparse model do."""
    random = np.random.default_rng(7)
    topics = [random.choice(DIM, 60, replace=False) for _ in range(count // 40)]
    rows = []
    for _ in range(count):
        own = random.choice(topics[int(random.integers(len(topics)))], 20, replace=False)
        terms = {*own.tolist(), *random.choice(DIM, 20).tolist()}
        rows.append({term: float(random.gamma(2.0)) for term in sorted(terms)})
    return rows


def scores(hits: RowHits, query: int) -> dict[int, float]:
    return dict(zip(hits.rows[query].tolist(), hits.scores[query].tolist(), strict=True))


def test_found_documents_have_exact_scores_and_recall_is_high(tmp_path: Path) -> None:
    rows = drawn(4000)
    vectors = stored(rows, tmp_path / "v")
    index = searcher(vectors, tmp_path / "i")
    random = np.random.default_rng(8)
    queries = sparse(
        [
            {term: row[term] * float(random.uniform(0.5, 2)) for term in [*row][::2]}
            for row in rows[::100]
        ]
    )
    exact, hits = ExactProduct(vectors).search(queries, 10), index.search(queries, 10)
    shares = []
    everything = ExactProduct(vectors).search(queries, len(rows))
    for query in range(len(queries.counts)):
        found, best = scores(hits, query), scores(exact, query)
        assert found.items() <= scores(everything, query).items()
        assert len(found) >= 10
        shares.append(len(found.keys() & best.keys()) / len(best))
    assert np.mean(shares) >= 0.99
    again = SeismicSearch(tmp_path / "i", RankedUnits(vectors)).search(queries, 10)
    for query in range(len(queries.counts)):
        assert scores(again, query) == scores(hits, query)


def test_ties_and_missing_documents(tmp_path: Path) -> None:
    same = {1: 2.0, 5: 1.0, 9: 0.5}
    rows = [*[same] * 300, *[{5: 0.1, 20 + i: 1.0} for i in range(50)], {}, {40: 1.0}]
    vectors = stored(rows, tmp_path / "v")
    index = searcher(vectors, tmp_path / "i")
    queries = sparse([{1: 1.0, 5: 1.0}, {}, {3: 1.0}, {40: 2.0}])
    for k in (3, 1000):
        hits, exact = index.search(queries, k), ExactProduct(vectors).search(queries, k)
        assert [scores(hits, query) for query in range(4)] == [
            scores(exact, query) for query in range(4)
        ]
        assert len(hits.rows[0]) == (300 if k == 3 else 350)
        assert [len(each) for each in hits.rows[1:]] == [0, 0, 2]


@pytest.mark.parametrize("scale", [1e-15, 1e-6, 1e15])
def test_weights_of_any_size(tmp_path: Path, scale: float) -> None:
    rows = [{term: weight * scale for term, weight in row.items()} for row in drawn(400)]
    vectors = stored(rows, tmp_path / "v")
    index = searcher(vectors, tmp_path / "i")
    hits = index.search(sparse(rows[:5]), 3)
    assert [int(hits.rows[query][hits.scores[query].argmax()]) for query in range(5)] == [*range(5)]


@pytest.mark.slow  # Seismic needs seconds for so many terms
def test_a_large_vocabulary(tmp_path: Path) -> None:
    rows = [{term + SMALL - 1000: weight for term, weight in row.items()} for row in drawn(400)]
    vectors = stored(rows, tmp_path / "v", SMALL + 1000)
    index = searcher(vectors, tmp_path / "i")
    queries = sparse(rows[:5], SMALL + 1000)
    exact, hits = ExactProduct(vectors).search(queries, 1), index.search(queries, 1)
    assert [scores(hits, query) for query in range(5)] == [
        scores(exact, query) for query in range(5)
    ]


@pytest.mark.parametrize("options", [{}, {"unit": "chunk", "gran": 8}])
@pytest.mark.parametrize("level", [None, "chunk"])
def test_one_and_several_vectors_of_documents(
    masked_model: Models, beir: Path, tmp_path: Path, options: dict[str, Any], level: str | None
) -> None:
    vectors = encode(beir, masked_model("bert"), tmp_path / "v", top_terms=20, **options)
    facts = build(tmp_path / "v", tmp_path / "i")
    assert (facts["documents"], facts["rows"]) == (60, vectors.total)
    if level and not options:
        with pytest.raises(UsageError, match="--level have no effect"):
            opened(tmp_path / "i", level=level)
        return
    exact, index = opened(tmp_path / "v", level=level), opened(tmp_path / "i", level=level)
    assert index.info.kind == "seismic"
    assert index.info.search == exact.info.search | {"query_cut": 10, "heap_factor": 0.8}
    queries = list(open_collection(str(beir)).queries())
    everything = ranking(exact.search(queries, 1000))
    assert ranking(index.search(queries, 1000)) == everything
    for name, hits in ranking(index.search(queries, 3)).items():
        assert len(hits) == 3
        assert {*hits} <= {*everything[name]}
    query = Query("q", tiny.sentence(3, 5))
    ids = index.search([query], 5).rankings["q"].doc_ids
    assert index.passages(query, ids) == exact.passages(query, ids)
    assert index.texts(ids) == exact.texts(ids)


def test_vectors_without_terms(tmp_path: Path) -> None:
    vectors = stored([{}, {}], tmp_path / "v")
    index = searcher(vectors, tmp_path / "i")
    assert [len(each) for each in index.search(sparse([{1: 1.0}]), 3).rows] == [0]


def test_pipelines_search_the_index(masked_model: Models, beir: Path, tmp_path: Path) -> None:
    encode(beir, masked_model("bert"), tmp_path / "v", top_terms=20)
    build(tmp_path / "v", tmp_path / "i")
    BuildIndex(str(beir), kind="bm25", output=tmp_path / "b").run()
    for name, options in (
        ("fused", {"others": (tmp_path / "b",), "fuse": "rrf"}),
        ("reranked", {"rerank": tmp_path / "v"}),
    ):
        runs = []
        for first in ("v", "i"):
            path = tmp_path / f"{name}-{first}.trec"
            Search(str(tmp_path / first), str(beir), output=path, k=100, **options).run()
            runs.append([line.split()[:5] for line in path.read_text().splitlines()])
        assert runs[0] == runs[1]
        assert len(runs[0]) > 60


def test_damaged_and_missing_files(masked_model: Models, beir: Path, tmp_path: Path) -> None:
    encode(beir, masked_model("bert"), tmp_path / "v", top_terms=9)
    build(tmp_path / "v", tmp_path / "i")
    path, record = tmp_path / "i" / "1" / FILE, tmp_path / "i" / "1" / "files.json"
    whole = path.read_bytes()

    def refused(reason: str) -> None:
        with pytest.raises(DataError, match=f"{reason}.*build the index again"):
            opened(tmp_path / "i")

    for place in (*range(0, 200, 23), len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x80]) + whole[place + 1 :])
        refused("was changed after it was written")
    path.write_bytes(b"")  # of another program, which recorded its digest
    record.write_text(json.dumps({FILE: [0, hashlib.sha256(b"").hexdigest()]}))
    refused("cannot be read")
    path.write_bytes(whole)


def test_a_build_that_fails_is_one_error(
    masked_model: Models, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode(beir, masked_model("bert"), tmp_path / "v", top_terms=5)
    monkeypatch.setattr(engine, "FILE", "missing/vectors.index.seismic")
    with pytest.raises(DataError, match=r"Seismic cannot build an index of .*No such file"):
        build(tmp_path / "v", tmp_path / "i")
    assert not (tmp_path / "i").exists()
    monkeypatch.setattr(engine, "_BUILDER", "lmkcli.missing")
    with pytest.raises(DataError, match="No module named"):
        build(tmp_path / "v", tmp_path / "i")


@pytest.mark.slow  # two starts of lmk
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_build_leaves_no_process_and_no_index(
    tmp_path: Path, number: signal.Signals
) -> None:
    stored(drawn(3000), tmp_path / "v", 30_000)
    words = ["index", "v/vectors", "--kind", "seismic", "-o", "i"]
    line = [sys.executable, "-m", "lmkcli.cli.main", *words]
    with hearing_interrupts():
        started = subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.DEVNULL)
    with started as process:
        while (child := running_builder(process.pid)) is None:
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(0.5)  # it has read its task
        os.kill(int(child), signal.SIGSTOP)  # so it cannot end before the signal
        assert process.poll() is None
        process.send_signal(number)
    assert (
        process.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 75, signal.SIGINT: 130}[number]
    )
    while state(child) != "Z":
        time.sleep(0.01)
    with pytest.raises(DataError, match="is not complete"):
        opened(tmp_path / "i")
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stderr
    assert {*os.listdir(tmp_path / "i")} == {"built.json", "manifest.json", "1"}


@contextlib.contextmanager
def hearing_interrupts() -> Iterator[None]:
    """Processes that are started here hear SIGINT, also if this one is a job in the background.

    A `preexec_fn` could fail: it runs in a fork, and a fork beside the threads of gRPC (Milvus) may abort.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def running_builder(parent: int) -> str | None:
    """The child that builds, as soon as it has loaded Seismic."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # other children end soon
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            builds = "seismic_builder" in Path(f"/proc/{child}/cmdline").read_text()
            if builds and "/seismic/" in Path(f"/proc/{child}/maps").read_text():
                return child
    return None


def state(process: str) -> str:
    """The state of a process; Z for one that has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


@pytest.mark.parametrize(
    ("value", "expected"), [("", 0), ("1", 1), ("1,4", 1), (" 1 ", 1), ("no", 0), ("-3", 0)]
)
def test_the_number_of_threads(value: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert builder.threads() == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "100000")
    assert builder.threads() == os.cpu_count()


def test_settings_that_do_not_apply(
    masked_model: Models, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    encode(beir, masked_model("bert"), tmp_path / "v", top_terms=5)
    for options, message in (
        ({"m": 8}, "--m has no effect"),
        ({"shard": "0/2"}, "--shard has no effect|built whole"),
        ({"k1": 1.0}, "--k1 has no effect"),
    ):
        with pytest.raises(UsageError, match=message):
            build(tmp_path / "v", tmp_path / "i", **options)
        assert not (tmp_path / "i").exists()
    with pytest.raises(UsageError, match="inverted or seismic"):
        BuildIndex(str(tmp_path / "v"), output=tmp_path / "i").run()
    with pytest.raises(UsageError, match="not a vectors folder"):
        build(beir, tmp_path / "i")
    Encode(str(beir), model=str(tiny_model("bert")), output=tmp_path / "d", device="cpu").run()
    with pytest.raises(UsageError, match="contains dense vectors"):
        build(tmp_path / "d", tmp_path / "i")
    build(tmp_path / "v", tmp_path / "i")
    for settings, message in (
        ({"ef_search": 9}, "--ef-search has no effect"),
        ({"nprobe": 9}, "--nprobe has no effect"),
        ({"aggregate": "max"}, "have no effect"),
    ):
        with pytest.raises(UsageError, match=message):
            opened(tmp_path / "i", **settings)
