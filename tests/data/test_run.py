"""Runs: trec_eval's order, writing and reading six columns, and errors with the line."""

import gzip
import math
import os
import stat
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmkcli.data.run import Ranking, Run, is_run, ranked, read_run, write_run
from lmkcli.errors import DataError

words = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Z"]), min_size=1, max_size=6
).filter(lambda word: word.split() == [word] and not word.startswith("\ufeff"))
floats = st.floats(width=32, allow_nan=False)
# Few values, so that ties are common.
documents = st.dictionaries(words, floats | st.sampled_from([0.0, -0.0, 0.5, 1.0]), min_size=1)


def table(run: Run) -> dict[str, list[tuple[str, float]]]:
    return {
        query_id: list(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True))
        for query_id, ranking in run.rankings.items()
    }


def ranking_of(documents: dict[str, float]) -> Ranking:
    return ranked(documents, np.array(list(documents.values()), dtype=np.float64))


@settings(deadline=None)
@given(documents)
def test_order_is_score_then_id_both_descending(documents: dict[str, float]) -> None:
    ids, scores = ranking_of(documents)
    assert scores.dtype == np.float32
    assert dict(zip(ids, scores.tolist(), strict=True)) == documents
    pairs = list(zip(scores.tolist(), (doc_id.encode() for doc_id in ids), strict=True))
    assert pairs == sorted(pairs, reverse=True)


@settings(deadline=None)
@given(st.permutations([("a", 2.0), ("b", 1.0), ("c", 1.0), ("d", 1.0), ("e", -3.0)]))
def test_the_order_does_not_depend_on_the_input_order(pairs: list[tuple[str, float]]) -> None:
    assert ranking_of(dict(pairs)).doc_ids == ["a", "d", "c", "b", "e"]


def test_ties_are_those_of_float32() -> None:
    close = {"a": 1.0 + 1e-9, "b": 1.0}
    assert ranking_of(close).doc_ids == ["b", "a"]
    beyond = {"a": 1e300, "b": 1e200, "c": -1e300}
    assert ranking_of(beyond).doc_ids == ["b", "a", "c"]


def test_columns_between_tabs_may_contain_spaces(tmp_path: Path) -> None:
    """The ids of documents and the tag; a tag with spaces also between spaces."""
    file = tmp_path / "r.trec"
    file.write_text("1\tQ0\tApollo 11\t1\t2.5\tx y\n1\tQ0\tb\t2\t1.5\tx y\n2 Q0 c 1 3 x y z\n")
    run = read_run(file)
    assert {query: list(found.doc_ids) for query, found in run.rankings.items()} == {
        "1": ["Apollo 11", "b"], "2": ["c"],
    }  # fmt: skip
    assert run.rankings["1"].scores.tolist() == [2.5, 1.5]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("q\tQ0\t\t1\t2.5\ta long tag", "an empty id"),
        ("\tQ0\td\t1\t2.5\ta long tag", "an empty id"),
        ("q\tQ0\tApollo 11\t1\t2.5", "5 columns instead of the six"),
    ],
)
def test_an_incomplete_line_with_tabs_is_refused(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "r.trec").write_text(line + "\n")
    with pytest.raises(DataError, match=f"line 1: {reason}"):
        read_run(tmp_path / "r.trec")


def test_no_documents() -> None:
    assert ranking_of({}).doc_ids == []


@settings(deadline=None)
@given(st.dictionaries(words, documents, max_size=4), words, st.sampled_from(["r.trec", "r.gz"]))
def test_write_and_read(
    tmp_path_factory: pytest.TempPathFactory,
    content: dict[str, dict[str, float]],
    tag: str,
    name: str,
) -> None:
    path = tmp_path_factory.mktemp("run") / name
    run = Run({query_id: ranking_of(documents) for query_id, documents in content.items()}, tag)
    write_run(path, run)
    again = read_run(path)
    assert list(table(again).items()) == list(table(run).items())
    assert again.tag == (tag if content else "lmk")
    first = path.read_bytes()
    write_run(path, again)
    assert content == {} or path.read_bytes() == first


