"""Our collections under ir_datasets' own interface, in any program that imports lmkcli.irds."""

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import ir_datasets
import pytest
from filelock import FileLock

from lmkcli import irds
from lmkcli.data import hub_layouts, known
from lmkcli.data.collection import open_collection
from lmkcli.data.sources.irds import IrdsCollection, offer
from tests import mirrors


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror, and a home for ir_datasets, that belong to the test."""
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(hub_layouts.MIRROR, str(tmp_path / "mirror"))
    mirrors.mldr(tmp_path / "mirror", "en")
    mirrors.nano(tmp_path / "mirror", "SciFact")
    return tmp_path / "mirror"


def test_every_name_of_the_hub_is_there_and_no_other_is_changed() -> None:
    hub = {name for name in known.names() if not name.startswith("msmarco-document")}
    assert hub <= set(ir_datasets.registry)
    only = {name for name in hub if (found := known.facts_of(name)) and found.source == "hub"}
    assert set(irds.REGISTERED) == only
    assert type(ir_datasets.load("beir/nq").docs_handler()).__module__.startswith("ir_datasets.")


def test_a_dataset_as_other_programs_use_it(mirror: Path) -> None:
    dataset = ir_datasets.load("mldr/en/test")
    assert (dataset.has_docs(), dataset.has_queries(), dataset.has_qrels()) == (True, True, True)
    docs = list(dataset.docs_iter())
    assert [doc.doc_id for doc in docs] == [name for name, _ in mirrors.DOCS]
    assert list(dataset.docs_iter()[1:3]) == docs[1:3]
    assert list(dataset.docs_iter()[::2]) == docs[::2]
    assert dataset.docs_iter()[-1] == docs[-1]
    assert dataset.docs_store().get("d3") == docs[3]
    assert dataset.docs_store().get_many(["d1", "d9"]) == {"d1": docs[1]}
    assert dataset.docs_count() == 6
    assert dataset.docs_cls()._fields == ("doc_id", "text", "title")
    assert docs[0].default_text() == mirrors.DOCS[0][1]
    assert [tuple(query) for query in dataset.queries_iter()] == mirrors.QUERIES
    assert [(q.query_id, q.doc_id, q.relevance) for q in dataset.qrels_iter()] == [
        (query, doc, 1) for query, doc in mirrors.PAIRS
    ]
    assert dataset.qrels_dict() == {query: {doc: 1} for query, doc in mirrors.PAIRS}


def test_a_docstore_does_not_outlive_its_text(mirror: Path) -> None:
    dataset = ir_datasets.load("mldr/en/test")
    before = dataset.docs_store().get("d0").text
    rows = [{"docid": "d0", "text": f"{before} and more"}]
    mirrors.jsonl(mirror / "Shitao/MLDR/mldr-v1.0-en/corpus.jsonl.gz", rows)
    assert dataset.docs_store().get("d0").text == f"{before} and more"
    assert dataset.docs_count() == 1


@pytest.fixture
def offered() -> Iterator[list[str]]:
    """Removes again what the test registered."""
    made: list[str] = []
    yield made
    for name in made:
        del ir_datasets.registry._registered[name]


def test_only_free_ids_are_taken(mirror: Path, offered: list[str]) -> None:
    offered += offer(["vaswani", "ours/scifact"], lambda name: open_collection(_SCIFACT))
    assert offered == ["ours/scifact"]
    assert offer(["ours/scifact"], open_collection) == []
    assert ir_datasets.load("ours/scifact").docs_count() == 6


_SCIFACT = "hf:nano-beir/scifact"


def test_ours_read_back_through_ir_datasets_are_the_same(mirror: Path) -> None:
    direct = open_collection("mldr/en/test")
    through = open_collection("irds:mldr/en/test")
    assert isinstance(through, IrdsCollection)
    assert list(through.docs()) == list(direct.docs())
    assert list(through.queries()) == list(direct.queries())
    assert list(through.qrels()) == list(direct.qrels())


def _count(name: str) -> int:
    return int(ir_datasets.load(name).docs_count())


def test_a_docstore_that_is_being_begun_is_waited_for(mirror: Path) -> None:
    """ir_datasets writes its fields first, and refuses a docstore in which they are not there yet."""
    load = ir_datasets.load("mldr/en/test").docs_store
    begun = Path(load().path)
    with ThreadPoolExecutor(1) as pool:
        with FileLock(f"{begun}.lock"):
            begun.mkdir()
            (begun / "bin.meta").touch()
            waiting = pool.submit(load)
            time.sleep(0.2)
            assert not waiting.done()
            (begun / "bin.meta").write_text("doc_id text title")
        assert waiting.result().count() == 6


def test_processes_build_one_docstore(mirror: Path) -> None:
    with ProcessPoolExecutor(3) as pool:
        assert list(pool.map(_count, ["mldr/en/test"] * 3)) == [6, 6, 6]
