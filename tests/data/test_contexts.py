"""Contexts of chunks: the title, headings, or a field of the documents."""

import gzip
import json
from pathlib import Path

import pytest

from lmkcli.data.collection import Doc, doc_hash, join_chunks, open_collection
from lmkcli.data.contexts import contexts_of, field_of, invalid_reason
from lmkcli.errors import DataError, UsageError


def test_a_title_is_the_context_of_every_chunk() -> None:
    assert contexts_of(Doc("d", "a b", "T"), "title", [2, 4]) == ["T", "T"]
    assert contexts_of(Doc("d", "a b"), "title", [0, 2]) == ["", ""]


def test_headings_are_found_in_the_text_after_a_title() -> None:
    doc = Doc("d", "# A\nx\n## B\ny", "T")
    places = [doc.content.index(mark) for mark in ("T", "# A", "x", "## B", "y")]
    assert contexts_of(doc, "headings", places) == ["", "", "A", "A", "A\nB"]


@pytest.mark.parametrize("name", ["src/power.py", "old run.sh.gz", "Makefile", "server.LOG"])
@pytest.mark.parametrize("options", ["", ",map_ids=1"])
def test_comments_of_programs_are_no_headings(tmp_path: Path, name: str, options: str) -> None:
    """A file of source code in a folder; the same text in a file of Markdown has a heading."""
    for each in (name, f"{name}.md"):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        text = b"# a comment\nx = 1"
        (tmp_path / each).write_bytes(gzip.compress(text) if each.endswith(".gz") else text)
    docs = open_collection(f"folder:{tmp_path}{options}").docs()
    found = {doc.id: contexts_of(doc, "headings", [len(doc.content) - 1]) for doc in docs}
    name = name.replace(" ", "_") if options else name
    assert found[name] == [""]


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("https://example.org/guide.php", ""),
        ("https://example.org/guide.php", "A guide"),
        ("Node.js", "Node.js"),
        ("Node.js", ""),
        ("wiki/Vue.js", "Vue.js"),
        ("Makefile", ""),
        ("7.c", "The seventh"),
    ],
)
def test_the_id_of_a_record_is_no_file(name: str, title: str) -> None:
    page = Doc(name, "# A title\nx = 1", title)
    assert contexts_of(page, "headings", [len(page.content) - 1]) == ["A title"]


def test_headings_in_given_chunks() -> None:
    doc = Doc("d", join_chunks(["# A", "x", "# B", "y"]))
    starts = [doc.content.index(mark) for mark in ("# A", "x", "# B", "y")]
    assert contexts_of(doc, "headings", starts) == ["", "A", "", "B"]


def test_a_field_has_one_text_or_one_for_each() -> None:
    assert contexts_of(Doc("d", "a b", context="c"), "field:f", [0, 2]) == ["c", "c"]
    assert contexts_of(Doc("d", "a b", context=("c", "")), "field:f", [0, 2]) == ["c", ""]
    assert contexts_of(Doc("d", "", context=()), "field:f", [0]) == [""]


@pytest.mark.parametrize("given", [("c",), ("c", "d", "e"), ()])
def test_another_number_of_contexts_is_refused(given: tuple[str, ...]) -> None:
    doc = Doc("d7", "a b", context=given)
    with pytest.raises(DataError, match=rf"d7 .*\b2 chunks .*\b{len(given)} contexts .*'f'"):
        contexts_of(doc, "field:f", [0, 2])


def test_settings() -> None:
    assert not any(map(invalid_reason, ("", "title", "headings", "field:a")))
    assert all(map(invalid_reason, ("field:", "field", "Title", "summary")))
    assert (field_of("field:a"), field_of("title")) == ("a", "")


def test_contexts_change_the_hash_of_a_document() -> None:
    docs = [Doc("d", "x"), Doc("d", "x", context="c"), Doc("d", "x", context=("c",))]
    assert len({doc_hash(doc) for doc in docs}) == 3


def write(path: Path, **more: object) -> str:
    path.write_text(json.dumps({"_id": "d", "text": "x", **more}) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("value", "context"), [("s", "s"), (None, ""), (["a", None], ("a", "")), ([], ())]
)
def test_the_field_is_read_from_files(
    tmp_path: Path, value: object, context: str | tuple[str, ...]
) -> None:
    collection = open_collection(write(tmp_path / "a.jsonl", why=value), context="why")
    assert list(collection.docs()) == [Doc("d", "x", "", context)]
    assert collection.settings["context"] == "why"
    assert list(open_collection(collection.name).docs()) == list(collection.docs())
    chosen = open_collection(write(tmp_path / "b.jsonl", why=value, b="y"), "b", "why")
    assert list(chosen.docs()) == [Doc("d", "y", "", context)]


def test_a_missing_field_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'why': .*_id, text"):
        list(open_collection(write(tmp_path / "a.jsonl"), context="why").docs())
    with pytest.raises(DataError, match="a dict, not text"):
        list(open_collection(write(tmp_path / "b.jsonl", why={}), context="why").docs())
    with pytest.raises(UsageError, match="contexts"):
        open_collection("passkey/256", context="why")
