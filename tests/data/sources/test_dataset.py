"""Any dataset of the hub, streamed: from a mirror, from a folder, and from a local hub."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lmkcli
from lmkcli.data import hub_layouts
from lmkcli.data.collection import Doc, Qrel, Query, Shard, open_collection
from lmkcli.errors import DataError, MissingExtra, UsageError
from lmkcli.system import network
from lmkcli.training.data.sources import parse_source, read_sources
from tests import mirrors
from tests.hub_server import Hub

ROOT = Path(__file__).resolve().parents[3]
pytest.importorskip("datasets")


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty mirror for one test."""
    monkeypatch.setenv(hub_layouts.MIRROR, str(tmp_path))
    return tmp_path


def papers(folder: Path) -> None:
    """A dataset with two splits; the first has three files."""
    for part in range(3):
        rows = [
            {"uuid": f"{part}-{number}", "name": f"N{number}", "meta": {"body": f"text {number}"}}
            for number in range(5)
        ]
        mirrors.parquet(folder / f"data/train-0000{part}-of-00003.parquet", rows)
    last = [{"uuid": "t", "name": "N", "meta": {"body": "x"}}]
    mirrors.parquet(folder / "data/test-00000-of-00001.parquet", last)


def test_columns_by_name_and_splits(mirror: Path) -> None:
    papers(mirror / "some/papers")
    columns = ",id=uuid,title=name,text=meta.body"
    train = list(open_collection(f"hf:some/papers,split=train{columns}").docs())
    assert train[0] == Doc("0-0", "text 0", "N0")
    assert [doc.id for doc in train] == [
        f"{part}-{number}" for part in range(3) for number in range(5)
    ]
    whole = open_collection(f"hf:some/papers,split=all{columns}")
    assert len(list(whole.docs())) == 16
    assert list(whole.file_stats())[:2] == [
        "data/test-00000-of-00001.parquet",
        "data/train-00000-of-00003.parquet",
    ]
    # Each of three shards reads one of the three files.
    named = open_collection(f"hf:some/papers,split=train{columns}")
    assert [list(named.docs(Shard(number, 3))) for number in range(3)] == [
        train[:5],
        train[5:10],
        train[10:],
    ]


def test_rows_without_ids_are_numbered(mirror: Path) -> None:
    mirrors.jsonl(mirror / "some/rows/train.jsonl", [{"text": f"t{n}"} for n in range(2500)])
    found = open_collection("hf:some/rows")
    docs = list(found.docs())
    assert docs[2499] == Doc("2500", "t2499")  # as the rows of a file
    assert found.settings == {"fields": "title+text", "id": "row"}
    assert list(open_collection("hf:some/rows,id=row").docs()) == docs
    file = open_collection(f"{mirror / 'some/rows/train.jsonl'}")
    assert [doc.id for doc in file.docs()] == [doc.id for doc in docs]
    shards = [list(found.docs(Shard(number, 2))) for number in range(2)]
    assert shards == [docs[:1000] + docs[2000:], docs[1000:2000]]
    assert list(found.queries())[1] == Query("2", "t1")


def test_a_folder_is_read_like_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    papers(tmp_path / "papers")
    monkeypatch.chdir(tmp_path)
    found = open_collection("hf:./papers,split=test,id=uuid,text=name")
    assert list(found.docs()) == [Doc("t", "N")]
    assert found.name == f"hf:{tmp_path}/papers,split=test,id=uuid,text=name"
    stamp = found.file_stats()
    mirrors.parquet(
        tmp_path / "papers/data/test-00000-of-00001.parquet", [{"uuid": "t", "name": "changed"}]
    )
    assert open_collection(found.name).file_stats() != stamp


def test_a_repository_with_a_corpus_and_queries_is_a_whole_collection(
    mirror: Path,
) -> None:
    mirrors.mteb(mirror / "some/task")
    found = open_collection("hf:some/task")
    assert [len(list(read())) for read in (found.docs, found.queries)] == [6, 3]
    assert next(iter(found.qrels())) == Qrel("q0", "d0", 1)
    with pytest.raises(UsageError, match=r"config=default .*'dev'.* test"):
        list(open_collection("hf:some/task,split=dev").qrels())
    index, run = mirror / "bm25", mirror / "bm25.trec"
    lmkcli.BuildIndex("hf:some/task", kind="bm25", output=index).run()
    lmkcli.Search(index, "hf:some/task", output=run).run()
    assert lmkcli.Evaluate([run], measure=["nDCG@10"]).run().as_json()[0]["nDCG@10"] == 1.0


