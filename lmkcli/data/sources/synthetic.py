"""Passkey and needle: one fact in a long text of a chosen length, made offline from a seed.

After LongEmbed (arXiv 2404.12096), whose texts and generator are not public: the layout,
lengths and counts are its own, names, facts and the essay are made here. Scored by nDCG@1, which is
accuracy with one relevant document.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import cycle, islice, product
from typing import NamedTuple

from lmkcli.data.collection import (
    WHOLE,
    Collection,
    CountedDocs,
    Doc,
    DocStream,
    Qrel,
    Query,
    Shard,
    check_options,
    spell,
)
from lmkcli.data.sources import essays
from lmkcli.data.sources.seeded import Draws, whole_number
from lmkcli.errors import UnknownName

LENGTHS = tuple(256 << i for i in range(8))  # in tokens, of which a word is taken to have 4/3
NAMES = tuple(f"{kind}/{length}" for kind in ("passkey", "needle") for length in LENGTHS)
DOCS, QUERIES = 100, 50
FILLER = (
    "The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.",
    "There and back again.",
)  # fmt: skip


class Needle(NamedTuple):
    """A fact and the question that it answers."""

    fact: str
    question: str


def open_synthetic(name: str, options: dict[str, str]) -> "SyntheticCollection":
    """'passkey/256' … 'passkey/32768', 'needle/256' …; the option `seed` makes another of its kind."""
    check_options(name, options, ("seed",))
    if name not in NAMES:
        lengths = ", ".join(map(str, LENGTHS))
        raise UnknownName("collection", name, [], f"the lengths are {lengths}")
    return SyntheticCollection(spell(name, options), whole_number(name, options, "seed", 0))


class SyntheticCollection(Collection):
    """100 documents of one length, each with its own fact; 50 of the facts are asked for."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.settings = {"seed": str(seed)}
        self._seed = seed
        self._id = name.partition(",")[0]
        self._kind, _, length = self._id.partition("/")
        self._words = int(length) * 3 // 4

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        mine = shard.rows(DOCS)
        return CountedDocs(lambda: (self._doc(i) for i in mine), len(mine))

    def queries(self) -> Iterator[Query]:
        return (Query(f"q{i:02d}", self._needles[i].question) for i in self._asked)

    def qrels(self) -> Iterator[Qrel]:
        return (Qrel(f"q{i:02d}", f"d{i:02d}", 1) for i in self._asked)

    def query_facts(self, name: str) -> dict[str, str | float]:
        """'position': how many words stand before the fact."""
        if name != "position":
            return {}
        return {f"q{i:02d}": len(" ".join(self._split(i)[0]).split()) for i in self._asked}

    @cached_property
    def _needles(self) -> list[Needle]:
        make = _passkeys if self._kind == "passkey" else _facts
        return make(Draws(self._kind, self._seed))

    @cached_property
    def _asked(self) -> list[int]:
        return sorted(Draws(self._id, self._seed, "asked").some(range(DOCS), QUERIES))

    @cached_property
    def _filler(self) -> list[str]:
        """Sentences of at least as many words as a document may have."""
        sentences = cycle(FILLER) if self._kind == "passkey" else essays.sentences(self._seed)
        return list(islice(sentences, self._words))  # a sentence has more than one word

    def _doc(self, number: int) -> Doc:
        before, after = self._split(number)
        parts = (" ".join(before), self._needles[number].fact, " ".join(after))
        return Doc(f"d{number:02d}", "\n".join(part for part in parts if part))

    def _split(self, number: int) -> tuple[list[str], list[str]]:
        """The filler before and after the fact, as sentences; all words together are the budget."""
        sentences = self._cut(self._words - len(self._needles[number].fact.split()))
        at = Draws(self._id, self._seed, number).below(len(sentences) + 1)
        return sentences[:at], sentences[at:]

    def _cut(self, words: int) -> list[str]:
        kept = []
        for sentence in self._filler:
            if words <= 0:
                break
            kept.append(" ".join(sentence.split()[:words]))
            words -= len(sentence.split())
        return kept


def _passkeys(draws: Draws) -> list[Needle]:
    people = [" ".join(pair) for pair in product(essays.FIRST_NAMES, essays.LAST_NAMES)]
    keys = draws.some(range(10_000, 100_000), DOCS)
    return [
        Needle(
            f"{name}'s pass key is {key}. Remember it. {key} is the pass key for {name}.",
            f"what is the passkey for {name}?",
        )
        for name, key in zip(draws.some(people, DOCS), keys, strict=True)
    ]


def _facts(draws: Draws) -> list[Needle]:
    towns = draws.some(["".join(pair) for pair in product(*essays.TOWNS)], DOCS)
    told = [(fact, question, thing) for fact, question, things in essays.FACTS for thing in things]
    return [
        Needle(fact.format(town=town, thing=thing), question.format(town=town))
        for town, (fact, question, thing) in zip(towns, draws.some(told, DOCS), strict=True)
    ]
