"""Drawing: the right passages, the same ones everywhere, and no false negative among them."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmkcli.errors import DataError
from lmkcli.training.data.batches import pair_facts
from lmkcli.training.data.examples import Example, Examples, ScoredText
from lmkcli.training.data.sampling import Drawing, Drawn


def passages(texts: str) -> tuple[ScoredText, ...]:
    return tuple(ScoredText(text, float(ord(text))) for text in texts)


def pack(*rows: tuple[str, str, str]) -> Examples:
    """Examples of one source: query, positives and negatives, a letter each."""
    return Examples.gather(
        [[Example(str(i), q, passages(p), passages(n)) for i, (q, p, n) in enumerate(rows)]]
    )


def letters(examples: Examples, drawn: Drawn) -> str:
    return "".join(examples.text(row) for row in drawn.passages)


def test_a_positive_comes_first_and_negatives_are_different_ones() -> None:
    examples = pack(("q", "ab", "uvwxyz"))
    seen = Counter[str]()
    for epoch in range(200):
        drawn = Drawing(negatives=3).draw(examples, 0, epoch, seed=1)
        first, *rest = letters(examples, drawn)
        assert first in "ab"
        assert len({*rest} & {*"uvwxyz"}) == 3
        assert [chr(int(score)) for score in drawn.scores] == [first, *rest]
        seen.update([first, *rest])
    assert all(seen[letter] > 70 for letter in "ab")
    assert all(seen[letter] > 60 for letter in "uvwxyz")


def test_a_draw_depends_on_seed_epoch_and_example_alone() -> None:
    examples = pack(*[(f"q{i}", "a", "bcdefghijklmnop") for i in range(3)])
    plan = [(number, epoch, seed) for number in range(3) for epoch in range(3) for seed in range(3)]
    drawn = {key: letters(examples, Drawing(4).draw(examples, *key)) for key in plan}
    assert {key: letters(examples, Drawing(4).draw(examples, *key)) for key in plan[::-1]} == drawn
    assert len(set(drawn.values())) > 20


def test_few_negatives_are_all_taken_or_repeated() -> None:
    examples = pack(("q", "ab", "xy"), ("r", "a", ""))
    assert sorted(letters(examples, Drawing(5).draw(examples, 0, 0, 0))[1:]) == ["x", "y"]
    again = letters(examples, Drawing(5, replace=True).draw(examples, 0, 0, 0))
    assert len(again) == 6
    assert set(again[1:]) <= {"x", "y"}
    assert letters(examples, Drawing(5, replace=True).draw(examples, 1, 0, 0)) == "a"


def test_the_first_positive_can_be_asked_for() -> None:
    examples = pack(("q", "abc", ""))
    drawing = Drawing(positive="first")
    assert {letters(examples, drawing.draw(examples, 0, epoch, 0)) for epoch in range(20)} == {"a"}


def test_the_best_of_all_drawn_passages_is_the_positive() -> None:
    """TITE, §4.1 and §3.4: some of a query's passages, and the one with the highest score is the positive."""
    examples = pack(("q", "m", "uvwxabc"))  # the score of a letter is its number
    drawn = [
        letters(examples, Drawing(3, positive="best").draw(examples, 0, n, 1)) for n in range(300)
    ]
    assert {len(set(each)) for each in drawn} == {4}
    assert all(each[0] == max(each) for each in drawn)
    counts = Counter("".join(drawn))
    assert all(120 < counts[letter] < 180 for letter in "muvwxabc")  # all alike, half of the draws
    few = Drawing(9, positive="best").draw(examples, 0, 0, 0)
    assert sorted(letters(examples, few)) == sorted("muvwxabc")
    assert [chr(int(score)) for score in few.scores] == [*letters(examples, few)]
    bare = ScoredText("a", math.nan)
    unscored = Examples.gather([[Example("0", "q", (bare,), ())]])
    with pytest.raises(DataError, match="positive=best needs teacher scores"):
        Drawing(positive="best").draw(unscored, 0, 0, 0)


ROWS = st.lists(
    st.tuples(st.sampled_from("QRSTU"), st.text("abcd", min_size=1, max_size=2), st.text("abcdef")),
    min_size=1,
    max_size=6,
)


@settings(deadline=None)
@given(ROWS, st.integers(0, 3))
def test_facts_are_what_plain_loops_find(rows: list[tuple[str, str, str]], epoch: int) -> None:
    examples = pack(*rows)
    drawn = [Drawing(3).draw(examples, number, epoch, 5) for number in range(len(rows))]
    found = pair_facts(examples, drawn)
    columns = [(q, letter) for q, each in enumerate(drawn) for letter in letters(examples, each)]
    assert found.excluded is not None
    assert found.teacher is not None
    for q, (query, _, _) in enumerate(rows):
        answers = {letter for other, positives, _ in rows if other == query for letter in positives}
        own = set(letters(examples, drawn[q]))
        for column, (owner, letter) in enumerate(columns):
            before = any(text == letter for _, text in columns[:column])
            assert bool(found.excluded[q, column]) == (
                owner != q and (letter in answers | own or before)
            )
        mine = [row for row in found.groups[q].tolist() if row >= 0]
        assert [columns[row] for row in mine] == [(q, x) for x in letters(examples, drawn[q])]
        scores = found.teacher[q].tolist()
        assert scores[: len(mine)] == drawn[q].scores.tolist()
        assert all(math.isnan(score) for score in scores[len(mine) :])


def test_facts_without_a_teacher_have_none() -> None:
    examples = Examples.gather([[Example("0", "q", (ScoredText("a"),))]])
    assert pair_facts(examples, [Drawing().draw(examples, 0, 0, 0)]).teacher is None


@pytest.mark.parametrize("count", [1, 7, 64])
def test_facts_hold_for_gathered_slices(count: int) -> None:
    """Passages of slices, one slice after the other, are the passages of the batch."""
    rows = [(f"q{i}", chr(200 + i), "xyz"[: i % 4]) for i in range(64)]
    examples = pack(*rows)
    drawn = [Drawing(2).draw(examples, number, 0, 0) for number in range(64)]
    cut = [drawn[i : i + count] for i in range(0, 64, count)]
    gathered = np.concatenate([np.concatenate([one.passages for one in part]) for part in cut])
    groups = pair_facts(examples, drawn).groups.numpy()
    for one, group in zip(drawn, groups, strict=True):
        assert gathered[group[group >= 0]].tolist() == one.passages.tolist()
