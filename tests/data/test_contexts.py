"""Contexts of chunks: title, headings, and what a field of the documents says."""

import json
from pathlib import Path

import pytest

from lmkcli.data.collection import Doc, join_chunks, open_collection
from lmkcli.data.contexts import contexts, fault_of, field_of
from lmkcli.data.digest import doc_hash
from lmkcli.errors import DataError, UsageError


def test_a_title_is_the_context_of_every_chunk() -> None:
    assert contexts(Doc("d", "a b", "T"), "title", [2, 4]) == ["T", "T"]
    assert contexts(Doc("d", "a b"), "title", [0, 2]) == ["", ""]


def test_headings_are_found_in_the_text_behind_a_title() -> None:
    doc = Doc("d", "# A\nx\n## B\ny", "T")
    places = [doc.content.index(mark) for mark in ("T", "# A", "x", "## B", "y")]
    assert contexts(doc, "headings", places) == ["", "", "A", "A", "A\nB"]


def test_given_chunks_are_lines_to_headings() -> None:
    doc = Doc("d", join_chunks(["# A", "x", "# B", "y"]))
    begins = [doc.content.index(mark) for mark in ("# A", "x", "# B", "y")]
    assert contexts(doc, "headings", begins) == ["", "A", "", "B"]


def test_a_field_has_one_text_or_one_for_each() -> None:
    assert contexts(Doc("d", "a b", context="c"), "field:f", [0, 2]) == ["c", "c"]
    assert contexts(Doc("d", "a b", context=("c", "")), "field:f", [0, 2]) == ["c", ""]
    assert contexts(Doc("d", "", context=()), "field:f", [0]) == [""]


@pytest.mark.parametrize("given", [("c",), ("c", "d", "e"), ()])
def test_another_number_of_contexts_is_refused(given: tuple[str, ...]) -> None:
    doc = Doc("d7", "a b", context=given)
    with pytest.raises(
        DataError, match=rf"document d7 has 2 chunks and {len(given)} contexts under 'f'"
    ):
        contexts(doc, "field:f", [0, 2])


def test_settings() -> None:
    assert not any(map(fault_of, ("", "title", "headings", "field:a")))
    assert all(map(fault_of, ("field:", "field", "Title", "summary")))
    assert (field_of("field:a"), field_of("title")) == ("a", "")


def test_a_document_is_another_with_other_contexts() -> None:
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


def test_a_field_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no context field 'why': found _id, text"):
        list(open_collection(write(tmp_path / "a.jsonl"), context="why").docs())
    with pytest.raises(DataError, match="holds a dict, not text"):
        list(open_collection(write(tmp_path / "b.jsonl", why={}), context="why").docs())
    with pytest.raises(UsageError, match="write its documents with their contexts"):
        open_collection("passkey/256", context="why")
