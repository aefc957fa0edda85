"""Measures: names and errors in them, scores compared with arithmetic by hand, coverage."""

import math
import subprocess
import sys
from typing import Any

import ir_measures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmkcli.data.collection import Qrel
from lmkcli.data.run import Run, ranked
from lmkcli.errors import DataError, LmkError, Mismatch, UnknownName, UsageError
from lmkcli.evaluation.measures import Scores, evaluate, parse_measures

POOL = [
    *("nDCG", "nDCG@1", "nDCG@10", "nDCG(judged_only=True)@5", "nDCG(gains={1:0,2:1})@10"),
    *("P(judged_only=True)@1", "AP(judged_only=True,rel=2)"),
    *("AP", "AP(rel=2)", "AP@5", "AP(rel=2)@10", "P@1", "P(rel=2)@5", "R@5", "R(rel=2)@20"),
    *("RR", "RR@3", "RR(rel=2)@10", "Rprec", "Bpref(rel=2)", "infAP", "Success(rel=2)@3"),
    *("SetP", "SetR", "SetF", "SetF(beta=2.0)", "IPrec@0.1", "NumRet", "NumRelRet", "NumRel"),
    *("NumQ", "Judged@5", "Compat(p=0.8)", "IPrec(judged_only=True)@0.0"),
]
GRADES = {"a": 3, "b": 0, "c": 1, "d": 2, "e": 0}
QRELS = [Qrel(query, doc_id, grade) for query in ("q1", "q2") for doc_id, grade in GRADES.items()]


def run_of(**documents: dict[str, float]) -> Run:
    return Run({q: ranked(d, np.array(list(d.values()))) for q, d in documents.items()})


def scores_of(names: list[str], qrels: list[Qrel], **documents: dict[str, float]) -> Scores:
    return evaluate(run_of(**documents), qrels, parse_measures(names))


@pytest.mark.parametrize("name", POOL)
def test_the_printed_name_of_a_measure_is_parsed_again(name: str) -> None:
    (measure,) = parse_measures([name])
    assert parse_measures([str(measure)]) == [measure]


