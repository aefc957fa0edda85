"""Hostile and damaged files of every format: a short error with the file and the place, in little memory.

Limits are lowered, so that a bomb of a few megabytes is one; the memory that reading it takes is measured.
"""

import datetime
import gzip
import io
import stat
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("docx")
pytest.importorskip("inscriptis")

from docx import Document

from lmkcli.data.collection import Doc, open_collection
from lmkcli.errors import DataError
from tests.plugins.documents.test_books import BOOK, CHAPTER, CONTAINER

MIB = 1 << 20
FROM = b"From a Mon Jan  1 00:00:00 2024\n"
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10 if n else "ha"}">' for n in range(10))
ENTITIES = {
    "laughs": f"<!DOCTYPE x [{LAUGHS}]>",
    "external": '<!DOCTYPE x [<!ENTITY l9 SYSTEM "file:///etc/passwd">]>',
}


def read(path: Path, options: str = "") -> list[Doc]:
    return list(open_collection(f"{path}{options}").docs())


def archive(*members: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        warnings.simplefilter("ignore", UserWarning)  # of names that occur twice
        for name, data in members:
            made.writestr(name, data)
    return out.getvalue()


def zstandard(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as file:
        file.write(data)
    return bytes(sink.getvalue().to_pybytes())


# --- archives ---------------------------------------------------------------------------------------


def link() -> zipfile.ZipInfo:
    made = zipfile.ZipInfo("notes.md")
    made.external_attr = (stat.S_IFLNK | 0o777) << 16
    return made


def encrypted() -> bytes:
    """An archive whose first file claims to be encrypted."""
    data = bytearray(archive(("notes.md", b"x"), ("more.md", b"y")))
    data[data.find(b"PK\x03\x04") + 6] |= 1
    data[data.find(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


def overlapping() -> bytes:
    """Two entries of the directory that are the same bytes, as in the most efficient bombs."""
    data = bytearray(archive(("notes.md", b"x" * 99), ("more.md", b"y" * 99)))
    second = data.find(b"PK\x01\x02", data.find(b"PK\x01\x02") + 4)
    data[second + 42 : second + 46] = bytes(4)
    return bytes(data)


ARCHIVES = {
    "a path out of it": (archive(("../../up.md", b"x"), ("a.md", b"y")), r"\.\./\.\./up\.md .*path.* out"),
    "an absolute path": (archive(("/etc/cron.md", b"x"), ("a.md", b"y")), r"/etc/cron\.md .*path.* out"),
    "a drive": (archive(("C:/x.md", b"x"), ("a.md", b"y")), r"C:/x\.md .*path.* out"),
    "backslashes": (archive(("a\\..\\..\\x.md", b"x"), ("a.md", b"y")), r"a(\\\.\.){2}\\x\.md .*path.* out"),
    "a link": (archive((link(), b"/etc/passwd"), ("a.md", b"y")), r"notes\.md .*link"),
    "a password": (encrypted(), r"notes\.md .*encrypted.*password"),
    "a name twice": (archive(("a.md", b"x"), ("a.md", b"y"), ("b.md", b"z")), r"a\.md .*\b2 times"),
    "overlapping files": (overlapping(), r"more\.md .*damaged"),
    "a binary file": (archive(("a.md", b"x\0y"), ("b.md", b"z")), r"a\.md .*binary"),
    "half of it": (archive(("a.md", b"x" * 999), ("b.md", b"z"))[:-30], r"x\.zip: .*damaged.* zip\b"),
}  # fmt: skip


@pytest.mark.parametrize("case", ARCHIVES)
def test_archives(tmp_path: Path, case: str) -> None:
    data, words = ARCHIVES[case]
    (tmp_path / "x.zip").write_bytes(data)
    before = sorted(tmp_path.parent.rglob("*"))
    with pytest.raises(DataError, match=words):
        read(tmp_path / "x.zip", ",unreadable=stop")
    assert sorted(tmp_path.parent.rglob("*")) == before  # nothing is unpacked
    if case != "half of it":
        kept = read(tmp_path / "x.zip")
        assert [doc.id for doc in kept] in (["a.md"], ["b.md"], ["more.md"], ["notes.md"])


def test_an_archive_in_an_archive_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(archive(("in.zip", archive(("a.md", b"x"))), ("b.md", b"y")))
    assert [doc.id for doc in read(tmp_path / "x.zip")] == ["b.md"]


def test_an_archive_of_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmkcli.plugins.documents.file_trees.MAX_MEMBERS", 100)
    (tmp_path / "x.zip").write_bytes(archive(*((f"{n}.md", b"x") for n in range(101))))
    with pytest.raises(DataError, match=r"x\.zip: 101 files .*\(100 files"):
        read(tmp_path / "x.zip")


# --- bombs ------------------------------------------------------------------------------------------

LONG = b"a" * (48 * MIB)
BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "gzip of a line": ("x.jsonl.gz", lambda: gzip.compress(b'{"id": 1, "text": "' + LONG)),
    "gzip of an array": ("x.json.gz", lambda: gzip.compress(b'[{"id": 1, "text": "\n' + LONG, 1)),
    "gzip of a csv field": ("x.csv.gz", lambda: gzip.compress(b"id,text\n1," + LONG)),
    "gzip of an open quote": ("x.csv.gz", lambda: gzip.compress(b'id,text\n1,"' + b"a\n" * (8 * MIB))),
    "zstd of a line": ("x.jsonl.zst", lambda: zstandard(b'{"id": 1, "text": "' + LONG)),
    "zip of a line": ("x.csv.zip", lambda: archive(("x.csv", b"id,text\n1," + LONG))),
    "zip of a document": ("x.zip", lambda: archive(("a.md", LONG), ("b.md", b"x"))),
    "gzip of a document": ("x.md.gz", lambda: gzip.compress(LONG)),
    "a Word document": ("x.docx", lambda: archive(("word/document.xml", LONG))),
    "a book": ("x.epub", lambda: archive(("META-INF/container.xml", LONG))),
    "a message": ("x.mbox", lambda: FROM + b"Subject: x\n\n" + LONG),
}  # fmt: skip


@pytest.mark.parametrize("case", BOMBS)
def test_bombs_are_refused_before_they_take_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    documents = "plugins.documents"
    for module in (
        f"{documents}.archives",
        f"{documents}.file_trees",
        "data.records",
        f"{documents}.document_folder",
    ):
        monkeypatch.setattr(f"lmkcli.{module}.MAX_FILE", MIB)
    monkeypatch.setattr("lmkcli.data.records.MAX_RECORD_LINE", MIB)
    monkeypatch.setattr("lmkcli.data.records.MAX_ROW_LINES", 1000)
    monkeypatch.setattr("lmkcli.data.mbox.MAX_MESSAGE", MIB)
    monkeypatch.setattr("lmkcli.data.byte_streams._CHECKED", MIB)
    name, make = BOMBS[case]
    (tmp_path / name).write_bytes(make())
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"larger|longer|more than") as failed:
            read(tmp_path / name, ",unreadable=stop" * (case == "zip of a document"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert name in str(failed.value)
    assert peak < 12 * MIB


# Name of a file -> its bytes, and the words that the message has.
NOT_TEXT = {
    "zip in a zip": (
        "x.zip",
        archive(("in.zip", archive(("a.md", b"x")))),
        ["in.zip", "unpack x.zip"],
    ),
    "gzip in a zip": ("x.zip", archive(("in.jsonl.gz", gzip.compress(b"{}"))), ["in.jsonl.gz"]),
    "zip named text": (
        "x.zip",
        archive(("in.txt", archive(("a.md", b"x")))),
        ["in.txt", ".zip file"],
    ),
    "bytes in a zip": ("x.zip", archive(("in.dat", bytes(range(256)))), ["in.dat", "binary"]),
    "zip in a gzip": ("x.csv.gz", gzip.compress(archive(("a.md", b"x"))), ["x.csv", "unpack"]),
    "zip named jsonl": ("x.jsonl", archive(("a.md", b"x")), ["rename it to x.jsonl.zip"]),
    "bytes": ("x.tsv", bytes(range(256)) * 9, ["binary", ",encoding="]),
    "array of numbers": (
        "x.jsonl",
        b"".join(n.to_bytes(8, "little") for n in range(200, 300)),
        ["binary"],
    ),
}


@pytest.mark.parametrize("case", NOT_TEXT)
def test_binary_files_are_named_and_not_printed(tmp_path: Path, case: str) -> None:
    name, data, words = NOT_TEXT[case]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError) as raised:
        read(tmp_path / name)
    message = str(raised.value)
    assert str(tmp_path / name) in message
    assert [word for word in words if word not in message] == []
    assert "\\x" not in message


def test_texts_with_some_control_characters_are_no_binary_files(tmp_path: Path) -> None:
    line = '{"text": "Caf\xe9 au lait, and then a page"}\n\x0c'
    (tmp_path / "x.jsonl").write_bytes(line.encode("cp1252") * 9 + b"\x1a")
    with pytest.raises(DataError, match="encoding=latin-1"):
        read(tmp_path / "x.jsonl")


@pytest.mark.parametrize("name", ["x.csv.gz", "x.jsonl.zst", "x.csv.zip"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_cut_off_streams(tmp_path: Path, name: str, share: float) -> None:
    lines = b"id,text\n" if "csv" in name else b""
    for n in range(3000):
        lines += (
            b"%d,%d\n" % (n, n * 7919)
            if "csv" in name
            else b'{"id": %d, "text": "%d"}\n' % (n, n * 7919)
        )
    pack = {".gz": gzip.compress, ".zst": zstandard, ".zip": lambda data: archive(("x.csv", data))}
    data = pack[Path(name).suffix](lines)  # type: ignore[operator]
    (tmp_path / name).write_bytes(data[: int(len(data) * share)])
    with pytest.raises(DataError, match=rf"{name}: damaged or truncated"):
        read(tmp_path / name)


# --- XML --------------------------------------------------------------------------------------------


def docx(declaration: str) -> bytes:
    plain = io.BytesIO()
    document = Document()
    document.add_paragraph("PLACE")
    document.save(plain)
    with zipfile.ZipFile(plain) as made:
        parts = {name: made.read(name) for name in made.namelist()}
    body = parts["word/document.xml"].decode()
    body = declaration + body[body.index("?>") + 2 :].replace("PLACE", "&l9;")
    return archive(*(parts | {"word/document.xml": body.encode()}).items())


def epub(declaration: str, place: str) -> bytes:
    files = {
        "META-INF/container.xml": CONTAINER,
        "OPS/b.opf": BOOK,
        "OPS/cover.xhtml": CHAPTER.format("Cover", "A heron."),
        "OPS/one a.xhtml": CHAPTER.format("One", "Hemp."),
        "two.xhtml": CHAPTER.format("Two", "Flax."),
    }
    changed = files[place]
    files[place] = declaration + changed.replace("</", "&l9;</", 1)
    return archive(*((name, text.encode()) for name, text in files.items()))


@pytest.mark.parametrize("kind", ENTITIES)
@pytest.mark.parametrize("place", ["", "META-INF/container.xml", "OPS/b.opf", "two.xhtml"])
def test_entities_of_word_and_books(tmp_path: Path, kind: str, place: str) -> None:
    path = tmp_path / ("x.epub" if place else "x.docx")
    path.write_bytes(epub(ENTITIES[kind], place) if place else docx(ENTITIES[kind]))
    if place == "two.xhtml":  # a page of HTML, which has no such entities
        [doc] = read(path)
        assert len(doc.text) < 1000
        assert "root:" not in doc.text
        return
    with pytest.raises(DataError, match=path.name) as failed:
        read(path)
    assert len(str(failed.value)) < 1000


def test_a_chapter_that_a_book_names_often_is_read_once(tmp_path: Path) -> None:
    book = BOOK.replace('<itemref idref="1"/>', '<itemref idref="1"/>' * 5000)
    files = {"META-INF/container.xml": CONTAINER, "OPS/b.opf": book, "OPS/one a.xhtml": CHAPTER}
    files |= {"OPS/cover.xhtml": CHAPTER, "two.xhtml": CHAPTER}
    (tmp_path / "x.epub").write_bytes(archive(*((n, t.encode()) for n, t in files.items())))
    [doc] = read(tmp_path / "x.epub")
    assert doc.text.count("\f") == 2


def test_a_path_out_of_a_book(tmp_path: Path) -> None:
    book = BOOK.replace("../two.xhtml", "../../../../../../etc/passwd")
    files = {"META-INF/container.xml": CONTAINER, "OPS/b.opf": book, "OPS/cover.xhtml": CHAPTER}
    (tmp_path / "x.epub").write_bytes(archive(*((n, t.encode()) for n, t in files.items())))
    with pytest.raises(DataError, match="no item named"):
        read(tmp_path / "x.epub")


@pytest.mark.parametrize("kind", ENTITIES)
@pytest.mark.parametrize("late", [False, True])
def test_entities_of_stack_exchange(tmp_path: Path, kind: str, late: bool) -> None:
    row = '<row Id="1" PostTypeId="1" Body="&l9;"/>'
    head = ["<posts>", ENTITIES[kind]] if late else [ENTITIES[kind], "<posts>"]
    (tmp_path / "Posts.xml").write_text(
        "\n".join(['<?xml version="1.0"?>', *head, row, "</posts>"])
    )
    with pytest.raises(DataError, match=r"Posts.xml line [23]: a declaration"):
        read(tmp_path / "Posts.xml")
    with pytest.raises(DataError, match="no row is left"):
        read(tmp_path / "Posts.xml", ",unreadable=skip")


# --- mail -------------------------------------------------------------------------------------------

ODD_MAIL = {
    "no boundary": b"Content-Type: multipart/mixed; boundary=\n\nwords",
    "its own boundary": b"Content-Type: multipart/mixed; boundary=a\n\n--a\n" * 99,
    "wrong base64": b"Content-Transfer-Encoding: base64\n\n!!!=",
    "wrong quoting": b"Content-Transfer-Encoding: quoted-printable\n\n=ZZ=",
    "unknown charset": b"Content-Type: text/plain; charset=klingon\n\nwords\xff",
    "charset of bytes": b"Content-Type: text/plain; charset=base64\n\nwords",
    "charset that is an error": b"Content-Type: text/plain; charset=undefined\n\nwords",
    "charset of names": b"Content-Type: text/html; charset=idna\n\nx..y",
    "long header": b"Subject: " + b"x " * MIB + b"\n\nwords",
    "many encoded words": b"Subject: " + b"=?utf-8?q?a?= " * 50_000 + b"\n\nwords",
    "open encoded words": b"Subject: " + b"=?utf-8?q?" * 50_000 + b"\n\nwords",
    "comments in comments": b"From: " + b"(" * 50_000 + b"\n\nwords",
    "many addresses": b"From: " + b"a@b," * 50_000 + b"\n\nwords",
    "a date beyond time": b"Date: Mon, 99 Jan 999999999999 00:00:00 +99999999\n\nwords",
    "an id of brackets": b"Message-ID: " + b"<" * 999 + b"\n\nwords",
    "an odd id": b"Message-ID: <a b\x00c\xff>\n\nwords",
    "no header": b"\nwords",
    "nothing": b"",
    "a message in it": b"Content-Type: message/rfc822\n\nSubject: y\n\nwords",
}  # fmt: skip


@pytest.mark.parametrize("case", ODD_MAIL)
def test_odd_mail_is_read(tmp_path: Path, case: str) -> None:
    good = FROM + b"Message-ID: <good>\nSubject: s\n\nwords\n\n"
    (tmp_path / "x.mbox").write_bytes(good + FROM + ODD_MAIL[case] + b"\n\n" + good)
    first, odd, last = read(tmp_path / "x.mbox")
    assert (first.id, last.id) == ("good", "good-2")
    assert odd.id.isprintable()
    assert len(odd.title) < 10_000


@pytest.mark.parametrize(
    "part", [b"Content-Type: message/rfc822\n\n", b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n"]
)  # fmt: skip
def test_deep_mail_is_a_row_that_can_be_left_out(tmp_path: Path, part: bytes) -> None:
    deep = b"".join(part % (n, n) if b"%d" in part else part for n in range(1100))
    path = tmp_path / "x.mbox"
    path.write_bytes(FROM + deep + b"\nx\n\n" + FROM + b"Subject: y\n\nwords\n")
    with pytest.raises(DataError, match=r"x\.mbox message 1: .*nested.*,unreadable=skip"):
        read(path)
    assert [doc.text for doc in read(path, ",unreadable=skip")] == ["words"]


# --- JSON, csv and parquet --------------------------------------------------------------------------

TEXTS = {
    "cut off": ("x.json", b'[{"id": 1, "text": "x"}, {"id": 2, "te', r"x\.json: .*valid JSON .*column 36"),
    "deep": ("x.json", b"[" * 100_000, r"x\.json: .*JSON .*nested"),
    "deep and closed": ("x.json", b"[" * 9999 + b"]" * 9999, r"x\.json: .*JSON .*nested"),
    "deep in a line": ("x.jsonl", b'{"id": 1, "text": ' + b'{"a":' * 9999, "line 1: .*JSON .*nested.*=skip"),
    "a number as id": ("x.json", b'[{"id": NaN, "text": "x"}]', "item 1: .*id is nan"),
    "a huge number": ("x.json", b'[{"id": ' + b"9" * 9999 + b', "text": "x"}]', "JSON .*9999 digits"),
    "no object": ("x.json", b'[null, {"id": 1, "text": "x"}]', "item 1: .*JSON object.* None"),
    "a list as text": ("x.json", b'[{"id": 1, "text": [[1]]}]', "item 1: .*text.* list"),
    "an open quote": ("x.csv", b'id,text\n1,"a\n2,b\n', "line 3: .*quote.* line 1 "),
    "a stray quote": ("x.csv", b'id,text\n1,"a" b\n', r"x\.csv line 2: .*csv "),
    "old line ends": ("x.csv", b"id,text\r1,a\r2,b\r", "carriage return"),
    "control in an id": ("x.csv", b"id,text\na\0b,x\n", r"x\.csv line 2: .*'a\\x00b' .*control"),
    "no columns": ("x.csv", b",,\n1,2,3\n", r"first line \(, , \) has no usual name of a column"),
    "utf-16": ("x.csv", "id,text\n1,ä\n".encode("utf-16"), "x.csv,encoding=utf-16"),
    "utf-16 without a mark": ("x.csv", "id,text\n1,ä\n".encode("utf-16-be"), "x.csv,encoding=utf-16-be"),
    "Windows": ("x.csv", "id,text\n1,„ä“\n".encode("cp1252"), "line 2: .*x.csv,encoding=cp1252"),
    "Latin-1 and columns": ("x.csv", "nr;prosa\n1;schön\n".encode("latin-1"), "encoding=latin-1,text=prosa"),
    "Latin-1 lines": ("x.jsonl", '{"id": 1, "text": "ä"}\n'.encode("latin-1"), "x.jsonl,encoding=latin-1"),
}  # fmt: skip


@pytest.mark.parametrize("case", TEXTS)
def test_texts(tmp_path: Path, case: str) -> None:
    name, data, words = TEXTS[case]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=words) as failed:
        read(tmp_path / name)
    assert name in str(failed.value)
    assert len(str(failed.value)) < 1000


def test_strange_csv_is_read(tmp_path: Path) -> None:
    long = "a " * (5 * MIB)
    (tmp_path / "x.csv").write_text(f'id,text\n1,"{long}"\n2,a\0b\n3,"x\r\ny"\n')
    assert [doc.text for doc in read(tmp_path / "x.csv")] == [long, "a\0b", "x\r\ny"]


PARQUET = {
    "ids of bytes": ({"id": [b"\xff"], "text": ["x"]}, r"row 1: .*id is b'\\xff'"),
    "ids with a fraction": ({"id": [1.5], "text": ["x"]}, r"row 1: .*id is 1\.5"),
    "ids of dates": ({"id": [datetime.date(2020, 1, 1)], "text": ["x"]}, r"row 1: .*datetime\.date\(2020"),
    "a text of times": ({"id": [1], "text": [datetime.timedelta(1)]}, "row 1: .*text.* timedelta"),
    "a text of bytes": ({"id": [1], "text": [b"\xff"]}, "row 1: .*text.* bytes"),
    "a time out of range": ({"id": [1], "text": pa.array([2**62], pa.timestamp("us"))}, "x.parquet"),
}  # fmt: skip


@pytest.mark.parametrize("case", PARQUET)
def test_parquet_of_other_types(tmp_path: Path, case: str) -> None:
    columns, words = PARQUET[case]
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=words):
        read(tmp_path / "x.parquet")


def test_parquet_of_unusual_encodings_is_read(tmp_path: Path) -> None:
    columns = {
        "id": pa.array([2**63, 1], pa.uint64()),
        "text": pa.array(["x", None], pa.large_string()),
        "title": pa.array(["t", "t"]).dictionary_encode(),
        "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
        "raw": pa.array([b"\xff", None]),
    }
    pq.write_table(pa.table(columns), tmp_path / "x.parquet", compression="zstd")
    assert read(tmp_path / "x.parquet") == [Doc(str(2**63), "x", "t"), Doc("1", "", "t")]


def test_few_rows_of_long_texts_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmkcli.data.records.BATCH_BYTES", 2 * MIB)
    texts = [str(n) + "x" * MIB for n in range(32)]
    pq.write_table(pa.table({"id": range(32), "text": texts}), tmp_path / "x.parquet")
    del texts
    tracemalloc.start()
    try:
        sizes = [len(doc.text) for doc in open_collection(str(tmp_path / "x.parquet")).docs()]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(sizes) == 32
    assert peak < 16 * MIB