@pytest.mark.parametrize(
    "row",
    [
        {"_id": "q0", "text": "tea"},
        {"query-id": "q0", "query": "tea"},
        {"qid": "q0", "question": "tea", "title": "Drinks"},
        {"uuid": "q0", "question": "tea"},
    ],
)
def test_queries_with_other_columns(mirror: Path, row: dict[str, str]) -> None:
    mirrors.mteb(mirror / "some/task")
    for file in (mirror / "some/task").rglob("*queries*.parquet"):
        mirrors.parquet(file, [row])
    assert list(open_collection("hf:some/task").queries()) == [Query("q0", "tea")]


def test_queries_without_a_text_are_refused(mirror: Path) -> None:
    mirrors.mteb(mirror / "some/task")
    for file in (mirror / "some/task").rglob("*queries*.parquet"):
        mirrors.parquet(file, [{"_id": "q0", "anchor": "tea", "level": "x"}])
    with pytest.raises(DataError, match=r"hf:some/task.*anchor"):
        list(open_collection("hf:some/task").queries())


@pytest.mark.parametrize("source", ["hf:some/rows", "folder:{0}/notes"])
def test_a_file_of_queries_is_read_as_by_itself(mirror: Path, source: str) -> None:
    """Its columns are found, and a first line without names is a query."""
    mirrors.jsonl(mirror / "some/rows/train.jsonl", [{"id": "d", "text": "t"}])
    mirrors.text(mirror / "notes/a.md", "tea")
    files = {
        "a.tsv": "q0\ttea\nq1\tred tea\n",
        "b.jsonl": '{"qid": "q0", "question": "tea", "title": "x"}\n',
        "c.csv": "query-id,query\nq0,tea\n",
    }
    for name, content in files.items():
        mirrors.text(mirror / name, content)
        collection = open_collection(f"{source.format(mirror)},queries={mirror / name}")
        assert next(iter(collection.queries())) == Query("q0", "tea"), name


@pytest.mark.parametrize("column", ["uuid", "docno", "corpus-id", "PID"])
def test_rows_with_a_column_of_ids_are_not_numbered_in_silence(mirror: Path, column: str) -> None:
    mirrors.jsonl(mirror / "some/rows/train.jsonl", [{column: "d7", "text": "t"}])
    with pytest.raises(DataError, match=rf"hf:some/rows,id={column}; .*hf:some/rows,id=row"):
        list(open_collection("hf:some/rows").docs())
    assert list(open_collection(f"hf:some/rows,id={column}").docs()) == [Doc("d7", "t")]
    assert list(open_collection("hf:some/rows,id=row").docs()) == [Doc("1", "t")]


def test_training_reads_pairs_and_judged_collections(mirror: Path) -> None:
    mirrors.jsonl(
        mirror / "some/pairs/train.jsonl",
        [
            {"anchor": "tea", "positive": "green", "negative": "red"},
            {"anchor": "x", "positive": "y"},
        ],
    )
    mirrors.mteb(mirror / "some/task")
    sources = [parse_source("hf:some/pairs,weight=2"), parse_source("hf:some/task")]
    examples, tallies = read_sources(sources)
    assert [tally.read for tally in tallies] == [2, 3]
    assert [str(text) for text in examples.texts[:3]] == ["tea", "green", "red"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "hf:some/papers .*train, test; .*,split=train"),
        (",split=dev", "split 'dev'; .*train, test"),
        (",config=de", "configuration 'de'; .*default"),
        (",split=test", r"column text or contents; .*,text=a\+b; .*uuid, name, meta"),
        (",split=test,text=name,id=key", "column 'key'; .*uuid, name, meta"),
        (",split=test,text=nme.body", r"column 'nme\.body'; .*uuid, name, meta"),
        (",splits=test", r"option .*'splits': .* split\?"),
    ],
)  # fmt: skip
def test_an_error_names_the_choices(mirror: Path, options: str, message: str) -> None:
    papers(mirror / "some/papers")
    with pytest.raises(UsageError, match=message):
        list(open_collection(f"hf:some/papers{options}").docs())


