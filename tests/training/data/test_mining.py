"""Mining: which documents of a run become negatives, which are dropped, and the teacher's scores."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.data.collection import open_collection
from lmkcli.data.run import Ranking
from lmkcli.errors import Mismatch, UsageError
from lmkcli.training.data.examples import Example, Tally
from lmkcli.training.data.mining import Mining, hard_negatives, mined

IDS = [f"d{number}" for number in range(10)]
RANKING = Ranking(IDS, np.arange(10, 0, -1, dtype=np.float32))  # d0 scores 10, d9 scores 1
SCORES = dict(zip(IDS, RANKING.scores.tolist(), strict=True))


def negatives(positives: list[str], **settings: object) -> tuple[list[str], dict[str, int]]:
    tally = Tally()
    mining = Mining(negatives="run", **settings)  # type: ignore[arg-type]
    return hard_negatives(RANKING, positives, SCORES, mining, tally), tally.found()


def test_every_document_of_the_run_but_the_positives_is_a_negative() -> None:
    assert negatives(["d2", "x"]) == (
        ["d0", "d1", "d3", "d4", "d5", "d6", "d7", "d8", "d9"],
        {"positives_in_run": 1},
    )


@pytest.mark.parametrize(
    ("depth", "expected"),
    [("2:5", ["d2", "d3", "d4"]), ("3", ["d0", "d1", "d2"]), ("8:", ["d8", "d9"]), (":2", IDS[:2])],
)
def test_ranks_are_chosen(depth: str, expected: list[str]) -> None:
    assert negatives([], depth=depth)[0] == expected


@pytest.mark.parametrize(
    ("settings", "expected", "dropped"),
    [
        ({"absolute_margin": 0.0}, ["d3", "d4", "d5", "d6", "d7", "d8", "d9"], 2),
        ({"absolute_margin": 3.0}, ["d5", "d6", "d7", "d8", "d9"], 4),
        ({"relative_margin": 0.5}, ["d6", "d7", "d8", "d9"], 5),
        ({"max_score": 2.5}, ["d8", "d9"], 7),
        ({"max_score": 99.0}, ["d3", "d4", "d5", "d6", "d7", "d8", "d9"], 2),
    ],
)
def test_what_scores_like_the_positive_is_dropped(
    settings: dict[str, float], expected: list[str], dropped: int
) -> None:
    kept, found = negatives(["d2"], **settings)
    assert kept == expected
    assert found == {"positives_in_run": 1, "false_negatives": dropped}


def test_a_negative_score_of_the_positive_has_its_margin_below_it() -> None:
    ranking = Ranking(["a", "b", "c"], np.array([-1, -2, -3], np.float32))
    scores = dict(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True))
    kept = hard_negatives(
        ranking, ["b"], scores, Mining(negatives="r", relative_margin=0.4), Tally()
    )
    assert kept == ["c"]


def test_without_a_score_of_a_positive_nothing_is_dropped_and_it_is_counted() -> None:
    kept, found = negatives(["x"], relative_margin=0.1)
    assert kept == IDS
    assert found == {"queries_without_threshold": 1}


def test_a_judge_decides_and_what_it_does_not_score_goes() -> None:
    tally = Tally()
    judge = {"d0": 1.0, "d1": 5.0, "d2": 4.0, "d3": 3.9}
    kept = hard_negatives(RANKING, ["d2"], judge, Mining(negatives="r", judge="j"), tally)
    assert kept == ["d0", "d3"]
    assert tally.found() == {
        "positives_in_run": 1,
        "unjudged_candidates": 6,
        "false_negatives": 1,
    }


@given(
    st.sets(st.sampled_from(IDS), max_size=4),
    st.integers(0, 9),
    st.integers(1, 5),
    st.sampled_from([None, 0.0, 0.1, 0.9]),
    st.sampled_from([None, 0.0, 2.0]),
)
def test_negatives_keep_the_order_of_the_run_and_hold_no_positive(
    positives: set[str], first: int, length: int, relative: float | None, absolute: float | None
) -> None:
    kept, found = negatives(
        sorted(positives),
        depth=f"{first}:{first + length}",
        relative_margin=relative,
        absolute_margin=absolute,
    )
    near = IDS[first : first + length]
    assert kept == [name for name in near if name in kept]
    assert not positives & set(kept)
    lost = len(near) - len(kept)
    assert lost == found.get("positives_in_run", 0) + found.get("false_negatives", 0)


@pytest.mark.parametrize("depth", ["5:3", "a:b", "-1:4"])
def test_a_depth_that_cannot_be_is_refused(depth: str) -> None:
    with pytest.raises(UsageError, match=f"depth={depth}: write first:last"):
        Mining(negatives="run", depth=depth)


def test_settings_without_their_run_are_refused() -> None:
    with pytest.raises(UsageError, match="add negatives=RUN"):
        Mining(relative_margin=0.1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two judged queries and one that is not, four documents, one of them judged irrelevant."""
    docs = [{"_id": f"d{i}", "title": "T" if i == 0 else "", "text": f"text {i}"} for i in range(4)]
    queries = [{"_id": f"q{i}", "text": f"query {i}"} for i in range(3)]
    for name, records in (("corpus", docs), ("queries", queries)):
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    (tmp_path / "qrels").mkdir()
    rows = "q0\td0\t2\nq0\td1\t0\nq1\td2\t1\nq1\tgone\t1\n"
    (tmp_path / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    return tmp_path


def write_run(path: Path, *lines: tuple[str, str, float]) -> str:
    rows = (f"{query} Q0 {doc} 1 {score} tag\n" for query, doc, score in lines)
    path.write_text("".join(rows))
    return str(path)


def mine(folder: Path, mining: Mining) -> tuple[list[Example], dict[str, int]]:
    tally = Tally()
    return list(mined(open_collection(f"{folder}:train"), mining, tally)), tally.found()


def test_judged_queries_become_examples(folder: Path) -> None:
    (first, second), found = mine(folder, Mining())
    assert (first.id, first.query) == ("q0", "query 0")
    assert [passage.text for passage in first.positives] == ["T text 0"]
    assert [passage.text for passage in first.negatives] == ["text 1"]
    assert [passage.text for passage in second.positives] == ["text 2"]
    assert second.negatives == ()
    assert found == {"positives_not_in_collection": 1}


def test_negatives_and_teacher_scores_come_from_runs(folder: Path) -> None:
    run = write_run(folder / "run.trec", ("q0", "d3", 3), ("q0", "d0", 2), ("q0", "d2", 1))
    teacher = write_run(
        folder / "teacher.trec", ("q0", "d0", 9), ("q0", "d3", 4.5), ("q1", "d2", 8)
    )
    (first, second), found = mine(folder, Mining(negatives=run, teacher=teacher))
    assert first.positives == (("T text 0", 9.0),)
    assert first.negatives[0] == ("text 3", 4.5)
    assert first.negatives[1].text == "text 2"
    assert math.isnan(first.negatives[1].score)
    assert second.positives == (("text 2", 8.0),)
    assert found == {
        "positives_not_in_collection": 1,
        "positives_in_run": 1,
        "queries_not_in_run": 1,
        "queries_without_negatives": 1,
        "unscored_passages": 1,
    }


def test_a_run_of_other_queries_is_refused(folder: Path) -> None:
    run = write_run(folder / "run.trec", ("other", "d3", 3))
    for mining in (Mining(negatives=run), Mining(teacher=run)):
        with pytest.raises(Mismatch, match=r"'other', .*'q0'"):
            mine(folder, mining)


def test_a_run_of_other_documents_is_refused(folder: Path) -> None:
    run = write_run(folder / "run.trec", ("q0", "d3", 3), ("q0", "elsewhere", 2))
    with pytest.raises(Mismatch, match=r"1 documents .*'elsewhere'"):
        mine(folder, Mining(negatives=run))
