"""Packs: every sequence once, within the budget, longest first."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lmkcli.models.packing import packs

LENGTHS = st.lists(st.integers(1, 60), max_size=50)


@given(LENGTHS, st.integers(1, 150), st.integers(1, 8), st.booleans())
def test_packs_hold_every_sequence_once_and_keep_the_budget(
    lengths: list[int], tokens: int, size: int, padded: bool
) -> None:
    made = packs(lengths, tokens, size, padded)
    assert sorted(number for pack in made for number in pack) == list(range(len(lengths)))
    assert all(1 <= len(pack) <= size for pack in made)
    assert all(len(pack) == 1 or cost(lengths, pack, padded) <= tokens for pack in made)


@given(LENGTHS, st.integers(1, 150), st.integers(1, 8), st.booleans())
def test_packs_run_from_the_longest_and_are_filled(
    lengths: list[int], tokens: int, size: int, padded: bool
) -> None:
    made = packs(lengths, tokens, size, padded)
    ordered = [number for pack in made for number in pack]
    assert [lengths[number] for number in ordered] == sorted(lengths, reverse=True)
    assert all(a < b or lengths[a] != lengths[b] for a, b in pairwise(ordered))
    for pack, after in pairwise(made):
        assert len(pack) == size or cost(lengths, [*pack, after[0]], padded) > tokens


def test_padding_counts_only_where_there_is_padding() -> None:
    assert packs([10, 2, 2, 2], 20, 9, padded=False) == [[0, 1, 2, 3]]
    assert packs([10, 2, 2, 2], 20, 9, padded=True) == [[0, 1], [2, 3]]
    assert packs([50], 20, 9, padded=True) == [[0]]


def cost(lengths: list[int], pack: list[int], padded: bool) -> int:
    inside = [lengths[number] for number in pack]
    return max(inside) * len(inside) if padded else sum(inside)
