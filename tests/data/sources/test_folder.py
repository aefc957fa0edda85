"""A folder whose files are the documents."""

import importlib.util
import os
from pathlib import Path

import pytest

from lmkcli.data.collection import Doc, Shard, open_collection
from lmkcli.errors import DataError, MissingExtra, UnknownName, UsageError
from tests import pages

BOTH = all(importlib.util.find_spec(name) for name in ("inscriptis", "pypdfium2"))
needs_files = pytest.mark.skipif(not BOTH, reason="inscriptis and pypdfium2 are not installed")


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Two texts and one Markdown file, among what is not read."""
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


def test_each_file_is_a_document_under_its_path(notes: Path) -> None:
    assert docs(f"folder:{notes}") == [
        Doc("b.txt", "Bread needs flour.", "b"),
        Doc("deep/er/a.md", "Tie a bowline.", "Knots"),
        Doc("empty.txt", "", ""),
    ]


def test_what_is_not_read_is_counted(notes: Path) -> None:
    (notes / "deep/other.csv").write_text("c")
    assert open_collection(f"folder:{notes}").left_out() == {
        ".csv": "is a kind that is not read (2 files)",
        ".png": "is a kind that is not read",
    }


@pytest.mark.parametrize(
    ("glob", "ids"),
    [
        ("*.txt", ["b.txt", "empty.txt"]),
        ("**/*.md", ["deep/er/a.md"]),
        ("**/a.md+*.csv", ["deep/er/a.md", "table.csv"]),
        ("deep/**", ["deep/er/a.md"]),
        ("**/er/*", ["deep/er/a.md"]),
        ("[ab].t?t", ["b.txt"]),
    ],
)
def test_a_glob_chooses(notes: Path, glob: str, ids: list[str]) -> None:
    assert [doc.id for doc in docs(f"folder:{notes},glob={glob}")] == ids


def test_a_glob_that_fits_nothing_says_what_there_is(notes: Path) -> None:
    with pytest.raises(DataError, match=r"there are: 2 \.txt, 1 \.md"):
        open_collection(f"folder:{notes},glob=*.rst")
    (notes / "bare").mkdir()
    with pytest.raises(DataError, match="there are: none"):
        open_collection(f"folder:{notes}/bare")


def spoil(notes: Path) -> dict[str, str]:
    """Files that cannot be read; path -> what is said of each."""
    (notes / "latin.txt").write_bytes(b"\xfcber")
    (notes / "zeros.txt").write_bytes(b"a\0b")
    (notes / "gone.md").symlink_to("nowhere.md")
    (notes / "loop.md").symlink_to("loop.md")
    (notes / "out.md").symlink_to(notes.parent / "outside.md")
    (notes / "outer").symlink_to(notes.parent)
    (notes.parent / "outside.md").write_text("outside")
    os.mkfifo(notes / "pipe.txt")
    return {
        "gone.md": "cannot be opened (No such file",
        "latin.txt": "is not utf-8 (byte 1)",
        "loop.md": "cannot be opened (Too many levels",
        "out.md": "is a link out of the folder",
        "outer": "is a link out of the folder",
        "pipe.txt": "is a pipe",
        "zeros.txt": "is binary",
    }


def test_all_that_cannot_be_read_is_named_before_the_first_document(notes: Path) -> None:
    expected = spoil(notes)
    with pytest.raises(DataError) as refused:
        next(iter(open_collection(f"folder:{notes}").docs()))
    said = str(refused.value)
    assert "7 of its files cannot be read" in said
    assert ",unreadable=skip" in said
    for path, why in expected.items():
        assert f"  {path} {why}" in said


def test_or_it_is_left_out_and_listed(notes: Path) -> None:
    expected = spoil(notes)
    collection = open_collection(f"folder:{notes},unreadable=skip")
    assert [doc.id for doc in collection.docs()] == ["b.txt", "deep/er/a.md", "empty.txt"]
    out = collection.left_out()
    assert out.keys() == {*expected, ".png", ".csv"}
    for path, why in expected.items():
        assert out[path].startswith(why)


def test_a_long_list_is_cut(notes: Path) -> None:
    for number in range(30):
        (notes / f"z{number}.txt").write_bytes(b"\0")
    with pytest.raises(DataError, match=r"… and 10 more\n"):
        docs(f"folder:{notes}")


def test_a_link_within_the_folder_is_read_once(notes: Path) -> None:
    (notes / "same.txt").symlink_to("b.txt")
    (notes / "again").symlink_to("deep")
    assert len(docs(f"folder:{notes}")) == 3


def test_a_folder_that_is_a_link_is_read(notes: Path) -> None:
    (notes.parent / "link").symlink_to(notes)
    assert len(docs(f"folder:{notes.parent}/link")) == 3


def test_names_that_no_run_can_hold(notes: Path) -> None:
    (notes / "my notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"my notes\.txt.*,map_ids=1"):
        open_collection(f"folder:{notes}")
    ids = [doc.id for doc in docs(f"folder:{notes},map_ids=1")]
    assert "my_notes.txt" in ids
    (notes / "my_notes.txt").write_text("y")
    with pytest.raises(DataError, match="have the same id"):
        open_collection(f"folder:{notes},map_ids=1")
    (notes / "my notes.txt").unlink()
    with open(os.fsencode(notes) + b"/\xff.txt", "w"):
        pass
    with pytest.raises(DataError, match=r"has a name that is not UTF-8"):
        docs(f"folder:{notes}")


def test_files_larger_than_memory_should_hold_are_refused(notes: Path) -> None:
    with open(notes / "huge.txt", "wb") as file:
        file.truncate(300 << 20)
    with pytest.raises(DataError, match=r"huge\.txt is larger than 268,435,456 bytes"):
        docs(f"folder:{notes}")


def test_the_encoding_of_what_does_not_say_its_own(notes: Path) -> None:
    (notes / "latin.txt").write_bytes(b"\xfcber")
    texts = {doc.id: doc.text for doc in docs(f"folder:{notes},encoding=cp1252")}
    assert texts["latin.txt"] == "über"
    with pytest.raises(UsageError, match="no such encoding"):
        open_collection(f"folder:{notes},encoding=klingon")


def test_the_stamp_follows_names_sizes_and_times(notes: Path) -> None:
    def stamp() -> object:
        return open_collection(f"folder:{notes}").stamp()

    before = stamp()
    (notes / "table.csv").write_text("another size")
    assert stamp() == before
    os.utime(notes / "b.txt", ns=(1, 1))
    older = stamp()
    assert older != before
    (notes / "b.txt").rename(notes / "c.txt")
    assert stamp() != older


def test_a_change_while_it_is_read_is_noticed(notes: Path) -> None:
    reading = iter(open_collection(f"folder:{notes}").docs())
    next(reading)
    (notes / "new.txt").write_text("new")
    with pytest.raises(DataError, match="changed while they were read"):
        list(reading)


def test_queries_and_judgements_come_from_files(notes: Path, tmp_path: Path) -> None:
    (tmp_path / "q.tsv").write_text("q1\thow is bread made\n")
    (tmp_path / "j.qrels").write_text("q1 0 b.txt 1\n")
    with pytest.raises(DataError, match=",queries=path"):
        open_collection(f"folder:{notes}").queries()
    with pytest.raises(DataError, match=",qrels=path"):
        open_collection(f"folder:{notes}").qrels()
    with pytest.raises(DataError, match="no such file"):
        open_collection(f"folder:{notes},queries=none.tsv")
    asked = open_collection(f"folder:{notes},queries={tmp_path}/q.tsv,qrels={tmp_path}/j.qrels")
    assert [query.text for query in asked.judged_queries()] == ["how is bread made"]
    assert [qrel.doc_id for qrel in asked.qrels()] == ["b.txt"]


def test_the_name_opens_it_from_any_folder(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(notes.parent)
    near = open_collection("folder:notes,glob=*.txt")
    monkeypatch.chdir(notes)
    assert near.name == f"folder:{notes},glob=*.txt"
    assert list(open_collection(near.name).docs()) == docs("folder:,glob=*.txt")


def test_what_cannot_be_opened(notes: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        open_collection(f"folder:{notes}/none")
    with pytest.raises(UnknownName, match="did you mean glob"):
        open_collection(f"folder:{notes},globs=*")
    with pytest.raises(UsageError, match="write unreadable=skip"):
        open_collection(f"folder:{notes},unreadable=no")
    with pytest.raises(DataError, match=r"is written folder:"):
        open_collection(str(notes))


@needs_files
def test_pages_and_pdf_files_stand_beside_texts(notes: Path) -> None:
    (notes / "page.HTM").write_text("<title>Herons</title><p>They fish.")
    pages.save_pdf(notes / "paper.pdf", ["Page one", "Page two"])
    (notes / "cut.pdf").write_bytes(pages.pdf(["x"])[:150])
    collection = open_collection(f"folder:{notes},unreadable=skip")
    found = {doc.id: doc for doc in collection.docs()}
    assert found["page.HTM"][1:3] == ("They fish.", "Herons")
    assert found["paper.pdf"][1:3] == ("Page one\fPage two", "paper")
    assert "damaged" in collection.left_out()["cut.pdf"]
    shard = collection.docs(Shard(1, 3))
    assert [doc.id for doc in shard] == ["deep/er/a.md", "empty.txt"]


@pytest.mark.skipif(BOTH, reason="they are installed")
@pytest.mark.parametrize(("name", "package"), [("a.html", "inscriptis"), ("a.pdf", "pypdfium2")])
def test_what_is_not_installed_is_named(notes: Path, name: str, package: str) -> None:
    (notes / name).write_text("x")
    with pytest.raises(MissingExtra, match=rf'needs {package}.*"lmkcli\[files\]"'):
        open_collection(f"folder:{notes}")
