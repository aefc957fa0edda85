"""Pseudo-relevance feedback: terms of the first documents are added to the query.

Both methods follow Anserini in the choice of terms, their weights, and ties between them:

- RM3 (Abdul-Jaleel et al., TREC 2004). A document gives its most frequent terms, with relative frequencies
  P(t | d). Their sum over documents, weighted by score(d), is a relevance model. The best terms of the model,
  normalised, get 1 - weight; the terms of the query, normalised, get weight.
- Rocchio. The query and the documents are vectors of term frequencies, divided by their length. The new query
  is q + 0.75 * m. m is the mean of d, cut to its best terms and divided by its length.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from lmkcli.retrieval.lexical.lexical_settings import Feedback

MOST_DOCUMENTS = 0.1  # share of the collection; terms in more documents are not added
LENGTHS = range(2, 21)  # characters of a term
BETA = 0.75  # Rocchio: weight of the documents; the query has weight 1

Weights = Mapping[str, float]


def is_expansion_term(term: str, share: float, feedback: Feedback, english: bool) -> bool:
    """Return whether a term can be added to a query. `share` is the share of documents that contain it.

    In English, RM3 uses only terms of the letters a-z and digits.
    """
    plain = feedback.method == "rocchio" or not english or re.fullmatch("[a-z0-9]+", term)
    return bool(plain) and len(term) in LENGTHS and share <= MOST_DOCUMENTS


def expand(
    query: Sequence[str], docs: Sequence[Weights], scores: Sequence[float], feedback: Feedback
) -> dict[str, float]:
    """Return the weights of the terms of the expanded query.

    query: the terms of the query, with repetitions.
    docs: the frequencies of possible expansion terms in each of the first documents.
    scores: the scores of these documents.
    """
    if feedback.method == "rocchio":
        return _rocchio(Counter(query), docs, feedback)
    return _rm3(Counter(query), docs, scores, feedback)


def _rm3(
    query: Weights, docs: Sequence[Weights], scores: Sequence[float], feedback: Feedback
) -> dict[str, float]:
    """Compute RM3; the docstring of this module has the formula."""
    parts = [
        (_share(_best(doc, feedback.terms)), score) for doc, score in zip(docs, scores, strict=True)
    ]
    model = _share(_best(_sum(parts), feedback.terms))
    return _sum([(_share(query), feedback.weight), (model, 1 - feedback.weight)])


def _rocchio(query: Weights, docs: Sequence[Weights], feedback: Feedback) -> dict[str, float]:
    """Compute Rocchio; see the docstring of this module. Dividing by the length makes sum and mean equal."""
    mean = _best(_sum((_unit(doc), 1.0) for doc in docs), feedback.terms)
    return _sum([(_unit(query), 1.0), (_unit(mean), BETA)])


def _sum(parts: Iterable[tuple[Weights, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for weights, factor in parts:
        for term, weight in weights.items():
            total[term] = total.get(term, 0.0) + weight * factor
    return total


def _best(weights: Weights, count: int) -> Weights:
    """Return the terms with the largest weights, ties in alphabetical order."""
    order = sorted(weights, key=lambda term: (-weights[term], term))
    return {term: weights[term] for term in order[:count]}


def _share(weights: Weights) -> Weights:
    """Weights divided by their sum; empty if it is 0."""
    return _divided(weights, sum(weights.values()))


def _unit(weights: Weights) -> Weights:
    """Weights divided by their Euclidean norm; empty if it is 0."""
    return _divided(weights, math.hypot(*weights.values()))


def _divided(weights: Weights, divisor: float) -> Weights:
    return {term: weight / divisor for term, weight in weights.items()} if divisor > 0 else {}
