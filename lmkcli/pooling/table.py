"""The table of poolers. A row says where special tokens stand in an input, and which positions are marked.

A vector is the mean, or another reduction, of the states at marked positions (reductions.py). All pooling
methods have the same input in common, and differ in a few columns:

    prefix   before chunk after   before chunk after   …   suffix

With the content a b c d e in chunks of two, and marked positions in « »:

    cls        «CLS»   a   b   c   d   e   SEP
    last        CLS    a   b   c   d   e  «SEP»
    mean       «CLS»  «a» «b» «c» «d» «e» «SEP»
    mean@3     «CLS»   a   b  «c»  d   e  «SEP»
    multicls   «CLS»   a   b «CLS» c   d «CLS»  e   SEP
    lmk         CLS    a   b «SEP» c   d «SEP»  e  «SEP»

The marks of max, mean-sqrt-len and weightedmean are those of mean. So are the marks of concatenations such as
cls+mean.

The poolers lmk and multicls are those of arXiv 2601.21525 §4, Algorithms 1 and 2; the others are in its §3.
A package adds a pooler with a row of its own, or, for a pooler NAME@PARAMETER, with a function that returns a
row (examples/plugin).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from lmkcli.errors import UsageError


class SpecialTokens(NamedTuple):
    """The special tokens around content, from the template of the tokenizer."""

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    cls: int | None = None  # CLS, else BOS
    landmark: int | None = None  # SEP, else EOS: the vocabulary is unchanged (LMK, §4)
    separator: int | None = None  # SEP, else PAD: between the chunks of a collection
    cuts_suffix: bool = False  # whether truncation also removes the suffix (M2-BERT)
    cuts_start: bool = False  # a long text loses its start, if no tokens are inserted
    mask: int | None = None  # replaces hidden tokens in pre-training


# How the marked states of a vector become one: their mean, their sum divided by the root of their number,
# their mean weighted by positions from 1, their maximum in each dimension, or the first or the last of them
StateReduction = Literal["mean", "sqrt", "weighted", "max", "first", "last"]
MEAN_ONLY: tuple[StateReduction, ...] = ("mean",)
# How the vectors of the windows of a text become one
WindowReduction = Literal["mean", "max", "sum"]


# What a tokenizer must have, and the poolers that do without.
_NEEDS = {
    "prefix": ("a special token before the text", "mean or last"),
    "cls": ("a CLS or BOS token", "mean or lmk"),
    "landmark": ("a SEP or EOS token, and this one has neither", "mean"),
    "mask": ("a mask token", "mean"),
}


@dataclass(frozen=True)
class Pooler:
    """One row of the table.

    name: the value of --pool. marked: which positions are reduced; those that do not depend on chunks (first,
    last, every) count all positions of an input, also special tokens.
    """

    name: str
    # first, last: the first or last k positions. every: the positions 0, k, 2k … after the prompt. inserted:
    # the tokens before and after the chunks. model: none, because the model makes the vector itself
    marked: Literal["first", "last", "every", "inserted", "model"]
    k: int = 1

    # The layout. An inserted token is a field of SpecialTokens.
    before: Literal["", "cls", "landmark", "mask"] = ""  # inserted before each chunk
    after: Literal["", "cls", "landmark", "mask"] = ""  # inserted after each chunk
    prefix: bool = True  # whether the special tokens of the tokenizer before a text stay …
    suffix: bool = True  # … and those after it
    # whether an input that is cut before its first inserted token gets one at its end (`for_training`);
    # otherwise all its positions are marked
    forced: bool = False

    # how the marked states become a vector; several results are concatenated
    reductions: tuple[StateReduction, ...] = MEAN_ONLY

    # Facts for other modules.
    needs_prefix: bool = False  # whether it has no meaning without a special token before the text
    appends_eos: bool = False  # whether the inputs of a decoder that declares no pooling end in EOS
    # the same pooling in sentence-transformers, such as 'cls_token' or 'cls_token+mean_tokens': exported
    # folders need no code of lmk
    sentence_mode: str = ""
    # 'module:attribute' of a class of weights that the states pass through before the mean
    # (`lmkcli.models.heads.StateModule`)
    module: str = ""
    # 'module:attribute' of what makes vectors of the marked states
    # (`lmkcli.encoding.representation.Representation`)
    representation: str = "lmkcli.encoding.dense_vectors:DENSE"

    @property
    def chunked(self) -> bool:
        """Whether every chunk gets a token of its own, so that the pooler needs chunks."""
        return bool(self.before or self.after)

    @property
    def per(self) -> str:
        """The marks: 'input' (of its ends), 'step', 'chunk', 'token', or 'model' (no positions)."""
        if self.reductions != MEAN_ONLY:
            return "input"
        every = "token" if self.k == 1 else "step"
        return {"inserted": "chunk", "every": every, "model": "model"}.get(self.marked, "input")

    @property
    def marks_separator(self) -> bool:
        """Whether the separator token may be marked, so that it cannot join texts in pre-training."""
        return "landmark" in (self.before, self.after)

    def around(self, special: SpecialTokens) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the special tokens at the start and at the end of every input."""
        return special.prefix if self.prefix else (), special.suffix if self.suffix else ()

    def reserved(self, special: SpecialTokens) -> int:
        """Return how many positions of an input contain neither content, prompt nor tokens of chunks."""
        prefix, suffix = self.around(special)
        return len(prefix) + len(suffix)

    def inserted(self, special: SpecialTokens) -> list[int]:
        """Return the tokens that each chunk gets, at most one before and one after it."""
        return [getattr(special, name) or 0 for name in (self.before, self.after) if name]

    def check(self, special: SpecialTokens) -> None:
        """Raise UsageError if the tokenizer lacks a special token that this pooler needs."""
        missing = ["prefix"] if self.needs_prefix and not special.prefix else []
        inserted = (self.before, self.after)
        missing += [name for name in inserted if name and getattr(special, name) is None]
        if missing:
            what, instead = _NEEDS[missing[0]]
            raise UsageError(f"--pool {self.name} needs a tokenizer with {what}; try {instead}")

    def for_training(self) -> "Pooler":
        """Return the same pooler with a token after the last chunk in every input (LMK, §4)."""
        return replace(self, forced=bool(self.after))


