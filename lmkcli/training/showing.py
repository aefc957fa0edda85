"""Showing: texts as a model will read them, for people."""

from collections.abc import Sequence
from typing import NamedTuple

from lmkcli.models.tokenizer import Tokenizer
from lmkcli.pooling.placement import Input

SHOWN = 3  # examples
_POSITIONS = 64  # of a text are shown


class PlacedText(NamedTuple):
    """A text as the model reads it: `words` is decoded, marked tokens stand in «».

    `positions` is how many there are, `reach` one more than the highest number that one of them has.
    """

    side: str  # query, positive or negative; text, in pre-training
    gran: str
    positions: int
    reach: int
    words: str


def placed_text(inputs: Sequence[Input], side: str, gran: str, tokenizer: Tokenizer) -> PlacedText:
    """The text that became these inputs."""
    words = " | ".join(_words(one, tokenizer) for one in inputs)
    positions = sum(len(one.ids) for one in inputs)
    reach = max(
        len(one.ids) if one.positions is None else 1 + int(one.positions.max()) for one in inputs
    )
    return PlacedText(side, gran, positions, reach, words)


def _words(one: Input, tokenizer: Tokenizer) -> str:
    """The text of an input, its marked tokens in «» unless all of them are marked."""
    ids = one.ids[:_POSITIONS]
    marks = [mark for mark in one.marks.tolist() if mark < len(ids)]
    marks = [] if len(one.marks) == len(one.ids) else marks
    pieces = []
    for start, stop in zip([0, *(mark + 1 for mark in marks)], [*marks, len(ids)], strict=True):
        pieces.append(tokenizer.text(ids[start:stop]))
        pieces += [f"«{token}»" for token in tokenizer.tokens(ids[stop : stop + 1])]
    left = len(one.ids) - len(ids)
    return " ".join(filter(None, pieces)) + (f" … and {left:,} positions" if left else "")