def test_six_columns_with_short_scores(tmp_path: Path) -> None:
    path = tmp_path / "r.trec"
    write_run(path, Run({"7": ranked(["d1", "d2", "d3"], np.array([0.1, 15.7806, -1e-5]))}, "me"))
    assert path.read_text() == ("7 Q0 d2 1 15.7806 me\n7 Q0 d1 2 0.1 me\n7 Q0 d3 3 -1e-05 me\n")


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_any_float32_round_trips(tmp_path_factory: pytest.TempPathFactory, bits: int) -> None:
    (score,) = struct.unpack("f", struct.pack("I", bits))
    if not math.isnan(score):
        path = tmp_path_factory.mktemp("bits") / "r.trec"
        write_run(path, Run({"q": Ranking(["d"], np.array([score], dtype=np.float32))}))
        assert read_run(path).rankings["q"].scores.tobytes() == struct.pack("f", score)


def test_reading_is_tolerant(tmp_path: Path) -> None:
    path = tmp_path / "r.trec"
    path.write_bytes(
        b"\xef\xbb\xbf2\tQ0\td1\t0\t  1.5\tfirst\r\n"
        b"\r\n"
        b"1  Q0 d9 99 2e0 second more junk\n"
        b"  2 Q0 d2 -1 +3 third"
    )
    run = read_run(path)
    assert table(run) == {"2": [("d2", 3.0), ("d1", 1.5)], "1": [("d9", 2.0)]}
    assert list(run.rankings) == ["2", "1"]
    assert run.tag == "first"


def test_ranks_that_contradict_the_scores_are_noticed(tmp_path: Path) -> None:
    """As in a run whose scores are distances; the scores determine the order, as in trec_eval."""
    path = tmp_path / "r.trec"
    lines = [
        *("1 Q0 a 1 0.1 x", "1 Q0 b 2 0.2 x"),  # distances
        *("2 Q0 a 1 3 x", "2 Q0 b 2 3 x", "2 Q0 c 3 -1 x"),
        *("3 Q0 a 2 1 x", "3 Q0 b 1 2 x"),  # in another order
        *("4 Q0 a 1 1.0 x", "4 Q0 b 2 1.00000001 x"),  # equal in float32
        *("5 Q0 a 1 1e300 x", "5 Q0 b 2 2e300 x"),
    ]
    path.write_text("\n".join(lines))
    run = read_run(path)
    assert run.contradicted == {"1"}
    assert run["1"].doc_ids == ["b", "a"]
    assert read_run(path).rankings.keys() == {"1", "2", "3", "4", "5"}


