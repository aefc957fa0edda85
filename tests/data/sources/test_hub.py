"""Collections of the hub: every name from a mirror with the hub's layout, and damaged mirrors."""

import gzip
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmkcli.data import hub_layouts, known_collections
from lmkcli.data.collection import (
    CHUNK_BREAK,
    Collection,
    CollectionDigest,
    Doc,
    Qrel,
    Query,
    Shard,
    doc_hash,
    open_collection,
)
from lmkcli.data.run import Run, ranked
from lmkcli.encoding.encoder import Encoder, open_encoder
from lmkcli.encoding.resolution import resolve
from lmkcli.errors import DataError, UnknownName, UsageError
from lmkcli.evaluation.measures import evaluate, parse_measures
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from tests import mirrors

NAMES = [name for name in known_collections.names() if hub_layouts.layout_of(name)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mirror of all collections. Do not write into it."""
    folder = tmp_path_factory.mktemp("mirror")
    mirrors.build(folder)
    return folder


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty mirror for one test."""
    monkeypatch.setenv(hub_layouts.MIRROR, str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def encoder(tiny_model: Callable[[str], Path]) -> Encoder:
    resolved = resolve(RecipeOptions(model=str(tiny_model("bert"))))
    settings = EncodeSettings(dtype="fp32", device="cpu")
    return open_encoder(resolved.recipe.query, resolved.folder, settings)


def units(collection: Collection) -> list[Query]:
    """Ids and texts of the judged units: chunks for chunked collections, else documents."""
    made = []
    for doc in collection.docs():
        chunks = doc.content.split(CHUNK_BREAK)
        numbered = enumerate(chunks) if len(chunks) > 1 else [("", doc.content)]
        made += [Query(f"{doc.id}#{n}" if n != "" else doc.id, text) for n, text in numbered]
    return made


def searched(collection: Collection, encoder: Encoder) -> Run:
    """Exact search over the judged units."""
    texts, queries = units(collection), collection.judged_queries()
    scores = encoder.queries(queries).vectors @ encoder.queries(texts).vectors.T
    ids = [text.id for text in texts]
    rankings = {query.id: ranked(ids, row) for query, row in zip(queries, scores, strict=True)}
    return Run(rankings)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_read_encoded_and_scored(
    name: str, whole: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(hub_layouts.MIRROR, str(whole))
    collection = open_collection(name)
    docs = list(collection.docs())
    assert len(docs) == (3 if name.startswith("conteb") else 7 if "qasper" in name else 6)
    shares = [list(collection.docs(Shard(number, 2))) for number in range(2)]
    assert sorted(shares[0] + shares[1]) == sorted(docs)
    assert len(collection.judged_queries()) == len(list(collection.qrels())) == 3
    found = known_collections.facts_of(name)
    assert found is not None
    measures = parse_measures(["nDCG@10", *found.measures])
    scores = evaluate(searched(collection, encoder), list(collection.qrels()), measures)
    assert scores.aggregated["nDCG@10"] == 1.0  # each query repeats the words of its relevant text
    assert all(hub_layouts.layout_of(name).docs.repo in key for key in collection.file_stats())  # type: ignore[union-attr]
    assert collection.settings == {"fields": "title+text"}


def test_a_mirror_is_preferred_only_for_collections_that_it_contains(mirror: Path) -> None:
    mirrors.beir(mirror, "scifact")
    assert type(open_collection("beir/scifact/test")).__name__ == "HubCollection"
    assert type(open_collection("irds:beir/scifact/test")).__name__ == "IrdsCollection"
    assert type(open_collection("beir/nfcorpus/test")).__name__ == "IrdsCollection"
    assert open_collection("hf:beir/scifact/test").name == "hf:beir/scifact/test"


def digest(collection: Collection) -> str:
    total = CollectionDigest()
    for doc in collection.docs():
        total.add(doc_hash(doc))
    return str(total)


@pytest.mark.parametrize("packed", [True, False])
def test_scifact_is_the_same_from_a_mirror_and_from_a_folder(
    shared: Path, mirror: Path, packed: bool
) -> None:
    folder = shared / "data/scifact"
    for name in ("corpus", "queries"):
        target = mirror / "BeIR/scifact" / name
        if packed:
            target.parent.mkdir(parents=True, exist_ok=True)
            data = (folder / f"{name}.jsonl").read_bytes()
            target.with_suffix(".jsonl.gz").write_bytes(gzip.compress(data, 1, mtime=0))
        else:
            rows = [
                {"_id": row.id, "title": getattr(row, "title", ""), "text": row.text}
                for row in (list(getattr(open_collection(str(folder)), _READ[name])()))
            ]
            mirrors.parquet(target / f"{name}-00000-of-00001.parquet", rows)
    (mirror / "BeIR/scifact-qrels").mkdir()
    shutil.copy(folder / "qrels/test.tsv", mirror / "BeIR/scifact-qrels")
    files, hub = open_collection(str(folder)), open_collection("beir/scifact/test")
    assert digest(hub) == digest(files)
    assert list(hub.queries()) == list(files.queries())
    assert list(hub.qrels()) == list(files.qrels())
    assert hub.settings == files.settings
    assert known_collections.count_differences(hub.name, 5183, len(hub.judged_queries())) == []


_READ = {"corpus": "docs", "queries": "queries"}


# --- particular families ----------------------------------------------------------------------


def test_lengths_are_separate_collections(mirror: Path) -> None:
    mirrors.longembed(mirror, "passkey", (256, 512))
    short = open_collection("longembed/passkey/256")
    assert {doc.id.split("-")[0] for doc in short.docs()} == {"256"}
    assert {query.id for query in short.queries()} == {"256-q0", "256-q1", "256-q2"}
    assert list(open_collection("longembed/passkey/1024").docs()) == []


def test_judgements_need_not_name_their_part(mirror: Path) -> None:
    mirrors.longembed(mirror, "needle", (256, 512))
    rows = [{"qid": f"{n}-q0", "doc_id": f"{n}-d0"} for n in (256, 512)]
    mirrors.jsonl(mirror / "dwzhu/LongEmbed/needle/qrels.jsonl", rows)
    assert list(open_collection("longembed/needle/512").qrels()) == [Qrel("512-q0", "512-d0", 1)]


def test_qasper_questions_without_a_relevant_text_are_skipped(mirror: Path) -> None:
    mirrors.loco(mirror, ["qasper_title", "qmsum"])
    found = open_collection("loco/qasper_title")
    assert "qasper_title_void" in {doc.id for doc in found.docs()}
    assert "qasper_title_lost" not in {query.id for query in found.queries()}
    assert "qasper_title_lost" not in {qrel.query_id for qrel in found.qrels()}


def test_chunks_and_their_judgements(mirror: Path) -> None:
    rows = [
        {"chunk_id": "b_1", "chunk": "one"}, {"chunk_id": "a_0", "chunk": "zero"},
        {"chunk_id": "b_0", "chunk": "and\fmore"},
    ]  # fmt: skip
    folder = mirror / "illuin-conteb/covid-qa"
    mirrors.parquet(folder / "documents/train-00000-of-00001.parquet", rows)
    rows = [{"query": "x", "chunk_ids": ["b_0", "a_0"]}, {"query": "y", "chunk_ids": ["c_7"]}]
    mirrors.parquet(folder / "queries/train-00000-of-00001.parquet", rows)
    found = open_collection("conteb/covid-qa")
    # Documents by name; chunks in the order of the dataset, to which the judgements refer.
    assert list(found.docs()) == [Doc("a", "zero"), Doc("b", f"one{CHUNK_BREAK}and more")]
    assert list(found.queries()) == [Query("q0", "x"), Query("q1", "y")]
    assert list(found.qrels()) == [Qrel("q0", "b#1", 1), Qrel("q0", "a#0", 1), Qrel("q1", "c#7", 1)]


def test_options(mirror: Path) -> None:
    folder = mirror / "mteb/scidocs"
    rows = [{"_id": "a b", "title": "T", "text": "x", "abstract": "y"}]
    mirrors.parquet(folder / "corpus/corpus-00000-of-00001.parquet", rows)
    with pytest.raises(DataError, match=r"row 1: .*'a b'.*map_ids=1"):
        list(open_collection("mteb-v2/scidocs").docs())
    found = open_collection("mteb-v2/scidocs,map_ids=1,fields=abstract+title")
    assert list(found.docs()) == [Doc("a_b", "y T")]
    assert found.settings == {"fields": "abstract+title", "map_ids": "1"}
    assert list(open_collection("mteb-v2/scidocs,map_ids=1").docs()) == [Doc("a_b", "x", "T")]
    with pytest.raises(UnknownName, match="option of"):
        open_collection("mteb-v2/scidocs,revision=main")


# --- files in other layouts -----------------------------------------------------------------


def moved(folder: Path, **paths: str) -> None:
    """Move files to other names, and convert them to jsonl if the new name has that suffix."""
    for old, new in ((old.replace("__", "/"), new) for old, new in paths.items()):
        source = next(folder.glob(f"{old}*"))
        if new.endswith(".parquet"):
            (folder / new).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(source, folder / new)
        else:
            mirrors.jsonl(folder / new, pq.read_table(source).to_pylist())
            source.unlink()


@pytest.mark.parametrize(
    "paths",
    [
        {"corpus__": "corpus.jsonl", "queries__": "queries.jsonl", "data__": "qrels/test.jsonl"},
        {"corpus__": "corpus/corpus/0000.parquet", "data__": "default/test/0000.parquet"},
        {"corpus__": "corpus/train-00000-of-00001.parquet", "data__": "qrels/test.parquet"},
        {"queries__": "queries/test-00000-of-00001.parquet", "data__": "test.jsonl.gz"},
    ],
)
@pytest.mark.parametrize("card", [False, True])
def test_other_paths_of_the_same_tables(mirror: Path, paths: dict[str, str], card: bool) -> None:
    folder = mirror / "mteb/scidocs"
    mirrors.mteb(folder)
    moved(folder, **paths)
    if not card:
        (folder / "README.md").unlink()
    found = open_collection("mteb-v2/scidocs")
    assert len(list(found.docs())) == 6
    assert len(list(found.queries())) == len(list(found.qrels())) == 3


def test_a_readme_names_files_with_unconventional_paths(mirror: Path) -> None:
    folder = mirror / "mteb/scidocs"
    mirrors.mteb(folder)
    moved(folder, corpus__="x/1.parquet", queries__="x/2.parquet", data__="x/3.parquet")
    with pytest.raises(DataError, match="no file of configuration 'corpus'"):
        list(open_collection("mteb-v2/scidocs").docs())
    configs = {"corpus": {"anything": "x/1.*"}, "queries": {"queries": "x/2.*"}}
    mirrors.card(folder, configs | {"default": {"train": "x/9.*", "test": "x/3.*"}})
    found = open_collection("mteb-v2/scidocs")
    assert [len(list(read())) for read in (found.docs, found.queries, found.qrels)] == [6, 3, 3]


def test_tables_with_and_without_grades(mirror: Path) -> None:
    folder = mirror / "mteb/scidocs"
    mirrors.mteb(folder)
    path = folder / "data/test-00000-of-00001.parquet"
    for score, grade in ((2, 2), (2.0, 2), ("0", 0)):
        mirrors.parquet(path, [{"query-id": "q0", "corpus-id": 7, "score": score}])
        assert list(open_collection("mteb-v2/scidocs").qrels()) == [Qrel("q0", "7", grade)]
    mirrors.parquet(path, [{"query_id": "q0", "corpus_id": "d1"}])
    assert list(open_collection("mteb-v2/scidocs").qrels()) == [Qrel("q0", "d1", 1)]
    mirrors.parquet(path, [{"query-id": "q0", "corpus-id": "d1", "score": "good"}])
    with pytest.raises(DataError, match=r"test-00000.*row 1: the grade 'good'"):
        list(open_collection("mteb-v2/scidocs").qrels())


# --- errors --------------------------------------------------------------------------------


def test_missing_files_are_named_with_their_columns(mirror: Path) -> None:
    (mirror / "Shitao/MLDR").mkdir(parents=True)
    mirrors.text(mirror / "Shitao/MLDR/notes.txt", "x")
    found = open_collection("mldr/en/test")
    with pytest.raises(
        DataError,
        match=r"Shitao/MLDR .*mldr-v1\.0-en/corpus\.jsonl\.gz .*docid, text; .*notes\.txt",
    ):
        list(found.docs())
    with pytest.raises(DataError, match=r"mldr-v1.0-en/test.jsonl.gz .*query_id, query"):
        list(found.queries())
    with pytest.raises(DataError, match=r"qrels.mldr-v1.0-en-test.tsv .*TREC qrels"):
        list(found.qrels())


def test_a_missing_file_is_not_a_smaller_collection(mirror: Path) -> None:
    folder = mirror / "mteb/scidocs"
    mirrors.parquet(
        folder / "corpus/corpus-00001-of-00003.parquet", mirrors.docs(_id="id", text="text")
    )
    with pytest.raises(DataError, match=r"1 of 3 .*'corpus'"):
        list(open_collection("mteb-v2/scidocs").docs())


@pytest.mark.parametrize(
    ("name", "path", "row", "read", "message"),
    [
        ("mteb-v2/fiqa", "mteb/fiqa/corpus/corpus.parquet", {"_id": "a", "body": "x"}, "docs",
         "column text; .*_id or id, text, title; .*_id, body"),
        ("mteb-v2/fiqa", "mteb/fiqa/corpus.jsonl", {"name": "a", "text": "x"}, "docs",
         "column _id or id; .*_id or id, text, title; .*name, text"),
        ("mteb-v2/fiqa", "mteb/fiqa/queries/queries.parquet", {"_id": "a", "query": "x"}, "queries",
         "column text; .*_id or id, text; .*_id, query"),
        ("mteb-v2/fiqa", "mteb/fiqa/data/test.parquet", {"query-id": "a", "doc": "x"}, "qrels",
         "column corpus-id or corpus_id; .*query-id or query_id, corpus-id.*query-id, doc"),
        ("longembed/needle/256", "dwzhu/LongEmbed/needle/corpus.jsonl", {"doc_id": "a", "text": "x"},
         "docs", "column context_length; .*doc_id, text, context_length; .*doc_id, text"),
        ("conteb/football", "illuin-conteb/football/documents/train.parquet",
         {"chunk_id": "a-0", "chunk": "x"}, "docs", "chunk id 'a-0' .*<document>_<number>"),
    ],
)  # fmt: skip
def test_wrong_columns_are_named(
    mirror: Path, name: str, path: str, row: dict[str, str], read: str, message: str
) -> None:
    write = mirrors.jsonl if path.endswith(".jsonl") else mirrors.parquet
    write(mirror / path, [row])
    with pytest.raises(DataError) as caught:
        list(getattr(open_collection(name), read)())
    assert f"{mirror / path} " in str(caught.value)
    assert re.search(message, str(caught.value))


def test_a_damaged_file_is_named(mirror: Path) -> None:
    path = mirror / "mteb/scidocs/corpus/corpus-00000-of-00001.parquet"
    mirrors.text(path, "version https://git-lfs.github.com/spec/v1")
    with pytest.raises(DataError, match=r"corpus-00000-of-00001.parquet"):
        list(open_collection("mteb-v2/scidocs").docs())


def test_unknown_names() -> None:
    with pytest.raises(UnknownName, match="did you mean mldr/en/test"):
        open_collection("hf:mldr/en/tset")
    with pytest.raises(UnknownName, match="did you mean mldr/en/test"):
        open_collection("mldr/en/tset")
    with pytest.raises(UnknownName, match="collection of the hub 'msmarco-document/dev'"):
        open_collection("hf:msmarco-document/dev")
    with pytest.raises(UsageError, match=r"'mldr' .*13 .* mldr/ar/test"):
        open_collection("mldr")


def test_offline_and_not_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(hub_layouts.MIRROR, str(tmp_path))  # a mirror without the collection
    with pytest.raises(DataError, match=r"offline.* lmk fetch mldr/en/test"):
        list(open_collection("mldr/en/test,map_ids=1").docs())


def test_the_stamp_of_a_mirror_changes_with_its_files(mirror: Path) -> None:
    mirrors.miracl(mirror, "sw")
    before = open_collection("miracl/sw/dev").file_stats()
    assert list(before) == [
        f"miracl/miracl-corpus/miracl-corpus-v1.0-sw/docs-{n}.jsonl.gz" for n in range(2)
    ]
    path = mirror / list(before)[1]
    mirrors.jsonl(path, [])
    assert open_collection("miracl/sw/dev").file_stats()[list(before)[1]] != before[list(before)[1]]


def test_the_fraction_of_reading(mirror: Path) -> None:
    folder = mirror / "mteb/scidocs/corpus"
    rows = mirrors.docs(_id="id", text="text")
    for number in range(2):
        table = pa.Table.from_pylist(rows[3 * number : 3 * number + 3])
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / f"corpus-0000{number}-of-00002.parquet")
    stream = open_collection("mteb-v2/scidocs").docs()
    shares = [stream.fraction for _ in stream]
    assert shares == pytest.approx(list(np.arange(1, 7) / 6))
