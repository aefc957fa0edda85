"""Measures compared with the expected outputs of trec_eval, and with runs that have known scores.

Some test commands of trec_eval are excluded, because ir_measures has no equivalent: judgements as
preferences (prefs, qrels_prefs), judgements by several judges (qrels_jg), and z-scores (-Z). -M100 cuts
the run at depth 100, lmk always counts as with -c, and -l2 is rel=2.

Some measures are excluded (EXCLUDED): geometric means, G and its variants, the utility, 11-point
averages, R-precision at multiples, relative precision at a cut-off, counts of nonrelevant documents, the
string of relevances, and RBP without its optional engine. NumRel has no rel above 1, so num_rel is
excluded from the -l2 command. The share of unjudged documents (unj) is 1 - Judged. It is excluded too:
grade -1 is unjudged in trec_eval and a judgement in ir_measures, and without documents both are 0.

IPrec is compared only for queries with equal definitions. The number of documents for a recall level is
rounded to the nearest number since trec_eval 10. The engine of ir_measures contains trec_eval 9, which
adds 0.9 and truncates.
"""

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import ir_measures
import pytest

from lmkcli.data.qrels import read_qrels
from lmkcli.data.run import Ranking, Run, read_run
from lmkcli.evaluation.measures import Scores, evaluate, parse_measures

EXCLUDED_COMMANDS = {"out.test.prefs", "out.test.qrels_prefs", "out.test.qrels_jg", "out.test.aqZ"}

EXCLUDED = (
    r"runid|relstring.*|gm_map|gm_bpref|G|binG|Rndcg|ndcg_rel|utility.*|11pt_avg.*|Rprec_mult_.*|"
    r"relative_P_.*|num_nonrel_judged_ret|rbp|rbp_resid|unj_.*"
)

# Name in trec_eval -> name in ir_measures; {k} is the group of the pattern, {rel} is '(rel=level)'.
NAMES = {
    r"num_q": "NumQ",
    r"num_ret": "NumRet",
    r"num_rel": "NumRel{rel}",
    r"num_rel_ret": "NumRet(rel={level})",
    r"map": "AP{rel}",
    r"map_cut_(\d+)": "AP{rel}@{k}",
    r"Rprec": "Rprec{rel}",
    r"bpref": "Bpref{rel}",
    r"recip_rank": "RR{rel}",
    r"iprec_at_recall_(.*)": "IPrec{rel}@{k}",
    r"P_(\d+)": "P{rel}@{k}",
    r"recall_(\d+)": "R{rel}@{k}",
    r"infAP": "infAP{rel}",
    r"ndcg": "nDCG",
    r"ndcg_cut_(\d+)": "nDCG@{k}",
    r"ndcg_1=3,2=9,4=4.5": "nDCG(gains={{1:3,2:9}})",  # no document has grade 4
    r"success_(\d+)": "Success{rel}@{k}",
    r"set_P": "SetP{rel}",
    r"set_relative_P": "SetP(relative=True{and_rel})",
    r"set_recall": "SetR{rel}",
    r"set_map": "SetAP{rel}",
    r"set_F": "SetF{rel}",
}


class Command(NamedTuple):
    """One command: its files, the relevance level (-l) and the depth (-M)."""

    expected: str
    qrels: str
    results: str
    level: int = 1
    depth: int = 10**6


COMMANDS = [
    Command("out.test", "qrels.test", "results.test"),
    Command("out.test", "qrels.test.with-comments", "results.test"),
    Command("out.comment.test", "qrels.comment.test", "results.comment.test"),
    Command("out.test.a", "qrels.test", "results.test"),
    Command("out.test.aq", "qrels.test", "results.test"),
    Command("out.test.aqc", "qrels.test", "results.trunc"),
    Command("out.test.aqcM", "qrels.test", "results.trunc", depth=100),
    Command("out.test.aql", "qrels.rel_level", "results.test", level=2),
    Command("out.test.meas_params", "qrels.test", "results.test"),
]


def translate(name: str, level: int) -> str | None:
    """The name in ir_measures of a measure of trec_eval at a relevance level; None if it is excluded."""
    if re.fullmatch(EXCLUDED, name) or (name == "num_rel" and level > 1):
        return None
    for pattern, spelling in NAMES.items():
        match = re.fullmatch(pattern, name)
        if match:
            rel, and_rel = (f"(rel={level})", f",rel={level}") if level > 1 else ("", "")
            k = match.group(1) if match.groups() else ""
            return spelling.format(k=k, rel=rel, and_rel=and_rel, level=level)
    raise AssertionError(f"{name} is neither translated nor excluded")


