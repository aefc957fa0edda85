"""TREC's topics and judgements in the formats of common tools."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.data.collection import Qrel, Query
from lmkcli.data.fields import Fields
from lmkcli.data.qrels import read_qrels
from lmkcli.data.trec import read_topics
from lmkcli.errors import DataError

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
def test_qrels_round_trip_in_both_formats(
    tmp_path_factory: pytest.TempPathFactory, qrels: list[Qrel], kind: str, zipped: bool
) -> None:
    line = {"beir": "{0}\t{1}\t{2}", "trec": "{0} 0  {1} {2}", "tabs": "{0}\tQ0\t{1}\t{2}"}[kind]
    lines = ["query-id\tcorpus-id\tscore"] if kind == "beir" else ["# a comment"]
    data = "\r\n".join([*lines, "", *(line.format(*qrel) for qrel in qrels)]).encode()
    path = tmp_path_factory.mktemp("q") / ("q.tsv.gz" if zipped else "q.tsv")
    path.write_bytes(gzip.compress(data, mtime=0) if zipped else data)
    assert list(read_qrels(path)) == qrels


def test_files_that_are_not_qrels(tmp_path: Path) -> None:
    path = tmp_path / "q.txt"
    for line in ("1 d 2.5", "1 2", "1 0 d x", "a b c d e"):
        path.write_text(f"1 0 d 1\n{line}\n")
        with pytest.raises(DataError, match=r"q.txt line 2: "):
            list(read_qrels(path))
    with pytest.raises(DataError, match="no such file"):
        list(read_qrels(tmp_path / "none"))
    path.write_text("q\td 1\t1\n")
    assert list(read_qrels(path, map_ids=True)) == [Qrel("q", "d_1", 1)]


def test_comments_of_trec_eval(shared: Path) -> None:
    folder = shared / "data/trec-eval-golden"
    plain, commented = folder / "qrels.test", folder / "qrels.test.with-comments"
    count = sum(not line.startswith("#") for line in commented.read_text().splitlines())
    assert len(list(read_qrels(commented))) == count
    assert next(read_qrels(commented)) == next(read_qrels(plain))


def test_qrels_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    """Replacing bytes would change the ids, and every score would be 0."""
    (tmp_path / "q.tsv").write_bytes("1 0 d1 1\n2 0 caf\u00e9 1\n".encode("latin-1"))
    with pytest.raises(DataError, match="line 2: not UTF-8"):
        list(read_qrels(tmp_path / "q.tsv"))


@pytest.mark.parametrize("grade", ["1_0", "\u0661", "9" * 5000, "1.5", "--1", ""])
def test_a_grade_is_an_integer_in_ascii(tmp_path: Path, grade: str) -> None:
    (tmp_path / "qrels").write_text(f"q\t0\td\t{grade}\n", encoding="utf-8")
    with pytest.raises(DataError, match="not a judgement"):
        list(read_qrels(tmp_path / "qrels"))


@pytest.mark.parametrize("line", ["q1\t0 d1\t1", "q1\tQ0 d1\t1"])
def test_tabs_and_spaces_are_not_mixed(tmp_path: Path, line: str) -> None:
    """trec_eval would read the document d1, and by tabs alone it would be '0 d1'."""
    file = tmp_path / "q.qrels"
    file.write_text(f"{line}\n")
    with pytest.raises(DataError, match=r"line 1: tabs and spaces are mixed.*'d1'"):
        list(read_qrels(file))
    for right in ("q1 0 d1 1", "q1\t0\td1\t1", "q1\td1\t1"):
        file.write_text(f"{right}\n")
        assert list(read_qrels(file)) == [Qrel("q1", "d1", 1)]
    file.write_text("q1\tchapter one.md\t1\n")
    assert list(read_qrels(file)) == [Qrel("q1", "chapter one.md", 1)]
