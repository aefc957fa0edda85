import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmkcli.data.run import Ranking, Run, ranked
from lmkcli.errors import DataError, UsageError
from lmkcli.retrieval.fusion import Fusion, fuse
from tests.conftest import Lmk

scores = st.floats(-100, 100, width=32).map(lambda x: round(x, 2))
rankings = st.dictionaries(st.sampled_from("abcdefgh"), scores, max_size=8)
several = st.lists(rankings, min_size=1, max_size=4)


def run(documents: dict[str, float]) -> Run:
    return Run({"q": ranked(documents, np.array(list(documents.values()), np.float64))})


def fused(runs: list[Run], fusion: Fusion, k: int = 100) -> dict[str, float]:
    result = fuse(runs, fusion, k).rankings["q"]
    assert result.scores.dtype == np.float32
    return dict(zip(result.doc_ids, result.scores.tolist(), strict=True))


def scores_of(run: Run) -> dict[str, float]:
    """The float32 scores of its one query, best first."""
    ranking = run.rankings["q"]
    return dict(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True))


@settings(deadline=None)
@given(several, st.integers(0, 100))
def test_rrf_is_its_formula(documents: list[dict[str, float]], k: int) -> None:
    runs = [run(one) for one in documents]
    expected: dict[str, float] = {}
    for one in runs:
        for rank, name in enumerate(scores_of(one), 1):
            expected[name] = expected.get(name, 0.0) + 1 / (k + rank)
    assert fused(runs, Fusion("rrf", k=k)) == pytest.approx(expected, rel=1e-6)


def by_hand(values: dict[str, float], scale: str) -> dict[str, float]:
    """One ranking scaled with plain Python."""
    numbers = list(values.values())
    if scale == "none" or not numbers:
        return values
    if scale == "minmax":
        low, high = min(numbers), max(numbers)
        return {n: (v - low) / (high - low) if high > low else 1.0 for n, v in values.items()}
    mean, deviation = statistics.fmean(numbers), statistics.pstdev(numbers)
    equal = min(numbers) == max(numbers)
    return {n: 1.0 if equal else (v - mean) / deviation for n, v in values.items()}


def missing(scaled: dict[str, float], scale: str) -> float:
    """The scaled score of a document that a ranking lacks."""
    low = min(scaled.values(), default=0.0)
    if not scaled or low < max(scaled.values()):
        return low
    if scale == "zscore":
        return -1
    return 0.0 if low > 0 else low - 1


@settings(deadline=None)
@given(several, st.sampled_from(["minmax", "zscore", "none"]), st.data())
def test_linear_is_its_formula(
    documents: list[dict[str, float]], scale: str, data: st.DataObject
) -> None:
    weights = data.draw(st.none() | st.tuples(*[st.floats(-2, 2) for _ in documents]))
    runs = [run(one) for one in documents]
    scaled = [by_hand(scores_of(one), scale) for one in runs]
    shares = weights or [1 / len(runs)] * len(runs)
    expected = {
        name: sum(
            share * one.get(name, missing(one, scale))
            for share, one in zip(shares, scaled, strict=True)
        )
        for name in set().union(*scaled)
    }
    fusion = Fusion("linear", weights=weights or (), scale=scale)  # type: ignore[arg-type]
    assert fused(runs, fusion) == pytest.approx(expected, rel=1e-4, abs=1e-4)


@given(rankings, st.sampled_from(["rrf", "linear"]), st.sampled_from(["minmax", "zscore", "none"]))
def test_one_run_keeps_its_order(documents: dict[str, float], method: str, scale: str) -> None:
    one = run(documents)
    fusion = Fusion(method, scale=scale)  # type: ignore[arg-type]
    result = fuse([one], fusion, 100).rankings["q"]
    before = scores_of(one)
    assert set(result.doc_ids) == set(before)
    after = [before[name] for name in result.doc_ids]
    assert after == sorted(after, reverse=True)


def test_a_missing_document_counts_as_the_last_of_that_run() -> None:
    runs = [run({"a": 10.0, "b": 5.0, "c": 0.0}), run({"c": 3.0, "d": 1.0})]
    assert fused(runs, Fusion("linear")) == {"c": 0.5, "a": 0.5, "b": 0.25, "d": 0.0}
    assert fused(runs, Fusion("linear", scale="none")) == {"a": 5.5, "b": 3.0, "c": 1.5, "d": 0.5}


@pytest.mark.parametrize("scale", ["minmax", "zscore", "none"])
@pytest.mark.parametrize("hits", [{"d8": 12.5}, {"d8": 0.0}, {"d8": -3.0}, {"d8": 0.4, "d7": 0.4}])
def test_hits_with_equal_scores_have_influence(
    hits: dict[str, float], scale: Literal["minmax", "zscore", "none"]
) -> None:
    """The only exact match of a lexical run, at the end of the dense one, as of a single BM25 hit."""
    dense = run({f"d{i}": 0.9 - 0.05 * i for i in range(10)})
    fusion = Fusion("linear", weights=(0.3, 0.7), scale=scale)
    both = fuse([dense, run(hits)], fusion, 10).rankings["q"]
    assert set(both.doc_ids[: len(hits)]) == set(hits)
    alone = fuse([run(hits), run({})], fusion, 10).rankings["q"]
    assert alone.scores[0] == alone.scores[-1]


