"""Scoring: the judgements of each run, and defaults of known collections."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lmkcli.artifact.manifest import as_text
from lmkcli.data.collection import Qrel, open_collection
from lmkcli.data.qrels import read_qrels
from lmkcli.data.run import read_run
from lmkcli.errors import DataError, Mismatch, UsageError
from lmkcli.evaluation.scoring import QrelSet, default_measures, qrel_sets, score, score_all
from tests import manifests

DL19 = "msmarco-passage/trec-dl-2019/judged"


def known(name: str, qrels: list[Qrel], folder: Path) -> QrelSet:
    """Judgements under the name of a known collection; the collection is never read."""
    return QrelSet(name, qrels, open_collection(str(folder)))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run.trec"
    path.write_text("q1 Q0 q1 1 3 sys\nq1 Q0 a 2 2 sys\nq2 Q0 b 1 1 sys\n")
    return path


QRELS = [Qrel("q1", "a", 1), Qrel("q2", "b", 2)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "c" / "qrels").mkdir(parents=True)
    (tmp_path / "c" / "queries.jsonl").write_text('{"_id": "q1", "text": "x"}\n')
    lines = "".join(f"{qrel.query_id}\t{qrel.doc_id}\t{qrel.grade}\n" for qrel in QRELS)
    (tmp_path / "c" / "qrels" / "test.tsv").write_text(lines)
    return tmp_path / "c"


def test_threshold_and_measures_of_a_track_are_the_default(shared: Path, folder: Path) -> None:
    qrels = read_qrels(shared / "data/topics-qrels/dl19-passage/qrels/test.tsv")
    path = shared / "data" / "trec-runs" / "dl19.d_bert_kd_tasb.txt"
    judge = known(DL19, list(qrels), folder)
    assert default_measures([judge]) == ["nDCG@10", "R(rel=2)@1000", "AP(rel=2)", "RR(rel=2)@10"]
    asked = ["nDCG@10", "R@100", "R(rel=1)@100", "AP@100", "RR@10"]
    result = score(path, judge, asked)
    names = ["nDCG@10", "R(rel=2)@100", "R@100", "AP(rel=2)@100", "RR(rel=2)@10"]
    assert [str(result.measures[name]) for name in asked] == names
    listed = [0.7210, 0.6097, 0.4050, 0.8754]  # SCORES.tsv: nDCG@10, R@100, AP@100, RR@10
    found = [result.value(name) for name in asked if "rel=1" not in name]
    assert found == pytest.approx(listed, abs=5.1e-5)
    assert result.value("R(rel=1)@100") == pytest.approx(0.5158, abs=5.1e-5)
    plain = score(path, QrelSet(judge.name, judge.qrels), ["R@100"])  # a file, whatever its name
    assert plain.value("R@100") == result.value("R(rel=1)@100")


@pytest.mark.parametrize(
    "name", ["beir/arguana", "beir/quora/test", "beir/quora", "nano-beir/quora"]
)
def test_self_hits_are_dropped_for_collections_that_need_it(
    name: str, run: Path, folder: Path
) -> None:
    judge = known(name, QRELS, folder)
    assert score(run, judge, ["RR@10"]).scores.per_query["RR@10"] == {"q1": 1, "q2": 1}
    kept = score(run, judge, ["RR@10"], drop_self=False)
    assert kept.scores.per_query["RR@10"] == {"q1": 0.5, "q2": 1}
    assert (kept.scores.coverage.self_hits, kept.scores.coverage.self_dropped) == (1, False)


def test_other_collections_keep_self_hits_by_default(run: Path, folder: Path) -> None:
    for judge in (known("beir/scifact/test", QRELS, folder), QrelSet("beir/arguana", QRELS)):
        assert score(run, judge, ["RR@10"]).value("RR@10") == 0.75
        assert score(run, judge, ["RR@10"], drop_self=True).value("RR@10") == 1.0


def test_default_measures_of_collections_with_different_ones(folder: Path) -> None:
    own = QrelSet("x", QRELS)
    assert default_measures([own, own]) == ["nDCG@10", "R@100", "RR@10"]
    assert default_measures([own, known(DL19, QRELS, folder)]) == ["nDCG@10"]


def test_judgements_of_a_run(run: Path, folder: Path, tmp_path: Path) -> None:
    file = str(folder / "qrels" / "test.tsv")
    (one, two) = qrel_sets([run, run], [file, str(folder)])
    assert (one.name, one.collection, one.qrels) == (file, None, QRELS)
    assert two.name == str(folder)
    assert two.qrels == QRELS
    assert two.collection is not None
    same = qrel_sets([run, run], [file])
    assert same[0] is same[1]
    with pytest.raises(UsageError, match="2 --qrels for 3 runs"):
        qrel_sets([run] * 3, [file, file])
    with pytest.raises(UsageError, match="no manifest"):
        qrel_sets([run], [])
    (tmp_path / "run.trec.json").write_text(as_text(manifests.run(str(folder))))
    assert qrel_sets([run], [])[0].name == str(folder)
    questions = tmp_path / "questions.tsv"
    questions.write_text("q1\twhat\n")
    (tmp_path / "run.trec.json").write_text(as_text(manifests.run(str(questions))))
    with pytest.raises(UsageError, match=r"questions.tsv.*--qrels"):
        qrel_sets([run], [])


@pytest.mark.parametrize("facts", [{}, {"collection": 3}, {"collection": None}])
def test_a_manifest_without_its_collection_is_named(run: Path, facts: dict[str, Any]) -> None:
    side = run.with_name(f"{run.name}.json")
    made = json.loads(as_text(manifests.run()))
    made["facts"] = {**made["facts"], "collection": None} | facts
    if not facts:
        del made["facts"]["collection"]
    side.write_text(json.dumps(made))
    with pytest.raises(DataError, match=r"facts\.collection"):
        qrel_sets([run], [])


def test_errors_name_the_run_and_its_judgements(run: Path) -> None:
    with pytest.raises(Mismatch, match=r"run.trec.* my.qrels: no query"):
        score(run, QrelSet("my.qrels", [Qrel("other", "a", 1)]), ["P@1"])
    with pytest.raises(DataError, match=r"run.trec.* my.qrels: .* twice"):
        score(run, QrelSet("my.qrels", [*QRELS, Qrel("q1", "a", 0)]), ["P@1"])
    with pytest.raises(UsageError, match=r"nDCG@10\?\n.*'nope'"):
        score_all([run], [QrelSet("x", QRELS)], ["ndcg@10", "nope"])


def test_rows_of_runs_on_one_collection_are_their_paths(run: Path) -> None:
    judge = QrelSet("x", QRELS)
    assert [each.system for each in score_all([run], [judge], ["P@1"])] == [str(run)]
    other = QrelSet("y", QRELS)
    both = score_all([run, run], [judge, other], ["P@1"])
    assert [each.system for each in both] == [read_run(run).tag] * 2 == ["sys", "sys"]


@pytest.mark.parametrize(
    "content", [b"q1 0 d1 1", gzip.compress(b"q1 0 d1 1\n" * 99, mtime=0)[:-12]]
)
def test_damaged_judgements_are_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.qrels.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"some\.qrels\.gz: damaged or truncated gzip"):
        qrel_sets([tmp_path / "a.trec"], [str(path)])
