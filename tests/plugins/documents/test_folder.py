"""A folder with one document per file."""

import gzip
import importlib.util
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from lmkcli.data.collection import Collection, Doc, Shard, open_collection
from lmkcli.errors import DataError, MissingExtra, UnknownName, UsageError
from lmkcli.plugins.documents.document_folder import matches
from lmkcli.plugins.documents.file_trees import kind_of
from tests import pages
from tests.conftest import Lmk

Models = Callable[[str], Path]
BOTH = all(importlib.util.find_spec(name) for name in ("inscriptis", "pypdfium2"))
needs_files = pytest.mark.skipif(not BOTH, reason="inscriptis and pypdfium2 are not installed")


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Two texts and one Markdown file, among files that are not read."""
    folder = tmp_path / "notes"
    for name, text in {
        "b.txt": "Bread needs flour.",
        "deep/er/a.md": "# Knots\n\nTie a bowline.",
        "empty.txt": "",
        "picture.PNG": "\0",
        "table.csv": "a,b",
        ".git/hidden.txt": "hidden",
        ".hidden.txt": "hidden",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def docs(spelling: str) -> list[Doc]:
    return list(open_collection(spelling).docs())


def test_each_file_is_a_document_with_its_path_as_id(notes: Path) -> None:
    assert docs(f"folder:{notes}") == [
        Doc("b.txt", "Bread needs flour.", "b"),
        Doc("deep/er/a.md", "Tie a bowline.", "Knots"),
        Doc("table.csv", "a,b", "table"),
    ]


def test_texts_without_a_suffix_and_compressed_files(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("Read me.")
    (tmp_path / "data").write_text("a text by its first bytes")
    (tmp_path / "blob").write_bytes(b"bytes\0")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.md.gz").write_bytes(gzip.compress(b"# Knots\n\nTie."))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"Bread."))
    (tmp_path / "c.tar.gz").write_bytes(gzip.compress(b"x"))
    assert docs(f"folder:{tmp_path}") == [
        Doc("README", "Read me.", "README"),
        Doc("a.md.gz", "Tie.", "Knots"),
        Doc("b.txt.gz", "Bread.", "b"),
        Doc("data", "a text by its first bytes", "data"),
    ]
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"Bread.")[:-4])
    with pytest.raises(DataError, match=r"b\.txt\.gz .*damaged.*gzip"):
        docs(f"folder:{tmp_path},unreadable=stop")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("run-1.2", "text"),
        ("CHANGES 2024-05-03", "text"),
        ("minutes.2024-05-03", "text"),
        ("3. Letter to Dr. Smith", "text"),
        ("app.log.1", "log"),
        ("app.log.12.gz", "log"),
        ("notes.md.1", "markdown"),
        ("table.csv.1", "text"),
    ],
)
def test_the_end_of_a_name_may_be_no_suffix(tmp_path: Path, name: str, kind: str) -> None:
    data = b"rise overnight"
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    (tmp_path / "picture-1.2").write_bytes(b"PNG\0\1")
    collection = open_collection(f"folder:{tmp_path}")
    assert [(doc.id, doc.text) for doc in collection.docs()] == [(name, "rise overnight")]
    assert kind_of(name) == kind
    assert collection.skipped_files() == {"picture-1.2": "is of a kind that is not read"}


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_text_in_utf_16_needs_no_suffix(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "NOTES").write_bytes("\ufeffdough \u2026 rise".encode(encoding))
    assert docs(f"folder:{tmp_path}") == [Doc("NOTES", "dough \u2026 rise", "NOTES")]
    (tmp_path / "broken").write_bytes(b"\xff\xfe\0")
    collection = open_collection(f"folder:{tmp_path}")
    assert len(list(collection.docs())) == 1
    assert collection.skipped_files() == {"broken": "is binary, not text"}


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_wide_encodings_need_neither_a_mark_nor_a_suffix(tmp_path: Path, encoding: str) -> None:
    table = '{"id": "1", "text": "dough"}\n{"id": "2", "text": "bread"}\n'
    for name, text in (("NOTES", "rise\n" * 3000), ("a.txt", "flour"), ("t.jsonl", table)):
        (tmp_path / name).write_bytes(text.encode(encoding))
    collection = open_collection(f"folder:{tmp_path}")
    assert [doc.id for doc in collection.docs()] == ["NOTES", "a.txt", "t.jsonl#1", "t.jsonl#2"]
    assert f"encodings guessed: 3 {encoding}" in collection.summary()
    for spelling in (f"{tmp_path}/t.jsonl", f"{tmp_path}/t.jsonl,unreadable=skip"):
        with pytest.raises(DataError, match=rf"perhaps {encoding}.*t\.jsonl.*,encoding={encoding}"):
            docs(spelling)
    assert len(docs(f"{tmp_path}/t.jsonl,encoding={encoding}")) == 2


def test_tables_in_other_encodings_are_tables(tmp_path: Path) -> None:
    """Excel writes UTF-16 with a byte order mark as "Unicode text"."""
    table = "id\ttext\n1\tschön\n2\tbread\n"
    (tmp_path / "a.tsv").write_bytes(table.encode("utf-16"))
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(table.encode("cp1252")))
    (tmp_path / "c.jsonl").write_bytes(
        b'{"id": "1", "text": "sch\xc3\xb6n s\xc3\xbc\xc3\x9f"}\n' * 3
        + b'{"id": "2", "text": "\xff"}\n'
    )
    found = docs(f"folder:{tmp_path},glob=*.tsv*")
    assert [(doc.id, doc.text) for doc in found] == [
        ("a.tsv#1", "schön"),
        ("a.tsv#2", "bread"),
        ("b.tsv.gz#1", "schön"),
        ("b.tsv.gz#2", "bread"),
    ]
    assert all("schön süß" in doc.text for doc in docs(f"folder:{tmp_path},glob=*.jsonl"))


def test_rows_that_are_left_out_have_a_place_and_a_reason(tmp_path: Path) -> None:
    row = '{"id": "%s", "text": "words"}\n'
    (tmp_path / "a.jsonl").write_text(row % 1 + row % 2 + row % 3 + row % 1 + '{"id": "4", "te\n')
    collection = open_collection(f"folder:{tmp_path}")
    assert [doc.id for doc in collection.docs()] == ["a.jsonl#1", "a.jsonl#2", "a.jsonl#3"]
    reason = collection.skipped_files()["a.jsonl"]
    assert re.fullmatch(r"has 2 rows that cannot be read \(line 4: .*'1' occurs twice\)", reason)
    assert "1 file left out (1 has 2 rows that cannot be read)" in collection.summary()


@needs_files
def test_a_web_page_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "a.mhtml").write_bytes(
        b"From: <Saved by Blink>\r\nSubject: Knots\r\nContent-Type: multipart/related; boundary=b\r\n\r\n"
        b"--b\r\nContent-Type: text/html\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
        b"<meta charset=3D'utf-8'><p>sch=C3=B6n\r\n--b\r\nContent-Type: text/css\r\n\r\np {}\r\n--b--\r\n"
    )
    (found,) = docs(f"folder:{tmp_path}")
    assert (found.title, found.text.split("\n")[-1]) == ("Knots", "schön")


def test_the_title_is_the_name_without_its_suffix(tmp_path: Path) -> None:
    names = {
        "a.b.txt": "a.b",
        "notes v1.2": "notes v1.2",
        "3. Letter to Dr. Smith": "",
        "a.log.1": "",
    }
    for name in names:
        (tmp_path / name).write_text("words")
    found = {doc.id: doc.title for doc in docs(f"folder:{tmp_path}")}
    assert found == {name: title or name for name, title in names.items()}


def test_archives_in_a_folder_are_named(notes: Path, tmp_path: Path) -> None:
    """An archive contains documents, so it is not one of the kinds that nobody wants to read."""
    names = ("old.zip", "all.tar.gz", "x/more.7z", "b.txt.xz", "c.tbz2", "d.txz", "e.TBZ", "f.lz4")
    for name in names:
        (notes / name).parent.mkdir(exist_ok=True)
        (notes / name).write_bytes(b"PK")
    collection = open_collection(f"folder:{notes}")
    assert len(list(collection.docs())) == 3
    assert "8 files left out (8 archive)" in collection.summary()
    assert collection.skipped_files()["old.zip"] == "is an archive; unpack it, or give it alone"
    with pytest.raises(DataError, match=r"old\.zip is an archive"):
        docs(f"folder:{notes},unreadable=stop")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("a.txt", "words")
        archive.writestr("inner.zip", "PK")
    inside = open_collection(f"folder:{tmp_path}/all.zip")
    assert len(list(inside.docs())) == 1
    assert inside.skipped_files() == {"inner.zip": "is an archive; unpack it, or give it alone"}


def test_files_that_are_not_read_are_counted(notes: Path) -> None:
    (notes / "deep/other.png").write_text("c")
    collection = open_collection(f"folder:{notes}")
    assert len(list(collection.docs())) == 3
    assert collection.skipped_files() == {
        "empty.txt": "is empty",
        "deep/other.png": "is of a kind that is not read",
        "picture.PNG": "is of a kind that is not read",
    }
    assert (
        "3 documents from 3 files; 1 empty file; 2 of other kinds (2 .png)" in collection.summary()
    )


def test_files_without_bytes_or_records_are_empty(notes: Path) -> None:
    for name, text in {
        "LICENSE": "",
        "head.csv": "id,text\n",
        "head.tsv": "id\ttext\n",
        "list.json": "[]",
        "object.json": "{}",
        "lines.jsonl": "\n\n",
        "rows.csv": "id,text\n1,\n2, \n",
    }.items():
        (notes / name).write_text(text)
    os.mkfifo(notes / "pipe")
    collection = open_collection(f"folder:{notes}")
    assert len(list(collection.docs())) == 3
    assert "1 file left out (1 pipe or a device); 8 empty files" in collection.summary()
    assert collection.skipped_files()["pipe"] == "is a pipe or a device"


def test_the_chosen_columns_of_tables_are_listed(lmk: Lmk, notes: Path) -> None:
    (notes / "own.csv").write_text("id,text\n1,own\n")
    (notes / "rows.csv").write_text("nr,part,remark\n7,A,the bearing is hot\n")
    collection = open_collection(f"folder:{notes}")
    assert len(list(collection.docs())) == 5
    assert "columns chosen in 1 table" in collection.summary()
    (found,) = collection.chosen_columns().items()
    assert found[0] == "rows.csv"
    assert found[1].startswith("id=nr, text=remark")
    assert "text=remark" in lmk("show", notes).out


@pytest.mark.parametrize(
    ("glob", "ids"),
    [
        ("*.txt", ["b.txt"]),
        ("**/*.md", ["deep/er/a.md"]),
        ("**/a.md+*.csv", ["deep/er/a.md", "table.csv"]),
        ("deep/**", ["deep/er/a.md"]),
        ("**/er/*", ["deep/er/a.md"]),
        ("[ab].t?t", ["b.txt"]),
    ],
)
def test_a_glob_selects_files(notes: Path, glob: str, ids: list[str]) -> None:
    assert [doc.id for doc in docs(f"folder:{notes},glob={glob}")] == ids


def test_a_glob_lists_only_what_it_can_match(notes: Path, tmp_path: Path) -> None:
    """A single file of a home folder is one of a million."""
    (notes / "out.md").symlink_to(tmp_path)
    (notes / "up").symlink_to("deep")
    (notes / "deep/closed").mkdir()
    (notes / "deep/closed").chmod(0)
    collection = open_collection(f"folder:{notes},glob=b.txt")
    assert [doc.id for doc in collection.docs()] == ["b.txt"]
    assert collection.skipped_files() == {}
    assert collection.summary() == ""
    (notes / "deep/closed").chmod(0o700)


def test_folders_that_a_glob_cannot_match_are_not_entered(tmp_path: Path) -> None:
    """A link out of the folder, and the own name of a linked folder, are not what the glob names."""
    (tmp_path / "docs/real/deep").mkdir(parents=True)
    (tmp_path / "docs/x").mkdir()
    (tmp_path / "docs/real/deep/a.md").write_text("a")
    (tmp_path / "docs/x/b.md").write_text("b")
    (tmp_path / "docs/x/link").symlink_to("../real/deep")
    (tmp_path / "docs/out").symlink_to(tmp_path)
    for glob, ids in (("x/*.md", ["x/b.md"]), ("x/link/*.md", ["x/link/a.md"])):
        opened = open_collection(f"folder:{tmp_path}/docs,glob={glob}")
        assert [doc.id for doc in opened.docs()] == ids
        assert not opened.skipped_files()


def test_a_glob_without_matches_lists_the_suffixes(notes: Path) -> None:
    with pytest.raises(DataError, match=r"contains 2 \.txt, 1 \.md"):
        docs(f"folder:{notes},glob=*.rst")
    (notes / "bare").mkdir()
    with pytest.raises(DataError, match="contains no files"):
        docs(f"folder:{notes}/bare")


@pytest.mark.parametrize(
    ("path", "glob", "matching"),
    [
        ("a/b/c/d", "**/b/**/d", True),
        ("a/b/x/b/c", "**/b/c", True),
        ("a/b/x/b/c", "**/b/?/c", False),
        ("a", "a/**", False),
        ("a/b", "a/**", True),
        ("a/b/c", "a/**/**", True),
        ("a", "**/**", True),
        ("a", "**/a/b", False),
        ("a/b", "**", True),
        ("a/b", "*", False),
    ],
)
def test_two_stars_match_any_folders(path: str, glob: str, matching: bool) -> None:
    assert matches(path, glob) is matching


def test_many_stars_are_matched_on_deep_paths() -> None:
    """Recursion over all ways to divide the folders among the stars would not end."""
    deep = "/".join(["a"] * 60)
    assert not matches(f"{deep}/b", "**/" * 30 + "c")
    assert matches(f"{deep}/c", "**/a/" * 30 + "c")


def test_judgements_are_read_without_a_list_of_the_files(tmp_path: Path) -> None:
    """The folder may be the root of the disk, in the record of a run from someone else."""
    (tmp_path / "j.qrels").write_text("q1 0 b.txt 1\n")
    (tmp_path / "empty").mkdir()
    collection = open_collection(f"folder:{tmp_path}/empty,qrels={tmp_path}/j.qrels")
    assert [qrel.doc_id for qrel in collection.qrels()] == ["b.txt"]
    with pytest.raises(DataError, match="contains no files"):
        collection.docs()


def spoil(notes: Path) -> dict[str, str]:
    """Create unreadable files; path -> the start of the reason."""
    (notes / "zeros.txt").write_bytes(b"a\0b")
    (notes / "gone.md").symlink_to("nowhere.md")
    (notes / "loop.md").symlink_to("loop.md")
    (notes / "out.md").symlink_to(notes.parent / "outside.md")
    (notes / "outer").symlink_to(notes.parent)
    (notes.parent / "outside.md").write_text("outside")
    os.mkfifo(notes / "pipe.txt")
    return {
        "gone.md": "cannot be opened (No such file",
        "loop.md": "cannot be opened (Too many levels",
        "out.md": "is a link out of the folder",
        "outer": "is a link out of the folder",
        "pipe.txt": "is a pipe",
        "zeros.txt": "is binary",
    }


def test_all_unreadable_files_are_named_before_the_first_document(notes: Path) -> None:
    expected = spoil(notes)
    with pytest.raises(DataError) as refused:
        next(iter(open_collection(f"folder:{notes},unreadable=stop").docs()))
    message = str(refused.value)
    assert "6 of its files" in message
    assert "',unreadable=stop'" in message
    for path, why in expected.items():
        assert f"  {path} {why}" in message


def test_unreadable_files_are_left_out_and_listed(notes: Path) -> None:
    expected = spoil(notes)
    collection = open_collection(f"folder:{notes}")
    assert [doc.id for doc in collection.docs()] == ["b.txt", "deep/er/a.md", "table.csv"]
    out = collection.skipped_files()
    assert out.keys() == {*expected, "picture.PNG", "empty.txt"}
    assert collection.skipped_count() == len(expected)
    assert "6 files left out (" in collection.summary()
    assert "2 link out of the folder" in collection.summary()
    assert added_up(collection) == 6
    for path, why in expected.items():
        assert out[path].startswith(why)


def added_up(collection: Collection) -> int:
    """The sum of the counts by reason in the summary."""
    reasons = re.search(r"files left out \(([^)]*)\)", collection.summary())
    assert reasons is not None
    return sum(int(count) for count in re.findall(r"\b\d+ ", reasons[1]))


def test_the_counts_of_many_reasons_add_up(notes: Path) -> None:
    spoil(notes)
    (notes / "paper.pdf").write_bytes(b"%PDF-1.4 broken")
    (notes / "letter.docx").write_bytes(b"PK broken")
    (notes / "book.epub").write_bytes(b"PK broken")
    collection = open_collection(f"folder:{notes}")
    assert [*collection.docs()]
    assert added_up(collection) == collection.skipped_count() == 9


def test_a_long_list_is_shortened(notes: Path) -> None:
    for number in range(30):
        (notes / f"z{number}.txt").write_bytes(b"\0")
    with pytest.raises(DataError, match=r"… and 10 more\n"):
        docs(f"folder:{notes},unreadable=stop")


def test_a_link_within_the_folder_is_read_once(notes: Path) -> None:
    (notes / "same.txt").symlink_to("b.txt")
    (notes / "again").symlink_to("deep")
    (notes / "deep" / "up").symlink_to("..")
    (notes / ".versions").mkdir()
    (notes / ".versions" / "new.md").write_text("Versions are hidden.")
    (notes / "current").symlink_to(".versions")
    (notes / "also").symlink_to(".versions")
    collection = open_collection(f"folder:{notes}")
    ids = [doc.id for doc in collection.docs()]
    assert ids == ["also/new.md", "b.txt", "deep/er/a.md", "table.csv"]
    out = collection.skipped_files()
    assert out["same.txt"] == "is a link to b.txt, which has its own entry"
    assert {"again", "current", "deep/up"} <= out.keys()
    assert "4 links to files in it" in collection.summary()


def test_a_folder_that_is_a_link_is_read(notes: Path) -> None:
    (notes.parent / "link").symlink_to(notes)
    assert len(docs(f"folder:{notes.parent}/link")) == 3


def test_names_with_spaces_and_other_characters(notes: Path) -> None:
    (notes / "my notes.txt").write_text("x")
    assert "my notes.txt" in [doc.id for doc in docs(f"folder:{notes}")]
    ids = [doc.id for doc in docs(f"folder:{notes},map_ids=1")]
    assert "my_notes.txt" in ids
    (notes / "my_notes.txt").write_text("y")
    with pytest.raises(DataError, match="have the same id"):
        docs(f"folder:{notes},map_ids=1")
    (notes / "my notes.txt").unlink()
    with open(os.fsencode(notes) + b"/\xff.txt", "w"):
        pass
    with open(os.fsencode(notes) + b"/a\nb.txt", "w"):
        pass
    reasons = open_collection(f"folder:{notes}").skipped_files().values()
    assert sum("rename it" in reason for reason in reasons) == 2


def test_too_large_files_are_refused(notes: Path) -> None:
    with open(notes / "huge.txt", "wb") as file:
        file.truncate(300 << 20)
    with pytest.raises(DataError, match=r"huge\.txt .*268,435,456"):
        docs(f"folder:{notes},unreadable=stop")


def test_the_encoding_of_files_that_do_not_declare_one(notes: Path) -> None:
    (notes / "latin.txt").write_bytes(b"\xfcber")
    texts = {doc.id: doc.text for doc in docs(f"folder:{notes},encoding=cp1252")}
    assert texts["latin.txt"] == "über"
    with pytest.raises(UsageError, match="no such encoding"):
        open_collection(f"folder:{notes},encoding=klingon")


def test_the_stamp_follows_names_sizes_and_times(notes: Path) -> None:
    def stamp() -> object:
        return open_collection(f"folder:{notes}").file_stats()

    before = stamp()
    (notes / "picture.PNG").write_text("another size")
    assert stamp() == before
    os.utime(notes / "b.txt", ns=(1, 1))
    older = stamp()
    assert older != before
    (notes / "b.txt").rename(notes / "c.txt")
    assert stamp() != older


def test_a_change_during_reading_is_an_error(notes: Path) -> None:
    reading = iter(open_collection(f"folder:{notes}").docs())
    next(reading)
    (notes / "new.txt").write_text("new")
    with pytest.raises(DataError, match="changed while"):
        list(reading)


@pytest.mark.parametrize(
    "files",
    [
        ("collection.tsv", "queries.dev.small.tsv", "qrels.dev.tsv"),
        ("corpus/corpus-00000-of-00001.parquet", "queries/queries-00000-of-00001.parquet"),
        ("documents.jsonl.gz", "topics.csv"),
    ],
)
def test_queries_do_not_become_documents(lmk: Lmk, tmp_path: Path, files: tuple[str, ...]) -> None:
    """A folder with the files of a collection, in another layout than BEIR's."""
    for name in files:
        file = tmp_path / "own" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1\ttea\n")
    folder = str(tmp_path / "own")
    with pytest.raises(DataError, match=r"queries=….*folder:"):
        open_collection(folder)
    assert "folder:" in lmk("search", folder, "-q", "tea", code=3).err
    assert open_collection(f"folder:{folder}").name.startswith("folder:")
    (tmp_path / "own" / files[0]).unlink()  # only queries, so they are its documents
    assert open_collection(folder).name.startswith("folder:")


