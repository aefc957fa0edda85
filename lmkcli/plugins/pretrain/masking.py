"""Masking: choose the hidden tokens of a text, by default whole words.

The budget follows RetroMAE's collator (Xiao et al. 2022, arXiv 2205.12035): a share of all tokens,
including special tokens, at least 1 and at most 512. Words are taken in random order; a word that exceeds
the remaining budget is skipped.
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
from lmkcli.pooling.placement import Input
from lmkcli.store.token_blocks import Ints

MOST = 512  # maximum number of hidden tokens in one mask
# Shares of the hidden tokens that become the mask token, and that remain unchanged (BERT, §3.1); the rest
# become random tokens.
ALWAYS, NEVER = 0.8, 0.1
# Scripts without spaces between words, by the first word of a character's Unicode name. In these scripts,
# each token counts as a word.
_UNSPACED = {"CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR"}
_SPACE = "\u2581"  # represents a space in SentencePiece's tokens


class MaskedText(NamedTuple):
    """One masked text of n tokens.

    input: the model input with the original ids.
    shown: [n], the ids that the encoder reads: tokens at `hidden` are masked, replaced or unchanged.
    hidden: [hidden], the positions that the encoder must predict.
    ordinary: [n] bool, the tokens that are not special tokens.
    pool: [P, n] bool, masks for a decoder (True hides a token); P is 0 without a decoder. The first position
        is never hidden.
    rows: [n], the mask of each decoder row: row i uses pool[rows[i]].
    seed: the seed of further random choices of the objective.
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
    """The settings of masking.

    share: the share of tokens that is hidden from the encoder.
    whole_words: hide whole words; otherwise each token is hidden independently.
    always: replace every hidden token by the mask token; otherwise as in BERT.
    decoder_rows, decoder_share: the number of masks for a decoder, and the share that each one hides.
    """

    share: float = 0.3
    whole_words: bool = True
    always: bool = False
    decoder_rows: int = 0
    decoder_share: float = 0.5

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and 0 <= self.decoder_share <= 1):
            raise UsageError("--mask and --decoder-mask are shares; write numbers from 0 to 1")

    def __call__(
        self, text: Input, vocabulary: "MaskingVocabulary", rng: np.random.Generator
    ) -> MaskedText:
        """Draw the masks of a text."""
        words = vocabulary.words(text.ids)
        draw = whole_words if self.whole_words else any_tokens
        masked = draw(words, self.share, 1, rng)[0] if self.share else words < -1
        count = min(self.decoder_rows, len(text.ids))
        pool = whole_words(words, self.decoder_share, count, rng)
        pool[:, :1] = False  # the decoder reads the text's vector in the first position
        return MaskedText(
            text,
            self._shown(text.ids, masked, vocabulary, rng),
            np.flatnonzero(masked),
            words >= 0,
            pool,
            rng.integers(0, max(1, count), len(text.ids)),
            int(rng.integers(1 << 62)),
        )

    def _shown(
        self,
        ids: Ints,
        masked: NDArray[np.bool_],
        vocabulary: "MaskingVocabulary",
        rng: np.random.Generator,
    ) -> Ints:
        """Return the ids that the encoder reads, [n]."""
        if self.always:
            return np.where(masked, np.int32(vocabulary.mask), ids)
        uniform = rng.random(len(ids))
        others = rng.choice(vocabulary.ordinary, len(ids))
        replaced = np.where(uniform < ALWAYS, np.int32(vocabulary.mask), others)
        return np.where(masked & (uniform < 1 - NEVER), replaced, ids).astype(np.int32)


