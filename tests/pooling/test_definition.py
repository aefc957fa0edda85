"""Placement of blocks equals its definition in plain loops over chunks and tokens, for all poolers."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmkcli import catalog
from lmkcli.encoding.resolution import open_pooler
from lmkcli.errors import UsageError
from lmkcli.pooling.placement import Expansion, Placer
from lmkcli.pooling.table import LMK, Pooler, SpecialTokens
from lmkcli.store.token_blocks import TextTokens, TokenBlock

CLS, SEP, SEPARATOR = 1, 2, 3
SPECIAL = [
    SpecialTokens((CLS,), (SEP,), CLS, SEP, SEPARATOR),
    SpecialTokens((CLS, 8), (9, SEP), CLS, SEP, SEPARATOR),
    SpecialTokens((CLS,), (SEP,), CLS, SEP, SEPARATOR, cuts_suffix=True),
    SpecialTokens((CLS,), (), CLS, SEP),
    SpecialTokens((), (), CLS, SEP, SEPARATOR),
]
POOLERS = [open_pooler(name.replace("@k", "@3")) for name in catalog.POOLERS] + [
    LMK.for_training(),
    Pooler("head@2", "first", 2),
    Pooler("tail@3", "last", 3),
    Pooler("both", "inserted", before="cls", after="landmark"),
]


class Position(NamedTuple):
    """A position of an input. owner: the chunk of its text, or None; content: whether it is content."""

    token: int
    owner: int | None
    content: bool = False
    inserted: bool = False


class Wanted(NamedTuple):
    """The inputs of a text as ids, marks and the key of each mark's vector; its vectors and kept tokens."""

    inputs: list[tuple[list[int], list[int], list[object]]]
    keys: list[object]
    kept: int


def input_of(
    placer: Placer, text: TextTokens, bounds: list[tuple[int, int]], window: tuple[int, int, int]
) -> tuple[list[Position], int]:
    """The positions of one window, and how many of them precede the content."""
    pooler, special = placer.pooler, placer.special
    first, _, stop = window
    prefix = [Position(token, first) for token in (special.prefix if pooler.prefix else ())]
    suffix = [Position(token, None) for token in (special.suffix if pooler.suffix else ())]
    prompt = [Position(token, first) for token in text.prompt.tolist()]
    separated = placer.gran == "given" and text.ends is not None and not pooler.chunked
    body: list[Position] = [] if pooler.before else [*prompt]
    for chunk in range(first, stop):
        start, end = bounds[chunk]
        if pooler.before:
            body.append(Position(getattr(special, pooler.before), chunk, inserted=True))
            body += prompt if chunk == first else []
        body += [Position(token, chunk, content=True) for token in text.ids[start:end].tolist()]
        if pooler.after:
            body.append(Position(getattr(special, pooler.after), chunk, inserted=True))
        if separated and special.separator is not None and chunk < stop - 1:
            body.append(Position(special.separator, chunk if start == end else None))
    size = placer.limit - len(prefix) - (0 if special.cuts_suffix else len(suffix))
    if bounds[stop - 1][0] == bounds[stop - 1][1] and len(body) <= size and suffix:
        suffix[0] = suffix[0]._replace(owner=stop - 1)
    positions = [*prefix, *body[:size], *suffix][: placer.limit]
    if not positions and pooler.marked != "model":
        positions = [Position(special.landmark if special.cls is None else special.cls, first)]
    hides = bool(prompt) and not placer.include_prompt
    return positions, (len(special.prefix) + len(prompt)) * hides


def marks_of(pooler: Pooler, positions: list[Position], hidden: int) -> list[int]:
    every = range(len(positions))
    if pooler.marked == "model":
        return [0]
    if pooler.marked == "first":
        return [i for i in every if i >= hidden][: pooler.k] or list(every)[: pooler.k] or [0]
    if pooler.marked == "last":
        return list(every)[-pooler.k :]
    marks = [i for i in every if positions[i].inserted]
    if pooler.marked == "every" or not marks:
        steps = list(every)[:: pooler.k]
        marks = [i for i in steps if i >= hidden] or steps
    return marks


