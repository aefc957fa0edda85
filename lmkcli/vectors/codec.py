"""The interface of codecs: how vectors are stored in the arrays of a part, and read as rows.

A codec is a row of the catalog (`CodecRow`), and `store_dtype` in a manifest names it. It says which arrays a
part has, converts rows to them, and opens them again. Everything else is the same for all vectors: documents,
parts, shards, updates, indexes and runs.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from lmkcli import catalog
from lmkcli.errors import DataError
from lmkcli.store.part_reader import check_finite_rows, open_array
from lmkcli.store.parts import MAKE_AGAIN, ArrayTypes
from lmkcli.store.ragged import Longs
from lmkcli.vectors.rows import AnyRows, RowsOut

# Returns the number of rows that an array of the growing part has already.
RowsBefore = Callable[[str], int]


class ArraySource(Protocol):
    """Stored arrays by name, for a number of vectors.

    vectors: how many vectors the arrays contain.
    """

    @property
    def vectors(self) -> int: ...

    def array(self, name: str, dtype: str, width: tuple[int, ...], rows: int) -> NDArray[Any]:
        """Return an array [rows, *width]. Raises DataError if it has another type or shape."""

    def damaged(self, reason: str) -> DataError:
        """Return the error for arrays that do not fit together."""


@dataclass(frozen=True)
class PartArrays:
    """The arrays in the folder of a part, memory-mapped."""

    folder: Path
    vectors: int

    def array(self, name: str, dtype: str, width: tuple[int, ...], rows: int) -> NDArray[Any]:
        """Return an array. Raises DataError also if it has values that are not finite."""
        path = self.folder / f"{name}.npy"
        array = open_array(path, dtype, width, rows)
        check_finite_rows(array, path)
        return array

    def damaged(self, reason: str) -> DataError:
        """Return the error for a part whose arrays do not fit together."""
        return DataError(f"{self.folder} is damaged: {reason}; delete this part and {MAKE_AGAIN}")


class CodedVectors(Protocol[RowsOut]):
    """The opened arrays of a part. Its vectors are numbered from 0.

    arrays: the stored arrays, by name.
    """

    arrays: Mapping[str, NDArray[Any]]

    def sizes(self, starts: Longs, counts: Longs) -> Longs:
        """Return the bytes of texts in memory; text i has `counts[i]` vectors from `starts[i]` on."""

    def read(self, numbers: slice | Longs, counts: Longs) -> RowsOut:
        """Return some vectors as rows; text i has the next `counts[i]` of them.

        Raises DataError if they are damaged.
        """

    def copied(self, numbers: slice | Longs, before: RowsBefore) -> dict[str, NDArray[Any]]:
        """Return some vectors in their stored form, to append to another part."""


class Codec(Protocol[AnyRows]):
    """A stored form of vectors.

    rows: the class of the vectors in memory.
    slack: the maximum change in the cosine of a stored vector if rounding changes the vector.
    """

    rows: type[AnyRows]
    slack: float

    @property
    def exact(self) -> "Codec[AnyRows]":
        """The codec that stores the same rows without a loss."""

    def types(self, dim: int) -> ArrayTypes:
        """Return the arrays for vectors of `dim` dimensions: dtype and width of each, by name."""

    def coded(self, rows: AnyRows, before: RowsBefore) -> dict[str, NDArray[Any]]:
        """Convert rows to arrays, to append to those of a part. What is not finite stays not finite."""

    def not_finite(self, rows: AnyRows, coded: Mapping[str, NDArray[Any]]) -> int | None:
        """Return the first text whose stored form is not finite; None if all are finite."""

    def notes(self, blocks: Iterable[AnyRows]) -> list[str]:
        """Return notes for the user about all vectors of a folder."""

    def open(self, source: ArraySource, dim: int) -> CodedVectors[AnyRows]:
        """Open the arrays of a part. Raises DataError if they do not fit together."""


def open_codec(name: str) -> Codec[Any]:
    """Return the codec that a manifest names. Raises UnknownName or MissingExtra."""
    codec: Codec[Any] = catalog.CODECS.load(name)
    return codec


def recoded(codec: Codec[AnyRows], rows: AnyRows, dim: int) -> AnyRows:
    """Return rows as reading them returns them after they were stored."""
    coded = codec.coded(rows, lambda _: 0)
    return codec.open(_InMemory(coded, int(rows.starts[-1])), dim).read(slice(None), rows.counts)


@dataclass(frozen=True)
class _InMemory:
    """Arrays that were just coded."""

    arrays: Mapping[str, NDArray[Any]]
    vectors: int

    def array(self, name: str, dtype: str, width: tuple[int, ...], rows: int) -> NDArray[Any]:
        return self.arrays[name]

    def damaged(self, reason: str) -> DataError:
        return DataError(f"the vectors cannot be stored: {reason}")
