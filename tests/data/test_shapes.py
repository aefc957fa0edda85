"""Odd shapes of collections, queries and topics: all records with their ids, or an error with the remedy."""

import json
import shlex
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmkcli.data.collection import Doc, open_collection
from lmkcli.errors import DataError, LmkError
from lmkcli.spec.values import Shard
from tests.conftest import Lmk

TWO = [Doc("d1", "green tea is hot", "T"), Doc("d2", "bread", "U")]
BY_ID = {doc.id: {"title": doc.title, "text": doc.text} for doc in TWO}


def docs(folder: Path, name: str, text: str | bytes, options: str = "") -> list[Doc]:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(open_collection(f"{folder / name}{options}").docs())


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("suffix", [".json", "", ".jsonl"])
def test_a_json_object_of_documents_by_id(tmp_path: Path, suffix: str, indent: int | None) -> None:
    """The form of the dictionaries of BEIR and mteb."""
    text = json.dumps(BY_ID, indent=indent)
    if suffix == ".jsonl" and indent:
        with pytest.raises(LmkError, match="jq -c"):
            docs(tmp_path, f"c{suffix}", text)
        return
    assert docs(tmp_path, f"c{suffix}", text) == TWO
    texts = {"d1": "green tea", "d2": "bread"}
    found = docs(tmp_path, f"t{suffix}", json.dumps(texts, indent=indent))
    assert {doc.id: doc.text for doc in found} == texts
    with_ids = {key: {"_id": key, **value} for key, value in BY_ID.items()}
    assert docs(tmp_path, f"i{suffix}", json.dumps(with_ids, indent=indent)) == TWO


def test_a_large_object_by_id_is_complete(lmk: Lmk, tmp_path: Path) -> None:
    corpus = {f"doc{n}": {"title": f"Title {n}", "text": f"number {n}"} for n in range(1000)}
    (tmp_path / "corpus.json").write_text(json.dumps(corpus))
    (tmp_path / "queries.json").write_text(json.dumps({"q1": "number 500", "q2": "number"}))
    done = lmk("index", tmp_path, "--kind", "bm25", "-o", tmp_path / "b")
    assert "documents 1,000" in done.out
    run = tmp_path / "r.trec"
    lmk("search", tmp_path / "b", tmp_path, "--all-queries", "-k", "2", "-o", run)
    first, *others = run.read_text().splitlines()
    assert first.startswith("q1 Q0 doc500 1 ")
    assert len(others) == 3
    shards = [list(open_collection(str(tmp_path)).docs(shard)) for shard in shards_of(3)]
    assert [doc.id for part in shards for doc in part] == list(corpus)


def shards_of(count: int) -> list[Shard]:
    return [Shard(number, count) for number in range(count)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"id": "a", "text": "b"}', [Doc("a", "b")]),
        ('{"id": "a", "text": "b", "meta": {"x": 1}}', [Doc("a", "b")]),
        ('{"title": "A", "body": "B"}', [Doc("1", "B", "A")]),
        ('{\n "id": "a",\n "text": "b"\n}', [Doc("a", "b")]),
        ('{"d1": {"text": "x"}}', [Doc("d1", "x")]),
        ('{"d1": "x", "d2": {"text": "y"}}', [Doc("d1", "x"), Doc("d2", "y")]),
        ('\ufeff{"d1": {"text": "x"}, "d2": {"text": "y"}}\n\n', [Doc("d1", "x"), Doc("d2", "y")]),
        ('{"id": "a", "text": "b"}\n{"id": "c", "text": "d"}', [Doc("a", "b"), Doc("c", "d")]),
    ],
)
def test_other_json_files(tmp_path: Path, text: str, expected: list[Doc]) -> None:
    assert docs(tmp_path, "c.json", text) == expected


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ('{"d1": {"id": "x", "text": "y"}, "d2": {"id": "z", "text": "y"}}', "c.json,id=id"),
        ('{"d1": ["a", "b"], "d2": ["c"]}', "no column is named as a text"),
        ('[{"d1": {"text": "x"}, "d2": {"text": "y"}}]', "several columns may be the text"),
        ('{"d1": {"text": "x"}, "d1": {"text": "y"}}', "twice"),
        ('{"data": [{"id": "a", "text": "b"}]}', "jq -c"),
        ('{\n"id": "a", "text": "b"}\n{\n"id": "c", "text": "d"}', "jq -c"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 9\n", "git lfs pull"),
    ],
)
def test_json_files_that_are_refused(tmp_path: Path, text: str, advice: str) -> None:
    with pytest.raises(LmkError, match=advice):
        docs(tmp_path, "c.json", text)