CLS = Pooler("cls", "first", needs_prefix=True, sentence_mode="cls_token")
LAST = Pooler("last", "last", appends_eos=True, sentence_mode="lasttoken")
MEAN = Pooler("mean", "every", sentence_mode="mean_tokens")
MULTICLS = Pooler("multicls", "inserted", before="cls", prefix=False)
LMK = Pooler("lmk", "inserted", after="landmark", suffix=False)
LATENT = Pooler("latent", "every", module="lmkcli.models.heads:LatentAttention")
MODEL = Pooler("model", "model")  # TITE, M2-BERT

# Other reductions of sentence-transformers. SGPT (arXiv 2202.08904 §4.1) weights later positions more
MAX = Pooler("max", "every", reductions=("max",), sentence_mode="max_tokens")
MEAN_SQRT_LEN = Pooler(
    "mean-sqrt-len", "every", reductions=("sqrt",), sentence_mode="mean_sqrt_len_tokens"
)
WEIGHTED_MEAN = Pooler(
    "weightedmean", "every", reductions=("weighted",), sentence_mode="weightedmean_tokens"
)


def every_kth(k: int) -> Pooler:
    """Return the row of mean@k."""
    return Pooler(f"mean@{k}", "every", k)


def concatenated(rows: Sequence[Pooler]) -> Pooler:
    """Return the row that concatenates the vectors of several rows, such as cls+mean.

    All positions are marked; the marks of cls and last are the first and the last of them. ValueError for
    rows that sentence-transformers does not have.
    """
    for row in rows:
        if not row.sentence_mode:
            raise ValueError(f"{row.name} cannot be concatenated with another pooler")
    reductions = [
        how
        for row in rows
        for how in ((row.marked,) if row.marked in ("first", "last") else row.reductions)
    ]
    return Pooler(
        "+".join(row.name for row in rows),
        "every",
        reductions=tuple(reductions),
        needs_prefix=any(row.needs_prefix for row in rows),
        appends_eos=any(row.appends_eos for row in rows),
        sentence_mode="+".join(row.sentence_mode for row in rows),
    )