def test_order_is_kept_and_repetitions_are_dropped() -> None:
    names = ["R@10", "nDCG@10", "Recall@10", "MAP", "AP"]
    assert list(map(str, parse_measures(names))) == ["R@10", "nDCG@10", "AP"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ndcg@10", "did you mean nDCG@10"),
        ("recall@100", "did you mean Recall@100"),
        ("ndcg_cut_10", "did you mean nDCG@10"),
        ("map", "did you mean AP"),
        ("nDGC@10", "unknown measure 'nDGC': did you mean nDCG"),
        ("hits@10", "'hits': .*AP, AP_IA, "),
        ("R", "'R': .*cutoff .*R@10"),
        ("P@0", "'P@0': cutoff .*from 1, .*0$"),
        ("nDCG@-1", "'nDCG@-1': .*Name@cutoff"),
        ("nDCG@10.5", r"cutoff .*from 1, .*10\.5$"),
        ("nDCG@99999999999999999999", "cutoff .*from 1, .*9{20}$"),
        ("nDCG@10,P@5", "'nDCG@10,P@5': .*Name@cutoff"),
        ("", "'': .*Name@cutoff"),
        ("AP(rel=0)", "rel .*from 1, .*0$"),
        ("AP(level=2)", "level; .*cutoff, rel, judged_only$"),
        ("NumQ@5", "'NumQ@5': .*cutoff; .*none$"),
        ("NumRel(rel=2)", r"'NumRel\(rel=2\)': .*no engine.*rel\)$"),
        ("IPrec@0.105", r"recall .*two decimals, .*0\.105$"),
        ("SetF(beta=2)", "beta .*float, .*2$"),
        ("nDCG(gains={1:'x'})@5", "gains .*0 to 1000, .*'x'"),
        ("nDCG(gains={1:2000000000})", "gains .*0 to 1000, .*2000000000"),
        ("P@True", "'P@True' .*computed"),
        ("alpha_nDCG@10", "'alpha_nDCG@10': .*subtopic"),
        (
            "Accuracy@10",
            "'Accuracy@10' .*computed",
        ),  # its engine divides by the nonrelevant documents
    ],
)
def test_a_bad_measure_is_explained(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_measures(["nDCG@10", name])


def test_the_error_for_a_missing_engine_has_the_pip_line() -> None:
    if ir_measures.cwl_eval.is_available():
        assert parse_measures(["RBP(rel=1)"])
        return
    with pytest.raises(UsageError, match=r"pip install ir-measures\[cwl_eval\]"):
        parse_measures(["RBP(rel=1)"])


def test_all_bad_names_are_reported_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        parse_measures(["ndcg@10", "AP", "R", "nope@3"])
    lines = str(caught.value).splitlines()
    assert [word in line for word, line in zip(["nDCG@10", "'R'", "'nope'"], lines, strict=True)]
    with pytest.raises(UnknownName):
        parse_measures(["AP", "nope@3"])


names = st.sampled_from(sorted(ir_measures.measures.registry))
arguments = st.from_regex(
    r"(\((rel|beta|p|gains|dcg)=[0-9.{}:'a-z]{0,6}\))?(@[0-9.]{0,12})?", fullmatch=True
)


@settings(deadline=None)
@given(st.text(max_size=12) | st.tuples(names, arguments).map("".join))
def test_any_text_is_a_measure_or_a_usage_error(name: str) -> None:
    try:
        measures = parse_measures([name])
    except UsageError:
        return
    assert len(measures) == 1


def test_values_by_hand() -> None:
    names = ["nDCG@3", "AP", "AP(rel=2)", "P@2", "R@2", "RR(rel=2)@10", "NumRet", "Judged@4"]
    scores = scores_of(names, QRELS[:5], q1={"b": 4.0, "a": 3.0, "x": 2.0, "d": 1.0})
    dcg, ideal = 3 / math.log2(3), 3 + 2 / math.log2(3) + 1 / 2
    expected = [
        dcg / ideal,
        (1 / 2 + 2 / 4) / 3,
        (1 / 2 + 2 / 4) / 2,
        1 / 2,
        1 / 3,
        1 / 2,
        4,
        3 / 4,
    ]
    assert list(scores.aggregated.values()) == pytest.approx(expected)
    assert {name: table["q1"] for name, table in scores.per_query.items()} == scores.aggregated
    assert list(scores.aggregated) == names


def test_missing_queries_count_as_zero_and_unjudged_ones_do_not_count() -> None:
    names = ["AP", "P@1", "NumRet", "NumRel", "NumQ"]
    scores = scores_of(names, QRELS, q2={"a": 2.0}, q9={"z": 1.0}, q1={})
    assert scores.per_query["P@1"] == {"q1": 0.0, "q2": 1.0}
    assert list(scores.per_query["AP"]) == ["q1", "q2"]
    assert scores.aggregated == pytest.approx(
        {"AP": 1 / 6, "P@1": 0.5, "NumRet": 1, "NumRel": 6, "NumQ": 2}
    )
    coverage = scores.coverage
    assert (coverage.judged, coverage.answered, coverage.unjudged) == (2, 1, 1)
    assert coverage.missing == ["q1"]


def test_an_empty_run_scores_zero() -> None:
    scores = evaluate(Run(), QRELS, parse_measures(POOL))
    known = {"NumRel": 6.0, "NumQ": 2.0}
    assert scores.aggregated == {name: known.get(name, 0.0) for name in scores.aggregated}
    assert scores == evaluate(run_of(q1={}), QRELS, parse_measures(POOL))
    assert scores.coverage.missing == ["q1", "q2"]
    assert (scores.coverage.depth, scores.coverage.judged_at[5]) == (0, 0.0)


def test_coverage_at_the_cutoffs() -> None:
    scores = scores_of(
        ["nDCG@2", "P@3", "AP"],
        QRELS,
        q1={"a": 3.0, "x": 2.0, "b": 2.0, "y": 1.0},  # a, x | b, y
        q2={"a": 3.0, "b": 2.0},
    )
    coverage = scores.coverage
    assert (coverage.depth, coverage.beyond, coverage.missing) == (4, [], [])
    assert coverage.judged_at == pytest.approx({2: 3 / 4, 3: (2 / 3 + 1) / 2})
    assert coverage.tied_at == {2: 0.5, 3: 0.0}
    assert list(scores_of(["AP"], QRELS, q1={"a": 1.0}).coverage.judged_at) == [10]


def test_a_cutoff_below_the_depth_of_the_run_is_named() -> None:
    scores = scores_of(["nDCG@2", "P@3", "R@100", "AP"], QRELS, q1={"a": 3.0, "b": 2.0})
    assert scores.coverage.depth == 2
    assert scores.coverage.beyond == ["P@3", "R@100"]


def test_a_run_with_other_ids_than_the_judged_ones_is_noticed() -> None:
    chunks = [Qrel("q1", "a#0", 1), Qrel("q2", "b#1", 1)]
    documents = {"q1": {"a": 1.0, "b": 0.5}, "q2": {"b": 1.0}}
    assert evaluate(run_of(**documents), chunks, parse_measures(["P@1"])).coverage.strangers == (
        "a", "a#0",
    )  # fmt: skip
    assert scores_of(["P@1"], QRELS, q1={"x": 3.0, "a": 1.0}).coverage.strangers is None
    assert evaluate(Run(), QRELS, parse_measures(["P@1"])).coverage.strangers is None


def test_ranks_that_contradict_scores_are_counted_for_judged_queries() -> None:
    ranking = run_of(q1={"a": 3.0, "b": 2.0})
    run = Run(ranking.rankings, contradicted=frozenset({"q1", "unjudged"}))
    assert evaluate(run, QRELS, parse_measures(["P@1"])).coverage.contradicted == 1
    assert evaluate(ranking, QRELS, parse_measures(["P@1"])).coverage.contradicted == 0


def test_documents_with_the_id_of_the_query_are_counted_and_dropped() -> None:
    qrels = [Qrel("q1", "a", 1), Qrel("q2", "b", 1), Qrel("q3", "c", 1), Qrel("q4", "d", 1)]
    documents = {
        "q1": {"q1": 3.0, "a": 2.0},
        "q2": {"q2": 1.0},
        "q3": {"c": 1.0, "q1": 0.5},
        "q9": {"q9": 1.0},
    }
    kept = evaluate(run_of(**documents), qrels, parse_measures(["RR@10", "NumRet"]))
    assert kept.per_query["RR@10"] == {"q1": 0.5, "q2": 0, "q3": 1, "q4": 0}
    assert (kept.coverage.self_hits, kept.coverage.self_dropped) == (2, False)
    assert kept.coverage.missing == ["q4"]
    dropped = evaluate(run_of(**documents), qrels, parse_measures(["RR@10", "NumRet"]), True)
    assert dropped.per_query["RR@10"] == {"q1": 1, "q2": 0, "q3": 1, "q4": 0}
    assert dropped.aggregated["NumRet"] == 3
    assert (dropped.coverage.self_hits, dropped.coverage.self_dropped) == (2, True)
    assert dropped.coverage.missing == ["q2", "q4"]  # q2 has no document left


def test_the_grade_of_a_track_is_set_in_binary_measures_without_one() -> None:
    asked = "R@100 R(rel=1)@100 AP RR@10 nDCG@10 ERR@10 P(judged_only=True)@5 NumRel NumRet".split()
    computed = "R(rel=2)@100 R@100 AP(rel=2) RR(rel=2)@10 nDCG@10 ERR@10 ".split()
    computed += ["P(judged_only=True,rel=2)@5", "NumRel", "NumRet"]
    assert list(map(str, parse_measures(asked, rel=2))) == computed
    assert list(map(str, parse_measures(asked[:1] + asked[2:]))) == asked[:1] + asked[2:]
    scores = evaluate(run_of(q1={"a": 1.0}), QRELS[:5], parse_measures(["R@5"], rel=2))
    assert scores.aggregated == {"R(rel=2)@5": 1 / 2}


graded = st.dictionaries(st.sampled_from("abcdefghijkl"), st.integers(-1, 3), min_size=1)
scored = st.dictionaries(st.sampled_from("abcdefghijklmnop"), st.sampled_from([-1.0, 0.0, 0.5]))


@settings(deadline=None)
@given(
    st.lists(st.tuples(graded, scored), min_size=1, max_size=4),
    st.lists(st.sampled_from(POOL), min_size=1, max_size=8, unique=True),
)
def test_measures_do_not_disturb_each_other(
    queries: list[tuple[dict[str, int], dict[str, float]]], names: list[str]
) -> None:
    """Measures of one engine share cut-offs and levels: together they must be as when computed alone."""
    qrels = [
        Qrel(f"q{number}", doc_id, grade)
        for number, (grades, _) in enumerate(queries)
        for doc_id, grade in grades.items()
    ]
    documents = {f"q{number}": scores for number, (_, scores) in enumerate(queries)}
    if not any(documents.values()):
        return
    together = scores_of(names, qrels, **documents)
    for name in names:
        alone = scores_of([name], qrels, **documents)
        for printed, value in alone.aggregated.items():
            assert together.aggregated[printed] == pytest.approx(value, abs=1e-9)
        for printed, table in alone.per_query.items():
            assert together.per_query[printed] == pytest.approx(table, abs=1e-9)
    judged = scores_of(["Judged@5"], qrels, **documents)
    share = judged.coverage.judged_at[5] * judged.coverage.answered / judged.coverage.judged
    assert judged.aggregated["Judged@5"] == pytest.approx(share)


@pytest.mark.parametrize("name", ["RR@1", "P@1", "Judged@1", "nDCG@1", "AP@1", "Compat(p=0.8)"])
def test_every_engine_gets_the_same_order_of_ties(name: str) -> None:
    qrels = [Qrel("q", "z", 1)]
    tied = scores_of([name], qrels, q={"a": 1.0, "z": 1.0, "m": 1.0})
    assert tied.aggregated[name] == pytest.approx(1.0)
    below_float32 = scores_of([name], qrels, q={"a": 1.0 + 1e-12, "z": 1.0})
    assert below_float32.aggregated[name] == pytest.approx(1.0)


def test_ids_of_any_kind() -> None:
    """Some engines need numeric query ids, or cut ids at a hyphen."""
    qrels = [Qrel("MED-1", "doc-é", 1), Qrel("PLAIN-1", "b", 1), Qrel("日本", "c", 1)]
    answers = {"MED-1": {"doc-é": 1.0}, "PLAIN-1": {"x": 1.0}, "日本": {"x": 2.0, "c": 1.0}}
    scores = scores_of(["ERR@10", "AP"], qrels, **answers)
    assert scores.per_query["AP"] == {"MED-1": 1.0, "PLAIN-1": 0.0, "日本": 0.5}
    assert scores.per_query["ERR@10"] == {"MED-1": 0.0625, "PLAIN-1": 0.0, "日本": 0.03125}


def test_unusable_judgements_are_refused() -> None:
    with pytest.raises(Mismatch, match=r"'301'.*'q1'"):
        scores_of(["AP"], QRELS, **{"301": {"a": 1.0}})
    with pytest.raises(DataError, match="no judgements"):
        scores_of(["AP"], [], q1={"a": 1.0})
    with pytest.raises(DataError, match=r"'a' .*'q1', as 3 and as 0"):
        scores_of(["AP"], [*QRELS, Qrel("q1", "a", 0)], q1={"a": 1.0})
    with pytest.raises(DataError, match=r"8841823 .*columns"):
        scores_of(["AP"], [Qrel("q1", "a", 8841823)], q1={"a": 1.0})
    assert scores_of(["AP"], [*QRELS, *QRELS], q1={"a": 1.0}) == scores_of(
        ["AP"], QRELS, q1={"a": 1.0}
    )


def test_negative_grades_alone_are_zero_for_the_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The table of grades in trec_eval would be empty, and it may loop over the memory behind it."""
    seen: list[dict[str, dict[str, int]]] = []
    real = ir_measures.iter_calc

    def spy(measures: Any, qrels: Any, run: Any) -> Any:
        seen.append(qrels)
        return real(measures, qrels, run)

    monkeypatch.setattr(ir_measures, "iter_calc", spy)
    qrels = [Qrel("n", "a", -1), Qrel("n", "b", -2), Qrel("p", "a", -1), Qrel("p", "b", 1)]
    scores = scores_of(["nDCG", "infAP"], qrels, n={"a": 1.0}, p={"b": 1.0, "a": 0.5})
    assert seen == [{"0": {"a": 0, "b": 0}, "1": {"a": -1, "b": 1}}]
    assert scores.per_query["nDCG"] == {"n": 0.0, "p": 1.0}


def test_gains_and_judged_only_stay_with_their_measure() -> None:
    names = ["nDCG(gains={1:0,3:0})@10", "nDCG@1", "P(judged_only=True)@1", "NumRet", "P@1"]
    for order in (names, names[::-1]):
        scores = scores_of(order, QRELS[:5], q1={"x": 2.0, "a": 1.0})
        assert [scores.aggregated[name] for name in names] == [0, 0, 1, 2, 0]
        scores = scores_of(order, QRELS[:5], q1={"a": 1.0})
        assert [scores.aggregated[name] for name in names] == [0, 1, 1, 1, 1]


def test_without_a_judged_document_the_score_is_zero() -> None:
    name = "IPrec(judged_only=True)@0.0"
    scores = scores_of([name], QRELS, q1={"x": 1.0}, q2={"a": 1.0})
    assert scores.per_query[name] == {"q1": 0.0, "q2": 1.0}


def test_the_same_bits_in_every_process() -> None:
    """The order of queries in the engines depends on the hash seed; the sums must not."""
    code = (
        "import sys; sys.path.insert(0, 'tests'); import numpy as np\n"
        "from lmkcli.data.collection import Qrel; from lmkcli.data.run import Run, ranked\n"
        "from lmkcli.evaluation.measures import evaluate, parse_measures\n"
        "rng = np.random.default_rng(0); ids = [f'd{i}' for i in range(30)]\n"
        "qrels = [Qrel(f'q{q}', d, int(rng.integers(3))) for q in range(40) for d in ids]\n"
        "run = Run({f'q{q}': ranked(ids, rng.random(30)) for q in range(39)})\n"
        "print(evaluate(run, qrels, parse_measures(['nDCG@10', 'AP(rel=2)', 'RR@7'])))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_errors_carry_the_exit_codes_of_usage_and_data() -> None:
    with pytest.raises(LmkError) as caught:
        parse_measures(["nope"])
    assert caught.value.exit_code == 2