@pytest.mark.parametrize(("suffix", "tab"), [("csv", ","), ("tsv", "\t")])
def test_a_table_without_a_header(tmp_path: Path, suffix: str, tab: str) -> None:
    rows = [[doc.id, doc.title, doc.text] for doc in TWO]
    text = "".join(tab.join(row) + "\n" for row in rows)
    assert docs(tmp_path, f"c.{suffix}", text, ",columns=id+title+text") == TWO
    reordered = "".join(tab.join(["http://x", *reversed(row)]) + "\n" for row in rows)
    assert docs(tmp_path, f"r.{suffix}", reordered, ",columns=url+body+title+docno") == TWO
    header = tab.join(["id", "title", "text"]) + "\n"
    assert docs(tmp_path, f"h.{suffix}", header + text) == TWO
    assert docs(tmp_path, f"m.{suffix}", "#" + header + text) == TWO
    with pytest.raises(LmkError, match=rf"drop columns=: \S+h\.{suffix}$"):
        docs(tmp_path, f"h.{suffix}", header + text, ",columns=id+title+text")
    if suffix == "csv":
        for one in (text, text.splitlines()[0]):  # also a file of a single record
            with pytest.raises(LmkError, match=r"c\.csv,columns=id\+title\+text"):
                docs(tmp_path, "c.csv", one)
    else:
        assert docs(tmp_path, "c.tsv", text) == TWO


@pytest.mark.parametrize(
    ("name", "text", "advice"),
    [
        ("c.csv", "nummer,inhalt\n1,der tee ist gut\n", "choose the text: .*c.csv,text=NAME"),
        ("c.csv", "0,1\n3,x y z\n", "columns=id.text"),
        ("c.csv", "d1,a,\nd2,b,\n", "columns="),
        ("c.tsv", "nummer\tinhalt\n1\tder tee\n2\tbrot\n", "c.tsv,id=nummer,text=inhalt"),
        ("c.tsv", "D1\thttp://u\tt\tb\n", r"columns=id\+a\+b"),
        ("c.tsv", "a\tb\rc\td\r", "old Macs"),
        ("c.csv", "id,text\na,b\n", "different name"),
        ("c.tsv", 'id\ttext\n1\ttea\n2\t"a ""b"""\n', "csv file with tabs.*,delimiter=tab"),
        ("c.tsv", '1\t"tea, hot"\n2\t"bread"\n', "csv file with tabs.*,format=tsv"),
    ],
)
def test_tables_that_are_refused(tmp_path: Path, name: str, text: str, advice: str) -> None:
    options = ",columns=id+id" if advice == "different name" else ""
    with pytest.raises(LmkError, match=advice):
        docs(tmp_path, name, text, options)


def test_quotes_of_a_table_with_tabs(tmp_path: Path) -> None:
    """Some programs write csv with tabs and the suffix tsv, others texts that contain quotes."""
    text = '1\t"tea, ""hot"""\n2\t"bread"\n'
    parsed = docs(tmp_path, "c.tsv", "id\ttext\n" + text, ",delimiter=tab")
    assert parsed == [Doc("1", 'tea, "hot"'), Doc("2", "bread")]
    plain = [Doc("1", '"tea, ""hot"""'), Doc("2", '"bread"')]
    assert docs(tmp_path, "p.tsv", text, ",format=tsv") == plain
    inner = '1\t"tea" or "bread"\n2\ta "b" c\n'
    assert docs(tmp_path, "i.tsv", inner) == [Doc("1", '"tea" or "bread"'), Doc("2", 'a "b" c')]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.csv", "docid,docno,text\n0,d9,tea\n1,d8,bread\n"),
        (
            "c.jsonl",
            '{"docid": 0, "docno": "d9", "text": "tea"}\n{"docid": 1, "docno": "d8", "text": "bread"}',
        ),
        ("c.tsv", "docid\tdocno\tbody\n0\td9\ttea\n1\td8\tbread\n"),
    ],
)
def test_the_id_of_pyterrier_is_docno(tmp_path: Path, name: str, text: str) -> None:
    """There, docid is the internal number of a document."""
    assert docs(tmp_path, name, text) == [Doc("d9", "tea"), Doc("d8", "bread")]
    numbered = docs(tmp_path, name, text, ",id=docid" + (",text=body" if "body" in text else ""))
    assert [doc.id for doc in numbered] == ["0", "1"]


