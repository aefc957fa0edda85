"""pool x unit x window: which tokens the model reads together, and which vector each of them enters."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmkcli.pooling.chunks import Windows
from lmkcli.pooling.placement import Expansion, Input, Placement, Placer
from lmkcli.pooling.table import CLS as FIRST_STATE
from lmkcli.pooling.table import LAST, LMK, MEAN, MODEL, MULTICLS, Pooler, SpecialTokens, every_kth
from lmkcli.spec.values import Window
from lmkcli.store.token_blocks import Ints
from tests.pooling import texts
from tests.pooling.texts import Text, text_of

CLS, SEP, FIRST = 1, 2, 1000  # content ids are FIRST, FIRST + 1, …; so an id shows its position
LAYOUT = SpecialTokens((CLS,), (SEP,), CLS, SEP, SEP)
NONE = np.zeros(0, np.int32)
POOLERS = {"mean": MEAN, "lmk": LMK, "multicls": MULTICLS}
WHOLE = {"cls": FIRST_STATE, "last": LAST, "model": MODEL, "mean@k": every_kth(3)}


class Case(NamedTuple):
    """A placer, its content, and whether every chunk fits into a window."""

    placer: Placer
    content: Text
    fits: bool

    @property
    def made(self) -> Placement:
        return texts.place(self.placer, self.content)


def rising(length: int) -> Ints:
    return np.arange(FIRST, FIRST + length, dtype=np.int32)


@st.composite
def cases(draw: st.DrawFn, units: tuple[str, ...] = ("doc", "chunk", "token")) -> Case:
    unit = draw(st.sampled_from(units))
    names = ["mean"] if unit == "token" else list(POOLERS)
    pooler = POOLERS[draw(st.sampled_from(names))]
    length = draw(st.integers(0, 90))
    limit = draw(st.integers(6, 40))
    window = draw(st.sampled_from(["chunk", str(limit), f"even:{limit}"]))
    chunks = st.integers(0, 12).map("{}c".format)
    overlap = draw(st.integers(0, limit - 1) | chunks) if window.isdigit() else 0
    prompt = np.arange(500, 500 + draw(st.sampled_from([0, 0, 2])), dtype=np.int32)
    gran = draw(st.sampled_from(["1", "3", "7", "20", "given", "sentence"]))
    ends = None
    if not gran.isdigit():
        least = 0 if gran == "given" else 1  # given chunks may be empty
        sizes = draw(st.lists(st.integers(least, 12), min_size=1, max_size=15))
        ends = np.cumsum(sizes).astype(np.int32)
        length = int(ends[-1])
    placer = Placer(pooler, LAYOUT, limit, gran, draw(st.booleans()), unit, window, overlap)
    content = text_of(placer, rising(length), prompt, ends)
    longest = int(np.diff(content.ends, prepend=0).max())
    return Case(placer, content, longest + len(prompt) + 3 <= limit)


def repeated(case: Case, fresh: int) -> int:
    """Return how many tokens a window may repeat before its first new chunk, number `fresh`."""
    overlap = case.placer.overlap
    if not overlap.chunks:
        return overlap.tokens
    starts = [0, *map(int, case.content.ends)]
    return starts[fresh] - starts[max(fresh - overlap.chunks, 0)]


def windows(placer: Placer, text: Text) -> list[tuple[int, ...]]:
    """Return first, fresh and stop of each window of a text."""
    made: Windows = placer.windows(text.block, placer.chunks(text.block))
    return list(zip(*(each.tolist() for each in made[1:]), strict=True))


def tokens(one: Input) -> list[int]:
    """Return the content tokens of an input, by their positions in the text."""
    return [int(i) - FIRST for i in one.ids if i >= FIRST]


@given(cases())
def test_inputs_are_within_the_limit_and_vectors_are_numbered_in_order(case: Case) -> None:
    made = case.made
    numbers: list[int] = []
    for one in made.inputs:
        assert 1 <= len(one.ids) <= case.placer.limit
        assert (np.diff(one.marks) > 0).all()
        assert {a.dtype for a in (one.ids, one.marks, one.groups)} == {np.dtype(np.int32)}
        numbers += sorted(set(one.groups.tolist()))
        assert (np.diff(one.groups) >= 0).all()
    assert numbers == list(range(made.vectors))  # each vector comes from one input
    assert made.vectors >= 1


@settings(max_examples=4 * settings().max_examples)
@given(cases())
def test_the_whole_text_is_read_in_order(case: Case) -> None:
    """A window starts at the end of the one before, minus the overlap. Nothing is lost if all chunks fit."""
    made = case.made
    fresh = chunk = 0
    for one, window in zip(made.inputs, windows(case.placer, case.content), strict=True):
        assert window[1] == chunk  # empty chunks have no tokens, so they are counted here
        assert window[0] == window[1] or case.placer.overlap
        chunk = window[2]
        seen = tokens(one)
        if not seen:
            continue
        assert seen == list(range(seen[0], seen[0] + len(seen)))
        assert fresh - repeated(case, window[1]) <= seen[0]
        if case.fits:
            assert seen[0] <= fresh
        fresh = max(fresh, seen[-1] + 1)
    assert chunk == len(case.content.ends)
    if case.fits:
        assert fresh == made.kept == len(case.content.ids)


def test_windows_without_an_overlap_repeat_no_empty_chunks() -> None:
    placer = Placer(MEAN, LAYOUT, 6, "given", False, window="6")
    content = text_of(placer, rising(1), NONE, np.array([0, 0, 0, 0, 1, 1]))
    assert windows(placer, content) == [(0, 0, 4), (4, 4, 6)]


@given(cases())
def test_windows_contain_whole_chunks(case: Case) -> None:
    if not case.fits:
        return
    bounds = {0, *case.content.ends.tolist()}
    for one in case.made.inputs:
        seen = tokens(one)
        assert not seen or {seen[0], seen[-1] + 1} <= bounds


@given(cases())
def test_a_window_contains_as_many_chunks_as_fit(case: Case) -> None:
    if case.placer.window == "chunk" or case.placer.window.even or not case.fits:
        return
    sizes = np.diff(case.content.ends, prepend=0)
    inputs = case.made.inputs
    for one in inputs[:-1]:
        seen = tokens(one)
        if not seen:
            continue
        later = [n for n, end in enumerate(case.content.ends) if end > seen[-1] + 1]
        extra = int(case.placer.pooler.chunked or case.content.separated)
        if later and 0 not in sizes:
            assert len(one.ids) + sizes[later[0]] + extra > case.placer.limit


@given(cases())
def test_even_windows_are_as_few_and_about_equally_long(case: Case) -> None:
    placer = case.placer
    if not placer.window.even:
        return
    plain = texts.place(replace(placer, window=Window(str(placer.limit))), case.content)
    assert len(case.made.inputs) == len(plain.inputs)
    lengths = [len(one.ids) for one in case.made.inputs]
    if placer.gran == "1" and case.fits:  # a chunk takes up to two positions
        assert max(lengths) - min(lengths) <= 1 + placer.pooler.chunked


def test_a_short_last_window_gets_its_share() -> None:
    def lengths(window: str, gran: str = "1", ends: list[int] | None = None) -> list[int]:
        placer = Placer(MEAN, LAYOUT, 22, gran, False, window=window)  # CLS, 20 tokens, SEP
        content = text_of(placer, rising(46), NONE, None if ends is None else np.array(ends))
        return [len(tokens(one)) for one in texts.place(placer, content).inputs]

    assert lengths("22") == [20, 20, 6]
    assert lengths("even:22") == [15, 16, 15]
    # windows contain whole chunks
    assert lengths("even:22", "10") == [20, 10, 16]
    assert lengths("even:22", "9") == [18, 18, 10]
    sentences = [19, 22, 25, 28, 46]  # of 19, 3, 3, 3 and 18 tokens
    assert lengths("22", "sentence", sentences) == [19, 9, 18]
    assert lengths("even:22", "sentence", sentences) == [19, 9, 18]  # the rest would not fit
    assert lengths("even:22", "sentence", [3, 19, 25, 28, 46]) == [19, 9, 18]


@given(cases(("chunk",)))
def test_every_chunk_has_one_vector_of_its_own_tokens(case: Case) -> None:
    made = case.made
    starts = [0, *case.content.ends[:-1].tolist()]
    chunks = list(zip(starts, case.content.ends.tolist(), strict=True))
    if case.fits:
        assert made.covers.tolist() == [list(chunk) for chunk in chunks]
        assert made.vectors == len(chunks)
    for one in made.inputs:
        for mark, group in zip(one.marks.tolist(), one.groups.tolist(), strict=True):
            token = int(one.ids[mark]) - FIRST
            if token >= 0 and case.placer.pooler == POOLERS["mean"]:
                start, stop = chunks[group]
                assert start <= token < stop


@given(cases(("chunk",)))
def test_chunks_follow_each_other(case: Case) -> None:
    made = case.made
    assert (made.covers[:, 0] <= made.covers[:, 1]).all()
    assert (made.covers[1:, 0] >= made.covers[:-1, 1]).all()
    assert made.kept == np.diff(made.covers, axis=1).sum()


@given(cases(("token",)))
def test_every_token_has_one_vector(case: Case) -> None:
    marked = [
        int(one.ids[mark]) - FIRST
        for one in case.made.inputs
        for mark in one.marks
        if one.ids[mark] >= FIRST
    ]
    if case.fits:
        assert marked == list(range(len(case.content.ids)))


def place(pooler: Pooler, ends: list[int], *how: object) -> Placement:
    placer = Placer(pooler, LAYOUT, 32, "given", False, *how)  # type: ignore[arg-type]
    return texts.place(placer, text_of(placer, rising(ends[-1]), NONE, np.array(ends, np.int32)))


def test_late_chunking_with_the_layout_of_conteb() -> None:
    """[CLS] c0 [SEP] c1 [SEP]: CLS belongs to chunk 0, separators to none (arXiv 2505.24782 §4.1)."""
    [one] = place(MEAN, [2, 5], "chunk").inputs
    assert one.ids.tolist() == [CLS, 1000, 1001, SEP, 1002, 1003, 1004, SEP]
    assert one.marks.tolist() == [0, 1, 2, 4, 5, 6]
    assert one.groups.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_prompt_and_its_cls_are_not_in_the_first_chunk() -> None:
    placer = Placer(MEAN, LAYOUT, 32, "given", False, "chunk")
    prompt = np.array([500, 501], np.int32)
    [one] = texts.place(
        placer, text_of(placer, rising(4), prompt, np.array([2, 4], np.int32))
    ).inputs
    assert one.marks.tolist() == [3, 4, 6, 7]
    assert one.groups.tolist() == [0, 0, 1, 1]


def test_an_empty_chunk_is_its_separator() -> None:
    made = place(MEAN, [2, 2, 5], "chunk")
    assert made.inputs[0].ids.tolist() == [CLS, 1000, 1001, SEP, SEP, 1002, 1003, 1004, SEP]
    assert made.inputs[0].groups.tolist() == [0, 0, 0, 1, 2, 2, 2]
    assert made.covers.tolist() == [[0, 2], [2, 2], [2, 5]]


def test_landmarks_replace_separators() -> None:
    [one] = place(LMK, [2, 5], "chunk").inputs
    assert one.ids.tolist() == [CLS, 1000, 1001, SEP, 1002, 1003, 1004, SEP]
    assert one.marks.tolist() == [3, 7]


@pytest.mark.parametrize("name", WHOLE)
def test_a_separate_chunk_is_placed_like_a_text(name: str) -> None:
    made = place(WHOLE[name], [2, 5], "chunk", "chunk")  # type: ignore[arg-type]
    alone = [place(WHOLE[name], [end]) for end in (2, 3)]  # type: ignore[arg-type]
    for one, text in zip(made.inputs, alone, strict=True):
        assert one.marks.tolist() == text.inputs[0].marks.tolist()
        assert len(one.ids) == len(text.inputs[0].ids)
    assert made.vectors == 2


def test_each_window_of_a_document_makes_a_vector() -> None:
    """The mean of these vectors is that of the document; repeated tokens count in both."""
    placer = Placer(MEAN, LAYOUT, 6, "", True, "doc", "6", 2)
    made = texts.place(placer, text_of(placer, rising(8), NONE, None))
    assert [tokens(one) for one in made.inputs] == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7]]
    assert [one.groups.tolist() for one in made.inputs] == [[0] * 6, [1] * 6, [2] * 6]
    assert (made.vectors, made.kept) == (3, 8)


def test_a_repeated_chunk_makes_one_vector() -> None:
    placer = Placer(MEAN, LAYOUT, 8, "2", True, "chunk", "8", 2)
    made = texts.place(placer, text_of(placer, rising(10), NONE, None))
    assert [tokens(one) for one in made.inputs] == [list(range(6)), list(range(4, 10))]
    assert [one.groups.tolist() for one in made.inputs][1] == [3, 3, 4, 4]
    assert made.covers.tolist() == [[0, 2], [2, 4], [4, 6], [6, 8], [8, 10]]


def test_a_chunk_longer_than_its_window_is_cut_and_counted() -> None:
    placer = Placer(MEAN, LAYOUT, 6, "sentence", True, "chunk", "6")
    ends = np.array([2, 9, 11], np.int32)
    made = texts.place(placer, text_of(placer, rising(11), NONE, ends))
    assert made.covers.tolist() == [[0, 2], [2, 6], [9, 11]]
    assert made.kept == 8


def test_a_cut_chunk_without_its_landmark_is_the_mean_of_its_tokens() -> None:
    placer = Placer(LMK, LAYOUT, 6, "sentence", True, "chunk", "6")
    made = texts.place(placer, text_of(placer, rising(9), NONE, np.array([9], np.int32)))
    assert made.inputs[0].marks.tolist() == list(range(6))
    assert made.covers.tolist() == [[0, 5]]


def test_skipped_tokens_make_no_vector() -> None:
    placer = Placer(MEAN, LAYOUT, 16, "", True, "token", skip=frozenset({1001}))
    made = texts.place(placer, text_of(placer, rising(3), NONE, None))
    assert made.inputs[0].marks.tolist() == [0, 1, 3, 4]
    assert made.vectors == 4


@pytest.mark.parametrize(("attended", "seen"), [(False, 5), (True, 8)])
def test_an_expanded_query_is_filled_and_scored(attended: bool, seen: int) -> None:
    placer = Placer(MEAN, LAYOUT, 8, "", True, "token", expansion=Expansion(9, attended))
    [one] = texts.place(placer, text_of(placer, rising(3), NONE, None)).inputs
    assert one.ids.tolist() == [CLS, 1000, 1001, 1002, SEP, 9, 9, 9]
    assert one.groups.tolist() == list(range(8))
    assert one.attended == seen


def test_an_empty_text_without_special_tokens_has_a_vector() -> None:
    """An empty text then reads one token of the vocabulary; with TITE it has no input, and a zero vector."""
    for pooler, read in ((MEAN, [CLS]), (MODEL, [])):
        placer = Placer(pooler, SpecialTokens(cls=CLS, landmark=SEP), 8, "", True)
        made = texts.place(placer, text_of(placer, NONE, NONE, None))
        assert [one.ids.tolist() for one in made.inputs] == [read]
        assert made.vectors == 1


def test_m2bert_also_cuts_the_suffix() -> None:
    placer = Placer(MODEL, LAYOUT._replace(cuts_suffix=True), 5, "", True)
    long, short = (texts.place(placer, text_of(placer, rising(n), NONE, None)) for n in (6, 3))
    assert long.inputs[0].ids.tolist() == [CLS, 1000, 1001, 1002, 1003]
    assert long.kept == 4
    assert short.inputs[0].ids.tolist() == [CLS, 1000, 1001, 1002, SEP]


@given(cases(("chunk",)))
def test_windows_repeat_the_last_chunks_but_each_chunk_makes_one_vector(
    case: Case,
) -> None:
    overlap = case.placer.overlap
    sizes = np.diff(case.content.ends, prepend=0)
    if not overlap.chunks or not case.fits or 0 in sizes:
        return
    made, owners = case.made, np.repeat(np.arange(len(sizes)), sizes)
    assert [end for _, end in made.covers] == case.content.ends.tolist()  # each chunk once
    extra = int(case.placer.pooler.chunked or case.content.separated)
    fresh = 0
    for one in made.inputs:
        seen = sorted({int(owners[token]) for token in tokens(one)})
        overlapping = [chunk for chunk in seen if chunk < fresh]
        assert overlapping == list(range(fresh - len(overlapping), fresh))
        assert len(overlapping) <= overlap.chunks
        if len(overlapping) < min(overlap.chunks, fresh):  # one more would not fit
            longer = sizes[fresh - len(overlapping) - 1 : fresh + 1] + extra
            other = case.placer.pooler.reserved(LAYOUT) + len(case.content.prompt)
            assert longer.sum() + other - (case.content.separated) > case.placer.limit
        fresh = seen[-1] + 1
