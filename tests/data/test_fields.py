"""Fields: from records to documents and queries."""

import pytest

from lmkcli.data.collection import Doc, Query
from lmkcli.data.fields import Fields
from lmkcli.errors import DataError, UsageError


def test_default_fields_follow_the_formats_in_use() -> None:
    fields = Fields()
    assert fields.doc({"_id": "1", "title": "T", "text": "x"}, "") == Doc("1", "x", "T")
    assert fields.doc({"docid": 2, "contents": "x"}, "") == Doc("2", "x")
    assert fields.doc({"doc_id": "3", "title": None, "text": None}, "") == Doc("3", "", "")
    assert fields.query({"query_id": 4, "query": "x"}, "") == Query("4", "x")
    assert fields.query({"id": "5", "title": "x", "description": "y"}, "") == Query("5", "x")


def test_exactly_the_chosen_fields_are_read() -> None:
    fields = Fields(("headline", "body"))
    record = {"id": "1", "title": "T", "text": "x", "headline": "h", "body": "b"}
    assert fields.doc(record, "") == Doc("1", "h b")
    assert fields.query(record, "") == Query("1", "h b")
    with pytest.raises(DataError, match=r"f line 3: .*body; .*id, head"):
        fields.doc({"id": "1", "headline": "h"}, "f line 3")


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (
            {"text": "x", "name": "n"},
            "_id, id, docid, doc_id; .*text, name; .*FILE,id=NAME",
        ),
        ({"id": "1", "body": "x"}, r"text, contents; .*id, body; .*--fields a\+b"),
        ({"id": "", "text": "x"}, "id is empty"),
        ({"id": "a b", "text": "x"}, "white space.*map_ids=1"),
        ({"id": None, "text": "x"}, "id is None; .*string"),
        ({"id": 1.5, "text": "x"}, r"id is 1\.5; .*string"),
        ({"id": "1", "text": ["x"]}, r"list.*--fields a\+b"),
    ],
)
def test_bad_records_name_the_place_and_the_fix(record: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=f"f line 9: .*{words}"):
        Fields().doc(record, "f line 9")


def test_ids_are_mapped_on_request_and_never_empty() -> None:
    fields = Fields.parse({"map_ids": "1", "fields": "a+b"})
    assert fields == Fields(("a", "b"), map_ids=True)
    assert fields.id("x y\tz", "", "document") == "x_y_z"
    with pytest.raises(DataError, match="empty"):
        fields.id("", "", "document")
    with pytest.raises(UsageError, match="write 1"):
        Fields.parse({"map_ids": "yes"})


@pytest.mark.parametrize("name", ["d\0a", "d\x07", "d\x7f", "d\u009b", "\ufeffd"])
def test_an_id_that_other_tools_would_read_differently_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="control character"):
        Fields().doc({"_id": name, "text": "x"}, "f line 1")


def test_a_boolean_is_not_an_id() -> None:
    with pytest.raises(DataError, match="write it as a string"):
        Fields().doc({"_id": True, "text": "x"}, "f line 1")
