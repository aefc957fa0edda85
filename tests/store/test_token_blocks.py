"""Blocks of texts in flat arrays."""

from collections.abc import Sequence

import numpy as np
import pytest

from lmkcli.store.token_blocks import Ints, TextTokens, TokenBlock


def texts(*lengths: int) -> list[TextTokens]:
    """Texts whose arrays differ in every value, with a prompt of one token if their length is odd."""
    made = []
    for number, length in enumerate(lengths):
        ids: Ints = np.arange(length, dtype=np.int32) + 100 * number
        spans = np.stack([2 * ids, 2 * ids + 1], axis=1)
        ends = np.array([length // 2, length], np.int32)
        made.append(TextTokens(ids, spans, np.full(length % 2, 7, np.int32), ends))
    return made


def as_lists(block: Sequence[TextTokens]) -> list[list[object]]:
    return [[None if each is None else each.tolist() for each in text] for text in block]


@pytest.mark.parametrize("cut", range(4))
def test_blocks_are_cut_and_joined_without_a_change(cut: int) -> None:
    made = texts(3, 0, 6)
    block = TokenBlock.of(made)
    assert as_lists(block) == as_lists(made)
    assert as_lists([block[number] for number in (0, 1, -1)]) == as_lists(made)
    first, rest = block[:cut], block[cut:]
    assert as_lists(first) + as_lists(rest) == as_lists(made)
    joined = TokenBlock.join([first, rest])
    assert as_lists(joined) == as_lists(made)
    assert joined.starts.tolist() == block.starts.tolist()
    assert joined.lengths.tolist() == [3, 0, 6]
