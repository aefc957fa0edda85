"""lmk eval on the command line, on runs with scores that can be computed by hand."""

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmkcli import Evaluate
from lmkcli.artifact.manifest import as_text
from tests import manifests

Lmk = Callable[..., Any]
GOOD, BAD = "d1 d2 d3", "d3 d2 d1"  # the ranks of d1, the only relevant document


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Five queries: `better` finds d1 first in all, `base` only in two."""
    (tmp_path / "qrels.txt").write_text("".join(f"q{i} 0 d1 1\n" for i in range(5)))
    for name, orders in {"better": [GOOD] * 5, "base": [GOOD] * 2 + [BAD] * 3}.items():
        lines = [
            f"q{i} Q0 {doc} {rank} {9 - rank} {name}\n"
            for i, order in enumerate(orders)
            for rank, doc in enumerate(order.split(), 1)
        ]
        (tmp_path / f"{name}.trec").write_text("".join(lines))
    return tmp_path


def test_wins_ties_losses_and_p_values(lmk: Lmk, runs: Path) -> None:
    files = [runs / "better.trec", runs / "base.trec"]
    words = ["--qrels", runs / "qrels.txt", "--baseline", files[1], "-m", "RR@10", "--json"]
    (row,) = json.loads(lmk("eval", *files, *words).out)
    assert (row["wins"], row["ties"], row["losses"]) == (3, 2, 0)
    assert row["difference"] == pytest.approx(3 * (1 - 1 / 3) / 5)
    # of the 8 ways to flip the signs of three equal differences, two are as far from zero
    assert row["p (randomisation)"] == pytest.approx(2 / 8)


def test_bonferroni_multiplies_by_the_number_of_tests(lmk: Lmk, runs: Path) -> None:
    files = [runs / "better.trec", runs / "base.trec"]
    words = ["eval", *files, "--qrels", runs / "qrels.txt", "--baseline", files[1], "--json"]
    once = json.loads(lmk(*words, "-m", "RR@10").out)
    twice = json.loads(lmk(*words, "-m", "RR@10", "-m", "P@1", "--correction", "bonferroni").out)
    assert twice[0]["p (t-test)"] == pytest.approx(2 * once[0]["p (t-test)"])


def test_tables_that_exclude_each_other(lmk: Lmk, runs: Path) -> None:
    words = ["eval", runs / "better.trec", "--qrels", runs / "qrels.txt"]
    assert "one of two or more" in lmk(*words, "--baseline", runs / "base.trec", code=2).err
    both = [*words, runs / "base.trec", "--baseline", runs / "base.trec"]
    assert "--per-query and --baseline" in lmk(*both, "--per-query", code=2).err
    assert "--baseline and --all-pairs print" in lmk(*both, "--all-pairs", code=2).err
    assert "two runs" in lmk(*words, "--all-pairs", code=2).err
    assert "no effect without --by" in lmk(*words, "--bins", "1,2", code=2).err
    assert "needs a collection" in lmk(*words, "--by", "length", code=2).err


def test_eval_flags_without_effect(lmk: Lmk, runs: Path) -> None:
    words = ["eval", runs / "better.trec", "--qrels", runs / "qrels.txt"]
    assert "no effect without --baseline" in lmk(*words, "--correction", "holm", code=2).err
    assert "--json and --format csv" in lmk(*words, "--json", "-f", "csv", code=2).err
    both = [*words, runs / "base.trec"]
    assert "one of two or more" in lmk(*both, "--baseline", "", code=2).err
    assert "given twice" in lmk(*both, runs / "base.trec", "--all-pairs", code=2).err


def test_a_refused_evaluation_is_not_logged(lmk: Lmk, runs: Path) -> None:
    log = runs / "scores.jsonl"
    words = ["eval", runs / "better.trec", runs / "base.trec", "--qrels", runs / "qrels.txt"]
    words += ["-m", "P@1", "--log", log]
    lmk(*words, "--baseline", "none", code=2)
    lmk(*words, "--plot", runs / "a.gif", code=2)
    lmk(*words, "--by", "length", code=2)
    (runs / "qrels.txt").write_text("q0 0 d1 1\n")
    assert "two queries" in lmk(*words, "--all-pairs", code=3).err
    assert "one query is judged" in lmk(*words, "--plot", runs / "a.svg", code=2).err
    assert not log.exists()


@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_run_is_named(lmk: Lmk, runs: Path, cut: bool) -> None:
    path = runs / "better.trec.gz"
    whole = gzip.compress((runs / "better.trec").read_bytes())
    path.write_bytes(whole[:20] if cut else b"no archive")
    for words in ([path, "--qrels", runs / "qrels.txt"], [path, runs / "base.trec"]):
        assert "better.trec.gz: damaged" in lmk("eval", *words, code=3).err


def test_the_log_keeps_one_line_an_evaluation(lmk: Lmk, runs: Path) -> None:
    log = runs / "scores.jsonl"
    for _ in range(2):
        lmk("eval", runs / "base.trec", "--qrels", runs / "qrels.txt", "-m", "P@1", "--log", log)
    shown = json.loads(lmk("show", log, "--json").out)
    assert [entry["scores"] for entry in shown] == [{"P@1": 0.4}] * 2


def test_chunks_judged_and_documents_ranked(lmk: Lmk, runs: Path) -> None:
    (runs / "chunks.txt").write_text("q0 0 d1#0 1\nq1 0 d1#2 1\n")
    message = lmk("eval", runs / "base.trec", "--qrels", runs / "chunks.txt", "-m", "P@1").err
    assert "no judged document" in message
    assert "'d1#0' (--level chunk ranks chunks)" in message


PLANTED = {  # query: documents and their scores; d is relevant
    "q1": {"d": 3.0, "x": 2.0, "y": 1.0},  # found first
    "q2": {"x": 2.0, "d": 2.0, "y": 2.0},  # a tie: by id, descending, y x d
    "q3": {"q3": 9.0, "d": 2.0},  # finds itself first
    "q5": {"x": 1.0, "y": 0.5, "z": 0.5},  # finds nothing
    "q9": {"d": 1.0},  # is not judged
}


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A run with a tie, a missing query (q4), a self-hit and an unjudged query; and qrels."""
    lines = [
        f"{query} Q0 {doc} 1 {score} planted\n"
        for query, documents in PLANTED.items()
        for doc, score in documents.items()
    ]
    (tmp_path / "planted.trec").write_text("".join(lines))
    judged = "".join(f"q{n} 0 d 2\nq{n} 0 x 0\n" for n in range(1, 6))
    (tmp_path / "qrels.txt").write_text(judged)
    return tmp_path


