"""ir_datasets: its own classes over local files, and its behaviour without a network."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import ir_datasets
import pytest
from ir_datasets.datasets.base import Dataset
from ir_datasets.datasets.beir import BeirDocs, BeirQrels, BeirQueries, BeirTitleDoc
from ir_datasets.formats import BaseDocs, GenericQuery, TsvDocs
from ir_datasets.util import LocalDownload

from lmkcli.data.collection import Doc, Shard
from lmkcli.data.fields import Fields
from lmkcli.data.sources import irds_collections as irds
from lmkcli.data.sources.file_collections import open_files
from lmkcli.data.sources.irds_collections import IrdsCollection, open_irds
from lmkcli.errors import DataError, UnknownName
from lmkcli.system import network


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Build docstores in a separate home, and try no download twice."""
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IR_DATASETS_DL_TRIES", "1")
    return tmp_path / "home"


def beir_dataset(folder: Path, name: str) -> Dataset:
    """A BEIR folder as a dataset of ir_datasets; its docs_iter builds a docstore."""
    return Dataset(
        BeirDocs(name, LocalDownload(folder / "corpus.jsonl", mkdir=False), BeirTitleDoc),
        BeirQueries(name, LocalDownload(folder / "queries.jsonl", mkdir=False), GenericQuery),
        BeirQrels(LocalDownload(folder / "qrels/test.tsv", mkdir=False), {}),
    )


def tsv_dataset(path: Path, rows: int) -> Dataset:
    """A dataset that streams its documents, and builds a docstore for a range of them."""
    path.write_text("".join(f"d{number}\ttext {number}\n" for number in range(rows)))
    return Dataset(TsvDocs(LocalDownload(path, mkdir=False)))


def test_an_id_and_a_beir_folder_give_the_same_collection(shared: Path) -> None:
    folder = shared / "data/cranfield"
    files = open_files(str(folder), {})
    irds = IrdsCollection("mini/cranfield", beir_dataset(folder, "mini"), Fields())
    assert list(irds.docs()) == list(files.docs())
    assert any(doc.title for doc in irds.docs())
    assert list(irds.queries()) == list(files.queries())
    assert list(irds.qrels()) == list(files.qrels())
    assert irds.settings == files.settings


def test_shards_of_a_docstore_are_ranges(shared: Path) -> None:
    dataset = beir_dataset(shared / "data/xquad-en", "xquad")
    collection = IrdsCollection("mini/xquad", dataset, Fields())
    whole = list(collection.docs())
    assert dataset.docs_count() == len(whole) == 240
    for count in (2, 7, 300):
        shards = [collection.docs(Shard(number, count)) for number in range(count)]
        assert [doc for shard in shards for doc in shard] == whole
    assert shards[-1].fraction == 1.0


class SlowDocs(BeirDocs):  # type: ignore[misc]
    """Slow, so that several readers find no docstore and start to build one."""

    def _docs_iter(self) -> Iterator[Any]:
        for doc in super()._docs_iter():
            time.sleep(0.001)
            yield doc


def test_readers_that_start_together_build_one_docstore(shared: Path) -> None:
    corpus = LocalDownload(shared / "data/xquad-en/corpus.jsonl", mkdir=False)

    def count(_: int) -> int:
        dataset = Dataset(SlowDocs("slow", corpus, BeirTitleDoc))
        return sum(1 for _ in IrdsCollection("mini/slow", dataset, Fields()).docs())

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(count, range(3))) == [240] * 3


def test_a_shard_builds_no_docstore(shared: Path) -> None:
    dataset = beir_dataset(shared / "data/xquad-en", "cold")
    collection = IrdsCollection("mini/cold", dataset, Fields())
    with pytest.raises(DataError, match=r"docstore .*'lmk fetch mini/cold'"):
        collection.docs(Shard(1, 2))
    assert not dataset.docs_store().built()
    collection.fetch()
    assert sum(1 for number in range(2) for _ in collection.docs(Shard(number, 2))) == 240


def test_two_fetches_build_one_docstore(shared: Path) -> None:
    corpus = LocalDownload(shared / "data/xquad-en/corpus.jsonl", mkdir=False)
    datasets = [Dataset(SlowDocs("twice", corpus, BeirTitleDoc)) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda d: IrdsCollection("mini/twice", d, Fields()).fetch(), datasets))
    assert datasets[0].docs_count() == 240


def test_offline_sends_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(network.VARIABLE, "1")
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: pytest.fail("a name was looked up"))
    collection = open_irds("vaswani", {})
    for read in (collection.docs, collection.queries, collection.qrels):
        with pytest.raises(DataError, match=r"lmk fetch vasw"):
            list(read())
    with pytest.raises(DataError, match="lmk fetch vaswani"):
        collection.fetch()


def test_streamed_collections_are_dealt_without_a_docstore(tmp_path: Path) -> None:
    collection = IrdsCollection("mini/tsv", tsv_dataset(tmp_path / "d.tsv", 2500), Fields())
    shards = [[doc.id for doc in collection.docs(Shard(number, 2))] for number in range(2)]
    assert sorted(shards[0] + shards[1]) == sorted(f"d{number}" for number in range(2500))
    assert [len(shard) for shard in shards] == [1500, 1000]
    assert collection.docs().fraction is None
    assert not (tmp_path / "d.tsv.pklz4/bin").exists()


