import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.errors import UsageError
from lmkcli.retrieval.lexical.feedback import expand, is_expansion_term
from lmkcli.retrieval.lexical.lexical_settings import Feedback
from lmkcli.retrieval.open_settings import OpenSettings

TERMS = st.sampled_from(["tree", "stone", "river", "cloud", "zebra", "ox"])
BAGS = st.dictionaries(TERMS, st.integers(1, 9), max_size=6)
FOUND = st.lists(st.tuples(BAGS, st.floats(0.01, 30.0)), min_size=1, max_size=4)


def heaviest(weights: dict[str, float], count: int) -> list[str]:
    """The terms with the largest weights, ties in alphabetical order, found one after the other."""
    chosen: list[str] = []
    while len(chosen) < min(count, len(weights)):
        rest = [term for term in weights if term not in chosen]
        most = max(weights[term] for term in rest)
        chosen.append(min(term for term in rest if weights[term] == most))
    return chosen


@given(st.lists(TERMS, min_size=1), FOUND, st.integers(1, 7), st.floats(0.0, 1.0))
def test_rm3_is_its_formula(
    query: list[str], found: list[tuple[dict[str, int], float]], terms: int, weight: float
) -> None:
    model: dict[str, float] = {}
    for bag, score in found:
        kept = heaviest({term: float(count) for term, count in bag.items()}, terms)
        for term in kept:
            share = bag[term] / sum(bag[each] for each in kept)
            model[term] = model.get(term, 0.0) + share * score
    best = heaviest(model, terms)
    wanted = {term: weight * query.count(term) / len(query) for term in query}
    for term in best:
        share = model[term] / sum(model[each] for each in best)
        wanted[term] = wanted.get(term, 0.0) + (1 - weight) * share
    feedback = Feedback("rm3", terms, 10, weight)
    got = expand(query, [bag for bag, _ in found], [score for _, score in found], feedback)
    assert got == pytest.approx(wanted)
    if any(bag for bag, _ in found):
        assert sum(got.values()) == pytest.approx(1.0)


@given(st.lists(TERMS, min_size=1), FOUND, st.integers(1, 7))
def test_rocchio_is_its_formula(
    query: list[str], found: list[tuple[dict[str, int], float]], terms: int
) -> None:
    mean: dict[str, float] = {}
    for bag, _ in found:
        length = math.sqrt(sum(count**2 for count in bag.values()))
        for term, count in bag.items():
            mean[term] = mean.get(term, 0.0) + count / length / len(found)
    best = heaviest({term: round(weight, 12) for term, weight in mean.items()}, terms)
    counts = Counter(query)
    own = math.sqrt(sum(count**2 for count in counts.values()))
    wanted = {term: count / own for term, count in counts.items()}
    length = math.sqrt(sum(mean[term] ** 2 for term in best))
    for term in best:
        wanted[term] = wanted.get(term, 0.0) + 0.75 * mean[term] / length
    got = expand(query, [bag for bag, _ in found], [0.0] * len(found), Feedback("rocchio", terms))
    near_ties = len({round(weight, 9) for weight in mean.values()}) < len(mean)
    assert sorted(got.values()) == pytest.approx(sorted(wanted.values()))
    assert near_ties or got == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("term", "share", "rm3", "rocchio"),
    [
        ("tree", 0.1, True, True),
        ("tree", 0.11, False, False),  # in too many documents
        ("x", 0.0, False, False),
        ("x" * 20, 0.0, True, True),
        ("x" * 21, 0.0, False, False),
        ("café", 0.0, False, True),
        ("3.14", 0.0, False, True),
        ("p16", 0.0, True, True),
    ],
)
def test_expansion_terms(term: str, share: float, rm3: bool, rocchio: bool) -> None:
    assert is_expansion_term(term, share, Feedback("rm3"), english=True) is rm3
    assert is_expansion_term(term, share, Feedback("rocchio"), english=True) is rocchio


def test_expansion_terms_of_other_languages() -> None:
    assert is_expansion_term("häuser", 0.0, Feedback("rm3"), english=False)


def test_the_flags_name_a_feedback() -> None:
    assert OpenSettings().feedback is None
    assert OpenSettings(rm3=True).feedback == Feedback("rm3", 10, 10, 0.5)
    chosen = OpenSettings(rm3=True, rm3_terms=5, rm3_docs=3, rm3_weight=0.0).feedback
    assert chosen == Feedback("rm3", 5, 3, 0.0)
    assert OpenSettings(rocchio=True).feedback == Feedback("rocchio", 10, 10)
    with pytest.raises(UsageError, match="--rm3-weight "):
        OpenSettings(rm3_weight=0.0)
    with pytest.raises(UsageError, match="not both"):
        OpenSettings(rm3=True, rocchio=True)
