"""Preview: texts as the model reads them, in a readable form."""

from collections.abc import Sequence
from typing import NamedTuple

from lmkcli.models.tokenizer import Tokenizer
from lmkcli.pooling.placement import Input

SHOWN = 3  # number of examples in a preview
_POSITIONS = 64  # number of positions of a text in a preview


class PlacedText(NamedTuple):
    """A text as the model reads it.

    positions: the number of positions.
    reach: the highest position number plus 1.
    words: the decoded text; marked tokens are in «».
    """

    side: str  # query, positive or negative; text, in pre-training
    gran: str
    positions: int
    reach: int
    words: str


def placed_text(inputs: Sequence[Input], side: str, gran: str, tokenizer: Tokenizer) -> PlacedText:
    """Return the preview of the text with these inputs."""
    words = " | ".join(_words(one, tokenizer) for one in inputs)
    positions = sum(len(one.ids) for one in inputs)
    reach = max(
        len(one.ids) if one.positions is None else 1 + int(one.positions.max()) for one in inputs
    )
    return PlacedText(side, gran, positions, reach, words)


def _words(one: Input, tokenizer: Tokenizer) -> str:
    """Decode an input. Marked tokens are in «», unless all tokens are marked."""
    ids = one.ids[:_POSITIONS]
    marks = [mark for mark in one.marks.tolist() if mark < len(ids)]
    marks = [] if len(one.marks) == len(one.ids) else marks
    pieces = []
    for start, stop in zip([0, *(mark + 1 for mark in marks)], [*marks, len(ids)], strict=True):
        pieces.append(tokenizer.text(ids[start:stop]))
        pieces += [f"«{token}»" for token in tokenizer.tokens(ids[stop : stop + 1])]
    left = len(one.ids) - len(ids)
    return " ".join(filter(None, pieces)) + (f" … and {left:,} positions" if left else "")