def test_a_planted_run_gives_the_documented_numbers(lmk: Lmk, planted: Path) -> None:
    words = ["eval", planted / "planted.trec", "--qrels", planted / "qrels.txt"]
    words += ["-m", "RR@2", "-m", "P@1", "-m", "R@5"]
    done = lmk(*words, "--json")
    # reciprocal ranks 1, 1/3 (beyond 2), 1/2, missing, none; over all five judged queries
    assert done.json[0] == pytest.approx(
        {"run": str(planted / "planted.trec"), "RR@2": 1.5 / 5, "P@1": 1 / 5, "R@5": 3 / 5}
    )
    # judged@1: d; y not; q3 not; x. judged@2: 2/2, 1/2, 1/2, 1/2. judged@5: 2/3, 2/3, 1/2, 1/3
    # ties at 1: q2; at 2: q2 and q5; at 5 no document is left below
    assert done.err == (
        f"{planted / 'planted.trec'}: 4 of 5 judged queries answered; depth 3; "
        "judged@1 50.0%, judged@2 62.5%, judged@5 54.2%; "
        "ties at 1: 25.0%, ties at 2: 50.0%, ties at 5: 0.0%; 1 missing count as 0 (q4); "
        "1 without judgements ignored; the run is not deep enough for R@5\n"
    )
    dropped = lmk(*words, "--drop-self", "yes", "--json")
    assert dropped.json[0]["RR@2"] == 2 / 5
    assert "; self-hits dropped: 1" in dropped.err
    assert lmk(*words, "--strict", code=4).err.endswith(
        "planted.trec lacks 1 of the judged queries\n"
    )