def test_queries_and_judgements_come_from_files(notes: Path, tmp_path: Path) -> None:
    (tmp_path / "q.tsv").write_text("q1\thow is bread made\n")
    (tmp_path / "j.qrels").write_text("q1 0 b.txt 1\n")
    with pytest.raises(DataError, match=",queries=path"):
        open_collection(f"folder:{notes}").queries()
    with pytest.raises(DataError, match=",qrels=path"):
        open_collection(f"folder:{notes}").qrels()
    with pytest.raises(DataError, match="no such file"):
        open_collection(f"folder:{notes},queries=none.tsv")
    collection = open_collection(
        f"folder:{notes},queries={tmp_path}/q.tsv,qrels={tmp_path}/j.qrels"
    )
    assert [query.text for query in collection.judged_queries()] == ["how is bread made"]
    assert [qrel.doc_id for qrel in collection.qrels()] == ["b.txt"]


def test_the_name_opens_it_from_any_folder(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(notes.parent)
    near = open_collection("folder:notes,glob=*.txt")
    monkeypatch.chdir(notes)
    assert near.name == f"folder:{notes},glob=*.txt"
    assert list(open_collection(near.name).docs()) == docs("folder:,glob=*.txt")


def test_invalid_names_and_options(notes: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        open_collection(f"folder:{notes}/none")
    with pytest.raises(UnknownName, match="did you mean glob"):
        open_collection(f"folder:{notes},globs=*")
    with pytest.raises(UsageError, match="write unreadable=stop"):
        open_collection(f"folder:{notes},unreadable=no")


@needs_files
def test_web_pages_and_pdf_files_next_to_texts(notes: Path) -> None:
    (notes / "page.HTM").write_text("<title>Herons</title><p>They fish.")
    pages.save_pdf(notes / "paper.pdf", ["Page one", "Page two"])
    (notes / "cut.pdf").write_bytes(pages.pdf(["x"])[:150])
    collection = open_collection(f"folder:{notes}")
    found = {doc.id: doc for doc in collection.docs()}
    assert found["page.HTM"][1:3] == ("They fish.", "Herons")
    assert found["paper.pdf"][1:3] == ("Page one\fPage two", "paper")
    assert "damaged" in collection.skipped_files()["cut.pdf"]
    shard = collection.docs(Shard(1, 3))
    assert [doc.id for doc in shard] == ["deep/er/a.md"]


def test_gitignore_dependencies_and_artifacts_are_ignored(lmk: Lmk, notes: Path) -> None:
    for name, text in {
        ".gitignore": "build/\n*.txt\n!b.txt\n/deep/er/secret.md\n[\n",
        "deep/.gitignore": "!kept.txt\n",
        "build/a.md": "built",
        "c.txt": "ignored",
        "deep/kept.txt": "kept by the nearer file",
        "deep/er/secret.md": "secret",
        "node_modules/x/readme.md": "dependency",
        "env/pyvenv.cfg": "home",
        "env/lib/m.py": "dependency",
    }.items():
        (notes / name).parent.mkdir(parents=True, exist_ok=True)
        (notes / name).write_text(text)
    lmk("index", notes, "--kind", "bm25", "-o", notes / "deep" / "index")
    collection = open_collection(f"folder:{notes}")
    ids = [doc.id for doc in collection.docs()]
    assert ids == ["b.txt", "deep/er/a.md", "deep/kept.txt", "table.csv"]
    out = collection.skipped_files()
    ignored = {
        "build",
        "c.txt",
        "deep/er/secret.md",
        "empty.txt",
        "env",
        "node_modules",
        "deep/index",
    }
    assert ignored <= out.keys()
    assert (
        "7 ignored (4 in .gitignore, 2 folder of dependencies, 1 artifact" in collection.summary()
    )
    assert len(docs(f"folder:{notes},glob=build/**")) == 1, "a glob selects ignored files too"


@pytest.mark.parametrize("verb", ["encode", "tokenize", "index", "show", "analyze"])
def test_every_verb_accepts_a_folder_of_documents(
    lmk: Lmk, notes: Path, tmp_path: Path, tiny_model: Models, verb: str
) -> None:
    model = ["-m", tiny_model("bert"), "-o", tmp_path / "out"]
    words = {"index": ["--kind", "bm25", "-o", tmp_path / "out"], "show": [], "analyze": []}
    subject = ["analyze", "lengths"] if verb == "analyze" else [verb]
    done = lmk(*subject, notes, *words.get(verb, model), "--json")
    if verb in ("encode", "index", "tokenize"):
        assert "3 documents from 3 files; 1 empty file" in done.err
    if verb == "show":
        assert done.json["documents"] == 3
        assert done.json["left out"]["empty.txt"] == "is empty"


def test_tables_mail_logs_and_code_are_documents(notes: Path) -> None:
    mail = "From: Ann <a@x.org>\nTo: b@x.org\nSubject: =?utf-8?q?Caf=C3=A9?=\n\nBring 20 cups.\n"
    for name, text in {
        "t/rows.csv": "id,station,remark\n7,A,normal\n8,B,the bearing is hot\n",
        "t/plain.tsv": "part\tcount\nyaw motor\t2\n",
        "t/list.json": '[{"id": "a", "text": "one"}, {"id": "b", "text": " "}]',
        "t/settings.json": '{"name": "scada", "limit": 85, "description": "It polls every turbine."}',
        "t/x.jsonl": '{"id": "my id", "text": "refused"}\n{"id": "2", "text": "two"}\n',
        "t/order.eml": mail,
        "t/box.mbox": "From a Tue Mar  3 10:00:00 2026\nFrom: a@x\nMessage-ID: <1@x>\n\nLunch?\n\n",
        "t/app.log": "10:00 INFO started\n10:01 ERROR disk full\n",
        "t/main.rs": "fn main() {}\n",
        "t/Makefile": "all:\n\techo\n",
    }.items():
        (notes / name).parent.mkdir(exist_ok=True)
        (notes / name).write_text(text)
    (notes / "t/latin.csv").write_bytes("id,text\n1,é café crème\n".encode("cp1252"))
    collection = open_collection(f"folder:{notes},glob=t/*")
    found = {doc.id: doc for doc in collection.docs()}
    assert {name: found[name].text for name in found if "#" in name} == {
        "t/rows.csv#7": "normal",
        "t/rows.csv#8": "the bearing is hot",
        "t/list.json#a": "one",
        "t/box.mbox#1@x": "Lunch?",
        "t/latin.csv#1": "é café crème",
    }
    assert found["t/order.eml"].title == "Café"
    assert "Bring 20 cups." in found["t/order.eml"].text
    assert "a@x.org" in found["t/order.eml"].text
    assert '"limit": 85' in found["t/settings.json"].text
    assert {"t/plain.tsv", "t/x.jsonl", "t/app.log", "t/main.rs", "t/Makefile"} <= found.keys()
    assert collection.guessed_encodings() == {"t/latin.csv": "cp1252"}


TEXTS = {
    "cp1252": "Der Käse aus Besançon kostete 85 €, für Größe XL mehr.",
    "cp1250": "Zażółć gęślą jaźń, proszę o przesłanie części.",
    "cp1251": "Совещание состоится в понедельник в десять часов.",
    "cp932": "風力発電所の保守点検は毎年四月に行われます。",
    "gb18030": "风力发电场的维护检查在每年四月进行。",
}


@pytest.mark.parametrize("encoding", TEXTS)
def test_encodings_are_guessed_for_each_file(notes: Path, encoding: str) -> None:
    (notes / "other.txt").write_bytes(TEXTS[encoding].encode(encoding))
    collection = open_collection(f"folder:{notes}")
    assert {doc.id: doc.text for doc in collection.docs()}["other.txt"] == TEXTS[encoding]
    assert collection.guessed_encodings().keys() == {"other.txt"}
    assert "encodings guessed: 1 " in collection.summary()


def test_a_folder_without_any_text_is_an_error(notes: Path) -> None:
    for file in filter(Path.is_file, notes.rglob("*.*")):
        file.write_bytes(b"\0")
    with pytest.raises(DataError, match=r"none of its files has text.*\n.*b\.txt is binary"):
        docs(f"folder:{notes}")


def test_a_run_of_files_with_spaces_is_evaluated(lmk: Lmk, notes: Path, tmp_path: Path) -> None:
    (notes / "my bread.txt").write_text("Bread and butter, bread.")
    (tmp_path / "q.tsv").write_text("q1\tbread butter\n")
    (tmp_path / "j.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tmy bread.txt\t1\n")
    named = f"{notes},queries={tmp_path}/q.tsv,qrels={tmp_path}/j.tsv"
    lmk("index", notes, "--kind", "bm25", "-o", tmp_path / "index")
    lmk("search", tmp_path / "index", named, "-o", tmp_path / "run.trec")
    assert "q1 Q0 ./my%20bread.txt 1 " in (tmp_path / "run.trec").read_text()
    scores = lmk("eval", tmp_path / "run.trec", "-m", "RR@10", "--json").json
    assert "1.0" in str(scores)
    (hit, *_) = lmk("search", tmp_path / "index", "-q", "butter", "--json").json
    assert hit["id"] == "my bread.txt"


@pytest.mark.skipif(BOTH, reason="they are installed")
@pytest.mark.parametrize(("name", "package"), [("a.html", "inscriptis"), ("a.pdf", "pypdfium2")])
def test_a_missing_package_is_named(notes: Path, name: str, package: str) -> None:
    (notes / name).write_text("x")
    with pytest.raises(MissingExtra, match=rf'needs {package}.*"lmkcli\[files\]"'):
        docs(f"folder:{notes},unreadable=stop")
    collection = open_collection(f"folder:{notes}")
    assert len(list(collection.docs())) == 3
    assert package in collection.skipped_files()[name]