class Counted(Dataset):  # type: ignore[misc]
    """A dataset with a wrong number of documents in its metadata."""

    def docs_count(self) -> int:
        return 2400


def test_a_wrong_count_loses_no_document(tmp_path: Path) -> None:
    dataset = Counted(*tsv_dataset(tmp_path / "d.tsv", 2500)._constituents)
    collection = IrdsCollection("mini/tsv", dataset, Fields())
    shards = [doc.id for number in range(3) for doc in collection.docs(Shard(number, 3))]
    assert shards == [f"d{number}" for number in range(2500)]
    assert not (tmp_path / "d.tsv.pklz4/bin").exists()


class NewsDoc(NamedTuple):
    doc_id: str
    title: str
    headline: str
    body: str
    raw: bytes


class TitledDoc(NamedTuple):
    doc_id: str
    title: str
    body: str

    def default_text(self) -> str:
        return f"{self.title} {self.body}"


class Given(BaseDocs):  # type: ignore[misc]
    def __init__(self, *records: Any) -> None:
        self.records = records

    def docs_iter(self) -> Iterator[Any]:
        return iter(self.records)

    def docs_count(self) -> int:
        return len(self.records)


def docs_of(record: Any, fields: Fields = Fields()) -> list[Doc]:  # noqa: B008
    return list(IrdsCollection("mini/given", Dataset(Given(record)), fields).docs())


def test_the_text_of_a_record() -> None:
    news = NewsDoc("1", "T", "h", "b", b"raw")
    assert docs_of(news) == [Doc("1", "h b", "T")]
    assert docs_of(news, Fields(("headline", "body"))) == [Doc("1", "h b")]
    assert docs_of(TitledDoc("1", "T", "b")) == [Doc("1", "b", "T")]
    assert docs_of(TitledDoc("1", "", "b")) == [Doc("1", "b")]
    with pytest.raises(DataError, match="doc_id, title, headline, body, raw"):
        docs_of(news, Fields(("lead",)))
    with pytest.raises(DataError, match="map_ids=1"):
        docs_of(TitledDoc("1 2", "", "b"))
    assert docs_of(TitledDoc("1 2", "", "b"), Fields(map_ids=True)) == [Doc("1_2", "b")]


def test_a_dataset_that_was_never_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    # A proxy that refuses connections simulates a machine without a network.
    monkeypatch.delenv(network.VARIABLE)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    collection = open_irds("vaswani", {})
    for read in (collection.docs, collection.queries, collection.qrels):
        with pytest.raises(DataError, match=r"vaswani: ir_datasets .*copy .*home"):
            list(read())


def test_datasets_without_documents_queries_or_qrels() -> None:
    base = open_irds("beir", {})
    with pytest.raises(DataError, match="no documents"):
        base.docs()
    assert not open_irds("msmarco-passage", {}).has_qrels()
    with pytest.raises(DataError, match="no qrels; a longer id"):
        list(open_irds("msmarco-passage", {}).qrels())
    with pytest.raises(DataError, match="no queries; a longer id"):
        list(open_irds("msmarco-passage", {}).queries())


def test_only_datasets_that_every_process_knows_can_move() -> None:
    cranfield = ir_datasets.load("cranfield")
    assert IrdsCollection("cranfield", cranfield, Fields()).can_move()
    own = Dataset(cranfield)  # a program may add queries, and register it under a name
    assert not IrdsCollection("mine", own, Fields()).can_move()
    assert not IrdsCollection("other", Dataset(Given()), Fields()).can_move()


def test_unknown_ids_list_only_similar_ids() -> None:
    with pytest.raises(UnknownName, match="did you mean beir/scifact/test"):
        open_irds("beir/scifact/tset", {})
    with pytest.raises(UnknownName, match=r"did you mean (longembed|loco)/qmsum"):
        open_irds("qmsum", {})
    # test the function itself: another test may have registered the name with ir_datasets
    assert "remove 'irds:'" in str(irds._unknown("mldr/en/test"))
    with pytest.raises(UnknownName) as caught:
        open_irds("zzzzzz", {})
    assert "'lmk show sources'" in str(caught.value)
    assert "vaswani" not in str(caught.value)
    assert len(str(caught.value)) < 150


def test_the_name_of_a_folder_gives_a_hint_to_the_folder_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scifact").mkdir()
    with pytest.raises(UnknownName) as caught:
        open_irds("scifact:test", {})
    folder = "a folder has this name: write ./scifact:test"
    assert str(caught.value) == f"unknown collection 'scifact:test': {folder}"


def test_an_error_during_reading_names_the_collection(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps({"_id": "1", "text": "x", "title": ""}) + "\n{broken\n")
    dataset = Dataset(BeirDocs("broken", LocalDownload(path), BeirTitleDoc))
    with pytest.raises(DataError, match=r"ir_datasets .*JSONDecodeError"):
        list(IrdsCollection("mini/broken", dataset, Fields()).docs())