def test_a_run_of_distances_is_noted(lmk: Lmk, tmp_path: Path) -> None:
    (tmp_path / "r.trec").write_text("q Q0 near 1 0.1 x\nq Q0 far 2 0.9 x\n")
    (tmp_path / "q.qrels").write_text("q 0 near 1\n")
    done = lmk("eval", tmp_path / "r.trec", "--qrels", tmp_path / "q.qrels", "-m", "RR", "--json")
    assert done.json[0]["RR"] == 0.5  # as trec_eval has it
    assert "; in 1 query the ranks contradict the scores" in done.err


def test_runs_of_different_depth_under_a_measure_without_a_cutoff(lmk: Lmk, planted: Path) -> None:
    deep, flat, qrels = planted / "planted.trec", planted / "flat.trec", planted / "qrels.txt"
    flat.write_text("q1 Q0 d 1 0.5 flat\n")
    message = "depths from 1 to 3; for a fair comparison use a cut-off such as AP@1"
    words = ["eval", deep, flat, "--qrels", qrels]
    assert message in lmk(*words, "-m", "AP", "-m", "RR@2").err
    for measure in ("AP@3", "Rprec"):
        assert "to the end of each" not in lmk(*words, "-m", measure).err
    assert "to the end of each" not in lmk("eval", deep, "--qrels", qrels, "-m", "AP").err


def test_a_run_of_mostly_self_hits_gets_a_note(lmk: Lmk, tmp_path: Path) -> None:
    (tmp_path / "r.trec").write_text("a Q0 a 1 2 t\na Q0 d 2 1 t\nb Q0 d 1 1 t\nc Q0 c 1 1 t\n")
    (tmp_path / "qrels.txt").write_text("a 0 d 1\nb 0 d 1\nc 0 d 1\n")
    words = ["eval", tmp_path / "r.trec", "--qrels", tmp_path / "qrels.txt", "-m", "P@1"]
    assert "--drop-self yes" in lmk(*words).err
    assert "own id" not in lmk(*words, "--drop-self", "yes").err


def test_a_document_twice_is_refused(lmk: Lmk, planted: Path) -> None:
    with open(planted / "planted.trec", "a") as file:
        file.write("q1 Q0 d 9 0.5 planted\n")
    words = ["eval", planted / "planted.trec", "--qrels", planted / "qrels.txt"]
    assert "line 13: document 'd'" in lmk(*words, code=3).err


