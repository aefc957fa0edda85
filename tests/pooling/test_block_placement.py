"""Blocks: many texts placed at once are placed as each of them alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmkcli.errors import UsageError
from lmkcli.pooling.block_placement import PlacedBlock, block_arranger, place_block
from lmkcli.pooling.classic import Cls, EveryKth, Last, Mean, ModelVector
from lmkcli.pooling.landmark import Landmark, MultiCls
from lmkcli.pooling.placement import (
    Arrangement,
    Content,
    Expansion,
    Ints,
    Placer,
    Pooler,
    SpecialTokens,
    plain,
)
from lmkcli.spec.values import Granularity
from lmkcli.store.token_blocks import TextTokens, TokenBlock

CLS, SEP = 1, 2
SPECIAL = [
    SpecialTokens((CLS,), (SEP,), CLS, SEP, SEP),
    SpecialTokens((CLS, 3), (4, SEP), CLS, SEP, SEP),
    SpecialTokens((CLS,), (SEP,), CLS, SEP, SEP, cuts_suffix=True),
    SpecialTokens((CLS,), (), CLS, SEP, SEP),
    SpecialTokens((), (), CLS, SEP, SEP),
]


@dataclass(frozen=True)
class FirstTwo(Cls):
    """Another package's pooler: it has only `arrange`."""

    def arrange(
        self, content: Content, special: SpecialTokens, limit: int, marked_from: int
    ) -> Arrangement:
        ids, kept = plain(content, special, limit)
        marks = np.arange(min(2, max(1, len(ids))), dtype=np.int32)
        return Arrangement(ids, marks, np.zeros(len(marks), np.int32), kept)


POOLERS: list[Pooler] = [
    *(Cls(), Last(), ModelVector(), Mean(), EveryKth(3), FirstTwo()),
    *(Landmark(), Landmark(force=True), MultiCls()),
]


@st.composite
def texts_of(draw: st.DrawFn, gran: str) -> list[TextTokens]:
    """Texts of 0 to 60 tokens with prompts of different lengths, and the chunks of a splitter."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    prompts = draw(st.sampled_from([(0,), (0,), (2,), (0, 2, 9)]))
    most = draw(st.sampled_from([3, 20, 60]))
    texts = []
    for _ in range(draw(st.integers(1, 12))):
        length = int(rng.integers(0, most + 1))
        ids = rng.integers(10, 16, length).astype(np.int32)  # few ids: some are in `skip`
        ends = None
        if gran in ("given", "sentence"):
            least = 0 if gran == "given" else 1  # given chunks may be empty
            cuts = rng.integers(least, max(length, least + 1), int(rng.integers(0, 6)))
            ends = np.sort(np.append(cuts[cuts < length + (not least)], length)).astype(np.int32)
            ends = np.unique(ends) if least else ends
            ends = ends[ends > 0] if least else ends  # no sentence: no ends
        prompt = rng.integers(100, 110, int(rng.choice(prompts))).astype(np.int32)
        texts.append(TextTokens(ids, np.zeros((length, 2), np.int32), prompt, ends))
    return texts


@st.composite
def cases(draw: st.DrawFn) -> tuple[Placer, list[TextTokens]]:
    pooler = draw(st.sampled_from(POOLERS))
    gran = draw(st.sampled_from(["", "1", "4", "7", "30", "given", "sentence"]))
    if pooler.chunked and not gran:
        gran = "4"
    limit = draw(st.integers(5, 40))
    window = draw(st.sampled_from(["full", "full", "chunk", str(limit), f"even:{limit}"]))
    overlap = draw(st.sampled_from(["0", "3", "2c"])) if window.isdigit() else "0"
    unit = draw(st.sampled_from(["doc", "chunk", "token"] if pooler.per != "model" else ["doc"]))
    placer = Placer(
        pooler,
        draw(st.sampled_from(SPECIAL)) if not isinstance(pooler, Cls) else SPECIAL[0],
        limit,
        gran,  # type: ignore[arg-type]
        include_prompt=draw(st.booleans()),
        unit=unit,
        window=window,  # type: ignore[arg-type]
        overlap=overlap,  # type: ignore[arg-type]
        skip=frozenset(draw(st.sampled_from([(), (11,), (CLS, SEP, 10, 12)]))),
        expansion=Expansion(7, True) if unit == "token" and draw(st.booleans()) else None,
        prompt_in_chunks=gran == "30" and draw(st.booleans()),
    )
    return placer, draw(texts_of(gran))


def one_by_one(placer: Placer, texts: Sequence[TextTokens]) -> PlacedBlock:
    """The definition."""
    contents = [placer.content(text.ids, text.prompt, text.ends) for text in texts]
    return PlacedBlock.of([placer.place(content) for content in contents])


def check_equal(found: PlacedBlock, expected: PlacedBlock) -> None:
    assert found.texts.tolist() == expected.texts.tolist()
    for one, other in zip(found.inputs, expected.inputs, strict=True):
        for name in ("ids", "marks", "groups"):
            assert getattr(one, name).tolist() == getattr(other, name).tolist(), name
        assert one.ids.dtype == one.marks.dtype == np.int32
        assert (one.attended, one.positions) == (other.attended, None)
    assert found.vectors.tolist() == expected.vectors.tolist()
    assert found.kept.tolist() == expected.kept.tolist()
    assert found.covers.tolist() == expected.covers.tolist()


@settings(max_examples=400)
@given(cases())
def test_a_block_is_placed_as_its_texts(case: tuple[Placer, list[TextTokens]]) -> None:
    placer, texts = case
    check_equal(place_block(placer, TokenBlock.of(texts)), one_by_one(placer, texts))


@pytest.mark.parametrize("lengths", [(5, 9), (5, 0, 9), (0, 4, 60)])
@pytest.mark.parametrize("pooler", [Mean(), EveryKth(3)])
def test_texts_of_one_chunk(pooler: Pooler, lengths: tuple[int, ...]) -> None:
    """The last tokens belong to a chunk only if it is empty."""
    given = [text._replace(ends=None) for text in texts(*lengths)]
    placer = Placer(pooler, SPECIAL[1], 20, Granularity(""), True, unit="chunk")
    check_equal(place_block(placer, TokenBlock.of(given)), one_by_one(placer, given))


@pytest.mark.parametrize("pooler", POOLERS)
def test_a_subclass_that_changes_only_the_arrangement_of_one_text_keeps_it(pooler: Pooler) -> None:
    assert (block_arranger(pooler) is None) == isinstance(pooler, FirstTwo)


def test_a_prompt_that_is_longer_than_its_chunk_is_refused() -> None:
    ids = np.zeros(3, np.int32)
    text = TextTokens(ids, np.zeros((3, 2), np.int32), ids, None)
    placer = Placer(
        Landmark(),
        SPECIAL[0],
        20,
        "2",
        True,
        prompt_in_chunks=True,  # type: ignore[arg-type]
    )
    with pytest.raises(UsageError, match="the prompt has 3 tokens"):
        place_block(placer, TokenBlock.of([text]))


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
