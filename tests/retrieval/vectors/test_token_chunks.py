"""Late interaction over given chunks (ConTEB, Table 2): vectors of tokens, and a ranking of their chunks."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lmkcli.data.collection import CHUNK_BREAK, Query
from lmkcli.data.run import read_run
from lmkcli.encoding.encoder import open_recorded_queries
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.vectors.ranked_units import ChunkRows
from lmkcli.vectors.stored import Vectors
from tests import tiny
from tests.conftest import Lmk

CHUNKS = {f"d{n}": [tiny.sentence(n + 9 * k, 6) for k in range(4)] for n in range(6)}
CHUNKS["d2"][1] = ""  # an empty chunk keeps its number
CHUNKS["d3"] = ["alone in its document"]
QUERIES = {f"q{n}": tiny.sentence(n, 4) for n in range(4)}


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chunked")
    tiny.write_jsonl(folder / "corpus.jsonl", [{"_id": k, "chunks": v} for k, v in CHUNKS.items()])
    tiny.write_jsonl(folder / "queries.jsonl", [{"_id": k, "text": v} for k, v in QUERIES.items()])
    (folder / "qrels").mkdir()
    rows = "".join(f"q{n}\td{n}#0\t1\n" for n in range(4))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    return folder


@pytest.mark.parametrize("window", ["full", "chunk", "24"])
def test_chunks_are_ranked_by_the_vectors_of_their_tokens(
    lmk: Lmk, collection: Path, tmp_path: Path, tiny_model: Callable[[str], Path], window: str
) -> None:
    folder, run = tmp_path / "v", tmp_path / "run.trec"
    words = ["--pool", "mean", "--unit", "token", "--gran", "given", "--window", window]
    words += ["--dtype", "fp32", "--store-dtype", "fp32"]
    lmk("encode", collection, "-m", tiny_model("modernbert"), *words, "-o", folder)
    lmk("search", folder, collection, "--level", "chunk", "-o", run)
    found = read_run(run).rankings
    vectors = Vectors(folder)
    (spans,) = vectors.live_spans()
    encoder = open_recorded_queries(vectors, OpenSettings())
    tokens = np.concatenate([block.vectors for block in vectors])
    for name, text in QUERIES.items():
        query = encoder.queries([Query(name, text)]).vectors
        assert len(query) > 1
        wanted = {}
        for row, doc in enumerate(CHUNKS):
            mine = np.arange(vectors.starts[row], vectors.starts[row + 1])
            start = 0
            for number, chunk in enumerate(CHUNKS[doc]):  # the place of a chunk in the joined text
                place = (start, start + len(chunk))
                own = mine[(spans[mine] == place).all(axis=1)] if chunk else mine[:0]
                start = place[1] + len(CHUNK_BREAK)
                if len(own):
                    scores = tokens[own] @ query.T
                    wanted[f"{doc}#{number}"] = float(scores.max(0).sum())
        got = dict(zip(found[name].doc_ids, found[name].scores.tolist(), strict=True))
        assert {k: v for k, v in got.items() if k != "d2#1"} == pytest.approx(wanted, abs=1e-4)
        assert got.keys() - wanted.keys() <= {"d2#1"}
    best = max(wanted, key=lambda name: wanted[name])
    doc, _, number = best.partition("#")
    shown = lmk("search", folder, "-q", QUERIES["q3"], "--level", "chunk", "-k", "1", "--json").json
    assert (shown[0]["id"], shown[0]["passage"]) == (best, CHUNKS[doc][int(number)])


def test_a_search_in_shards_ranks_the_same_chunks(
    lmk: Lmk, collection: Path, tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    words = ["-m", tiny_model("modernbert"), "--pool", "mean", "--unit", "token", "--gran", "given"]
    lmk("encode", collection, *words, "-o", tmp_path / "v")
    search = ["search", tmp_path / "v", collection, "--level", "chunk"]
    lmk(*search, "-o", tmp_path / "whole.trec")
    for shard in range(3):
        lmk(*search, "-o", tmp_path / "parts.trec", "--shard", f"{shard}/3")
    lmk(*search, "-o", tmp_path / "parts.trec")
    assert (tmp_path / "parts.trec").read_text() == (tmp_path / "whole.trec").read_text()
    chunks, vectors = ChunkRows(Vectors(tmp_path / "v")), Vectors(tmp_path / "v")
    blocks = [block.text(n) for block in chunks for n in range(len(block.counts))]
    assert len(blocks) == chunks.rows == sum(len(each) for each in CHUNKS.values())
    rows = np.array([7, 0, 7, chunks.rows - 1])
    for row, found in zip(rows, range(len(rows)), strict=True):
        np.testing.assert_array_equal(chunks.at(rows).text(found), blocks[row])
    assert sum(map(len, blocks)) == vectors.total


def test_an_approximate_index_of_tokens_does_not_rank_chunks(
    lmk: Lmk, collection: Path, tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    model = tiny_model("modernbert")
    words = ["-m", model, "--pool", "mean", "--unit", "token"]
    lmk("encode", collection, *words, "--gran", "given", "-o", tmp_path / "v")
    lmk("index", tmp_path / "v", "--kind", "hnsw", "-o", tmp_path / "index")
    refused = lmk("search", tmp_path / "index", "-q", "a", "--level", "chunk", code=2)
    assert "search the vectors themselves" in refused.err
    lmk("encode", collection, *words, "-o", tmp_path / "plain")
    refused = lmk("search", tmp_path / "plain", "-q", "a", "--level", "chunk", code=2)
    assert "--unit token --gran given" in refused.err
    refused = lmk("encode", collection, *words, "--gran", "8", "-o", tmp_path / "w", code=2)
    assert "--gran 8 has no effect" in refused.err
