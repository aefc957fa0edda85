"""Our collections under ir_datasets' own interface, in any program that imports lmkcli.irds."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ir_datasets
import pytest
from filelock import FileLock

from lmkcli import irds
from lmkcli.data import hub_layouts, known_collections
from lmkcli.data.collection import open_collection
from lmkcli.data.sources.irds_collections import IrdsCollection, register
from tests import mirrors
from tests.forkserver import ForkServer


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate mirror, and a separate home for ir_datasets."""
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(hub_layouts.MIRROR, str(tmp_path / "mirror"))
    mirrors.mldr(tmp_path / "mirror", "en")
    mirrors.nano(tmp_path / "mirror", "SciFact")
    return tmp_path / "mirror"


def test_every_name_of_the_hub_is_registered_and_no_other_is_changed() -> None:
    hub = {name for name in known_collections.names() if not name.startswith("msmarco-document")}
    assert hub <= set(ir_datasets.registry)
    only = {
        name
        for name in hub
        if (found := known_collections.facts_of(name)) and found.source == "hub"
    }
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


def test_a_docstore_is_rebuilt_when_the_text_changes(mirror: Path) -> None:
    dataset = ir_datasets.load("mldr/en/test")
    before = dataset.docs_store().get("d0").text
    rows = [{"docid": "d0", "text": f"{before} and more"}]
    mirrors.jsonl(mirror / "Shitao/MLDR/mldr-v1.0-en/corpus.jsonl.gz", rows)
    assert dataset.docs_store().get("d0").text == f"{before} and more"
    assert dataset.docs_count() == 1


@pytest.fixture
def offered() -> Iterator[list[str]]:
    """Unregister the names of a test afterwards."""
    made: list[str] = []
    yield made
    for name in made:
        del ir_datasets.registry._registered[name]


def test_only_free_ids_are_taken(mirror: Path, offered: list[str]) -> None:
    offered += register(["vaswani", "ours/scifact"], lambda name: open_collection(_SCIFACT))
    assert offered == ["ours/scifact"]
    assert register(["ours/scifact"], open_collection) == []
    assert ir_datasets.load("ours/scifact").docs_count() == 6


_SCIFACT = "hf:nano-beir/scifact"


def test_our_collections_are_the_same_through_ir_datasets(mirror: Path) -> None:
    direct = open_collection("mldr/en/test")
    through = open_collection("irds:mldr/en/test")
    assert isinstance(through, IrdsCollection)
    assert list(through.docs()) == list(direct.docs())
    assert list(through.queries()) == list(direct.queries())
    assert list(through.qrels()) == list(direct.qrels())


def test_a_reader_waits_for_a_docstore_that_another_process_creates(mirror: Path) -> None:
    """ir_datasets first creates the docstore, then writes its fields; a docstore without them is an error."""
    load = ir_datasets.load("mldr/en/test").docs_store
    docstore = Path(load().path)
    with ThreadPoolExecutor(1) as pool:
        with FileLock(f"{docstore}.lock"):
            docstore.mkdir()
            (docstore / "bin.meta").touch()
            waiting = pool.submit(load)
            time.sleep(0.2)
            assert not waiting.done()
            (docstore / "bin.meta").write_text("doc_id text title")
        assert waiting.result().count() == 6


def test_processes_build_one_docstore(mirror: Path, light_forkserver: ForkServer) -> None:
    code = 'import ir_datasets, lmkcli.irds; print(ir_datasets.load("mldr/en/test").docs_count())'
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(light_forkserver.execute, [code] * 3)) == ["6\n"] * 3