def test_columns_are_of_tables_only(tmp_path: Path) -> None:
    with pytest.raises(LmkError, match="columns= is for csv and tsv"):
        docs(tmp_path, "c.jsonl", '{"id": "a", "text": "b"}', ",columns=id+text")


def test_a_table_of_queries(tmp_path: Path) -> None:
    for name, text in (("q.csv", "1,green tea\n2,bread\n"), ("q.tsv", "1\tgreen tea\n2\tbread\n")):
        (tmp_path / name).write_text(text)
        options = ",columns=qid+query" if name == "q.csv" else ""
        queries = list(open_collection(f"{tmp_path / name}{options}").queries())
        assert [(each.id, each.text) for each in queries] == [("1", "green tea"), ("2", "bread")]
    with pytest.raises(LmkError, match=r"q\.csv,columns=id\+text"):
        list(open_collection(str(tmp_path / "q.csv")).queries())
    for text in ("1\tgreen\ttea\n2\tbread\n", "1\tbread\n2\tgreen\ttea\n"):
        (tmp_path / "q.tsv").write_text(text)  # a part of a query would be lost
        with pytest.raises(LmkError, match=r"q\.tsv line [12]: 3 columns.*,columns="):
            list(open_collection(str(tmp_path / "q.tsv")).queries())
        other = f"{tmp_path / 'q.csv'},columns=id+text,queries={tmp_path / 'q.tsv'}"
        with pytest.raises(LmkError, match=r"q\.tsv line [12]: 3 columns"):
            list(open_collection(other).queries())


def test_binary_columns_of_parquet(tmp_path: Path) -> None:
    """Some writers do not mark texts as UTF-8."""
    rows = {"id": [b"d1", b"d2"], "title": [b"T", b"U"], "text": [TWO[0].text.encode(), b"bread"]}
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        table = pa.table({name: pa.array(each, kind) for name, each in rows.items()})
        pq.write_table(table, tmp_path / "c.parquet")
        assert list(open_collection(str(tmp_path / "c.parquet")).docs()) == TWO
    pq.write_table(pa.table({"id": ["a"], "text": pa.array([b"gro\xdfe"])}), tmp_path / "l.parquet")
    with pytest.raises(LmkError, match="bytes"):
        list(open_collection(str(tmp_path / "l.parquet")).docs())


TOPICS = {
    "classic": "<top>\n<num> Number: 1\n<title> green tea\n<desc> Description: x\n</top>\n"
    "<top>\n<num> Number: 2\n<title> bread\n</top>",
    "no end": "<top>\n<num> Number: 1\n<title> green tea\n\n<top>\n<num> Number: 2\n<title> bread\n",
    "attributes": '<top lang="en"><num>1</num><title>green tea</title></top>'
    '<top lang="en"><num>2</num><title>bread</title></top>',
    "microblog": "<top><num> Number: 1 </num><query> green tea </query><querytime>3</querytime></top>"
    "<top><num>2</num><query>bread</query></top>",
    "other tags": "<top><num>1<dom>food<title>green tea<con>leaf</top><top><num>2<title>bread<x>y</top>",
    "web": '<webtrack><topic number="1" type="faceted"><query>green tea</query><description>x'
    '</description></topic><topic number="2"><query>bread</query></topic></webtrack>',
    "trials": '<topics task="2021"><topic number="1"> green\ntea </topic>'
    '<topic number="2">bread</topic></topics>',
    "identifiers": "<topics><topic lang='en'><identifier>1</identifier><title>green tea</title></topic>"
    "<topic><identifier>2</identifier><title>bread</title></topic></topics>",
    "upper case": "<TOPICS><TOPIC ID='1'><TITLE>green tea</TITLE></TOPIC><TOPIC ID='2'><TITLE>bread</TITLE>"
    "</TOPIC></TOPICS>",
    "queries": '<?xml version="1.0"?><queries><query id="1">green tea</query>'
    '<query id="2">bread</query></queries>',
    "child ids": "<queries><query><id>1</id><title>green tea</title></query><query><id>2</id>"
    "<title>bread</title></query></queries>",
}  # fmt: skip