def test_equal_scores_are_those_of_opensearch() -> None:
    """normalization-processor: min_max gives a single or equal score 1, and a missing document 0."""
    runs = [run({"a": 3.0, "b": 3.0}), run({"c": 0.2, "a": 0.1})]
    assert fused(runs, Fusion("linear", weights=(1, 1))) == {"c": 1.0, "a": 1.0, "b": 1.0}


def test_the_k_best_remain_and_ties_go_by_document_id_descending() -> None:
    runs = [run({"a": 2.0, "b": 1.0}), run({"b": 2.0, "a": 1.0}), run({"c": 1.0})]
    result = fuse(runs, Fusion("rrf"), 2).rankings["q"]
    assert result.doc_ids == ["b", "a"]
    assert result.scores[0] == result.scores[1]


def test_the_fusion_has_the_queries_of_all_runs_in_order() -> None:
    one = Ranking(["a"], np.ones(1, np.float32))
    none = Ranking([], np.zeros(0, np.float32))
    result = fuse([Run({"2": one, "1": none}), Run({"3": one, "2": one})], Fusion("rrf"), 10)
    assert list(result.rankings) == ["2", "1", "3"]
    assert [len(ranking.doc_ids) for ranking in result.rankings.values()] == [1, 0, 1]
    assert result.tag == "rrf"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rrf", Fusion("rrf", k=60)),
        ("rrf:0", Fusion("rrf", k=0)),
        ("rrf:5", Fusion("rrf", k=5)),
        ("linear", Fusion("linear")),
        ("linear:0.3,0.7", Fusion("linear", weights=(0.3, 0.7))),
        ("linear:1,-2,3.5", Fusion("linear", weights=(1.0, -2.0, 3.5))),
    ],
)
def test_spellings(text: str, expected: Fusion) -> None:
    assert Fusion.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "max",
        "rrf:",
        "rrf:x",
        "rrf:\u0663",
        f"rrf:{'9' * 5000}",
        "rrf:-1",
        "linear:",
        "linear:a,b",
    ],
)
def test_other_spellings_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"rrf:60, linear, linear:0\.3,0\.7 or tune:dev"):
        Fusion.parse(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("linear:0.3,0.7", "linear:0.3,0.7"),
        ("linear:.4,.6", "linear:0.4,0.6"),
        ("linear:1,2.", "linear:1,2"),
        ("linear:0.39999998,0.00000001", "linear:0.39999998,0.00000001"),
        ("linear:-1,100000000000000000", "linear:-1,100000000000000000"),
        ("linear", "linear"),
        ("rrf", "rrf:60"),
    ],
)
def test_weights_are_short_and_are_read_back(text: str, shown: str) -> None:
    fusion = Fusion.parse(text, "zscore")
    assert str(fusion) == shown
    assert Fusion.parse(shown, "zscore") == fusion
    recorded = json.loads(json.dumps(fusion.identity))
    again = Fusion.from_identity(recorded)
    assert (str(again), again.identity) == (shown, fusion.identity)


def test_a_wrong_number_of_weights_is_refused() -> None:
    with pytest.raises(UsageError, match="2 weights for 3 runs"):
        fuse([run({})] * 3, Fusion.parse("linear:0.3,0.7"), 10)


@pytest.mark.parametrize("scale", ["minmax", "zscore", "none"])
def test_infinite_scores_are_refused(scale: Literal["minmax", "zscore", "none"]) -> None:
    runs = [run({"a": np.inf, "b": 1.0}), run({"b": 2.0, "a": 1.0})]
    with pytest.raises(DataError, match="infinite scores"):
        fuse(runs, Fusion("linear", scale=scale), 2)
    assert set(fused(runs, Fusion("rrf"))) == {"a", "b"}


def test_shares_of_the_greatest_scores_are_between_0_and_1(
    lmk: Lmk, beir: Path, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """A document without a word of the question has the share 0, and the cosine is its own share."""
    lmk("encode", beir, "-m", tiny_model("bert"), "-o", tmp_path / "v")
    lmk("index", beir, "--kind", "bm25", "-o", tmp_path / "b")
    ask = ["search", tmp_path / "v", "-q", "rivers rivers carry zzz", "-k", 500, "--json"]
    cosines = {hit["id"]: hit["score"] for hit in lmk(*ask).json}
    bm25 = {hit["id"]: hit["score"] for hit in lmk(*ask[:1], tmp_path / "b", *ask[2:]).json}
    fused = lmk(
        *ask, "--with", tmp_path / "b", "--fuse", "linear:0.5,0.5", "--fuse-scale", "bounds"
    ).json
    assert bm25
    assert len(bm25) < len(fused)
    greatest = None
    for hit in fused:
        share = 2 * hit["score"] - cosines[hit["id"]]
        assert -1e-6 < share < 1
        if hit["id"] in bm25:
            greatest = greatest or bm25[hit["id"]] / share
            assert bm25[hit["id"]] / share == pytest.approx(greatest, rel=1e-4)
        else:
            assert share == pytest.approx(0, abs=1e-6)
    run = tmp_path / "run.trec"
    lmk("search", tmp_path / "b", beir, "-o", run)
    refused = lmk(
        *(
            "search",
            tmp_path / "v",
            beir,
            "--with",
            run,
            "--fuse",
            "linear",
            "--fuse-scale",
            "bounds",
        ),
        *("-o", tmp_path / "x.trec"),
        code=2,
    )
    assert "needs scores with a greatest value" in refused.err
