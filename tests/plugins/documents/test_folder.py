"""A folder with one document per file."""

import gzip
import importlib.util
import os
from pathlib import Path

import pytest

from lmkcli.data.collection import Doc, Shard, open_collection
from lmkcli.errors import DataError, MissingExtra, UnknownName, UsageError
from lmkcli.plugins.documents.folder import matches
from tests import pages

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
        Doc("empty.txt", "", ""),
    ]


def test_texts_without_a_suffix_and_compressed_files(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("Read me.")
    (tmp_path / "data").write_text("not a text by its name")
    (tmp_path / "a.md.gz").write_bytes(gzip.compress(b"# Knots\n\nTie."))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"Bread."))
    (tmp_path / "c.tar.gz").write_bytes(gzip.compress(b"x"))
    assert docs(f"folder:{tmp_path}") == [
        Doc("README", "Read me.", "README"),
        Doc("a.md.gz", "Tie.", "Knots"),
        Doc("b.txt.gz", "Bread.", "b"),
    ]
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"Bread.")[:-4])
    with pytest.raises(DataError, match=r"b\.txt\.gz .*damaged.*gzip"):
        docs(f"folder:{tmp_path}")


def test_files_that_are_not_read_are_counted(notes: Path) -> None:
    (notes / "deep/other.csv").write_text("c")
    assert open_collection(f"folder:{notes}").skipped_files() == {
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
def test_a_glob_selects_files(notes: Path, glob: str, ids: list[str]) -> None:
    assert [doc.id for doc in docs(f"folder:{notes},glob={glob}")] == ids


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
        ("a", "a/**", True),
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


def test_all_unreadable_files_are_named_before_the_first_document(notes: Path) -> None:
    expected = spoil(notes)
    with pytest.raises(DataError) as refused:
        next(iter(open_collection(f"folder:{notes}").docs()))
    message = str(refused.value)
    assert "7 of its files" in message
    assert ",unreadable=skip" in message
    for path, why in expected.items():
        assert f"  {path} {why}" in message


def test_unreadable_files_can_be_skipped_and_are_listed(notes: Path) -> None:
    expected = spoil(notes)
    collection = open_collection(f"folder:{notes},unreadable=skip")
    assert [doc.id for doc in collection.docs()] == ["b.txt", "deep/er/a.md", "empty.txt"]
    out = collection.skipped_files()
    assert out.keys() == {*expected, ".png", ".csv"}
    for path, why in expected.items():
        assert out[path].startswith(why)


def test_a_long_list_is_shortened(notes: Path) -> None:
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


def test_names_that_a_run_cannot_contain(notes: Path) -> None:
    (notes / "my notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"my notes\.txt.*,map_ids=1"):
        docs(f"folder:{notes}")
    ids = [doc.id for doc in docs(f"folder:{notes},map_ids=1")]
    assert "my_notes.txt" in ids
    (notes / "my_notes.txt").write_text("y")
    with pytest.raises(DataError, match="have the same id"):
        docs(f"folder:{notes},map_ids=1")
    (notes / "my notes.txt").unlink()
    with open(os.fsencode(notes) + b"/\xff.txt", "w"):
        pass
    with pytest.raises(DataError, match=r"UTF-8"):
        docs(f"folder:{notes}")


def test_too_large_files_are_refused(notes: Path) -> None:
    with open(notes / "huge.txt", "wb") as file:
        file.truncate(300 << 20)
    with pytest.raises(DataError, match=r"huge\.txt .*268,435,456"):
        docs(f"folder:{notes}")


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
    (notes / "table.csv").write_text("another size")
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
    with pytest.raises(UsageError, match="write unreadable=skip"):
        open_collection(f"folder:{notes},unreadable=no")
    with pytest.raises(DataError, match=r"write folder:"):
        open_collection(str(notes))


@needs_files
def test_web_pages_and_pdf_files_next_to_texts(notes: Path) -> None:
    (notes / "page.HTM").write_text("<title>Herons</title><p>They fish.")
    pages.save_pdf(notes / "paper.pdf", ["Page one", "Page two"])
    (notes / "cut.pdf").write_bytes(pages.pdf(["x"])[:150])
    collection = open_collection(f"folder:{notes},unreadable=skip")
    found = {doc.id: doc for doc in collection.docs()}
    assert found["page.HTM"][1:3] == ("They fish.", "Herons")
    assert found["paper.pdf"][1:3] == ("Page one\fPage two", "paper")
    assert "damaged" in collection.skipped_files()["cut.pdf"]
    shard = collection.docs(Shard(1, 3))
    assert [doc.id for doc in shard] == ["deep/er/a.md", "empty.txt"]


@pytest.mark.skipif(BOTH, reason="they are installed")
@pytest.mark.parametrize(("name", "package"), [("a.html", "inscriptis"), ("a.pdf", "pypdfium2")])
def test_a_missing_package_is_named(notes: Path, name: str, package: str) -> None:
    (notes / name).write_text("x")
    with pytest.raises(MissingExtra, match=rf'needs {package}.*"lmkcli\[files\]"'):
        open_collection(f"folder:{notes}")
