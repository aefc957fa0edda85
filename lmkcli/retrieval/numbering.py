"""Numbering: the parts whose vectors an index counts, from zero and in its own order, for ever.

The folder that it was built from may have lost documents since.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.store.parts import PartSlice
from lmkcli.store.vectors import Vectors


class NumberedPart(NamedTuple):
    """A part that an index holds: which of its rows were live then, and how many vectors they had."""

    piece: PartSlice
    vectors: int

    def as_json(self) -> list[Any]:
        """[name, ranges of deleted rows, vectors]."""
        return [*self.piece.as_json(), self.vectors]

    @classmethod
    def from_json(cls, item: list[Any]) -> "NumberedPart":
        """What `as_json` wrote; where every row had one vector the number may be missing."""
        piece = PartSlice.from_json((item[0], item[1]))
        return cls(piece, item[2] if len(item) > 2 else piece.rows)


def number(vectors: Vectors) -> list[NumberedPart]:
    """All vectors of a folder in its own order."""
    return [NumberedPart(*pair) for pair in zip(vectors.slices, vectors.part_totals(), strict=True)]


def read_numbering(of: dict[str, Any]) -> list[NumberedPart]:
    """The parts that an index numbers, from what its built.json says it was built of."""
    return [NumberedPart.from_json(item) for item in of["numbering"]]


def still_live(numbered: list[NumberedPart], now: list[PartSlice]) -> NDArray[np.bool_]:
    """For each document that an index numbers, whether it is live among the slices `now`."""
    there = {piece.name: piece for piece in now}
    masks = [
        there[piece.name].live[piece.live] if piece.name in there else np.zeros(piece.rows, bool)
        for piece, _ in numbered
    ]
    return np.concatenate([np.zeros(0, np.bool_), *masks])