def whole_words(
    words: NDArray[np.int64], share: float, rows: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw `rows` independent masks of a text, [rows, n] bool. Each mask hides whole words.

    `words` [n] is the word of each token, -1 for special tokens. Each mask hides at most budget(share, n)
    tokens.
    """
    count = int(words.max(initial=-1)) + 1
    if not count or not rows:
        return np.zeros((rows, len(words)), bool)
    sizes = np.bincount(words[words >= 0], minlength=count)
    orders = rng.permuted(np.tile(np.arange(count), (rows, 1)), axis=1)
    chosen = np.zeros((rows, count), bool)
    np.put_along_axis(chosen, orders, fill_budget(sizes[orders], budget(share, len(words))), axis=1)
    return np.where(words >= 0, chosen[:, words], False)


def any_tokens(
    words: NDArray[np.int64], share: float, rows: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw masks that hide each ordinary token independently with probability `share`, [rows, n] bool."""
    return (rng.random((rows, len(words))) < share) & (words >= 0)


def budget(share: float, tokens: int) -> int:
    """Return the maximum number of hidden tokens."""
    return min(MOST, max(1, round(share * tokens)))


def fill_budget(sizes: NDArray[np.int64], capacity: int) -> NDArray[np.bool_]:
    """Choose words greedily, from left to right, until `capacity` tokens are taken, in each row.

    `sizes` [rows, w] are the numbers of tokens of the words; the result is [rows, w] bool. A word that does
    not fit is skipped, and later words are tried. The cumulative sum takes the first words of all rows at
    once; each pass of the loop then takes the next fitting word of every row.
    """
    places = np.arange(sizes.shape[1])
    taken = np.cumsum(sizes, axis=1) <= capacity
    left = capacity - np.where(taken, sizes, 0).sum(1)
    position = taken.sum(1)
    while True:
        fits = (places >= position[:, None]) & (sizes <= left[:, None])
        rows = np.flatnonzero(fits.any(1))
        if not len(rows):
            return taken
        first = fits[rows].argmax(1)
        taken[rows, first] = True
        left[rows] -= sizes[rows, first]
        position[rows] = first + 1


@dataclass(frozen=True)
class MaskingVocabulary:
    """Properties of the tokens of a tokenizer that masking needs, indexed by token id.

    opens: [vocabulary] bool, the token always starts a word.
    closes: [vocabulary] bool, the next token always starts a word.
    special: [vocabulary] bool, the token is special; it belongs to no word and is never hidden.
    mask: the id of the mask token.
    """

    opens: NDArray[np.bool_]
    closes: NDArray[np.bool_]
    special: NDArray[np.bool_]
    mask: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "MaskingVocabulary":
        """Read the vocabulary of a tokenizer. Raises UsageError if it has no mask token."""
        fast, special = tokenizer.fast, tokenizer.special
        if special.mask is None:
            raise UsageError(
                "the tokenizer has no mask token, which pre-training needs; use a model with a mask token, "
                "such as BERT"
            )
        tokens = [fast.id_to_token(i) or "" for i in range(fast.get_vocab_size())]
        edges = map(_edges(fast), tokens)
        opens, closes = (np.array(side, bool) for side in zip(*edges, strict=True))
        candidates = {*special.prefix, *special.suffix, special.cls, special.landmark}
        special_ids = [number for number in candidates if number is not None]
        return cls(opens, closes, np.isin(np.arange(len(tokens)), special_ids), special.mask)

    @cached_property
    def ordinary(self) -> Ints:
        """The ids of all tokens that are not special."""
        return np.flatnonzero(~self.special).astype(np.int32)

    def words(self, ids: Ints) -> NDArray[np.int64]:
        """Return the word of each token, [n], counted from 0; -1 for special tokens.

        A special token, such as a landmark, does not split a word: the word continues after it.
        """
        words = np.full(len(ids), -1, np.int64)
        inside = np.flatnonzero(~self.special[ids])
        content = ids[inside]
        starts = self.opens[content]
        starts[1:] |= self.closes[content[:-1]]
        starts[:1] = True
        words[inside] = np.cumsum(starts) - 1
        return words


Edges = tuple[bool, bool]  # whether a token starts a word, and whether it ends one


def _edges(fast: Any) -> Callable[[str], Edges]:
    """Return the function that detects word boundaries in the tokens of this type of tokenizer."""
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
    """Return the edges of a token with its spaces. A letter or digit at an edge continues a word there."""
    return not token or not _joins(token[0]), not token or not _joins(token[-1])


def _joins(character: str) -> bool:
    """Return whether a character can continue a word: letters, digits, marks and incomplete characters."""
    if character == "\ufffd":
        return True
    name = unicodedata.name(character, "").split(" ")[0].split("-")[0]
    return unicodedata.category(character)[0] in "LNM" and name not in _UNSPACED


def _characters(token: str) -> str:
    """Decode a token of a byte-level vocabulary. Incomplete characters become U+FFFD."""
    if not all(character in _BYTES for character in token):
        return token  # an added token, which is stored as plain text
    return bytes(_BYTES[character] for character in token).decode("utf-8", "replace")


def _byte_characters() -> dict[str, int]:
    """Return the map from the printable characters of byte-level vocabularies to bytes (GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    numbers = [*printable, *range(256, 256 + len(others))]
    return {chr(number): byte for number, byte in zip(numbers, [*printable, *others], strict=True)}


_BYTES = _byte_characters()
