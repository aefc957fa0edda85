"""Lines and records: what they mean, and what is refused with which words."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.data.collection import Doc, Query
from lmkcli.data.formats import Fields, line_format, parse_json
from lmkcli.errors import DataError, UsageError


def test_default_fields_follow_the_formats_in_use() -> None:
    fields = Fields()
    assert fields.doc({"_id": "1", "title": "T", "text": "x"}, "") == Doc("1", "x", "T")
    assert fields.doc({"docid": 2, "contents": "x"}, "") == Doc("2", "x")
    assert fields.doc({"doc_id": "3", "title": None, "text": None}, "") == Doc("3", "", "")
    assert fields.query({"query_id": 4, "query": "x"}, "") == Query("4", "x")
    assert fields.query({"id": "5", "title": "x", "description": "y"}, "") == Query("5", "x")


def test_chosen_fields_are_exactly_those() -> None:
    fields = Fields(("headline", "body"))
    record = {"id": "1", "title": "T", "text": "x", "headline": "h", "body": "b"}
    assert fields.doc(record, "") == Doc("1", "h b")
    assert fields.query(record, "") == Query("1", "h b")
    with pytest.raises(
        DataError, match=r"f line 3: no text field: looked for body; found id, head"
    ):
        fields.doc({"id": "1", "headline": "h"}, "f line 3")


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"text": "x", "name": "n"}, "no id field: .*found text, name; rename one to '_id'"),
        ({"id": "1", "body": "x"}, r"no text field: .*found id, body; .*--fields"),
        ({"id": "", "text": "x"}, "id is empty"),
        ({"id": "a b", "text": "x"}, "white space.*map_ids=1"),
        ({"id": None, "text": "x"}, "write it as a string"),
        ({"id": 1.5, "text": "x"}, "write it as a string"),
        ({"id": "1", "text": ["x"]}, "holds a list"),
    ],
)
def test_bad_records_name_the_place_and_the_fix(record: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=f"f line 9: .*{words}"):
        Fields().doc(record, "f line 9")


def test_ids_are_mapped_when_asked_and_never_empty() -> None:
    fields = Fields.parse({"map_ids": "1", "fields": "a+b"})
    assert fields == Fields(("a", "b"), map_ids=True)
    assert fields.id("x y\tz", "", "document") == "x_y_z"
    with pytest.raises(DataError, match="empty"):
        fields.id("", "", "document")
    with pytest.raises(UsageError, match="write 1"):
        Fields.parse({"map_ids": "yes"})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"a": 1', "not valid JSON"),
        (b'{"a": "\xff"}', "not valid JSON .*utf-8"),
        (b"[1]", "not a JSON object but a list"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_broken_json_names_the_line(line: bytes, words: str) -> None:
    with pytest.raises(DataError, match=f"c.jsonl line 17: {words}"):
        parse_json(line, "c.jsonl line 17")


@given(st.dictionaries(st.text(), st.text()))
def test_json_texts_come_back(record: dict[str, str]) -> None:
    assert parse_json(json.dumps(record).encode(), "") == record
    assert parse_json(json.dumps(record, ensure_ascii=False).encode(), "") == record


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    line = rb'{"a": "x\ud83d\ude00 \ud83d y \uDE00", "b": 1}'
    assert parse_json(line, "") == {"a": "x\U0001f600 \ufffd y \ufffd", "b": 1}


def tsv(line: str, first: str = "") -> dict[str, object]:
    layout = line_format((first or line).encode(), "x.tsv", Fields(("body",)).known)
    assert layout is not None
    return layout.parse(line.encode(), "x.tsv line 1")


def test_tsv_columns_without_and_with_a_header() -> None:
    assert tsv("1\tx\n") == {"id": "1", "text": "x"}
    assert tsv("1\tT\tx\r\n") == {"id": "1", "title": "T", "text": "x"}
    assert tsv("1\tu\tb\tx", first="id\turl\tbody\ttext\n")["body"] == "b"
    assert tsv("1\t\n") == {"id": "1", "text": ""}
    for line in ("1\n", "1\ta\tb\tc\n"):
        with pytest.raises(DataError, match=r"x.tsv line 1: . columns, expected id, text or id"):
            tsv(line)


def test_only_a_known_header_is_one() -> None:
    known = Fields().known
    for first, header in [
        (b"id\ttext", True),
        (b"qid\tquery", True),
        (b"id\tprose", False),
        (b"7\ttext", False),
    ]:
        layout = line_format(first, "x.tsv", known)
        assert layout is not None
        assert layout.header is header


def test_the_first_line_tells_the_format_where_the_suffix_does_not() -> None:
    known = Fields().known
    assert line_format(b'\xef\xbb\xbf{"id": 1}', "x", known) == (parse_json, False)
    assert line_format(b"<top>", "topics.txt", known) is None
    with pytest.raises(DataError, match=r"neither jsonl, tsv nor TREC topics; .*'hello"):
        line_format(b"hello world\n", "x.txt", known)


@pytest.mark.parametrize("name", ["d\0a", "d\x07", "d\x7f", "d\u009b", "\ufeffd"])
def test_an_id_that_tools_would_read_otherwise_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="control character"):
        Fields().doc({"_id": name, "text": "x"}, "f line 1")


def test_a_truth_value_is_no_id() -> None:
    with pytest.raises(DataError, match="write it as a string"):
        Fields().doc({"_id": True, "text": "x"}, "f line 1")
