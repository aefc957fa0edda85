"""Lines and records: what they mean, and what is refused with which words."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.data.collection import Doc, Qrel, Query
from lmkcli.data.formats import Fields, line_format, parse_json, read_qrels, read_topics
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


TOPICS = """
<top>

<num> Number: 301
<title> International
 Organized Crime

<desc> Description:
Identify organizations.

<narr> Narrative:
A relevant document.

</top>
<top>
<num>302</num><title>Post-polio</title>
</top>
"""


def test_classic_topics(tmp_path: Path) -> None:
    path = tmp_path / "topics.txt"
    path.write_text(TOPICS, encoding="utf-8-sig")
    assert read_topics(path) == [
        {
            "id": "301",
            "title": "International Organized Crime",
            "description": "Identify organizations.",
            "narrative": "A relevant document.",
        },
        {"id": "302", "title": "Post-polio"},
    ]
    path.write_text("<top without end")
    with pytest.raises(DataError, match=r"topics.txt: neither"):
        read_topics(path)


def test_xml_topics(shared: Path) -> None:
    path = shared / "data/topics-qrels/covid-round5-raw/topics.covid-round5.xml"
    topics = read_topics(path)
    assert len(topics) == 50
    assert topics[0]["id"] == "1"
    assert Fields().query(topics[0], "") == Query("1", "coronavirus origin")


WORD = st.text(st.characters(exclude_categories=("Z", "C")), min_size=1, max_size=6).filter(
    lambda word: word.split() == [word] and word[0] != "#" and word != "query-id"
)
QRELS = st.lists(st.builds(Qrel, WORD, WORD, st.integers(-2, 4)), max_size=10)


@given(QRELS, st.sampled_from(["beir", "trec", "tabs"]), st.booleans())
def test_qrels_come_back_from_either_format(
    tmp_path_factory: pytest.TempPathFactory, qrels: list[Qrel], kind: str, zipped: bool
) -> None:
    line = {"beir": "{0}\t{1}\t{2}", "trec": "{0} 0  {1} {2}", "tabs": "{0}\tQ0\t{1}\t{2}"}[kind]
    lines = ["query-id\tcorpus-id\tscore"] if kind == "beir" else ["# a comment"]
    data = "\r\n".join([*lines, "", *(line.format(*qrel) for qrel in qrels)]).encode()
    path = tmp_path_factory.mktemp("q") / ("q.tsv.gz" if zipped else "q.tsv")
    path.write_bytes(gzip.compress(data, mtime=0) if zipped else data)
    assert list(read_qrels(path)) == qrels


def test_qrels_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "q.txt"
    for line in ("1 d 2.5", "1 2", "1 0 d x", "a b c d e"):
        path.write_text(f"1 0 d 1\n{line}\n")
        with pytest.raises(DataError, match=r"q.txt line 2: .*is not a judgement"):
            list(read_qrels(path))
    with pytest.raises(DataError, match="no such file"):
        list(read_qrels(tmp_path / "none"))
    path.write_text("q\td 1\t1\n")
    assert list(read_qrels(path, map_ids=True)) == [Qrel("q", "d_1", 1)]


def test_trec_evals_own_comments(shared: Path) -> None:
    folder = shared / "data/trec-eval-golden"
    plain, commented = folder / "qrels.test", folder / "qrels.test.with-comments"
    count = sum(not line.startswith("#") for line in commented.read_text().splitlines())
    assert len(list(read_qrels(commented))) == count
    assert next(read_qrels(commented)) == next(read_qrels(plain))


def test_qrels_that_are_no_utf8_are_refused(tmp_path: Path) -> None:
    """Replaced bytes would make other ids, and every score 0."""
    (tmp_path / "q.tsv").write_bytes("1 0 d1 1\n2 0 caf\u00e9 1\n".encode("latin-1"))
    with pytest.raises(DataError, match="line 2: not UTF-8"):
        list(read_qrels(tmp_path / "q.tsv"))


@pytest.mark.parametrize("name", ["d\0a", "d\x07", "d\x7f", "d\u009b", "\ufeffd"])
def test_an_id_that_tools_would_read_otherwise_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="control character"):
        Fields().doc({"_id": name, "text": "x"}, "f line 1")


def test_a_truth_value_is_no_id() -> None:
    with pytest.raises(DataError, match="write it as a string"):
        Fields().doc({"_id": True, "text": "x"}, "f line 1")


@pytest.mark.parametrize("grade", ["1_0", "\u0661", "9" * 5000, "1.5", "--1", ""])
def test_a_grade_is_an_integer_in_ascii(tmp_path: Path, grade: str) -> None:
    (tmp_path / "qrels").write_text(f"q\t0\td\t{grade}\n", encoding="utf-8")
    with pytest.raises(DataError, match="not a judgement"):
        list(read_qrels(tmp_path / "qrels"))