FIRST, SECOND, THIRD = "d1 d2 d3", "d2 d1 d3", "d3 d2 d1"


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Twenty queries; `good` is best in all, `fair` and `poor` differ in one only."""
    (tmp_path / "qrels.txt").write_text("".join(f"q{i} 0 d1 1\n" for i in range(20)))
    found = {
        "good": [FIRST] * 20,
        "fair": [SECOND] * 19 + [THIRD],
        "poor": [SECOND] * 18 + [THIRD] * 2,
    }
    for name, orders in found.items():
        lines = [
            f"q{i} Q0 {doc} {rank} {9 - rank} {name}\n"
            for i, order in enumerate(orders)
            for rank, doc in enumerate(order.split(), 1)
        ]
        (tmp_path / f"{name}.trec").write_text("".join(lines))
    return tmp_path


def against(three: Path, *words: object) -> list[object]:
    files = [three / f"{name}.trec" for name in ("poor", "fair", "good")]
    return ["-q", "eval", *files, "--qrels", three / "qrels.txt", "-m", "RR@10", *words]


def test_marks_and_p_values_in_every_format(
    lmk: Lmk, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(three)
    words = ["-q", "eval", "poor.trec", "fair.trec", "good.trec", "--qrels", "qrels.txt"]
    words += ["-m", "RR@10", "--baseline", "poor.trec"]
    note = "†: differs from poor.trec, p < 0.05 (two-sided paired t-test, Holm-Bonferroni over 2 tests)."
    table = lmk(*words).out
    assert table.splitlines()[:6] == [
        "run         RR@10 ",
        "poor.trec  0.4833 ",
        "fair.trec  0.4917 ",
        "good.trec  1.0000†",
        note,
        "",
    ]
    assert table.splitlines()[8].split() == (
        "good.trec RR@10 0.5167 [0.5000, 0.5417] 20/0/0 <0.0001 0.0002".split()
    )
    markdown = lmk(*words, "-f", "markdown").out
    assert "| good.trec | **1.0000**<sup>†</sup> |\n\n" + note + "\n\n| run |" in markdown
    latex = lmk(*words, "-f", "latex").out
    assert r"good.trec & \textbf{1.0000}$^{\dagger}$ \\" in latex
    assert f"\\end{{tabular}}\n% {note}\n" in latex
    assert "[0.5000, 0.5417] & 20/0/0 & $<$0.0001 & 0.0002" in latex
    (fair, good) = csv.DictReader(io.StringIO(lmk(*words, "-f", "csv").out))
    assert fair["p (t-test)"] == "0.3299"
    assert 0 < float(good["p (t-test)"]) < 1e-15
    assert (good["score"], good["against"]) == ("1.0000", "poor.trec")
    for text in (table, markdown, latex, lmk(*words, "-f", "csv").out):
        assert "0.0000 " not in text


def test_letters_of_all_pairs(lmk: Lmk, three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(three)
    out = lmk(
        "-q",
        "eval",
        "poor.trec",
        "fair.trec",
        "good.trec",
        "--qrels",
        "qrels.txt",
        "-m",
        "RR@10",
        "--all-pairs",
    ).out.splitlines()
    assert [line.split() for line in out[1:4]] == [
        ["(a)", "poor.trec", "0.4833"],
        ["(b)", "fair.trec", "0.4917"],
        ["(c)", "good.trec", "1.0000ab"],
    ]
    assert "p < 0.05" in out[4]
    assert [line.split()[:2] for line in out[7:]] == [
        ["fair.trec", "poor.trec"],
        ["good.trec", "poor.trec"],
        ["good.trec", "fair.trec"],
    ]


@pytest.fixture
def two(three: Path) -> Path:
    """The same systems on a second collection, where `poor` finds everything and `fair` is absent."""
    (three / "two.txt").write_text("".join(f"p{i} 0 d1 1\n" for i in range(3)))
    for name, order in {"good": SECOND, "poor": FIRST}.items():
        lines = [
            f"p{i} Q0 {doc} {rank} {9 - rank} {name}\n"
            for i in range(3)
            for rank, doc in enumerate(order.split(), 1)
        ]
        (three / f"{name}.two.trec").write_text("".join(lines))
    return three


ACROSS = "poor.trec fair.trec good.trec poor.two.trec good.two.trec".split()
BY_RUN = [*["--qrels", "qrels.txt"] * 3, *["--qrels", "two.txt"] * 2]


def test_several_collections_make_one_table(
    lmk: Lmk, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(two)
    words = ["-q", "eval", *ACROSS, *BY_RUN, "-m", "RR@10"]
    assert [line.split() for line in lmk(*words).out.splitlines()] == [
        ["system", "(RR@10)", "qrels.txt", "two.txt", "mean", "geometric", "mean"],
        ["poor", "0.4833", "1.0000", "0.7417", "0.6952"],
        ["fair", "0.4917", "-", "-", "-"],
        ["good", "1.0000", "0.5000", "0.7500", "0.7071"],
    ]
    assert (
        "| good | **1.0000** | 0.5000 | **0.7500** | **0.7071** |"
        in lmk(*words, "-f", "markdown").out
    )
    rows = lmk(*words, "--json").json
    assert [(row["system"], row["collection"]) for row in rows] == [
        *(("poor", "qrels.txt"), ("fair", "qrels.txt"), ("good", "qrels.txt")),
        *(("poor", "two.txt"), ("good", "two.txt")),
        *((name, mean) for name in ("poor", "fair", "good") for mean in ("mean", "geometric mean")),
    ]
    assert rows[-1]["score"] == pytest.approx(0.5**0.5)
    assert rows[7]["score"] is None


def test_a_folder_means_the_runs_of_lmk_in_it(
    lmk: Lmk, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(two)
    for name in ("x", "y"):
        (two / name / "qrels").mkdir(parents=True)
        (two / name / "queries.jsonl").write_text('{"_id": "q0", "text": "x"}\n')
    (two / "qrels.txt").rename(two / "x" / "qrels" / "test.tsv")
    (two / "two.txt").rename(two / "y" / "qrels" / "test.tsv")
    for system in ("poor", "good"):
        (two / system).mkdir()
        for run, collection in ((f"{system}.trec", "x"), (f"{system}.two.trec", "y")):
            made = manifests.run(str(two / collection))
            (two / run).rename(two / system / f"{collection}.trec")
            (two / system / f"{collection}.trec.json").write_text(as_text(made))
    assert [
        line.split() for line in lmk("-q", "eval", "poor", "good", "-m", "P@1").out.splitlines()
    ] == [
        ["system", "(P@1)", "x", "y", "mean", "geometric", "mean"],
        ["poor", "0.0000", "1.0000", "0.5000", "0.0000"],
        ["good", "1.0000", "0.0000", "0.5000", "0.0000"],
    ]
    assert "manifest" in lmk("eval", "x", code=3).err


def test_marks_across_collections(lmk: Lmk, two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(two)
    words = ["-q", "eval", *ACROSS, *BY_RUN, "-m", "RR@10", "-m", "P@1", "--baseline", "poor"]
    latex = lmk(*words, "-f", "latex").out
    dagger = r"$^{\dagger}$"
    assert (
        rf"good & RR@10 & \textbf{{1.0000}}{dagger} & 0.5000{dagger} & \textbf{{0.7500}}" in latex
    )
    assert r"poor & RR@10 & 0.4833 & \textbf{1.0000} &" in latex
    assert r"fair & P@1 & 0.0000 & - & - & - \\" in latex
    assert "over 6 tests" in latex
    per_query = lmk("-q", "eval", *ACROSS, *BY_RUN, "-m", "P@1", "-p", "--json").json
    assert per_query[-1] == {"system": "good", "collection": "two.txt", "query": "p2", "P@1": 0.0}


def test_a_breakdown_in_every_format(lmk: Lmk, three: Path) -> None:
    folder = three / "c"
    (folder / "qrels").mkdir(parents=True)
    record = '{{"_id": "q{0}", "text": "{1}", "position": {2}}}\n'
    queries = [record.format(i, "word " * (i + 1), i % 2) for i in range(20)]
    (folder / "queries.jsonl").write_text("".join(queries))
    (folder / "qrels" / "test.tsv").write_text("".join(f"q{i}\td1\t1\n" for i in range(20)))
    runs = [three / "fair.trec", three / "good.trec"]
    words = ["eval", *runs, "--qrels", folder, "-m", "RR@10"]
    shown = lmk(*words, "--by", "query-length", "--bins", "5,19.5", "-f", "markdown")
    assert shown.out.splitlines() == [
        "| run (RR@10) | [5, 19.5) | [19.5, ∞) |",
        "|---|---:|---:|",
        "| (queries) | 15 | 1 |",
        "| fair.trec | 0.5000 | 0.3333 |",
        "| good.trec | **1.0000** | **1.0000** |",
    ]
    assert "4 of 20 queries" in shown.err
    (row, *_) = lmk(*words, "--by", "query-length", "--json").json
    assert row == {
        "run": str(runs[0]),
        "measure": "RR@10",
        "query-length": "[1, 6)",
        "queries": 5,
        "score": 0.5,
    }
    rows = lmk(*words, "--by", "position", "-f", "csv").out.splitlines()
    assert rows[:3] == [
        "run,measure,position,queries,score",
        f"{runs[0]},RR@10,0,10,0.5000",
        f"{runs[0]},RR@10,1,10,0.4833",
    ]
    assert "$\\infty$" in lmk(*words, "--by", "query-length", "--bins", "5", "-f", "latex").out
    assert "have no colour" in lmk(*words, "--by", "colour", code=3).err


def test_the_threshold_of_a_known_collection_is_named(
    lmk: Lmk, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A known collection with its judgements in a folder, so no network is needed."""
    from lmkcli.evaluation import scoring

    real = scoring.open_collection

    def local(spelling: str) -> Any:
        made = real(str(shared / "data" / "topics-qrels" / "dl19-passage"))
        made.name = spelling
        return made

    monkeypatch.setattr(scoring, "open_collection", local)
    name = "msmarco-passage/trec-dl-2019/judged"
    run = shared / "data" / "trec-runs" / "dl19.bm25.txt"
    done = lmk("eval", run, "--qrels", name, "-m", "R@100", "-m", "R(rel=1)@100", "--json")
    assert {key: round(value, 4) for key, value in done.json[0].items() if key != "run"} == {
        "R(rel=2)@100": 0.4910,
        "R@100": 0.4531,
    }
    assert done.err.startswith(f"{name}: relevant means grade 2 or higher; R@100 is R(rel=2)@100\n")
    usual = lmk("eval", run, "--qrels", name, "--json")
    assert list(usual.json[0])[1:] == ["nDCG@10", "R(rel=2)@1000", "AP(rel=2)", "RR(rel=2)@10"]
    assert usual.err.endswith("; the run is not deep enough for R(rel=2)@1000\n")


