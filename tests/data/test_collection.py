"""Names of collections, shards, ids and digests."""

import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.data.collection import (
    CollectionDigest,
    CountedDocs,
    Doc,
    Shard,
    check_id,
    check_options,
    divided,
    doc_hash,
    map_id,
    open_collection,
    spell,
)
from lmkcli.errors import DataError, UnknownName, UsageError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A BEIR folder data/mini, and one with the name of an ir_datasets id, in the current folder."""
    for name in ("data/mini", "cranfield"):
        (tmp_path / name / "qrels").mkdir(parents=True)
        (tmp_path / name / "corpus.jsonl").write_text('{"_id": "d1", "text": "a"}\n')
        (tmp_path / name / "queries.jsonl").write_text(
            '{"_id": "q1", "text": "x"}\n{"_id": "q2", "text": "y"}\n{"_id": "q3", "text": "z"}\n'
        )
        (tmp_path / name / "qrels/test.tsv").write_text(
            "query-id\tcorpus-id\tscore\nq3\td1\t1\nq1\td1\t1\n"
        )
        (tmp_path / name / "qrels/dev.tsv").write_text("query-id\tcorpus-id\tscore\nq2\td1\t1\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("spelling", ["data/mini", "./data/mini", "data/mini:test", "./cranfield"])
def test_paths_with_a_slash_are_read_from_disk(folder: Path, spelling: str) -> None:
    assert [doc.id for doc in open_collection(spelling).docs()] == ["d1"]


def test_an_absolute_path_is_read_from_disk(folder: Path) -> None:
    assert [doc.id for doc in open_collection(str(folder / "data/mini")).docs()] == ["d1"]


def test_a_bare_file_is_read_from_disk(folder: Path) -> None:
    (folder / "notes.jsonl").write_text('{"id": 7, "contents": "b"}\n')
    assert list(open_collection("notes.jsonl").docs()) == [Doc("7", "b")]


def test_a_folder_with_documents_takes_precedence_over_a_known_name(folder: Path) -> None:
    assert type(open_collection("cranfield")).__name__ == "FileCollection"
    assert type(open_collection("irds:cranfield")).__name__ == "IrdsCollection"
    (folder / "vaswani" / "vectors").mkdir(parents=True)
    assert type(open_collection("vaswani")).__name__ == "IrdsCollection"
    assert type(open_collection("irds:beir/scifact/test")).__name__ == "IrdsCollection"


def test_an_unknown_name_is_a_folder(folder: Path) -> None:
    (folder / "data" / "mini").rename(folder / "mini")
    for word in ("mini", "mini:dev"):
        bare, slashed = open_collection(word), open_collection(f"./{word}")
        assert bare.name == slashed.name == str(folder / word)
        assert list(bare.qrels()) == list(slashed.qrels())


def test_an_unknown_name_is_refused_with_similar_names(folder: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean beir/scifact"):
        open_collection("beir/scifct")
    (folder / "vaswani").mkdir()
    with pytest.raises(UnknownName, match=r"write \./vaswani:dev"):
        open_collection("vaswani:dev")


def test_a_missing_file_is_a_data_error() -> None:
    with pytest.raises(DataError, match="no such file"):
        open_collection("nowhere.jsonl")


def test_options_are_passed_and_written_into_the_name(folder: Path) -> None:
    (folder / "a.jsonl").write_text('{"id": "x y", "head": "h", "body": "b"}\n')
    collection = open_collection("a.jsonl,map_ids=1", fields="head+body")
    assert list(collection.docs()) == [Doc("x_y", "h b")]
    assert collection.name == f"{folder}/a.jsonl,map_ids=1,fields=head+body"
    assert collection.settings == {"fields": "head+body", "map_ids": "1"}
    assert list(open_collection(collection.name).docs()) == [Doc("x_y", "h b")]


def test_a_path_may_contain_a_comma_or_a_colon(folder: Path) -> None:
    for name in ("a,b=c.jsonl", "a:b.jsonl"):
        (folder / name).write_text('{"id": "1", "text": "t"}\n')
        assert list(open_collection(name).docs()) == [Doc("1", "t")]


def test_a_folder_with_the_name_of_a_split_changes_no_option(folder: Path) -> None:
    (folder / "test").mkdir()
    parts = ["haystack", "from=data/mini:test", "docs=3"]
    assert divided(",".join(parts)) == parts


def test_bad_options_are_usage_errors(folder: Path) -> None:
    with pytest.raises(UsageError, match="two values"):
        open_collection("haystack,from=beir/scifact/test,docs=3,docs=4")
    with pytest.raises(UsageError, match="name,key=value"):
        open_collection("data/mini,fields")
    with pytest.raises(UnknownName, match="did you mean fields"):
        open_collection("data/mini,field=a")
    with pytest.raises(UnknownName, match="option"):
        check_options("stdlib/functions", {"fields": "a"}, ())


def test_judged_queries_keep_the_order_of_the_queries(folder: Path) -> None:
    assert [query.id for query in open_collection("data/mini").judged_queries()] == ["q1", "q3"]
    assert [query.id for query in open_collection("data/mini:dev").judged_queries()] == ["q2"]
    bare = open_collection("data/mini/queries.jsonl")
    assert [query.id for query in bare.judged_queries()] == ["q1", "q2", "q3"]


def test_spell_without_options_is_the_name() -> None:
    assert spell("a/b", {}) == "a/b"


def test_shard_is_parsed_or_refused() -> None:
    assert Shard.parse("3/16") == Shard(3, 16)
    for text in ("16/16", "3", "-1/2", "a/b", "0/0", "1/", "\u0663/16", f"1/{'9' * 5000}"):
        with pytest.raises(UsageError, match="0 <= i < n"):
            Shard.parse(text)


@given(st.integers(0, 10_000), st.integers(1, 50))
def test_shards_are_equal_ordered_and_complete(total: int, count: int) -> None:
    ranges = [Shard(number, count).rows(total) for number in range(count)]
    assert [row for rows in ranges for row in rows] == list(range(total))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@given(st.text(max_size=20))
def test_an_id_is_valid_exactly_if_it_is_one_word_without_control_characters(
    identifier: str,
) -> None:
    mapped = map_id(identifier)
    steers = any(unicodedata.category(character) == "Cc" for character in mapped)
    steers = steers or identifier.startswith("\ufeff")
    spaced = any(character.isspace() for character in identifier)
    if identifier and not spaced and not steers:
        assert check_id(identifier, "here") == identifier == map_id(identifier)
    else:
        with pytest.raises(DataError, match="here"):
            check_id(identifier, "here")
    if identifier and not steers:
        assert check_id(mapped, "here")


def test_counted_docs_report_their_progress() -> None:
    stream = CountedDocs(lambda: iter([Doc("a", ""), Doc("b", "")]), 2)
    fractions = [stream.fraction for _ in stream]
    assert fractions == [0.5, 1.0]
    assert CountedDocs(lambda: iter(()), None).fraction is None
    assert CountedDocs(lambda: iter(()), 0).fraction == 1.0


DOCS = st.lists(st.builds(Doc, st.text(), st.text(), st.text()), max_size=8)


@given(DOCS, DOCS)
def test_digests_of_parts_add_up_in_any_order(one: list[Doc], other: list[Doc]) -> None:
    whole = digest(iter([*reversed(other), *one]))
    parts = CollectionDigest.sum([str(digest(iter(one))), str(digest(iter(other)))])
    assert str(parts) == str(whole)
    assert whole.count == len(one) + len(other)


def test_the_hash_depends_on_the_ends_of_fields() -> None:
    hashes = {doc_hash(doc) for doc in (Doc("a", "bc"), Doc("ab", "c"), Doc("a", "b", "c"))}
    assert len(hashes) == 3


def digest(docs: Iterator[Doc]) -> CollectionDigest:
    total = CollectionDigest()
    for doc in docs:
        total.add(doc_hash(doc))
    return total
