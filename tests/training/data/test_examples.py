"""Examples: what is left out and counted, and that packing keeps the rest as it was."""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lmkcli.training.data.examples import Example, Examples, ScoredText, Tally, cleaned


def example(query: str, *positives: str, negatives: tuple[str, ...] = ()) -> Example:
    kept = tuple(ScoredText(text, 1.0) for text in positives)
    return Example("id", query, kept, tuple(ScoredText(text) for text in negatives))


def clean(*examples: Example) -> tuple[list[Example], dict[str, int]]:
    tally = Tally()
    return list(cleaned(examples, tally)), tally.found()


def test_what_cannot_be_learned_from_is_left_out_and_counted() -> None:
    kept, found = clean(example(" ", "a"), example("q"), example("q", " \n"), example("q", "a"))
    assert kept == [example("q", "a")]
    assert found == {"read": 4, "empty_examples": 3, "empty_passages": 1}


def test_a_positive_is_no_negative_and_no_text_comes_twice() -> None:
    given = example("q", "a", "b", "a", negatives=("c", "b", "c", "", "d"))
    kept, found = clean(given)
    assert kept == [example("q", "a", "b", negatives=("c", "d"))]
    assert found == {
        "read": 1,
        "positives_among_negatives": 1,
        "repeated_passages": 2,
        "empty_passages": 1,
    }


def test_a_repeated_example_counts_once_whatever_the_order_of_its_positives() -> None:
    kept, found = clean(example("q", "a", "b"), example("q", "b", "a"), example("q", "a"))
    assert len(kept) == 2
    assert found == {"read": 3, "repeated_examples": 1}


TEXTS = st.text("abé \U0001f600", min_size=0, max_size=4)
PASSAGES = st.lists(st.tuples(TEXTS, st.sampled_from([math.nan, 0.5, -2.0])), max_size=4)
EXAMPLES = st.lists(
    st.builds(
        lambda name, query, first, positives, negatives, prompt: Example(
            name,
            query,
            tuple(ScoredText(*pair) for pair in [first, *positives]),
            tuple(ScoredText(*pair) for pair in negatives),
            prompt,
        ),
        TEXTS,
        TEXTS,
        st.tuples(TEXTS, st.just(1.0)),
        PASSAGES,
        PASSAGES,
        st.none() | TEXTS,
    ),
    min_size=1,
    max_size=5,
)


@settings(deadline=None)
@given(EXAMPLES, EXAMPLES)
def test_packing_keeps_every_example(first: list[Example], second: list[Example]) -> None:
    packed = Examples.gather([first, second])
    assert [repr(packed[i]) for i in range(len(packed))] == [repr(each) for each in first + second]
    assert packed.sources.tolist() == [0] * len(first) + [1] * len(second)
    assert len(set(packed.texts.to_pylist())) == len(packed.texts)
    longest = [max(len(p.text) for p in each.positives) for each in first + second]
    assert packed.lengths.tolist() == longest
    assert packed.scored


def test_a_text_is_held_once() -> None:
    packed = Examples.gather([[example("q", "a", negatives=("b", "a")), example("b", "q")]])
    assert packed.texts.to_pylist() == ["q", "a", "b"]
    assert packed.passages.tolist() == [1, 2, 1, 0]
    assert packed.queries.tolist() == [0, 2]


def test_the_digest_changes_with_anything_that_is_learned_from() -> None:
    packed = Examples.gather([[example("q", "a", negatives=("b",)), example("r", "c")]])
    again = Examples.gather([[example("q", "a", negatives=("b",)), example("r", "c")]])
    assert packed.digest == again.digest
    changes = [
        replace(packed, texts=pa.array(["q", "a", "B", "r", "c"], pa.large_string())),
        replace(packed, scores=np.zeros_like(packed.scores)),
        replace(packed, prompts=pa.array(["", None], pa.string())),
        replace(packed, positives=packed.positives + 1),
    ]
    assert len({packed.digest, *(each.digest for each in changes)}) == len(changes) + 1


def test_examples_without_a_teacher_are_not_scored() -> None:
    assert not Examples.gather([[Example("1", "q", (ScoredText("a"),))]]).scored
