"""Passkey and needle: sizes, positions, uniqueness, and the same texts on every machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.data.collection import CollectionDigest, doc_hash, open_collection
from lmkcli.errors import UnknownName, UsageError
from lmkcli.plugins.generated.rng import KeyedRng
from lmkcli.plugins.generated.synthetic import FILLER, LENGTHS, NAMES


def digest(name: str) -> str:
    total = CollectionDigest()
    for doc in open_collection(name).docs():
        total.add(doc_hash(doc))
    return str(total)


def needle_of(text: str) -> str:
    """The line that is not filler."""
    return next(line for line in text.split("\n") if "pass key is" in line)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", ["passkey", "needle"])
def test_documents_have_the_number_of_words_of_their_length(kind: str, length: int) -> None:
    docs = list(open_collection(f"{kind}/{length}").docs())
    assert len(docs) == len({doc.id for doc in docs}) == len({doc.text for doc in docs}) == 100
    assert {len(doc.text.split()) for doc in docs} == {length * 3 // 4}


@pytest.mark.parametrize("kind", ["passkey", "needle"])
def test_half_of_the_documents_have_a_query(kind: str) -> None:
    collection = open_collection(f"{kind}/512")
    queries, qrels = list(collection.queries()), list(collection.qrels())
    assert len(queries) == len({query.text for query in queries}) == 50
    assert [qrel.query_id for qrel in qrels] == [query.id for query in queries]
    assert {qrel.grade for qrel in qrels} == {1}
    assert {qrel.doc_id for qrel in qrels} < {doc.id for doc in collection.docs()}


def test_a_passkey_belongs_to_one_person() -> None:
    collection = open_collection("passkey/256")
    docs = {doc.id: doc.text for doc in collection.docs()}
    answers = {qrel.query_id: qrel.doc_id for qrel in collection.qrels()}
    for query in collection.queries():
        person = query.text.removeprefix("what is the passkey for ").removesuffix("?")
        assert [name for name, text in docs.items() if person in text] == [answers[query.id]]
    keys = [needle_of(text).split("pass key is ")[1][:5] for text in docs.values()]
    assert len(set(keys)) == 100
    assert all(key.isdigit() for key in keys)
    for text in docs.values():
        filler = " ".join(line for line in text.split("\n") if line != needle_of(text))
        assert " ".join(FILLER * 20).startswith(filler)


def test_a_needle_belongs_to_one_town() -> None:
    collection = open_collection("needle/256")
    docs = {doc.id: doc.text for doc in collection.docs()}
    answers = {qrel.query_id: qrel.doc_id for qrel in collection.qrels()}
    assert all(2 <= len(text.split("\n")) <= 3 for text in docs.values())
    for query in collection.queries():
        words = [word.strip("?,") for word in query.text.split()]
        towns = [word for word in words[1:] if word[0].isupper() and word != "Sunday"]
        assert len(towns) == 1
        assert [name for name, text in docs.items() if towns[0] in text] == [answers[query.id]]


@pytest.mark.parametrize("name", ["passkey/1024", "needle/1024,seed=5"])
def test_positions_count_the_words_before_the_fact(name: str) -> None:
    collection = open_collection(name)
    docs = {doc.id: doc.text for doc in collection.docs()}
    answers = {qrel.query_id: qrel.doc_id for qrel in collection.qrels()}
    positions = collection.query_metadata("position")
    assert positions.keys() == answers.keys()
    shared = docs["d00"].split("\n")[0][:20]
    for query_id, position in positions.items():
        text = docs[answers[query_id]]
        fact = " ".join(text.split()[int(position) :])
        before = " ".join(text.split()[: int(position)])
        assert not before or "\n" not in text[: len(before)]
        assert text[len(before) :].startswith("\n") or not before
        assert not fact.startswith(shared)
    assert len(set(positions.values())) > 25
    assert min(positions.values()) < 150
    assert max(positions.values()) > 600
    assert collection.query_metadata("language") == {}


def test_texts_depend_on_name_and_seed_only() -> None:
    names = ("passkey/256", "passkey/256,seed=1", "needle/256", "needle/256,seed=1", "needle/512")
    assert len({digest(name) for name in names}) == len(names)
    assert digest("needle/256") == digest("needle/256,seed=0")
    assert open_collection("needle/256,seed=1").settings == {"seed": "1"}


def test_texts_are_the_same_on_every_machine() -> None:
    """If these digests change, every score recorded so far belongs to another collection."""
    assert digest("passkey/256") == PASSKEY
    assert digest("needle/256") == NEEDLE


PASSKEY = "100:560dec5c80abd2e0bb6f90be36ea472bcf6b73e570556a6062bdf74ffccb77e9"
NEEDLE = "100:4a60674035291aa0daf4978c6feee64316650dfc6d553e4aeb30dd88b7264480"


@pytest.mark.parametrize("name", ["passkey/300", "needle/65536", "passkey/"])
def test_other_lengths_are_unknown(name: str) -> None:
    with pytest.raises(UnknownName, match="256, 512, 1024, "):
        open_collection(name)


def test_bad_options_are_refused() -> None:
    with pytest.raises(UsageError, match="seed=one: write a whole number"):
        open_collection("passkey/256,seed=one")
    with pytest.raises(UnknownName, match=r"'needle/256' 'sead'.*seed"):
        open_collection("needle/256,sead=1")
    assert len(NAMES) == 16


@given(st.integers(1, 50), st.data())
def test_samples_are_different_items_in_range(size: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, size))
    drawn = KeyedRng("test", size, k).sample(range(size), k)
    assert len(set(drawn)) == len(drawn) == k
    assert set(drawn) <= set(range(size))
    assert drawn == KeyedRng("test", size, k).sample(range(size), k)


def test_samples_are_even() -> None:
    """A chi-square of 9 degrees of freedom beyond 30 has a probability below 0.001."""
    rng = KeyedRng("even")
    counts = [0] * 10
    for _ in range(5000):
        counts[rng.below(10)] += 1
    assert sum((count - 500) ** 2 / 500 for count in counts) < 30
