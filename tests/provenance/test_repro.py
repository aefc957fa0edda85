"""Comparison of a recorded step with its reproduction: digests, values and reasons."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from lmkcli.artifact.kinds import Facts
from lmkcli.data.run import Ranking, ranked
from lmkcli.provenance import reproduction as repro
from lmkcli.provenance.lineage import LineageStep
from lmkcli.provenance.reproduction import ReproRow
from lmkcli.spec.recipe import Recipe
from tests import manifests

FACTS = Facts(**manifests.ENVIRONMENT)
VECTORS = LineageStep("/gone/vectors", manifests.vectors(attention="packed"), "digest1", "10:aa")
RUN = LineageStep("/gone/run.trec", manifests.run(), "sha1", "")


def changed(step: LineageStep, side: dict[str, Any]) -> LineageStep:
    """The step with other fields on both sides of its recipe."""
    other = replace(manifests.SIDE, **side)
    return with_identity(step, recipe=Recipe(other, other))


def with_identity(step: LineageStep, **fields: Any) -> LineageStep:
    """The step with other fields of its identity."""
    identity = structs.replace(step.made.identity, **fields)
    return replace(step, made=structs.replace(step.made, identity=identity))


def first(then: LineageStep, now: LineageStep) -> ReproRow:
    found = repro.first_difference(repro.compare(then, now, 1e-4))
    assert found is not None
    return found


@pytest.mark.parametrize("step", [VECTORS, RUN], ids=lambda step: step.made.kind)
def test_the_same_step_is_the_same(step: LineageStep) -> None:
    rows = repro.compare(step, replace(step, path="/elsewhere"), 0)
    assert rows
    assert all(row.same and not row.why for row in rows)


def test_changed_documents_come_first() -> None:
    now = replace(changed(VECTORS, {"weights": "w2"}), collection="10:ab", digest="other")
    odd = first(VECTORS, now)
    assert (odd.what, odd.recorded, odd.now) == ("documents of given", "aa", "ab")
    assert "not the same texts" in odd.why
    assert "10 documents then, 11 now" in first(VECTORS, replace(VECTORS, collection="11:aa")).why


@pytest.mark.parametrize("part", ["weights", "tokenizer"])
def test_another_model_is_named(part: str) -> None:
    odd = first(VECTORS, replace(changed(VECTORS, {part: "x2"}), digest="other"))
    assert odd.what == f"{part} of minilm"
    assert "minilm is another model" in odd.why


def test_another_setting_is_named_with_both_values() -> None:
    odd = first(VECTORS, changed(VECTORS, {"gran": "32"}))
    assert odd.what == "vectors: recipe.doc.gran"
    assert (odd.recorded, odd.now) == ("'64'", "'32'")


def test_other_queries_are_named() -> None:
    assert first(RUN, with_identity(RUN, queries="q2")).what == "queries of given"


def test_other_texts_of_a_reranked_run_are_named() -> None:
    then, now = (with_identity(RUN, search={"texts": t}) for t in "ab")
    (_, row, _) = repro.compare(then, replace(now, digest="sha2"), 1e-4)
    assert (row.what, row.same) == ("documents of given", False)
    assert "other texts" in row.why


def test_a_run_does_not_depend_on_the_digest_of_its_index() -> None:
    """Parts with other ranges give another digest and the same ranking."""
    assert not repro.first_difference(repro.compare(RUN, with_identity(RUN, index="i2"), 0))


def test_steps_that_cannot_be_compared_are_neither_equal_nor_different() -> None:
    (*_, row) = repro.compare(RUN, replace(RUN, digest="sha2"), 1e-4)
    assert row.same is None
    assert "missing or has changed" in row.why
    index = LineageStep("/there/bm25", manifests.index(), "digest1", "10:aa")
    (*_, row) = repro.compare(index, replace(index, digest="digest2"), 1e-4)
    assert row.same is None
    assert "cannot compare" in row.why


def test_versions_are_named() -> None:
    packages = {"torch": "2.12.0", "faiss-cpu": "1.11"}
    lines = repro.versions(structs.replace(FACTS, packages=packages), FACTS)
    assert lines == [
        "torch 2.12.0 then, 2.13.0 now",
        "faiss-cpu 1.11 then, absent now",
        "numpy absent then, 2.4.6 now",
    ]
    assert not repro.versions(FACTS, FACTS)


def test_scores_are_compared_with_the_tolerance() -> None:
    then = {"qrels_digest": "a", "scores": {"nDCG@10": 0.5}}
    near = {"qrels_digest": "a", "scores": {"nDCG@10": 0.50005}}
    assert not repro.first_difference(repro.scores(then, near, 1e-4))
    odd = repro.first_difference(repro.scores(then, near, 1e-5))
    assert odd is not None
    assert odd.why == "nDCG@10 differs by +5e-05"
    assert repro.first_difference(repro.scores(then, {**near, "scores": {}}, 1.0))
    qrels = repro.first_difference(repro.scores(then, {**then, "qrels_digest": "b"}, 1.0))
    assert qrels is not None
    assert qrels.what == "qrels"


rankings = st.dictionaries(
    st.text("abc", min_size=1, max_size=3), st.floats(-8, 8, width=16), min_size=1, max_size=9
)


@given(rankings, st.floats(0, 0.125, width=16))
def test_the_gap_is_the_difference_of_all_scores(docs: dict[str, float], shift: float) -> None:
    one = ranked(docs, np.array(list(docs.values())))
    other = Ranking(one.doc_ids, one.scores + np.float32(shift))
    assert repro.gap(one, other) == pytest.approx(shift, abs=2e-6)


@given(rankings)
def test_ties_may_be_in_another_order_and_cut_at_another_document(
    docs: dict[str, float],
) -> None:
    one = ranked(docs, np.zeros(len(docs)))
    other = Ranking([*one.doc_ids[::-1][:-1], "another"], one.scores)
    assert repro.gap(one, other) == 0


def test_gaps_between_different_rankings() -> None:
    one = Ranking(["a", "b"], np.array([2, 1], np.float32))
    assert repro.gap(one, Ranking(["b", "a"], one.scores)) == 1
    assert repro.gap(one, Ranking(["c", "b"], one.scores)) == 1  # the score of 'a' is 2, not 1
    assert repro.gap(one, Ranking(["a"], one.scores[:1])) == float("inf")
    empty = Ranking([], np.zeros(0, np.float32))
    assert repro.gap(empty, empty) == 0
