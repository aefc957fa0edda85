"""Which tokens are hidden: words of three kinds of tokenizers, the budget, the draws."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models, pre_tokenizers, trainers

from lmkcli.errors import UsageError
from lmkcli.models.tokenizer import Tokenizer
from lmkcli.plugins.pretrain.masking import (
    Masking,
    MaskingVocabulary,
    budget,
    fill_budget,
    whole_words,
)
from lmkcli.pooling.placement import Input
from lmkcli.pooling.table import SpecialTokens
from tests import tiny


def trained(model: Any, trainer: Any, split: Any, decoder: Any) -> Fast:
    def train() -> Fast:
        fast = Fast(model)
        fast.pre_tokenizer, fast.decoder = split, decoder
        fast.train_from_iterator([*tiny.TEXTS, "river bank dry 1987 ( ) , ' - 東京は"], trainer)
        return fast

    return tiny.learned(f"masking-{type(model).__name__.lower()}", train)


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SETTINGS: dict[str, Any] = {"special_tokens": SPECIAL, "show_progress": False}


def word_piece() -> Fast:
    trainer = trainers.WordPieceTrainer(vocab_size=150, **SETTINGS)
    split = pre_tokenizers.BertPreTokenizer()
    return trained(models.WordPiece(unk_token="[UNK]"), trainer, split, decoders.WordPiece())


def byte_level() -> Fast:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, **SETTINGS)
    split = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return trained(models.BPE(), trainer, split, decoders.ByteLevel())


def unigram() -> Fast:
    trainer = trainers.UnigramTrainer(vocab_size=120, unk_token="[UNK]", **SETTINGS)
    return trained(models.Unigram(), trainer, pre_tokenizers.Metaspace(), decoders.Metaspace())


def vocabulary(fast: Fast) -> MaskingVocabulary:
    special = SpecialTokens((2,), (3,), 2, 3, 3, mask=4)
    return MaskingVocabulary.of(Tokenizer(fast, special))


@pytest.mark.parametrize("make", [word_piece, byte_level, unigram])
def test_words_are_those_between_spaces_and_marks(make: Callable[[], Fast]) -> None:
    fast = make()
    text = "rivermountains, the river-bank (1987) dry"
    ids = np.array([2, *fast.encode(text, add_special_tokens=False).ids, 3], np.int32)
    words = vocabulary(fast).words(ids)
    assert words[0] == words[-1] == -1
    spelled: dict[int, str] = {}
    for number, token in zip(words[1:-1].tolist(), ids[1:-1].tolist(), strict=True):
        piece = (fast.id_to_token(token) or "").removeprefix("##")
        spelled[number] = spelled.get(number, "") + piece.strip("Ġ\u2581")
    wanted = ["rivermountains", ",", "the", "river", "-", "bank", "(", "1987", ")", "dry"]
    assert [word for word in spelled.values() if word and "[UNK]" not in word] == [
        word for word in wanted if word in spelled.values()
    ]
    assert {"rivermountains", "the", "river", "bank"} <= set(spelled.values())
    assert len(ids) - 2 > len(spelled)  # some words have several tokens


def test_every_token_is_a_word_where_no_spaces_are_written() -> None:
    fast = byte_level()
    own = vocabulary(fast)
    for token in ("東", "京", "は"):
        assert own.opens[fast.encode(token).ids[-1]] or len(fast.encode(token).ids) > 1
    fast = unigram()
    ids = np.array(fast.encode("東京は").ids, np.int32)
    assert len(np.unique(vocabulary(fast).words(ids))) == len(ids)


def test_a_landmark_does_not_part_a_word() -> None:
    fast = word_piece()
    ids = fast.encode("rivermountains", add_special_tokens=False).ids
    assert len(ids) > 1
    words = vocabulary(fast).words(np.array([2, ids[0], 3, *ids[1:], 3], np.int32))
    assert words.tolist() == [-1, 0, -1, *[0] * (len(ids) - 1), -1]


def loop(sizes: list[int], room: int) -> list[bool]:
    """The collator's routine for words that come in this order."""
    taken, count = [], 0
    for size in sizes:
        fits = count < room and count + size <= room
        taken.append(fits)
        count += size * fits
    return taken