def test_a_copy_of_a_known_collection_has_its_habits(lmk: Lmk, tmp_path: Path) -> None:
    texts = {"a": "stone river", "b": "stone", "c": "cloud"}
    rows = [json.dumps({"_id": name, "text": text}) + "\n" for name, text in texts.items()]
    (tmp_path / "corpus.jsonl").write_text("".join(rows))
    (tmp_path / "queries.jsonl").write_text(rows[0])  # as in ArguAna, a query is a document
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("a\tb\t1\n")
    lmk("index", tmp_path, "--kind", "bm25", "-o", tmp_path / "i")
    for name, spelling in {"plain": "", "arguana": ",like=beir/arguana"}.items():
        lmk("search", tmp_path / "i", f"{tmp_path}{spelling}", "-o", tmp_path / f"{name}.trec")
    scores = [
        json.loads(lmk("eval", tmp_path / f"{name}.trec", "-m", "RR@10", "--json").out)[0]["RR@10"]
        for name in ("plain", "arguana")
    ]
    assert scores == [0.5, 1.0]
    dl = f"{tmp_path},like=msmarco-passage/trec-dl-2019/judged"
    lmk("search", tmp_path / "i", dl, "-o", tmp_path / "dl.trec")
    assert "R(rel=2)@1000" in lmk("eval", tmp_path / "dl.trec", code=0).out