def expectations(path: Path, level: int) -> Iterator[tuple[str, str, float]]:
    """(measure, query id or 'all', value) for each line with a measure of ir_measures."""
    for line in path.read_text().splitlines():
        name, query_id, value = line.split(maxsplit=2)
        measure = translate(name, level)
        if measure:
            yield measure, query_id, float(value)


def cut(run: Run, depth: int) -> Run:
    return Run({q: Ranking(r.doc_ids[:depth], r.scores[:depth]) for q, r in run.rankings.items()})


def score(folder: Path, command: Command, names: list[str]) -> Scores:
    run = cut(read_run(folder / command.results), command.depth)
    return evaluate(run, read_qrels(folder / command.qrels), parse_measures(names))


def same_definition(measure: str, relevant: list[int]) -> bool:
    """Whether both versions define IPrec equally for these numbers of relevant documents."""
    if not measure.startswith("IPrec"):
        return True
    wanted = [float(measure.split("@")[1]) * number for number in relevant]
    return all(math.floor(number + 0.5) == int(number + 0.9) for number in wanted)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: f"{c.expected}-{c.qrels}")
def test_expected_output_of_trec_eval(shared: Path, command: Command) -> None:
    folder = shared / "data" / "trec-eval-golden"
    lines = list(expectations(folder / command.expected, command.level))
    names = list(dict.fromkeys(measure for measure, _, _ in lines))
    printed = {name: str(parse_measures([name])[0]) for name in names}
    scores = score(folder, command, names)
    qrels = read_qrels(folder / command.qrels)
    relevant = Counter(qrel.query_id for qrel in qrels if qrel.grade >= command.level)
    compared = 0
    for name, query_id, value in lines:
        counts = list(relevant.values()) if query_id == "all" else [relevant[query_id]]
        if same_definition(name, counts):
            table = scores.per_query[printed[name]] | {"all": scores.aggregated[printed[name]]}
            assert table[query_id] == pytest.approx(value, abs=5.1e-5), (name, query_id)
            compared += 1
    assert compared >= 0.7 * len(lines)


def test_every_command_is_compared_or_excluded(shared: Path) -> None:
    text = (shared / "data" / "trec-eval-golden" / "COMMANDS.txt").read_text()
    listed = re.findall(r"(\S+) +(\S+) +==> (\S+)", text)
    compared = [(c.qrels, c.results, c.expected) for c in COMMANDS]
    wanted = [
        (qrels.removeprefix("test/"), results.removeprefix("test/"), expected)
        for qrels, results, expected in listed
        if expected not in EXCLUDED_COMMANDS
    ]
    assert len(listed) == 15
    assert sorted(compared) == sorted(wanted)


# A measure of pytrec_eval and the depth of the run; another engine, and the name of the measure there.
# AP of cwl_eval is missing: it divides by the number of relevant documents that were found.
TWINS = [
    ("RR(rel=2)", 10, "msmarco", "RR(rel=2)@10"),
    ("nDCG(gains={1:1,2:3,3:7})@10", 100, "gdeval", "nDCG(dcg='exp-log2')@10"),
    ("P(rel=2)@5", 100, "cwl_eval", "P(rel=2)@5"),
    ("RR(rel=2)", 100, "cwl_eval", "RR(rel=2)"),
]


@pytest.mark.parametrize(("name", "depth", "other", "spelling"), TWINS)
def test_engines_agree_query_by_query(
    shared: Path, name: str, depth: int, other: str, spelling: str
) -> None:
    provider = getattr(ir_measures, other)
    if not provider.is_available():
        pytest.skip(provider.install_instructions())
    file = "dl19.splade_p_p_ensemble_distil.txt"
    run = cut(read_run(shared / "data" / "trec-runs" / file), depth)
    judgements = list(read_qrels(qrels_of(shared, file)))
    qrels = [ir_measures.Qrel(*qrel) for qrel in judgements]
    scored = [
        ir_measures.ScoredDoc(query, doc_id, float(score))
        for query, ranking in run.rankings.items()
        for doc_id, score in zip(ranking.doc_ids, ranking.scores, strict=True)
    ]
    theirs = {
        m.query_id: m.value for m in provider.iter_calc(parse_measures([spelling]), qrels, scored)
    }
    (ours,) = evaluate(run, judgements, parse_measures([name])).per_query.values()
    assert theirs == pytest.approx(ours, abs=5e-5)