def token_marks(
    placer: Placer, positions: list[Position], owners: dict[int, int | None], fresh: int
) -> list[int]:
    """The marks of a window that have a vector of their own; chunks before `fresh` are in another window."""
    counted = [
        mark
        for mark, owner in owners.items()
        if (not placer.by_chunk if owner is None else owner >= fresh)
    ]
    kept = [mark for mark in counted if positions[mark].token not in placer.skip]
    if not placer.by_chunk:
        return kept
    some = {owners[mark] for mark in kept}  # a chunk of skipped tokens only keeps them
    return [mark for mark in counted if mark in kept or owners[mark] not in some]


def wanted(placer: Placer, text: TextTokens) -> Wanted:
    block = TokenBlock.one(text.ids, text.prompt, text.ends)
    chunks = placer.chunks(block)
    bounds = list(zip(chunks.starts.tolist(), chunks.ends.tolist(), strict=True))
    windows = list(zip(*(each.tolist() for each in placer.windows(block, chunks)[1:]), strict=True))
    found = Wanted([], [], 0)
    for number, window in enumerate(windows):
        positions, hidden = input_of(placer, text, bounds, window)
        marks = marks_of(placer.pooler, positions, hidden)
        fixed = placer.pooler.marked in ("first", "last", "model")
        lost = placer.pooler.marked == "inserted" and not any(one.inserted for one in positions)
        if lost and placer.pooler.forced:
            positions[-1] = Position(SEP, window[0], inserted=True)
            marks = [len(positions) - 1]
        owners = {
            mark: None if fixed or (lost and not placer.pooler.forced) else positions[mark].owner
            for mark in marks
            if mark < len(positions)
        } or {0: None}
        if placer.window == "chunk" or (
            window[2] - window[0] == 1 and all(owner is None for owner in owners.values())
        ):
            owners = dict.fromkeys(owners, window[0])
        if placer.expansion is not None:
            filled = placer.limit - len(positions)
            alone = window[0] if placer.window == "chunk" else None
            owners |= dict.fromkeys(range(len(positions), placer.limit), alone)
            positions += [Position(placer.expansion.token, None)] * filled
        keys: dict[int, object] = dict.fromkeys(owners, number)
        if placer.unit == "chunk":
            keys = {m: c for m, c in owners.items() if c is not None and c >= window[1]}
        elif placer.unit == "token":
            keys = {
                mark: (number, mark) for mark in token_marks(placer, positions, owners, window[1])
            }
        seen = sum(one.content for one in positions)
        fresh = bounds[window[0]][0] + seen - bounds[window[1]][0]
        if placer.unit == "chunk":
            owned = set(keys.values())
            fresh = sum(one.content and one.owner in owned for one in positions)
        ids = [one.token for one in positions]
        found.inputs.append((ids, list(keys), list(keys.values())))
        found.keys.extend(dict.fromkeys(keys.values()))
        found = found._replace(kept=found.kept + max(fresh, 0))
    if found.keys:
        return found
    positions, hidden = input_of(placer, text, bounds, (0, 0, len(bounds)))
    marks = marks_of(placer.pooler, positions, hidden)
    ids = [one.token for one in positions]
    kept = sum(one.content for one in positions)
    if placer.pooler.forced and not any(one.inserted for one in positions):
        marks, kept = [len(ids) - 1], kept - positions[-1].content
        ids[-1] = SEP
    return Wanted([(ids, marks, ["all"] * len(marks))], ["all"], kept)


