"""Passkey and needle: one fact in a long text of a chosen length, generated offline from a seed.

The layout, lengths and counts follow LongEmbed (arXiv 2404.12096). LongEmbed's texts and generator are not
public, so lmk has other names, facts and another essay. The measure is nDCG@1, which is the accuracy when
one document is relevant.
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
    whole_number,
)
from lmkcli.errors import UnknownName
from lmkcli.plugins.generated.rng import KeyedRng

LENGTHS = tuple(256 << i for i in range(8))  # in tokens; a word counts as 4/3 tokens
NAMES = tuple(f"{kind}/{length}" for kind in ("passkey", "needle") for length in LENGTHS)
DOCS, QUERIES = 100, 50
FILLER = (
    "The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.",
    "There and back again.",
)  # fmt: skip


FIRST_NAMES = (
    "Ada Alma Anton Arthur Astrid Basil Bella Bruno Carla Cedric Clara Conrad Dalia Edgar Elsa Emil "
    "Esther Felix Flora Gideon Greta Harold Hazel Hugo Ida Irene Jasper Judith Kaspar Laura Leon Lydia "
    "Magnus Mabel Nora Oscar Paula Quentin Rosa Silas Stella Tobias Una Victor Wanda Xavier Yvonne Zeno"
).split()
LAST_NAMES = (
    "Abbott Alder Bishop Brandt Calloway Carver Dalton Drake Ellison Farrow Fenwick Gale Garland "
    "Hartley Holm Ingram Jarvis Keller Kestrel Lambert Lindqvist Marlow Mercer Nash Novak Oakley "
    "Palmer Pereira Quill Ramsey Rowan Sandoval Sorrel Tanner Thorne Underhill Vance Vidal Weaver "
    "Whitlock Yates Zimmer"
).split()
TOWNS = (
    ("Alder", "Birch", "Cedar", "Copper", "Eagle", "Falcon", "Gold", "Harbor", "Iron", "Juniper",
     "Lark", "Maple", "Otter", "Raven", "Silver"),
    ("bridge", "brook", "cliff", "field", "ford", "haven", "hill", "mouth", "stead", "wick"),
)  # fmt: skip

# Templates (fact, question, five things): twenty templates give a hundred facts.
FACTS = (
    ("The ferry captain of {town} collects {thing}.", "What does the ferry captain of {town} collect?",
     ("antique door keys", "glass paperweights", "ship bells", "pressed ferns", "tin soldiers")),
    ("Every spring the mayor of {town} plants {thing} beside the town hall.",
     "What does the mayor of {town} plant beside the town hall every spring?",
     ("white lavender", "a row of leeks", "blue poppies", "a walnut tree", "climbing beans")),
    ("The secret ingredient in the bread of {town} is {thing}.",
     "What is the secret ingredient in the bread of {town}?",
     ("roasted chestnut", "cold coffee", "smoked salt", "orange peel", "fennel pollen")),
    ("The clock tower of {town} was built to honour {thing}.",
     "Whom was the clock tower of {town} built to honour?",
     ("a deaf piano tuner", "the first postwoman", "a shipwrecked cook", "a retired glassblower",
      "two rival cartographers")),
    ("Besides books the public library of {town} lends {thing}.",
     "What does the public library of {town} lend besides books?",
     ("rowing boats", "telescopes", "wedding dresses", "accordions", "ladders")),
    ("All trams in {town} are painted {thing}.", "What colour are the trams in {town}?",
     ("mustard yellow", "salmon pink", "bottle green", "plum purple", "sky blue")),
    ("A law of {town} forbids selling {thing} on a Sunday.",
     "What may not be sold in {town} on a Sunday?",
     ("umbrellas", "pickled herring", "playing cards", "garden gnomes", "left shoes")),
    ("The founders of {town} paid for its land with {thing}.",
     "With what did the founders of {town} pay for its land?",
     ("forty barrels of honey", "a single white horse", "nine copper kettles", "a church organ",
      "a cartload of salt")),
    ("The school orchestra of {town} consists only of {thing}.",
     "Which instruments does the school orchestra of {town} consist of?",
     ("bassoons", "banjos", "kettledrums", "harps", "tin whistles")),
    ("The night watchman of {town} keeps {thing} as a pet.",
     "Which pet does the night watchman of {town} keep?",
     ("a one-eyed goose", "a tortoise", "a tame hedgehog", "an old ferret", "a talking magpie")),
    ("The oldest tree in {town} is {thing}.", "What is the oldest tree in {town}?",
     ("a hollow mulberry", "a leaning cypress", "a split oak", "a dwarf pear", "a bald elm")),
    ("The summer festival of {town} ends with {thing}.",
     "With what does the summer festival of {town} end?",
     ("a race of wheelbarrows", "a silent parade", "a pie fight", "a lantern regatta",
      "a whistling contest")),
    ("The old lighthouse of {town} was turned into {thing}.",
     "What was the old lighthouse of {town} turned into?",
     ("a dental practice", "a cheese cellar", "a puppet theatre", "a wedding chapel",
      "a climbing gym")),
    ("The chess club of {town} meets in {thing}.", "Where does the chess club of {town} meet?",
     ("a laundry", "the fire station", "a greenhouse", "a butcher's shop", "the ticket office")),
    ("The town seal of {town} shows {thing}.", "What does the town seal of {town} show?",
     ("a heron with a key", "three crossed spoons", "a broken wheel", "a fox in a boat",
      "a hand holding a bell")),
    ("Visitors who arrive in {town} are greeted with {thing}.",
     "With what are visitors greeted who arrive in {town}?",
     ("a slice of lemon cake", "a blast of a horn", "a glass of birch sap", "a handful of rice",
      "a woollen scarf")),
    ("The swimming champion of {town} earns a living by {thing}.",
     "How does the swimming champion of {town} earn a living?",
     ("repairing violins", "drawing maps", "breeding snails", "painting signs", "tuning engines")),
    ("The museum of {town} has a single exhibit, {thing}.",
     "What is the single exhibit of the museum of {town}?",
     ("a petrified loaf", "a wooden bicycle", "a stuffed walrus", "an unfinished map",
      "a cracked meteorite")),
    ("In {town} a cold is cured with {thing}.", "With what is a cold cured in {town}?",
     ("warm beetroot juice", "a walk at dawn", "onion soup", "elderberry vinegar", "mustard baths")),
    ("The railway station of {town} prints its tickets on {thing}.",
     "On what does the railway station of {town} print its tickets?",
     ("birch bark", "recycled maps", "blue silk", "thin slate", "potato starch")),
)  # fmt: skip

_FRAMES = (
    "Most people who care about {a} never ask where {b} comes from.",
    "When you work on {a} for long enough, {b} begins to look different.",
    "The surprising thing about {a} is how little it has to do with {b}.",
    "I used to think that {a} mattered more than {b}, and I was wrong.",
    "It is easier to talk about {a} than to do anything about {b}.",
    "If you want to understand {a}, look at what happens to {b} when nobody is watching.",
    "The best work I have seen began as a question about {a} and ended as an answer about {b}.",
    "You cannot get {a} by aiming at {b}, though you often get {b} by aiming at {a}.",
    "There is a kind of {a} that only grows in the absence of {b}.",
    "Nobody tells you this at school, but {a} is mostly {b} with patience added.",
    "A good test of {a} is whether it survives an afternoon of {b}.",
    "What looks like {a} from the outside is usually {b} from the inside.",
    "Large organisations confuse {a} with {b}, because {b} is easier to count.",
    "The first version is always about {a}; the second is finally about {b}.",
    "I suspect that {a} and {b} are two names for the same habit.",
    "Children seem to have {a} without effort, and lose it when they learn about {b}.",
    "One reason to write about {a} is that writing shows you how vague your ideas of {b} are.",
    "Anyone can imitate {a}, but it takes taste to leave out {b}.",
    "If {a} feels like a chore, there is probably too much {b} in it.",
    "In the end {a} wins, not because it is stronger than {b} but because it gets up earlier.",
    "Ask ten people about {a} and nine of them will complain about {b}.",
    "It took me years to notice that {a} was hiding behind {b}.",
    "The cheapest way to improve {a} is to stop pretending that it is {b}.",
    "Progress in {a} comes in steps, with long flat stretches of {b} between them.",
)
_SUBJECTS = (
    "curiosity", "ambition", "good judgement", "routine", "the right question", "careful reading",
    "luck", "a small team", "deadline pressure", "craft", "money", "reputation", "plain language",
    "stubbornness", "a blank page", "fashion", "criticism", "independence", "attention", "doubt",
    "practice", "an honest mistake", "prestige", "leisure", "good taste", "a half-finished idea",
    "common sense", "imitation", "the habit of measuring", "conversation", "silence", "simplicity",
)  # fmt: skip


class Needle(NamedTuple):
    """A fact and the question that it answers."""

    fact: str
    question: str


def open_synthetic(name: str, options: dict[str, str]) -> "SyntheticCollection":
    """Open 'passkey/256' … 'passkey/32768', 'needle/256' …; the option `seed` generates other texts."""
    check_options(name, options, ("seed",))
    if name not in NAMES:
        lengths = ", ".join(map(str, LENGTHS))
        raise UnknownName("collection", name, [], f"the lengths are {lengths}")
    return SyntheticCollection(spell(name, options), whole_number(name, options, "seed", 0))


class SyntheticCollection(Collection):
    """100 documents of one length, each with its own fact, and queries for 50 of the facts."""

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
        return (Query(f"q{i:02d}", self._needles[i].question) for i in self._queried)

    def qrels(self) -> Iterator[Qrel]:
        return (Qrel(f"q{i:02d}", f"d{i:02d}", 1) for i in self._queried)

    def query_metadata(self, name: str) -> dict[str, str | float]:
        """'position': the number of words before the fact."""
        if name != "position":
            return {}
        return {f"q{i:02d}": len(" ".join(self._split(i)[0]).split()) for i in self._queried}

    @cached_property
    def _needles(self) -> list[Needle]:
        create = _passkeys if self._kind == "passkey" else _facts
        return create(KeyedRng(self._kind, self._seed))

    @cached_property
    def _queried(self) -> list[int]:
        return sorted(KeyedRng(self._id, self._seed, "asked").sample(range(DOCS), QUERIES))

    @cached_property
    def _filler(self) -> list[str]:
        """Sentences with at least as many words as a document."""
        sentences = cycle(FILLER) if self._kind == "passkey" else essay(self._seed)
        return list(islice(sentences, self._words))  # a sentence has more than one word

    def _doc(self, number: int) -> Doc:
        before, after = self._split(number)
        parts = (" ".join(before), self._needles[number].fact, " ".join(after))
        return Doc(f"d{number:02d}", "\n".join(part for part in parts if part))

    def _split(self, number: int) -> tuple[list[str], list[str]]:
        """Return the sentences before and after the fact. Fact and sentences have exactly `_words` words."""
        sentences: list[str] = []
        left = self._words - len(self._needles[number].fact.split())
        for sentence in self._filler:
            if left <= 0:
                break
            words = sentence.split()
            sentences.append(" ".join(words[:left]))
            left -= len(words)
        at = KeyedRng(self._id, self._seed, number).below(len(sentences) + 1)
        return sentences[:at], sentences[at:]


def _passkeys(rng: KeyedRng) -> list[Needle]:
    people = [" ".join(pair) for pair in product(FIRST_NAMES, LAST_NAMES)]
    keys = rng.sample(range(10_000, 100_000), DOCS)
    return [
        Needle(
            f"{name}'s pass key is {key}. Remember it. {key} is the pass key for {name}.",
            f"what is the passkey for {name}?",
        )
        for name, key in zip(rng.sample(people, DOCS), keys, strict=True)
    ]


def _facts(rng: KeyedRng) -> list[Needle]:
    towns = rng.sample(["".join(pair) for pair in product(*TOWNS)], DOCS)
    facts = [(fact, question, thing) for fact, question, things in FACTS for thing in things]
    return [
        Needle(fact.format(town=town, thing=thing), question.format(town=town))
        for town, (fact, question, thing) in zip(towns, rng.sample(facts, DOCS), strict=True)
    ]


def essay(seed: int) -> Iterator[str]:
    """Yield the sentences of an endless essay, which depends only on the seed."""
    rng = KeyedRng("essay", seed)
    while True:
        a, b = rng.sample(_SUBJECTS, 2)
        text = rng.choice(_FRAMES).format(a=a, b=b)
        yield text[0].upper() + text[1:]