@pytest.mark.parametrize("layout", TOPICS)
@pytest.mark.parametrize("suffix", [".xml", ".txt", ""])
def test_layouts_of_topics(tmp_path: Path, layout: str, suffix: str) -> None:
    (tmp_path / f"t{suffix}").write_text(TOPICS[layout])
    queries = list(open_collection(str(tmp_path / f"t{suffix}")).queries())
    assert [(each.id, each.text) for each in queries] == [("1", "green tea"), ("2", "bread")]


def test_topics_without_a_usual_text_name_their_fields(tmp_path: Path) -> None:
    text = '<topics><topic number="1"><note>tea</note><summary>green tea</summary></topic></topics>'
    (tmp_path / "t.xml").write_text(text)
    with pytest.raises(LmkError, match=r"note, summary.*t\.xml,text="):
        list(open_collection(str(tmp_path / "t.xml")).queries())
    (query,) = open_collection(f"{tmp_path / 't.xml'},text=summary").queries()
    assert query.text == "green tea"
    (tmp_path / "n.xml").write_text("<topics><topic><title>tea</title></topic></topics>")
    with pytest.raises(LmkError, match="neither"):
        list(open_collection(str(tmp_path / "n.xml")).queries())


@pytest.mark.parametrize("delimiter", [";", ",", "\t"])
def test_a_line_above_a_table_names_its_delimiter(tmp_path: Path, delimiter: str) -> None:
    """As Excel writes and reads it."""
    rows = [["id", "text"], ["1", "tea, hot; green"], ["2", "bread"]]
    lines = [delimiter.join(f'"{field}"' for field in row) for row in rows]
    file = tmp_path / "t.csv"
    file.write_bytes("\r\n".join([f"sep={delimiter}", *lines, ""]).encode("utf-8-sig"))
    docs = list(open_collection(str(file)).docs())
    assert [(doc.id, doc.text) for doc in docs] == [("1", "tea, hot; green"), ("2", "bread")]
    file.write_text(file.read_text("utf-8-sig") + delimiter.join("3xy"))
    with pytest.raises(DataError, match=r"t\.csv line 5: 3 fields"):
        list(open_collection(str(file)).docs())


def test_that_line_is_above_a_table_without_a_header_too(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("sep=;\n1;tea, hot, green\n2;bread\n")
    docs = list(open_collection(f"{file},columns=id+text").docs())
    assert docs == [Doc("1", "tea, hot, green"), Doc("2", "bread")]


def test_an_array_of_texts_needs_ids(tmp_path: Path) -> None:
    file = tmp_path / "texts.json"
    file.write_text('["green tea", "bread"]')
    with pytest.raises(DataError, match=r"array of texts without ids.*jq.*to_entries"):
        list(open_collection(str(file)).docs())


@pytest.mark.parametrize("name", ["saved", "splits", "folder:splits"])
def test_a_saved_dataset_is_no_folder_of_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its rows are in files of Arrow, and only its settings would be read."""
    monkeypatch.chdir(tmp_path)
    rows = datasets.Dataset.from_dict({"id": ["a", "b"], "text": ["tea", "bread"]})
    rows.save_to_disk("saved")
    datasets.DatasetDict({"train": rows}).save_to_disk("splits")
    with pytest.raises(DataError, match="save_to_disk") as error:
        open_collection(f"./{name}" if ":" not in name else name).docs()
    command = str(error.value).partition("give that file: ")[2]
    exec(shlex.split(command)[-1], {})
    Path(name.rpartition(":")[2], "README.md").write_text("about the rows")
    chosen = open_collection(f"folder:{name.rpartition(':')[2]},glob=*.md")
    assert [doc.text for doc in chosen.docs()] == ["about the rows"]
    assert [doc.id for doc in open_collection("docs.parquet").docs()] == ["a", "b"]


def test_a_saved_dataset_in_a_folder_is_left_out_and_named(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": ["tea"]}).save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "a.md").write_text("bread")
    collection = open_collection(f"folder:{tmp_path}")
    assert [doc.id for doc in collection.docs()] == ["a.md"]
    assert "dataset" in collection.skipped_files()["saved"]