def test_several_configurations_without_a_default(mirror: Path) -> None:
    folder = mirror / "some/languages"
    for language in ("de", "sw"):
        mirrors.parquet(folder / f"{language}.parquet", [{"id": language, "text": "x"}])
    mirrors.card(folder, {each: {"train": f"{each}.parquet"} for each in ("de", "sw")})
    with pytest.raises(UsageError, match=r"de, sw; .*,config=de"):
        list(open_collection("hf:some/languages").docs())
    assert list(open_collection("hf:some/languages,config=sw").docs()) == [Doc("sw", "x")]


def test_unreadable_repositories(mirror: Path, tmp_path: Path) -> None:
    mirrors.text(mirror / "some/script/script.py", "print('never run')")
    with pytest.raises(DataError, match=r"some/script: .*revision=refs/convert/parquet"):
        list(open_collection("hf:some/script").docs())
    mirrors.text(mirror / "some/damaged/a.parquet", "version https://git-lfs.github.com/spec/v1")
    with pytest.raises(DataError, match=r"some/damaged: it cannot be read"):
        list(open_collection("hf:some/damaged").docs())
    with pytest.raises(DataError, match=r"Run lmk fetch hf:some/missing once"):
        list(open_collection("hf:some/missing").docs())
    with pytest.raises(DataError, match=r"hf:\./missing: no such folder"):
        open_collection("hf:./missing")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "lmkcli.data.sources.dataset", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r'pip install "lmkcli\[datasets\]"'):
        open_collection("hf:some/rows")


# --- a local hub ---------------------------------------------------------------------------

SCRIPT = """
import json, sys
from lmkcli.data.collection import open_collection
from lmkcli.errors import LmkError
try:
    found = open_collection(sys.argv[1])
    if sys.argv[2:]:
        found.fetch()
    print(json.dumps([[doc.id for doc in found.docs()], found.file_stats()]))
except LmkError as error:
    print(json.dumps(str(error)))
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    made = Hub(tmp_path / "remote")
    papers(made.root / "some/papers")
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def read(hub: Hub, tmp_path: Path) -> Callable[..., Any]:
    """Read a collection in a new process, with a separate cache."""

    def run(name: str, *fetch: str, **more: str) -> Any:
        dropped = (network.VARIABLE, hub_layouts.MIRROR)
        env = {k: v for k, v in os.environ.items() if k not in dropped}
        env |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        words = [sys.executable, "-c", SCRIPT, name, *fetch]
        done = subprocess.run(words, cwd=ROOT, env=env | more, capture_output=True, text=True)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.mark.slow
def test_a_dataset_is_streamed_and_its_commit_is_recorded(
    hub: Hub, read: Callable[..., Any], tmp_path: Path
) -> None:
    name = "hf:some/papers,split=train,id=uuid,text=name"
    ids, stamp = read(name)
    assert ids == [f"{part}-{number}" for part in range(3) for number in range(5)]
    assert list(stamp) == [f"some/papers@{hub.commit}/default/train"]
    assert not list((tmp_path / "hf/hub").rglob("*.parquet"))  # nothing is stored
    other = "0" * 39 + "2"
    assert list(read(f"{name},revision={other}")[1]) == [f"some/papers@{other}/default/train"]
    assert "hf:some/nowhere: it cannot be read" in read("hf:some/nowhere")
    assert "Run lmk fetch" in read(name, HF_HUB_OFFLINE="1")


@pytest.mark.slow
def test_a_fetched_dataset_needs_no_network(
    hub: Hub, read: Callable[..., Any], tmp_path: Path
) -> None:
    name = "hf:some/papers,split=train,id=uuid,text=name"
    fetched = read(name, "fetch")
    hub.requests.clear()
    assert read(name) == fetched == read(name, HF_HUB_OFFLINE="1")
    assert hub.requests == []
    next((tmp_path / "hf").rglob("train-00001-of-00003.parquet")).unlink()
    assert "Run lmk fetch" in read(name, HF_HUB_OFFLINE="1")
    assert read(name)[0] == fetched[0]  # streamed
