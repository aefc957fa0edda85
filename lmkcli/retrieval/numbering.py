"""Numbering: which documents of a vectors folder an index's numbers mean.

An index counts its vectors from zero and never renumbers them; the folder that it was built from may
have lost documents since.
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


class Numbering:
    """What the numbers of an index mean among `vectors` now: -1 for what was deleted since."""

    def __init__(self, vectors: Vectors, numbered: list[NumberedPart]) -> None:
        self._vectors = vectors
        live = still_live(numbered, vectors.slices)
        self._docs = np.where(live, np.cumsum(live) - 1, -1)
        if not vectors.single:
            counts = [self._counts(part) for part in numbered]
            self._starts = np.concatenate([[0], *counts]).cumsum().astype(np.int64)

    def _counts(self, part: NumberedPart) -> NDArray[np.int64]:
        """Vectors of each document; of a part that is no more, all as if they were its first's."""
        counts = self._vectors.part_counts(part.piece.name)
        if counts is not None:
            return counts[part.piece.live]
        removed = np.zeros(part.piece.rows, np.int64)
        removed[0] = part.vectors
        return removed

    def docs(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The document of each number, as a row of the folder."""
        return self._docs[numbers if self._vectors.single else self._owners(numbers)]

    def vectors(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The vector of each number, counted over all that are there now."""
        owners = self._owners(numbers)
        docs = self._docs[owners]
        within = numbers - self._starts[owners]
        return np.where(docs < 0, -1, self._vectors.starts[docs] + within)

    def _owners(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._starts, numbers, side="right") - 1
