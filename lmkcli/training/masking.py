"""Masking: which tokens of a text are hidden, whole words at a time.

Counted as RetroMAE's collator counts (Xiao et al. 2022, arXiv 2205.12035): the budget is a share of all
tokens, special ones included, at least 1 and at most 512; words come in an order of chance, and one that
would overshoot the budget is passed over.
"""

import json
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.errors import UsageError
from lmkcli.models.tokenizer import Tokenizer
from lmkcli.pooling.placement import Input, Ints

MOST = 512  # tokens that one draw hides
ALWAYS, NEVER = (
    0.8,
    0.1,
)  # shares of hidden tokens that become the mask token, that stay (BERT, §3.1)
# Scripts without spaces between words, by the first word of a character's name: each token is a word.
_UNSPACED = {"CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR"}
_SPACE = "\u2581"  # what stands for a space in SentencePiece's tokens


class MaskedText(NamedTuple):
    """One text for pre-training, n tokens long.

    `input` has the ids as they are; `shown` [n] is what the encoder reads, with the tokens at `hidden`
    masked, replaced or kept. `ordinary` [n] are the tokens that are no special ones. Row i of a decoder
    sees what `pool`[`rows`[i]] does not hide ([P, n] and [n]; P is 0 where nobody asks), and always the
    first place; `seed` decides what else is drawn for it.
    """

    input: Input
    shown: Ints
    hidden: NDArray[np.int64]
    ordinary: NDArray[np.bool_]
    pool: NDArray[np.bool_]
    rows: NDArray[np.int64]
    seed: int


@dataclass(frozen=True)
class Masking:
    """How texts are masked.

    `share` of the tokens is hidden from the encoder: whole words at a time or any, replaced as in BERT or
    always by the mask token. A decoder gets a pool of `decoder_rows` masks that hide `decoder_share`.
    """

    share: float = 0.3
    whole_words: bool = True
    always: bool = False
    decoder_rows: int = 0
    decoder_share: float = 0.5

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and 0 <= self.decoder_share <= 1):
            raise UsageError("--mask and --decoder-mask are shares, from 0 to 1")

    def __call__(
        self, text: Input, vocabulary: "Vocabulary", chance: np.random.Generator
    ) -> MaskedText:
        """A text with what is hidden of it, this time."""
        words = vocabulary.words(text.ids)
        draw = whole_words if self.whole_words else any_tokens
        masked = draw(words, self.share, 1, chance)[0] if self.share else words < -1
        count = min(self.decoder_rows, len(text.ids))
        pool = whole_words(words, self.decoder_share, count, chance)
        pool[:, :1] = False  # there stands the text's vector
        return MaskedText(
            text,
            self._shown(text.ids, masked, vocabulary, chance),
            np.flatnonzero(masked),
            words >= 0,
            pool,
            chance.integers(0, max(1, count), len(text.ids)),
            int(chance.integers(1 << 62)),
        )

    def _shown(
        self,
        ids: Ints,
        masked: NDArray[np.bool_],
        vocabulary: "Vocabulary",
        chance: np.random.Generator,
    ) -> Ints:
        if self.always:
            return np.where(masked, np.int32(vocabulary.mask), ids)
        lots = chance.random(len(ids))
        others = chance.choice(vocabulary.ordinary, len(ids))
        replaced = np.where(lots < ALWAYS, np.int32(vocabulary.mask), others)
        return np.where(masked & (lots < 1 - NEVER), replaced, ids).astype(np.int32)


def whole_words(
    words: NDArray[np.int64], share: float, rows: int, chance: np.random.Generator
) -> NDArray[np.bool_]:
    """[rows, n]: independent masks of a text; words: [n], the word of each token, -1 for none."""
    count = int(words.max(initial=-1)) + 1
    if not count or not rows:
        return np.zeros((rows, len(words)), bool)
    sizes = np.bincount(words[words >= 0], minlength=count)
    orders = chance.permuted(np.tile(np.arange(count), (rows, 1)), axis=1)
    chosen = np.zeros((rows, count), bool)
    np.put_along_axis(chosen, orders, filled(sizes[orders], budget(share, len(words))), axis=1)
    return np.where(words >= 0, chosen[:, words], False)


def any_tokens(
    words: NDArray[np.int64], share: float, rows: int, chance: np.random.Generator
) -> NDArray[np.bool_]:
    """[rows, n]: each token that is no special one by itself, with the same probability."""
    return (chance.random((rows, len(words))) < share) & (words >= 0)


