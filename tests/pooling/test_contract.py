"""The contract of all poolers of the catalog, and the token arithmetic of landmarks.

The arithmetic and the truncation table are in docs/pooling.md.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmkcli import catalog
from lmkcli.errors import UsageError
from lmkcli.pooling.placement import Placer
from lmkcli.pooling.reductions import Marks, pool
from lmkcli.pooling.table import LMK, Pooler, SpecialTokens
from tests.pooling import texts
from tests.pooling.texts import Text, text_of

CLS, SEP = 1, 2
PROMPT, CONTENT = 100, 1000  # the first ids of a prompt and of a text; the next ids are consecutive
SPECIAL_TOKENS = [
    SpecialTokens((CLS,), (SEP,), CLS, SEP),  # BERT
    SpecialTokens((CLS,), (), CLS, SEP),  # a decoder with BOS
    SpecialTokens((), (SEP,), None, SEP),  # a decoder with EOS
    SpecialTokens((), (), CLS, SEP),  # the template does not use the special tokens
    SpecialTokens((CLS, 3), (4, SEP), CLS, SEP),
]


def open_pooler(name: str) -> Pooler:
    home = catalog.POOLERS.load(name)
    return home(3) if name.endswith("@k") else home  # type: ignore[no-any-return]


POOLERS = {name: open_pooler(name) for name in catalog.POOLERS} | {"forced": LMK.for_training()}


class One(NamedTuple):
    """The only input of a text with one vector."""

    input_ids: Any
    marks: Any
    groups: Any
    kept: int


def placed(placer: Placer, content: Text) -> One:
    made = texts.place(placer, content)
    assert made.vectors == len(made.inputs) == 1
    only = made.inputs[0]
    assert only.attended == len(only.ids)
    return One(only.ids, only.marks, only.groups, made.kept)


class Case(NamedTuple):
    """A placer and the text that it places."""

    placer: Placer
    content: Text

    @property
    def hidden(self) -> int:
        """The number of first positions that must not be averaged."""
        if self.placer.include_prompt or not len(self.content.prompt):
            return 0
        return len(self.placer.special.prefix) + len(self.content.prompt)


def rising(first: int, count: int) -> Any:
    """Return `count` ids from `first` on, read-only as in a memory map."""
    ids = np.arange(first, first + count, dtype=np.int32)
    ids.flags.writeable = False
    return ids


@st.composite
def cases(draw: st.DrawFn, names: tuple[str, ...] = tuple(POOLERS)) -> Case:
    pooler = POOLERS[draw(st.sampled_from(names))]
    special = draw(
        st.sampled_from([special for special in SPECIAL_TOKENS if fits(pooler, special)])
    )
    specials = len(special.prefix) + len(special.suffix)
    limit = draw(st.integers(specials + 1, 60))
    length = draw(st.integers(0, 80))
    prompt = rising(PROMPT, draw(st.sampled_from([0, 0, 1, 4, 30])))
    if draw(st.booleans()):
        gran, ends = str(draw(st.integers(1, 90))), None
    else:
        inner = draw(st.sets(st.integers(1, max(length - 1, 1)), max_size=12))
        gran, ends = "sentence", np.array(sorted({*inner, length}), np.int32)
        ends = ends[(ends > 0) & (ends <= length)]
    placer = Placer(pooler, special, limit, gran, draw(st.booleans()))
    return Case(placer, text_of(placer, rising(CONTENT, length), prompt, ends))


def fits(pooler: Pooler, special: SpecialTokens) -> bool:
    try:
        pooler.check(special)
    except UsageError:
        return False
    return True


def contents(placement: One) -> list[int]:
    return [int(i) for i in placement.input_ids if i >= CONTENT]


@given(cases())
def test_a_placement_is_one_input_with_marks_in_it(case: Case) -> None:
    made = placed(case.placer, case.content)
    by_model = case.placer.pooler.per == "model"  # then an empty input has a vector, too
    assert (0 if by_model else 1) <= len(made.input_ids) <= case.placer.limit
    assert len(made.marks) > 0
    assert (np.diff(made.marks) > 0).all()
    assert made.marks[0] >= 0
    assert made.marks[-1] < max(1, len(made.input_ids))
    assert made.groups.tolist() == [0] * len(made.marks)
    assert {a.dtype for a in (made.input_ids, made.marks, made.groups)} == {np.dtype(np.int32)}


@given(cases())
def test_the_first_tokens_of_a_text_are_kept(case: Case) -> None:
    made = placed(case.placer, case.content)
    ids = case.content.ids.tolist()
    assert 0 <= made.kept <= len(ids)
    assert contents(made) == ids[: made.kept]
    prompt = [int(i) for i in made.input_ids if PROMPT <= i < CONTENT]
    assert prompt == case.content.prompt.tolist()[: len(prompt)]
    assert made.kept == 0 or len(prompt) == len(case.content.prompt)


@given(cases())
def test_a_text_that_fits_is_not_cut(case: Case) -> None:
    special = case.placer.special
    chunks = max(len(case.content.ends), 1)
    size = len(case.content.ids) + len(case.content.prompt) + chunks
    made = placed(case.placer, case.content)
    if size + len(special.prefix) + len(special.suffix) <= case.placer.limit:
        assert made.kept == len(case.content.ids)


@given(cases(("mean", "mean@k", "lmk")))
def test_a_prompt_that_is_not_included_has_no_mark(case: Case) -> None:
    """mean@k may have no step after the prompt; then it averages its steps in the prompt."""
    made = placed(case.placer, case.content)
    beyond = made.marks >= case.hidden
    assert beyond.all() or not beyond.any()
    seen = len(made.input_ids) > case.hidden
    assert beyond.all() or not seen or case.placer.pooler == POOLERS["mean@k"]


@given(cases(("cls", "last")))
def test_one_position_is_the_first_or_the_last(case: Case) -> None:
    made = placed(case.placer, case.content)
    first = case.placer.pooler == POOLERS["cls"]
    start = case.hidden if case.hidden < len(made.input_ids) else 0  # nothing follows the prompt
    assert made.marks.tolist() == [start if first else len(made.input_ids) - 1]


@given(cases(("cls", "last", "mean", "mean@k")))
def test_the_classic_poolers_share_one_layout(case: Case) -> None:
    special = case.placer.special
    room = case.placer.limit - len(special.prefix) - len(special.suffix)
    body = [*case.content.prompt, *case.content.ids][:room]
    made = placed(case.placer, case.content)
    wanted = [*special.prefix, *body, *special.suffix]
    assert made.input_ids.tolist() == wanted or (not wanted and len(made.input_ids) == 1)


@given(cases(("mean", "mean@k")))
def test_the_mean_marks_every_step(case: Case) -> None:
    step = case.placer.pooler.k
    made = placed(case.placer, replace_prompt(case.content))
    assert made.marks.tolist() == list(range(0, len(made.input_ids), step))


@given(cases(("lmk", "forced", "multicls")))
def test_marks_of_chunks_are_special_tokens(case: Case) -> None:
    """If truncation removes all landmarks, all positions are averaged."""
    made = placed(case.placer, case.content)
    special = CLS if case.placer.pooler == POOLERS["multicls"] else SEP
    ids = made.input_ids[made.marks]
    if case.placer.pooler == POOLERS["lmk"] and SEP not in made.input_ids:
        assert made.marks.tolist() in (
            list(range(len(made.input_ids))),
            list(range(case.hidden, len(made.input_ids))),
        )
    else:
        assert set(ids.tolist()) == {special}


@given(cases(("lmk",)))
def test_a_landmark_follows_its_chunk(case: Case) -> None:
    made = placed(case.placer, case.content)
    if SEP not in made.input_ids or not len(case.content.ids):
        return
    ends = case.content.ends[: len(made.marks)]
    assert (made.input_ids[made.marks - 1] - CONTENT + 1).tolist() == ends.tolist()


@given(cases(("multicls",)))
def test_a_cls_precedes_its_chunk(case: Case) -> None:
    made = placed(case.placer, replace_prompt(case.content))
    starts = [0, *case.content.ends.tolist()]
    for number, mark in enumerate(made.marks.tolist()):
        if mark + 1 < len(made.input_ids) and made.input_ids[mark + 1] >= CONTENT:
            assert made.input_ids[mark + 1] == CONTENT + starts[number]


@pytest.mark.parametrize("name", POOLERS)
def test_an_empty_text_has_a_vector(name: str) -> None:
    placer = Placer(POOLERS[name], SPECIAL_TOKENS[0], 8, "4", True)
    made = placed(placer, text_of(placer, rising(0, 0), rising(0, 0), None))
    assert made.input_ids.tolist() == [CLS, SEP]
    assert made.kept == 0


@pytest.mark.parametrize("name", POOLERS)
def test_a_prompt_longer_than_the_limit_leaves_no_content(name: str) -> None:
    placer = Placer(POOLERS[name], SPECIAL_TOKENS[0], 8, "4", False)
    made = placed(placer, text_of(placer, rising(CONTENT, 5), rising(PROMPT, 20), None))
    assert len(made.input_ids) == 8
    assert made.kept == 0
    assert len(made.marks)


@pytest.mark.parametrize(
    ("name", "special", "advice"),
    [
        ("cls", SpecialTokens(suffix=(SEP,)), "mean or last"),
        ("lmk", SpecialTokens(prefix=(CLS,)), "mean"),
        ("multicls", SpecialTokens(suffix=(SEP,)), "mean or lmk"),
    ],
)
def test_a_tokenizer_without_the_special_token_is_refused(
    name: str, special: SpecialTokens, advice: str
) -> None:
    with pytest.raises(UsageError, match=f"--pool {name} .*token.*; .*{advice}$"):
        Placer(POOLERS[name], special, 8, "4", True)


def place(length: int, gran: int, limit: int, pooler: Pooler = POOLERS["lmk"]) -> One:
    placer = Placer(pooler, SpecialTokens((CLS,), (SEP,), CLS, SEP), limit, str(gran), True)
    return placed(placer, text_of(placer, rising(CONTENT, length), rising(0, 0), None))


@given(st.integers(1, 400), st.integers(1, 80), st.integers(3, 200))
def test_landmarks_count_towards_the_limit(length: int, gran: int, limit: int) -> None:
    whole = 1 + length + -(-length // gran)
    made = place(length, gran, limit)
    if whole <= limit:
        assert len(made.input_ids) == whole
        assert made.kept == length
        assert len(made.marks) == -(-length // gran)
        return
    landmarks, dangling = divmod(limit - 1, gran + 1)
    assert len(made.input_ids) == limit
    assert made.kept == limit - 1 - landmarks
    assert int((made.input_ids == SEP).sum()) == landmarks
    if landmarks:
        assert len(made.marks) == landmarks
        assert limit - 1 - int(made.marks[-1]) == dangling
    else:
        assert len(made.marks) == limit


TABLE = {
    512: [(15, 496, 16), (7, 504, 56), (3, 508, 124), (1, 510, 254)],
    8192: [(248, 7943, 7), (126, 8065, 1), (63, 8128, 64), (31, 8160, 224)],
    32768: [(992, 31775, 31), (504, 32263, 7), (254, 32513, 1), (127, 32640, 128)],
}


@pytest.mark.parametrize("limit", TABLE)
def test_the_documented_table_of_truncated_texts(limit: int) -> None:
    for gran, expected in zip((32, 64, 128, 256), TABLE[limit], strict=True):
        made = place(40_000, gran, limit)
        assert (len(made.marks), made.kept, limit - 1 - int(made.marks[-1])) == expected


def test_a_complete_chunk_may_lose_its_landmark() -> None:
    """The input ends just before the second landmark."""
    made = place(8, 4, 10)
    assert made.input_ids.tolist() == [CLS, *range(1000, 1004), SEP, *range(1004, 1008)]
    assert made.marks.tolist() == [5]
    assert made.kept == 8


def test_a_forced_landmark_is_the_last_token() -> None:
    made = place(20, 32, 8, LMK.for_training())
    assert made.input_ids.tolist() == [CLS, *range(1000, 1006), SEP]
    assert (made.marks.tolist(), made.kept) == ([7], 6)


def test_sentences_are_chunks() -> None:
    ends = np.array([2, 3, 7], np.int32)
    for name, expected in (
        ("lmk", [CLS, 1000, 1001, SEP, 1002, SEP, 1003, 1004, 1005, 1006, SEP]),
        ("multicls", [CLS, 1000, 1001, CLS, 1002, CLS, 1003, 1004, 1005, 1006, SEP]),
    ):
        placer = Placer(POOLERS[name], SPECIAL_TOKENS[0], 32, "sentence", True)
        made = placed(placer, text_of(placer, rising(CONTENT, 7), rising(0, 0), ends))
        assert made.input_ids.tolist() == expected
        assert (made.input_ids[made.marks] == (SEP if name == "lmk" else CLS)).all()
        assert len(made.marks) == 3


def test_a_text_without_splitter_ends_is_one_sentence() -> None:
    placer = Placer(POOLERS["lmk"], SPECIAL_TOKENS[0], 32, "sentence", True)
    assert text_of(placer, rising(CONTENT, 7), rising(0, 0), None).ends.tolist() == [7]


def test_pooled_vectors_equal_those_of_the_official_code(parity: Callable[[str], Path]) -> None:
    """From the states and ids of placed texts."""
    numbers = np.load(parity("lmk/pooling.npz"))
    texts = [ids[mask == 1] for ids, mask in zip(numbers["ids"], numbers["am"], strict=True)]
    states = torch.from_numpy(numbers["H"][numbers["am"] == 1])
    starts = np.cumsum([0, *map(len, texts)])[:-1]
    marked = {
        "lmk": [np.flatnonzero((t == SEP) | (SEP not in t)) for t in texts],
        "every4": [np.arange(0, len(t), 4) for t in texts],
    }
    for name, marks in marked.items():
        positions = np.concatenate([m + start for m, start in zip(marks, starts, strict=True)])
        groups = np.repeat(np.arange(len(texts)), [len(mark) for mark in marks])
        chosen = Marks(torch.from_numpy(positions), torch.from_numpy(groups), np.bincount(groups))
        made = pool(states, chosen)
        np.testing.assert_allclose(made.numpy(), numbers[name], atol=1e-6)


def replace_prompt(content: Text) -> Text:
    """Return the text without its prompt."""
    return content._replace(prompt=rising(0, 0))


def test_placers_are_frozen() -> None:
    """All documents of a job share one placer."""
    placer = Placer(POOLERS["lmk"], SPECIAL_TOKENS[0], 8, "4", True)
    with pytest.raises(AttributeError):
        placer.limit = 9  # type: ignore[misc]
    assert replace(placer, limit=9).limit == 9


def test_a_numeric_granularity_ignores_the_ends_of_a_splitter() -> None:
    placer = Placer(POOLERS["lmk"], SPECIAL_TOKENS[0], 8, "4", True)
    ends = text_of(placer, rising(0, 9), rising(0, 0), np.array([1, 9], np.int32)).ends
    assert ends.tolist() == [4, 8, 9]