QRELS = {"dl19": "dl19-passage", "dl20": "dl20-passage"}
ABSENT = {  # runs with listed scores and without a file
    "cacm.anserini-bm25.txt",
    "covid.bm25.txt",
    "covid.bm25_rm3.txt",
    "covid.splade_p_p_ensemble_distil.txt",
    "dl20.bm25_rm3.txt",
    "dl20.open_ai_ada2.txt",
    "dl20.rep_llama.txt",
    "dl21.bm25.txt",
    "dl21.bm25_rm3.txt",
    "dl21.splade_p_p_ensemble_distil.txt",
    "news.bm25.txt",
    "news.bm25_rm3.txt",
    "news.splade_p_p_ensemble_distil.txt",
}
PRESENT = [
    "dl19.bm25.txt",
    "dl19.bm25_rm3.txt",
    "dl19.d_bert_kd_tasb.txt",
    "dl19.open_ai_ada2.txt",
    "dl19.rep_llama.txt",
    "dl19.splade_p_p_ensemble_distil.txt",
    "dl20.bm25.txt",
    "dl20.d_bert_kd_tasb.txt",
    "dl20.splade_p_p_ensemble_distil.txt",
]


def known_scores(shared: Path) -> dict[str, dict[str, str]]:
    with open(shared / "data" / "trec-runs" / "SCORES.tsv", newline="") as file:
        return {row["run"]: row for row in csv.DictReader(file, delimiter="\t")}


def test_every_known_run_is_present_or_declared_absent(shared: Path) -> None:
    known = known_scores(shared)
    here = {name for name in known if (shared / "data" / "trec-runs" / name).exists()}
    assert here == set(PRESENT)
    assert known.keys() - here == ABSENT


# The listed score is 0.9079: one engine of ir_measures orders ties by ascending id. This is the score
# with the order of trec_eval, which lmk uses for all measures.
RR_WITH_TIES = {"dl19.rep_llama.txt": 0.91376}


def qrels_of(shared: Path, name: str) -> Path:
    return shared / "data" / "topics-qrels" / QRELS[name.split(".")[0]] / "qrels" / "test.tsv"


@pytest.mark.parametrize("name", PRESENT)
def test_known_scores_of_runs(shared: Path, name: str) -> None:
    row = known_scores(shared)[name]
    level = f"(rel={row['rel>=']})"
    measures = parse_measures(["nDCG@10", f"AP{level}@100", f"R{level}@100", f"RR{level}@10"])
    run = read_run(shared / "data" / "trec-runs" / name)
    scores = evaluate(run, read_qrels(qrels_of(shared, name)), measures)
    expected = [float(row[column]) for column in ("nDCG@10", "AP@100", "R@100", "RR@10")]
    expected[3] = RR_WITH_TIES.get(name, expected[3])
    assert list(scores.aggregated.values()) == pytest.approx(expected, abs=5.1e-5)
    assert len(run.rankings) == int(row["queries"]) == scores.coverage.answered
    assert sum(len(r.doc_ids) for r in run.rankings.values()) == int(row["lines"])


def test_the_one_different_score_has_ties_by_ascending_id(shared: Path) -> None:
    (name,) = RR_WITH_TIES
    run = read_run(shared / "data" / "trec-runs" / name)
    ascending = Run({query_id: ties_ascending(r) for query_id, r in run.rankings.items()})
    scores = evaluate(
        ascending, read_qrels(qrels_of(shared, name)), parse_measures(["RR(rel=2)@10"])
    )
    listed = float(known_scores(shared)[name]["RR@10"])
    assert scores.aggregated["RR(rel=2)@10"] == pytest.approx(listed, abs=5.1e-5)


def ties_ascending(ranking: Ranking) -> Ranking:
    pairs = sorted(zip(-ranking.scores, ranking.doc_ids, strict=True))
    return Ranking([doc_id for _, doc_id in pairs], ranking.scores)
