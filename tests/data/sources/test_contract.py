"""The contract of all sources in the catalog. To test a new row, add its examples here."""

import gzip
import shutil
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ir_datasets import registry
from ir_datasets.datasets.base import Dataset
from ir_datasets.formats import TsvDocs, TsvQueries
from ir_datasets.util import LocalDownload

from lmkcli import catalog
from lmkcli.data import hub_layouts
from lmkcli.data.collection import (
    Collection,
    CollectionDigest,
    Doc,
    Shard,
    check_id,
    doc_hash,
    open_collection,
)
from tests import mirrors

ROWS = [
    {"id": f"d{number}", "title": f"T{number}" * (number % 2), "text": f"text\u2028{number} é"}
    for number in range(25)
]
EXAMPLES = {
    "files": ["beir", "c.jsonl", "c.jsonl.gz", "c.tsv", "c.parquet", "topics.txt"],
    "folder": ["folder:texts,map_ids=1,queries=c.jsonl"],
    "stdlib": ["stdlib/functions", "stdlib/modules"],
    "python": ["python/pluggy/functions", "python/pluggy/modules"],
    "memory": [catalog.source_name(ROWS)],
    "irds": ["irds:contract-mini"],
    "hub": ["mldr/en/test", "mteb-v2/scidocs", "loco/qasper_title", "conteb/football"],
    "dataset": ["hf:mteb/scidocs", "hf:rows/plain", "hf:rows/files,id=key,text=body"],
    "synthetic": ["passkey/256", "needle/512,seed=3"],
    "haystack": ["haystack,distractors=5,from=stdlib/functions,docs=20"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("contract")
    lines = "".join(f"{row}\n".replace("'", '"') for row in ROWS).replace("\\u2028", "\u2028")
    (folder / "c.jsonl").write_text(lines)
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    tsv = "".join("\t".join(row.values()) + "\n" for row in ROWS)
    (folder / "c.tsv").write_text("id\ttitle\ttext\n" + tsv)
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "c.parquet", row_group_size=4)
    topic = "<top>\n<num> Number: {id}\n<title> {text}\n</top>\n"
    (folder / "topics.txt").write_text("".join(topic.format(**row) for row in ROWS))
    for number, row in enumerate(ROWS):
        place = folder / "texts" / f"{number % 3}" / f"{number} é.md"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"# {row['title']}\n\n{row['text']}")
    (folder / "beir/qrels").mkdir(parents=True)
    shutil.copy(folder / "c.jsonl", folder / "beir/corpus.jsonl")
    (folder / "beir/queries.jsonl").write_text('{"_id": "q", "text": "x"}\n')
    (folder / "beir/qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td1\t1\n")
    (folder / "irds.tsv").write_text("".join(f"{row['id']}\t{row['text']}\n" for row in ROWS))
    local = LocalDownload(folder / "irds.tsv")
    registry.register("contract-mini", Dataset(TsvDocs(local), TsvQueries(local)))
    mirrors.mldr(folder / "mirror", "en")
    mirrors.mteb(folder / "mirror/mteb/scidocs")
    mirrors.loco(folder / "mirror", ["qmsum", "qasper_title"])
    mirrors.conteb(folder / "mirror", "football", "train", "chunk_id")
    texts = [{"text": f"text {number}"} for number in range(25)]
    mirrors.parquet(folder / "mirror/rows/plain/a.parquet", texts)
    for part in range(5):
        rows = [{"key": f"{part}-{number}", "body": f"text {number}"} for number in range(4)]
        mirrors.parquet(folder / f"mirror/rows/files/{part}.parquet", rows)
    yield folder
    del registry._registered["contract-mini"]


@pytest.fixture(params=list(chain.from_iterable(EXAMPLES.values())))
def collection(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Collection:
    monkeypatch.setenv("IR_DATASETS_HOME", str(folder / "home"))
    monkeypatch.setenv(hub_layouts.MIRROR, str(folder / "mirror"))
    monkeypatch.chdir(folder)  # options name files
    name: str = request.param
    options = ",fields=title" if name == "topics.txt" else ""
    found = (folder / name).exists()
    return open_collection(f"{folder / name}{options}" if found else name)


def digest(docs: Iterable[Doc]) -> CollectionDigest:
    total = CollectionDigest()
    for doc in docs:
        total.add(doc_hash(doc))
    return total


def in_order(collection: Collection) -> bool:
    """Whether shards are ranges; gzip files and sources without a count deal blocks instead."""
    return not collection.name.endswith((".gz", "contract-mini", "mldr/en/test"))


def test_every_source_has_examples() -> None:
    assert EXAMPLES.keys() == catalog.SOURCES.keys()


def test_reading_twice_gives_the_same_documents(collection: Collection) -> None:
    stream = collection.docs()
    first = list(stream)
    assert first
    assert list(stream) == first
    assert list(collection.docs()) == first
    assert list(open_collection(collection.name).docs()) == first


def test_ids_are_unique_and_valid_in_a_run(collection: Collection) -> None:
    ids = [check_id(doc.id, "") for doc in collection.docs()]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 60])
def test_shards_together_are_the_collection(collection: Collection, count: int) -> None:
    whole = list(collection.docs())
    shards = [list(collection.docs(Shard(number, count))) for number in range(count)]
    joined = list(chain.from_iterable(shards))
    assert (joined if in_order(collection) else sorted(joined)) == (
        whole if in_order(collection) else sorted(whole)
    )
    parts = CollectionDigest.sum([str(digest(shard)) for shard in shards])
    assert str(parts) == str(digest(whole))


def test_fractions_grow_to_one(collection: Collection) -> None:
    stream = collection.docs(Shard(0, 2))
    fractions = [stream.fraction for _ in stream]
    known = [fraction for fraction in fractions if fraction is not None]
    assert known == sorted(known)
    assert all(0 <= fraction <= 1 for fraction in known)
    assert not known or stream.fraction == pytest.approx(1.0)


def test_queries_and_judgements_belong_together(collection: Collection) -> None:
    queries = {query.id for query in collection.queries()}
    assert queries
    if collection.has_qrels():
        judged = {qrel.query_id for qrel in collection.qrels()}
        assert judged
        assert judged <= queries
        assert {query.id for query in collection.judged_queries()} == judged


def test_settings_and_stamp_are_strings_and_numbers(collection: Collection) -> None:
    assert all(type(value) is str for value in collection.settings.values())
    assert collection.file_stats() == open_collection(collection.name).file_stats()
