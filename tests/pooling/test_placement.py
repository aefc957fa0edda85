"""Chunks, the usual input, and the errors of a Placer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.errors import UsageError
from lmkcli.pooling.placement import Placer
from lmkcli.pooling.table import MEAN, SpecialTokens
from lmkcli.spec.values import Granularity
from lmkcli.store.token_blocks import TokenBlock
from tests.pooling import texts
from tests.pooling.texts import text_of

NONE = np.zeros(0, np.int32)


def numbers(count: int, first: int = 10) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.int32)


@given(st.integers(0, 2000), st.integers(1, 2100))
def test_chunks_cover_the_text_and_only_the_last_is_shorter(length: int, size: int) -> None:
    placer = Placer(MEAN, SpecialTokens(), 8, str(size), True)
    ends = text_of(placer, numbers(length)).ends
    sizes = np.diff([0, *ends])
    assert sizes.sum() == length
    assert (sizes[:-1] == size).all()
    assert ((sizes > 0) & (sizes <= size)).all() or (length == 0 and len(sizes) == 1)


@given(st.integers(0, 30), st.integers(0, 10), st.integers(0, 2), st.integers(0, 2), st.data())
def test_the_usual_input_is_cut_before_its_suffix(
    length: int, prompt: int, before: int, after: int, data: st.DataObject
) -> None:
    limit = data.draw(st.integers(before + after + 1, 50))
    special = SpecialTokens((1,) * before, (2,) * after)
    made = Placer(MEAN, special, limit, "", True).place_text(numbers(length), numbers(prompt, 5))
    ids, kept = made.inputs[0].ids, made.kept
    whole = [1] * before + numbers(prompt, 5).tolist() + numbers(length).tolist()
    assert ids.tolist() == (whole[: limit - after] + [2] * after or [0])
    assert kept == max(min(length, limit - before - after - prompt), 0)
    assert ids.dtype == np.int32


def test_the_granularity_determines_the_chunks() -> None:
    ends = np.array([2, 6], np.int32)
    found = {}
    for gran in ("", "4", "sentence"):
        placer = Placer(MEAN, SpecialTokens(), 8, gran, True)
        found[gran] = text_of(placer, numbers(6), NONE, ends).ends.tolist()
        assert text_of(placer, NONE, NONE, NONE).ends.tolist() == [0]
        assert text_of(placer, NONE, NONE, None).ends.tolist() == [0]
    assert found == {"": [6], "4": [4, 6], "sentence": [2, 6]}


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_a_limit_without_positions_for_content_is_refused(limit: int) -> None:
    special = SpecialTokens((1,), (2,), 1, 2)
    with pytest.raises(UsageError, match=f"--max-length {limit} .* 2 positions"):
        Placer(MEAN, special, limit, "", True)
    assert Placer(MEAN, special, 3, "", True).limit == 3


@pytest.mark.parametrize(
    ("include", "prompt", "marks"),
    [(True, 2, [0, 1, 2, 3, 4, 5]), (False, 2, [3, 4, 5]), (False, 0, [0, 1, 2, 3])],
)
def test_the_prompt_is_averaged_if_the_folder_declares_it(
    include: bool, prompt: int, marks: list[int]
) -> None:
    """A prompt that is not included takes its CLS with it. Without a prompt, all positions are averaged."""
    placer = Placer(MEAN, SpecialTokens((1,), (2,), 1, 2), 16, "", include)
    [made] = texts.place(placer, text_of(placer, numbers(2), numbers(prompt, 5), None)).inputs
    assert made.marks.tolist() == marks
    assert made.groups.tolist() == [0] * len(marks)


@pytest.mark.parametrize(
    ("length", "ids"), [(8, [7, 8, 9, 10, 11, 12]), (4, [10, 11, 12]), (6, [8, 9, 10, 11, 12])]
)
def test_a_text_can_lose_its_start(length: int, ids: list[int]) -> None:
    special = SpecialTokens((1,), (), 1, 2, 2, cuts_start=True)
    placer = Placer(MEAN, special, length, Granularity(""), True)
    content, prompt = np.arange(9, 13, dtype=np.int32), np.arange(7, 9, dtype=np.int32)
    both = TokenBlock.join([TokenBlock.one(content, prompt, None)] * 2)
    assert [one.ids.tolist() for one in placer.place(both).inputs] == [[1, *ids]] * 2