@st.composite
def texts_of(draw: st.DrawFn, gran: str, limit: int) -> list[TextTokens]:
    """Texts of 0 to 60 tokens with prompts of different lengths, and the chunks of a splitter."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    prompts = draw(st.sampled_from([(0,), (0,), (2,), (0, 2, 9)]))
    most = draw(st.sampled_from([3, 20, 60]))
    texts = []
    for _ in range(draw(st.integers(1, 6))):
        length = int(rng.integers(0, most + 1))
        ids = rng.integers(10, 16, length).astype(np.int32)  # few ids: some are in `skip`
        ends = None
        if gran in ("given", "sentence"):
            least = 0 if gran == "given" else 1  # given chunks may be empty
            cuts = rng.integers(least, max(length, least + 1), int(rng.integers(0, 6)))
            ends = np.sort(np.append(cuts[cuts < length + (not least)], length)).astype(np.int32)
            ends = np.unique(ends) if least else ends
            ends = ends[ends > 0] if least else ends  # no sentence: no ends
        prompt = min(int(rng.choice(prompts)), limit - 5)
        prompt_ids = rng.integers(100, 110, max(prompt, 0)).astype(np.int32)
        texts.append(TextTokens(ids, np.zeros((length, 2), np.int32), prompt_ids, ends))
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
        draw(st.sampled_from(SPECIAL)) if not pooler.needs_prefix else SPECIAL[0],
        limit,
        gran,  # type: ignore[arg-type]
        include_prompt=draw(st.booleans()),
        unit=unit,
        window=window,  # type: ignore[arg-type]
        overlap=overlap,  # type: ignore[arg-type]
        skip=frozenset(draw(st.sampled_from([(), (11,), (CLS, SEP, 10, 12)]))),
        # only queries have an expansion, and they have no given chunks
        expansion=(
            Expansion(7, True)
            if unit == "token" and gran != "given" and draw(st.booleans())
            else None
        ),
        prompt_in_chunks=gran == "30" and draw(st.booleans()),
    )
    return placer, draw(texts_of(gran, limit))


@settings(max_examples=400)
@given(cases())
def test_a_block_is_placed_as_the_definition_says(case: tuple[Placer, list[TextTokens]]) -> None:
    placer, texts = case
    block = placer.place(TokenBlock.of(texts))
    for text, made in zip(texts, block.split(), strict=True):
        expected = wanted(placer, text)
        numbers = {key: number for number, key in enumerate(expected.keys)}
        for one, (ids, marks, keys) in zip(made.inputs, expected.inputs, strict=True):
            assert one.ids.tolist() == ids
            assert one.marks.tolist() == marks
            assert one.groups.tolist() == [numbers[key] for key in keys]
            assert {one.ids.dtype, one.marks.dtype, one.groups.dtype} == {np.dtype(np.int32)}
        assert made.vectors == len(expected.keys)
        assert made.kept == expected.kept
        if placer.unit == "chunk":
            assert np.diff(made.covers, axis=1).sum() == made.kept
        if placer.by_chunk:
            assert len(made.covers) == made.vectors
            assert (np.diff(made.covers[:, 0]) >= 0).all()


@settings(max_examples=200)
@given(cases())
def test_a_text_has_the_same_inputs_in_every_block(case: tuple[Placer, list[TextTokens]]) -> None:
    placer, texts = case
    block = placer.place(TokenBlock.of(texts))
    alone = [placer.place_text(text.ids, text.prompt, text.ends) for text in texts]
    for one, other in zip(block.split(), alone, strict=True):
        for a, b in zip(one.inputs, other.inputs, strict=True):
            assert all(np.array_equal(x, y) for x, y in zip(a[:3], b[:3], strict=True))
            assert (a.attended, a.positions) == (b.attended, b.positions)
        assert one.covers.tolist() == other.covers.tolist()
        assert (one.vectors, one.kept, one.context) == (other.vectors, other.kept, other.context)


@pytest.mark.parametrize("window", ["full", "chunk", "20", "even:20"])
@pytest.mark.parametrize("pooler", POOLERS, ids=lambda row: row.name)
def test_a_block_without_texts_has_no_inputs(pooler: Pooler, window: str) -> None:
    placer = Placer(pooler, SPECIAL[0], 20, "4", True, unit="chunk", window=window)  # type: ignore[arg-type]
    placed = placer.place(TokenBlock.of([]))
    assert placed.inputs == placed.split() == []
    assert placed.covers.shape == (0, 2)


def test_a_prompt_that_is_longer_than_its_chunk_is_refused() -> None:
    ids = np.zeros(3, np.int32)
    placer = Placer(LMK, SPECIAL[0], 20, "2", True, prompt_in_chunks=True)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the prompt has 3 tokens"):
        placer.place_text(ids, ids)
