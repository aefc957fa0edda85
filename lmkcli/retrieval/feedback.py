"""Pseudo-relevance feedback: terms of the documents that were found first join the query.

RM3 (Abdul-Jaleel et al., TREC 2004) and Rocchio's formula, both as Anserini has them: which terms
may join, what they weigh, and how ties between them go.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from lmkcli.settings import Feedback

MOST_DOCUMENTS = 0.1  # share of the collection; terms in more documents do not discriminate
LENGTHS = range(2, 21)  # characters of a term
BETA = 0.75  # Rocchio's weight of the documents, where the query has 1

Weights = Mapping[str, float]


def may_join(term: str, share: float, how: Feedback, english: bool) -> bool:
    """Whether a term that is in such a share of all documents can join a query.

    RM3 passes over what is not plain letters and digits, though only in English.
    """
    plain = how.method == "rocchio" or not english or re.fullmatch("[a-z0-9]+", term)
    return bool(plain) and len(term) in LENGTHS and share <= MOST_DOCUMENTS


def expanded(
    query: Sequence[str], docs: Sequence[Weights], scores: Sequence[float], how: Feedback
) -> dict[str, float]:
    """The weights of the grown query's terms.

    `query` are the terms of the query as it was asked; `docs` say how often each term that may join
    is in the documents that it found first, and `scores` what these scored.
    """
    if how.method == "rocchio":
        return _rocchio(Counter(query), docs, how)
    return _rm3(Counter(query), docs, scores, how)


def _rm3(
    query: Weights, docs: Sequence[Weights], scores: Sequence[float], how: Feedback
) -> dict[str, float]:
    """The best terms of each document, as shares of them, count by its score; the best of all these
    join, with the weight that the query leaves."""
    parts = [
        (_share(_best(doc, how.terms)), score) for doc, score in zip(docs, scores, strict=True)
    ]
    model = _share(_best(_sum(parts), how.terms))
    return _sum([(_share(query), how.weight), (model, 1 - how.weight)])


def _rocchio(query: Weights, docs: Sequence[Weights], how: Feedback) -> dict[str, float]:
    """The query's unit vector, and that of the best terms in the documents' mean unit vector."""
    mean = _best(_sum((_unit(doc), 1.0) for doc in docs), how.terms)
    return _sum([(_unit(query), 1.0), (_unit(mean), BETA)])


def _sum(parts: Iterable[tuple[Weights, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for weights, factor in parts:
        for term, weight in weights.items():
            total[term] = total.get(term, 0.0) + weight * factor
    return total


def _best(weights: Weights, count: int) -> Weights:
    """The heaviest terms; of equal ones the first in the alphabet."""
    order = sorted(weights, key=lambda term: (-weights[term], term))
    return {term: weights[term] for term in order[:count]}


def _share(weights: Weights) -> Weights:
    """Divided by their sum; nothing where that is 0."""
    return _divided(weights, sum(weights.values()))


def _unit(weights: Weights) -> Weights:
    """Divided by their length as a vector; nothing where that is 0."""
    return _divided(weights, math.hypot(*weights.values()))


def _divided(weights: Weights, by: float) -> Weights:
    return {term: weight / by for term, weight in weights.items()} if by > 0 else {}