def _three_runs(folder: Path) -> list[Path]:
    (folder / "qrels.txt").write_text("q1 0 a 1\nq2 0 b 1\nq3 0 c 1\n")
    for name, order in (("one", "abc"), ("two", "bac"), ("three", "cab")):
        (folder / name).mkdir()
        lines = [
            f"q{q} Q0 {doc} {rank} {9 - rank} same\n"
            for q in (1, 2, 3)
            for rank, doc in enumerate(order[q % 3 :] + order[: q % 3], 1)
        ]
        (folder / name / f"dl.{name}.txt").write_text("".join(lines))
    return [folder / name / f"dl.{name}.txt" for name in ("one", "two", "three")]


def test_rows_are_named_without_the_folders_of_their_runs(lmk: Lmk, tmp_path: Path) -> None:
    runs = _three_runs(tmp_path)
    words = ["-q", "eval", *runs, "--qrels", tmp_path / "qrels.txt", "-m", "RR@3"]
    rows = [line.split()[0] for line in lmk(*words).out.splitlines()]
    assert rows == ["run", "dl.one.txt", "dl.two.txt", "dl.three.txt"]
    assert "dl.two.txt &" in lmk(*words, "-f", "latex").out
    assert [row["run"] for row in lmk(*words, "--json").json] == list(map(str, runs))
    assert "dl.three.txt" in lmk(*words, "--baseline", "dl.one.txt").out
    lmk(*words, "--baseline", "one/dl.one.txt")
    for odd in ("l.one.txt", "*.one.txt", "."):
        lmk(*words, "--baseline", odd, code=2)
    (tmp_path / "four").mkdir()
    twin = tmp_path / "four" / "dl.one.txt"
    twin.write_bytes(runs[0].read_bytes())
    rows = lmk("-q", "eval", runs[0], twin, *words[5:]).out.splitlines()
    assert [row.split()[0] for row in rows[1:]] == ["one/dl.one.txt", "four/dl.one.txt"]


