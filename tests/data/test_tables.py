"""Files of other people's data: csv, JSON arrays, compressed files, encodings, and columns by name."""

import bz2
import gzip
import json
import zipfile
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmkcli.data.collection import Doc, Query, Shard, open_collection
from lmkcli.errors import DataError, LmkError, UsageError

GERMAN = 'Nr;Überschrift;Text\n1;Brötchen;"Mehl; Wasser\nund ""Hefe"""\n2;Käse;Milch\n'
DOCS = [Doc("1", 'Mehl; Wasser\nund "Hefe"', "Brötchen"), Doc("2", "Milch", "Käse")]
COLUMNS = "id=Nr,title=Überschrift,text=Text"


def compressed(data: bytes, suffix: str, name: str) -> bytes:
    if suffix == ".gz":
        return gzip.compress(data)
    if suffix == ".zst":
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as file:
            file.write(data)
        return sink.getvalue().to_pybytes()
    if suffix == ".zip":
        path = Path(name)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.mkdir("papers")
            archive.writestr("papers/inner.csv", data)
            archive.writestr("__MACOSX/papers/._inner.csv", b"x")
        return path.read_bytes()
    return data


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".zip"])
@pytest.mark.parametrize("encoding", ["", "latin-1", "utf-16", "utf-8-sig"])
def test_csv_with_quotes_and_umlauts(tmp_path: Path, suffix: str, encoding: str) -> None:
    path = tmp_path / f"rezepte.csv{suffix}"
    path.write_bytes(compressed(GERMAN.encode(encoding or "utf-8"), suffix, str(path)))
    given = f",encoding={encoding}" if encoding else ""
    collection = open_collection(f"{path},{COLUMNS}{given}")
    assert list(collection.docs()) == DOCS
    assert list(open_collection(collection.name).docs()) == DOCS  # the name opens it again


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found_in_the_header(tmp_path: Path, delimiter: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(delimiter.join(('"a,b;c"', "id", "text")) + f"\nz{delimiter}1{delimiter}x\n")
    assert list(open_collection(str(path)).docs()) == [Doc("1", "x")]


def test_a_delimiter_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("id~text\n1~x\n")
    assert list(open_collection(f"{path},delimiter=~").docs()) == [Doc("1", "x")]
    path.write_text('id\ttext\n1\t"x\ty"\n')
    assert list(open_collection(f"{path},delimiter=tab").docs()) == [Doc("1", "x\ty")]


def test_shards_of_csv_and_arrays_are_the_whole_file(tmp_path: Path) -> None:
    rows = [{"id": str(number), "text": f"line\n{number}"} for number in range(2500)]
    (tmp_path / "x.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "x.csv").write_text(
        "id,text\n" + "".join(f'{row["id"]},"{row["text"]}"\n' for row in rows)
    )
    for name in ("x.json", "x.csv"):
        collection = open_collection(str(tmp_path / name))
        ids = [[doc.id for doc in collection.docs(Shard(number, 3))] for number in range(3)]
        assert sorted(chain(*ids), key=int) == [row["id"] for row in rows]
        assert all(ids)
        stream = collection.docs()
        assert next(iter(stream)).text == "line\n0"
        assert len(list(stream)) == 2500
        assert stream.fraction == 1.0


def test_parquet_with_nested_text_and_lists(tmp_path: Path) -> None:
    rows = [{"key": 7, "meta": {"name": "T", "body": ["one", "two"]}, "score": 1.0}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    name = f"{tmp_path / 'x.parquet'},id=key,title=meta.name,text=meta.body"
    assert list(open_collection(name).docs()) == [Doc("7", "one two", "T")]


def test_columns_apply_to_documents_and_not_to_a_file_of_queries(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("nr;body\n1;x\n")
    (tmp_path / "q.jsonl").write_text('{"_id": "q", "text": "what?"}\n')
    name = f"{tmp_path / 'x.csv'},id=nr,text=body,delimiter=;,queries={tmp_path / 'q.jsonl'}"
    assert list(open_collection(name).queries()) == [Query("q", "what?")]


def test_corpus_and_queries_of_a_folder_may_be_csv(tmp_path: Path) -> None:
    (tmp_path / "corpus.csv").write_text("id,text\n1,x\n")
    (tmp_path / "queries.csv").write_text("id,text\nq,what?\n")
    collection = open_collection(str(tmp_path))
    assert (list(collection.docs()), list(collection.queries())) == (
        [Doc("1", "x")],
        [Query("q", "what?")],
    )


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        (
            "x.csv",
            b"id,text\n1,x\n2,y,z\n",
            r"x\.csv line 3: 3 fields.* 2 \(id, text\).*,delimiter=",
        ),
        ("x.csv", b'id,text\n1,x\n2,"y\n', r"x\.csv line 3: .*csv .* line 2\b"),
        ("x.csv", b"id,id\n1,2\n", "line 1: .* 'id' twice"),
        (
            "x.csv",
            b"id,text\n1,x\n2,\xfcber\n",
            r"x\.csv line 3: .*UTF-8 .*0xfc.*,encoding=latin-1",
        ),
        (
            "x.csv",
            b"id,prose\n1,x\n",
            r"no column .*id, prose; .*\n  id: 1, prose: x\n.*,text=prose$",
        ),
        (
            "x.csv",
            b"id,body,abstract\n1,x,y\n",
            r"several .*\(body, abstract\); .*\n.*\n.*,text=body\+abstract$",
        ),
        ("x.tsv", b"id\ttext\n1\t\xfc\n", r"x\.tsv line 2: .*UTF-8 .*0xfc.*,encoding=latin-1"),
        (
            "x.jsonl",
            b'{"id": "1", "text": "\xfc"}\n',
            r"x\.jsonl line 1: .*UTF-8 .*0xfc.*,encoding=latin-1",
        ),
        ("x.json", b'[{"id": 1, "text": "x"}, 2]', r"x\.json item 2: .*JSON object.* int"),
        ("x.json", b'[{"id": 1, "text": "x"}', r"x\.json: .*valid JSON .*column 24"),
        ("x.json", b'[{"id": 1, "id": 2}]', r"x\.json: .*JSON .*'id' .*twice"),
        (
            "x.csv.gz",
            gzip.compress(b"id,text\n1,x\n", mtime=0)[:-9],
            r"x\.csv\.gz: .*damaged.* gzip",
        ),
        ("x.csv.gz", b"id,text\n1,x\n", r"x\.csv\.gz: .*damaged.* gzip"),
        ("x.csv.zst", b"id,text\n1,x\n", r"x\.csv\.zst: .*damaged.* Zstandard"),
        ("x.zip", b"id,text\n1,x\n", r"x\.zip: .*damaged.* zip\b"),
        (
            "x.bz2",
            bz2.compress(b"id,text\n1,x\n"),
            r"\.bz2; .*bunzip2 -k .*x\.bz2",
        ),
    ],
)
def test_errors_name_the_file_the_line_and_what_to_do(
    tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(LmkError, match=words):
        list(open_collection(str(tmp_path / name)).docs())


def test_rows_inside_of_one_object_are_found(tmp_path: Path) -> None:
    file = tmp_path / "wrapped.json"
    file.write_text(
        '{"total": 2, "my rows": [{"id": "a", "text": "one"}, {"id": "b", "text": "two"}]}'
    )
    with pytest.raises(DataError) as error:
        list(open_collection(str(file)).docs())
    command = str(error.value).rpartition(": ")[2]
    assert command == f"""jq -c '."my rows"[]' {file} > {tmp_path}/wrapped.jsonl"""


def test_an_archive_of_several_files_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a.csv", "id,text\n")
        archive.writestr("b.csv", "id,text\n")
    with pytest.raises(DataError, match=r"x\.zip: 2 files .*\(a\.csv, b\.csv\)"):
        list(open_collection(str(tmp_path / "x.zip")).docs())


@pytest.mark.parametrize(
    "options",
    ["encoding=klingon", "encoding=base64", "delimiter=ab", 'delimiter="', "text=a,fields=b"],
)
def test_options_without_sense_are_refused(tmp_path: Path, options: str) -> None:
    (tmp_path / "x.csv").write_text("id,text\n1,x\n")
    with pytest.raises(UsageError):
        open_collection(f"{tmp_path / 'x.csv'},{options}")