def budget(share: float, tokens: int) -> int:
    """How many tokens are hidden, at most."""
    return min(MOST, max(1, round(share * tokens)))


def filled(sizes: NDArray[np.int64], room: int) -> NDArray[np.bool_]:
    """[rows, w]: which of the words that come, of these sizes, are taken into `room` in each row.

    A word that does not fit any more is passed over, and a later one may fit.
    """
    places = np.arange(sizes.shape[1])
    taken = np.cumsum(sizes, axis=1) <= room
    left = room - np.where(taken, sizes, 0).sum(1)
    behind = taken.sum(1)
    while True:
        fits = (places >= behind[:, None]) & (sizes <= left[:, None])
        rows = np.flatnonzero(fits.any(1))
        if not len(rows):
            return taken
        first = fits[rows].argmax(1)
        taken[rows, first] = True
        left[rows] -= sizes[rows, first]
        behind[rows] = first + 1


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a tokenizer as masking sees them, by number.

    `opens`: begins a word whatever comes before; `closes`: what comes after it begins one; `special`:
    stands around the text, so that it is no word and never hidden.
    """

    opens: NDArray[np.bool_]
    closes: NDArray[np.bool_]
    special: NDArray[np.bool_]
    mask: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Vocabulary":
        """The vocabulary of a tokenizer; UsageError without a mask token."""
        fast, special = tokenizer.fast, tokenizer.special
        if special.mask is None:
            raise UsageError(
                "the tokenizer has no mask token, and pre-training hides tokens behind one; give a "
                "model of which the tokenizer has one, such as a BERT"
            )
        tokens = [fast.id_to_token(i) or "" for i in range(fast.get_vocab_size())]
        edges = map(_edges(fast), tokens)
        opens, closes = (np.array(side, bool) for side in zip(*edges, strict=True))
        named = {*special.prefix, *special.suffix, special.cls, special.landmark}
        around = [number for number in named if number is not None]
        return cls(opens, closes, np.isin(np.arange(len(tokens)), around), special.mask)

    @cached_property
    def ordinary(self) -> Ints:
        """The numbers of tokens that may stand in a text."""
        return np.flatnonzero(~self.special).astype(np.int32)

    def words(self, ids: Ints) -> NDArray[np.int64]:
        """[n]: the word of each token, counted from 0; -1 for special tokens.

        A special token does not part a word: what goes on after it is the word's.
        """
        words = np.full(len(ids), -1, np.int64)
        inside = np.flatnonzero(~self.special[ids])
        content = ids[inside]
        begins = self.opens[content]
        begins[1:] |= self.closes[content[:-1]]
        begins[:1] = True
        words[inside] = np.cumsum(begins) - 1
        return words


Edges = tuple[bool, bool]  # whether a token begins a word, and ends one


def _edges(fast: Any) -> Callable[[str], Edges]:
    """How the tokens of this kind of tokenizer say where words begin."""
    described = json.loads(fast.to_str())
    model = described["model"]
    if model["type"] == "WordPiece":
        prefix = model.get("continuing_subword_prefix") or "##"
        return lambda token: (not token.startswith(prefix), False)
    if model["type"] == "WordLevel":
        return lambda token: (True, True)
    if "ByteLevel" in json.dumps([described.get("pre_tokenizer"), described.get("decoder")]):
        return lambda token: _spelled(_characters(token))
    return lambda token: _spelled(token.replace(_SPACE, " "))


def _spelled(token: str) -> Edges:
    """Of a token with its spaces: it goes on with a word where both sides are letters or digits."""
    return not token or not _joins(token[0]), not token or not _joins(token[-1])


def _joins(character: str) -> bool:
    """Whether a letter, digit or mark may stand inside a word; also a part of a character."""
    if character == "\ufffd":
        return True
    name = unicodedata.name(character, "").split(" ")[0].split("-")[0]
    return unicodedata.category(character)[0] in "LNM" and name not in _UNSPACED


def _characters(token: str) -> str:
    """A token of a byte-level vocabulary as text; what is no whole character becomes U+FFFD."""
    if not all(character in _BYTES for character in token):
        return token  # an added token, which is written as it is
    return bytes(_BYTES[character] for character in token).decode("utf-8", "replace")


def _byte_characters() -> dict[str, int]:
    """The printable characters by which byte-level vocabularies write bytes (GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    numbers = [*printable, *range(256, 256 + len(others))]
    return {chr(number): byte for number, byte in zip(numbers, [*printable, *others], strict=True)}


_BYTES = _byte_characters()