def test_names_are_given(lmk: Lmk, tmp_path: Path) -> None:
    runs = _three_runs(tmp_path)
    words = ["-q", "eval", *runs[:2], "--qrels", tmp_path / "qrels.txt", "-m", "RR@3"]
    named = [*words, "--name", "ours", "--name", "theirs"]
    assert [line.split()[0] for line in lmk(*named).out.splitlines()][1:] == ["ours", "theirs"]
    assert [row["run"] for row in lmk(*named, "--json").json] == ["ours", "theirs"]
    assert "theirs" in lmk(*named, "--baseline", "ours").out
    assert "1 --name for 2 runs" in lmk(*words, "--name", "ours", code=2).err
    assert "same --name" in lmk(*words, "--name", "a", "--name", "a", code=2).err


def test_a_tag_that_was_given_names_the_row(lmk: Lmk, beir: Path, tmp_path: Path) -> None:
    lmk("index", beir, "--kind", "bm25", "-o", tmp_path / "bm25")
    search = ["search", tmp_path / "bm25", beir, "-k", 5, "-o"]
    lmk(*search, tmp_path / "a.trec", "--tag", "lexical")
    lmk(*search, tmp_path / "b.trec")
    words = ["-q", "eval", "-m", "nDCG@10"]
    assert lmk(*words, tmp_path / "a.trec").out.splitlines()[1].startswith("lexical ")
    both = lmk(*words, tmp_path / "a.trec", tmp_path / "b.trec").out.splitlines()
    assert [line.split()[0] for line in both[1:]] == ["a.trec", "b.trec"]


def test_a_result_prints_in_python_as_on_the_command_line(lmk: Lmk, runs: Path) -> None:
    better, base, qrels = runs / "better.trec", runs / "base.trec", str(runs / "qrels.txt")
    for words, settings in (([], {}), (["--baseline", base], {"baseline": str(base)})):
        printed = lmk("eval", better, base, "--qrels", qrels, *words).out
        result = Evaluate([str(better), str(base)], qrels=qrels, **settings).run()
        assert str(result).split() == printed.split()
        assert repr(result) == "<Evaluated: 2 rows of run, nDCG@10, R@100, RR@10>"
