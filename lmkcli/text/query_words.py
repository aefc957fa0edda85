"""The words of a question that matter: their weights, their forms in a text, and the best piece of a text.

A word matters by its inverse document frequency, if an index knows it. Words of questions and stop words do
not matter, unless the question has no other words.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import regex

if TYPE_CHECKING:
    from lmkcli.text.analyzer import Analyzer

SNIPPET = 240  # characters
_CHARACTER = regex.compile(r"\P{M}\p{M}*")
_USUAL = 40  # characters of a word whose terms are remembered
_LEAST = 0.3  # of the greatest weight: rarer words alone are marked
# English words of questions, in addition to the stop words of the analyzer.
_QUESTION = frozenset(
    "about am any been can could did do does from get give had has have he her him his how i its know let "
    "list many me much my need our please say she should show some tell than them those us use want we were "
    "what when where which who whom whose why would you your".split()
)


class QueryWords:
    """The terms of a question with their weights, and where they occur in a text.

    `weights` gives the inverse document frequency of a term, and `analyzer` turns words into terms; by
    default all terms have the same weight, and are English words without endings.
    """

    def __init__(
        self,
        question: str,
        analyzer: "Analyzer | None" = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._analyzer = analyzer or _english()
        self._forms: dict[str, float] = {}
        words = {word: self._terms(word) for word in _words(question)}
        own = {word: terms for word, terms in words.items() if word not in _QUESTION}
        terms = [term for found in (own if any(own.values()) else words).values() for term in found]
        self.weights = {term: (weights or {}).get(term, 1.0) for term in terms}
        """Term -> its weight, for the terms that matter."""

    def _terms(self, word: str) -> Sequence[str]:
        return _terms_of(self._analyzer, word) if len(word) <= _USUAL else self._analyzer(word)

    def weight(self, word: str) -> float:
        """Return the weight of a word of a text; 0 for a word that is not in the question."""
        form = _lower(word)
        if form not in self._forms:
            self._forms[form] = max(
                (self.weights.get(term, 0.0) for term in self._terms(form)), default=0.0
            )
        return self._forms[form]

    def spans(self, text: str) -> list[tuple[int, int, float]]:
        """Return the words of a text that are in the question: [begin, end) and weight.

        Scripts without spaces have no such words. There, a piece of text counts if each pair of neighbouring
        characters in it is also in the question.
        """
        found: list[tuple[int, int, float]] = []
        for match in _word().finditer(text):
            begin, end = match.span()
            weight = self.weight(match[0])
            if weight > 0 and _unspaced().search(match[0]):
                found += self._pieces(text, begin, end)
            elif weight > 0:
                found.append((begin, end, weight))
        return found

    def _pieces(self, text: str, begin: int, end: int) -> list[tuple[int, int, float]]:
        """Return the pieces of text[begin:end] that are in the question, without a space between them."""
        found: list[tuple[int, int, float]] = []
        for run in _unspaced().finditer(text, begin, end):
            starts = [each.start() for each in _CHARACTER.finditer(text, *run.span())]
            ends = [*starts[1:], run.end()]
            # The terms are the pairs of characters; a single character is a term itself.
            for first, last in zip(starts, ends[1:] or ends, strict=False):
                weight = self.weight(text[first:last])
                if weight and found and first < found[-1][1]:
                    start, _, before = found.pop()
                    found.append((start, last, max(before, weight)))
                elif weight:
                    found.append((first, last, weight))
        others = _unspaced().sub(lambda run: " " * len(run[0]), text[begin:end])
        words = ((each, self.weight(each[0])) for each in _word().finditer(others))
        found += [
            (begin + each.start(), begin + each.end(), weight) for each, weight in words if weight
        ]
        return sorted(found)

    def coverage(self, text: str) -> float:
        """Return the share of the question, by weight, that a text contains: 0 to 1."""
        total = sum(self.weights.values())
        there = {
            term for word in set(_words(text)) if self.weight(word) for term in self._terms(word)
        }
        return (
            sum(self.weights[term] for term in there & self.weights.keys()) / total
            if total
            else 0.0
        )

    def forms(self, texts: Iterable[str]) -> list[str]:
        """Return the words to mark in texts, in lower case: the forms of the question's terms that matter
        most.
        """
        least = _LEAST * max(self.weights.values(), default=0.0)
        weights: dict[str, float] = {}
        for text in texts:
            for begin, end, weight in self.spans(text):
                weights[_lower(text[begin:end])] = weight
        return sorted(word for word, weight in weights.items() if weight > 0 and weight >= least)

    def snippet(self, text: str, size: int = SNIPPET, most_read: int | None = None) -> str:
        """About `size` characters of a text, on one line, with the greatest weight of different words.

        `most_read` limits the search to the first characters of the text.
        """
        spans = self.spans(text[:most_read])
        best, most = 0, 0.0
        for number, (begin, _, _) in enumerate(spans):
            inside: dict[str, float] = {}
            for place in range(number, len(spans)):  # a slice would copy all spans of a long text
                start, end, weight = spans[place]
                if end > begin + size - 40:
                    break
                inside[text[start:end].lower()] = weight
            if sum(inside.values()) > most:
                best, most = begin, sum(inside.values())
        return _piece(text, best, size)


def _piece(text: str, place: int, size: int) -> str:
    """About `size` characters from a little before `place`, cut between words, on one line."""
    start = max(0, min(place - 40, len(text) - size)) if len(text) > size else 0
    cut = text[start : start + size]
    more = start + size < len(text)
    # Scripts without spaces are cut anywhere: only a space near an edge is the end of a cut word.
    if start and 0 <= (first := cut.find(" ")) < 40:
        cut = cut[first + 1 :]
    if more and text[start + size] != " " and (last := cut.rfind(" ")) > len(cut) - 40:
        cut = cut[:last]
    shown = " ".join(cut.split())
    return ("… " if start else "") + shown + (" …" if more else "")


@lru_cache(1 << 16)
def _terms_of(analyzer: "Analyzer", word: str) -> tuple[str, ...]:
    """Return the terms of a word. Analysis takes longer than the rest of marking words, and texts share
    words.
    """
    return tuple(analyzer(word))


def _words(text: str) -> list[str]:
    words: list[str] = _word().findall(_lower(text))
    return words


def _lower(text: str) -> str:
    """Return a text in lower case, with i for \u0130, as the analyzer has it."""
    return text.replace("\u0130", "i").lower()


def _word() -> "regex.Pattern[str]":
    """Return the pattern of a word, that of the analyzer."""
    from lmkcli.text.analyzer import WORD  # here, because it loads the stemmer

    return WORD


@lru_cache(1)
def _unspaced() -> "regex.Pattern[str]":
    """Return the pattern of a run of characters without spaces between words."""
    from lmkcli.text.analyzer import UNSPACED  # here, because it loads the stemmer

    return regex.compile(rf"[{UNSPACED}][{UNSPACED}\p{{M}}]*")


@lru_cache(1)
def _english() -> "Analyzer":
    from lmkcli.text.analyzer import Analyzer  # here, because it loads the stemmer

    return Analyzer("en")