GOOD = "1 Q0 a 1 2.5 x\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 Q0 b 2 2.0", r"r\.trec line 3: 5 columns .*\bsix\b"),
        ("1 Q0 Apollo 11 2 2.0 x", r"r\.trec line 3: .*six columns.*'2\.0'.*tabs"),
        ("1 Q0 my doc 2 2.0 x", r"r\.trec line 3: .*six columns.*'doc'"),
        ("1 Q0 b 2 high x", r"r\.trec line 3: .*score 'high'"),
        ("1 Q0 b 2 NaN x", r"r\.trec line 3: .*score 'NaN'"),
        ("1 Q0 a 2 2.0 x", r"line 3: document 'a' occurs twice for query '1'"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "r.trec"
    path.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(DataError, match=message):
        read_run(path)


def test_the_same_document_for_two_queries_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "r.trec"
    path.write_text(GOOD + GOOD.replace("1 Q0", "2 Q0"))
    assert list(read_run(path).rankings) == ["1", "2"]


def test_a_damaged_file_is_no_run(tmp_path: Path) -> None:
    run = tmp_path / "run.gz"
    run.write_bytes(gzip.compress(GOOD.encode()))
    assert is_run(run)
    whole = run.read_bytes()
    for damaged in (whole[:12], whole[:10] + b"\xff" * 20, b"", whole[:4]):
        run.write_bytes(damaged)
        assert not is_run(run)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_run(tmp_path / "none.trec")
    with pytest.raises(DataError, match="is a folder"):
        read_run(tmp_path)
    (tmp_path / "latin.trec").write_bytes("1 Q0 é 1 2.5 x\n".encode("latin-1"))
    with pytest.raises(DataError, match="not UTF-8"):
        read_run(tmp_path / "latin.trec")
    (tmp_path / "no.gz").write_text(GOOD)
    with pytest.raises(DataError, match=r"no\.gz: damaged"):
        read_run(tmp_path / "no.gz")
    (tmp_path / "cut.gz").write_bytes(gzip.compress((GOOD * 1).encode())[:-9])
    with pytest.raises(DataError, match="damaged or truncated"):
        read_run(tmp_path / "cut.gz")


@pytest.mark.parametrize("bad", ["", "a b", "tab\t", "line\u2028separator"])
def test_words_that_cannot_be_read_back_are_refused(tmp_path: Path, bad: str) -> None:
    one = np.ones(1, dtype=np.float32)
    path = tmp_path / "r.trec"
    for run in (Run({bad: Ranking(["d"], one)}), Run({"q": Ranking([""], one)})):
        with pytest.raises(DataError, match="white"):
            write_run(path, run)
    with pytest.raises(DataError, match="white"):
        write_run(path, Run({"q": Ranking(["d"], one)}, tag=bad))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "r.trec"
    path.write_text(GOOD)
    one = np.ones(1, dtype=np.float32)
    with pytest.raises(DataError):
        write_run(path, Run({"q": Ranking(["d"], one), "not one": Ranking(["d"], one)}))
    assert path.read_text() == GOOD
    assert list(tmp_path.iterdir()) == [path]


def test_the_targets_of_writing(tmp_path: Path) -> None:
    run = Run({"q": ranked(["d"], np.ones(1))})
    with pytest.raises(DataError, match="cannot be written"):
        write_run(tmp_path / "no" / "r.trec", run)
    with pytest.raises(DataError, match="Is a directory"):
        write_run(tmp_path, run)
    write_run(Path(os.devnull), run)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_run(tmp_path / "link", run)
    assert (tmp_path / "link").is_symlink()
    assert table(read_run(tmp_path / "target")) == table(run)


@pytest.mark.parametrize(
    "line", ["q1 Q0 d\0a 1 1 x", "q\x1b[1m Q0 d1 1 1 x", "q1 Q0 \ufeffd1 1 1 x"]
)
def test_an_id_that_other_tools_would_read_differently_is_refused(
    tmp_path: Path, line: str
) -> None:
    """trec_eval ends an id at a NUL, so that d\\0a and d\\0b would be one document."""
    path = tmp_path / "a.trec"
    path.write_text(f"q0 Q0 d1 1 1 x\n{line}\n")
    with pytest.raises(DataError, match=r"a.trec line 2: .*control character"):
        read_run(path)


@pytest.mark.parametrize("score", ["1_0", "\u0661.5"])
def test_a_score_must_be_a_number_for_every_tool(tmp_path: Path, score: str) -> None:
    (tmp_path / "r.trec").write_text(f"q Q0 d 1 {score} x\n", encoding="utf-8")
    with pytest.raises(DataError, match="is not a number"):
        read_run(tmp_path / "r.trec")


def test_ranks_may_have_any_number_of_digits(tmp_path: Path) -> None:
    path = tmp_path / "r.trec"
    path.write_text(f"1 Q0 a 1 1 t\n1 Q0 b {'9' * 5000} 2 t\n")
    assert read_run(path).contradicted == {"1"}
