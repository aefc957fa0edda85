from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.data.collection import Query
from lmkcli.data.run import Ranking, Run, Scored, ranked
from lmkcli.retrieval.open_settings import RerankSettings
from lmkcli.retrieval.reranking import rerank

NAN = float("nan")
finite = st.floats(-50, 50, width=32)


def reranked(old: dict[str, float], new: dict[str, float], settings: RerankSettings) -> Run:
    def scorer(query: Query, doc_ids: Sequence[str]) -> Scored:
        return Scored(np.array([new[name] for name in doc_ids], np.float64), len(new))

    before = Run({"q": ranked(old, np.array(list(old.values()), np.float64))})
    return rerank(before, [Query("q", "")], scorer, settings)


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(finite, finite)), st.integers(1, 9))
def test_the_first_documents_are_scored_again_and_others_are_dropped(
    documents: dict[str, tuple[float, float]], depth: int
) -> None:
    old = {name: pair[0] for name, pair in documents.items()}
    new = {name: pair[1] for name, pair in documents.items()}
    result = reranked(old, new, RerankSettings(depth)).rankings["q"]
    top = sorted(old, key=lambda name: (old[name], name), reverse=True)[:depth]
    assert result.doc_ids == sorted(top, key=lambda name: (new[name], name), reverse=True)
    assert result.scores.tolist() == [new[name] for name in result.doc_ids]


def test_interpolation_scales_both_scores_over_the_reranked_documents() -> None:
    old, new = {"a": 9.0, "b": 5.0, "c": 1.0, "d": 0.0}, {"a": -1.0, "b": 1.0, "c": 0.5, "d": 99.0}
    result = reranked(old, new, RerankSettings(3, 0.25)).rankings["q"]
    expected = {"a": 0.25 * 0 + 0.75 * 1, "b": 0.25 * 1 + 0.75 * 0.5, "c": 0.25 * 0.75 + 0.75 * 0}
    assert result.doc_ids == ["a", "b", "c"]
    assert result.scores.tolist() == pytest.approx([expected[name] for name in result.doc_ids])


@pytest.mark.parametrize(("weight", "expected"), [(0.0, ["a", "b", "c"]), (1.0, ["b", "c", "a"])])
def test_the_ends_of_interpolation_are_the_two_orders(weight: float, expected: list[str]) -> None:
    old, new = {"a": 9.0, "b": 5.0, "c": 1.0}, {"a": -1.0, "b": 1.0, "c": 0.5}
    assert reranked(old, new, RerankSettings(3, weight)).rankings["q"].doc_ids == expected


@pytest.mark.parametrize("interpolate", [None, 0.75])
def test_documents_without_a_score_follow_in_their_old_order_and_are_counted(
    interpolate: float | None,
) -> None:
    old = {"a": 9.0, "b": 8.0, "c": 7.0, "d": 6.0, "e": 5.0}
    new = {"a": NAN, "b": -3.0, "c": NAN, "d": 7.0, "e": NAN}
    result = reranked(old, new, RerankSettings(4, interpolate))
    assert result.unscored == 2
    assert result.cut_pairs == {"q": 5}
    ranking = result.rankings["q"]
    assert set(ranking.doc_ids[:2]) == {"b", "d"}
    assert ranking.doc_ids[2:] == ["a", "c"]
    assert (np.diff(ranking.scores) < 0).all()
    again = ranked(ranking.doc_ids, ranking.scores)  # the order of a program that sorts the run
    assert again.doc_ids == ranking.doc_ids


def test_documents_that_all_lack_a_score_keep_their_order() -> None:
    result = reranked({"a": 2.0, "b": 3.0}, {"a": NAN, "b": NAN}, RerankSettings())
    assert result.rankings["q"].doc_ids == ["b", "a"]
    assert result.unscored == 2


def test_queries_without_documents_stay_and_unknown_ones_do_not_appear() -> None:
    empty = Ranking([], np.zeros(0, np.float32))

    def scorer(query: Query, doc_ids: Sequence[str]) -> Scored:
        raise AssertionError("no document to score")

    queries = [Query("q", ""), Query("other", "")]
    result = rerank(Run({"q": empty}), queries, scorer, RerankSettings())
    assert list(result.rankings) == ["q"]
    assert result.rankings["q"].doc_ids == []