def test_words_are_taken_as_the_collator_takes_them() -> None:
    chance = np.random.default_rng(0)
    for _ in range(200):
        sizes = chance.integers(1, 7, (3, int(chance.integers(1, 30))))
        room = int(chance.integers(1, 40))
        assert fill_budget(sizes, room).tolist() == [loop(row, room) for row in sizes.tolist()]


def test_the_budget() -> None:
    assert [budget(0.3, n) for n in (1, 5, 25, 512, 8192)] == [1, 2, 8, 154, 512]


@pytest.fixture(scope="module")
def text() -> tuple[Input, MaskingVocabulary]:
    fast = word_piece()
    ids = [token for i in range(6) for token in fast.encode(tiny.sentence(i, 12)).ids]
    placed = np.array([2, *ids[:90], 3], np.int32)
    return Input(placed, np.zeros(1, np.int32), np.zeros(1, np.int32), len(placed)), vocabulary(
        fast
    )


def test_whole_words_and_nothing_else_are_hidden(text: tuple[Input, MaskingVocabulary]) -> None:
    given, own = text
    words = own.words(given.ids)
    made = Masking(0.3, decoder_rows=16)(given, own, np.random.default_rng(1))
    hidden = np.isin(np.arange(len(words)), made.hidden)
    for mask in (hidden, *made.pool):
        assert len(np.unique(words[mask]))
        assert not np.isin(words[mask], words[~mask]).any()
        assert not mask[0]
        assert not mask[-1]
    assert abs(hidden.sum() - 28) <= 1
    assert np.abs(made.pool.sum(1) - 46).max() <= 4
    assert len({row.tobytes() for row in made.pool}) > 10
    assert made.pool.shape == (16, 92)
    assert made.rows.max() < 16
    assert made.ordinary.tolist() == [False, *[True] * 90, False]


def test_what_the_encoder_sees_in_their_place(text: tuple[Input, MaskingVocabulary]) -> None:
    given, own = text
    masking, chance = Masking(0.5), np.random.default_rng(2)
    kinds = np.zeros(3)
    for _ in range(100):
        made = masking(given, own, chance)
        others = np.setdiff1d(np.arange(92), made.hidden)
        assert (made.shown[others] == given.ids[others]).all()
        seen, real = made.shown[made.hidden], given.ids[made.hidden]
        assert not own.special[seen].any()
        kinds += [(seen == own.mask).sum(), (seen == real).sum(), len(seen)]
    assert kinds[0] / kinds[2] == pytest.approx(0.8, abs=0.02)
    assert kinds[1] / kinds[2] == pytest.approx(0.1, abs=0.02)
    always = Masking(0.5, whole_words=False, always=True)(given, own, chance)
    assert (always.shown[always.hidden] == own.mask).all()
    nothing = Masking(0.0)(given, own, chance)
    assert not len(nothing.hidden)
    assert (nothing.shown == given.ids).all()


def test_words_are_hidden_alike_often(text: tuple[Input, MaskingVocabulary]) -> None:
    words = np.arange(20, dtype=np.int64)
    drawn = whole_words(words, 0.3, 4000, np.random.default_rng(3))
    assert np.abs(drawn.mean(0) - 0.3).max() < 0.04
    assert (drawn.sum(1) == 6).all()


def test_the_same_draw_twice(text: tuple[Input, MaskingVocabulary]) -> None:
    made: list[list[NDArray[Any] | int]] = []
    for _ in range(2):
        found = Masking(0.3, decoder_rows=4)(text[0], text[1], np.random.default_rng(9))
        made.append([found.shown, found.pool, found.rows, found.seed])
    assert all(np.array_equal(one, other) for one, other in zip(*made, strict=True))


def test_what_cannot_be_masked() -> None:
    with pytest.raises(UsageError, match="mask token"):
        MaskingVocabulary.of(Tokenizer(word_piece(), SpecialTokens((2,), (3,), 2, 3, 3)))
    with pytest.raises(UsageError, match="shares"):
        Masking(1.5)
