"""How many queries are searched at once: as many as a limit of memory has room for.

What a search holds for a query is the same however many vectors there are: places for the best rows so
far, and the ids and scores of those that are found.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lmkcli.errors import DataError
from lmkcli.system.memory import held_memory

SPARE = 8192  # places of each query beyond those for 2k: two blocks of rows
FIRST = 32  # queries of the first batch, before it is known what the model and the index hold
WORK = 160_000_000  # blocks of vectors, their scores and what becomes of these (measured with 384 dimensions)
_PLACE = 18  # bytes of a place for a row and its score, and half as much while they are sorted
_LINE = 200  # bytes of a document of the run: its id, its score, and the line that is written


@dataclass
class Room:
    """A limit, in bytes, for all that a process holds of its own."""

    limit: int
    _begun: bool = False

    def queries(self, k: int) -> int:
        """How many queries may be searched now; DataError where one is too many."""
        each = _PLACE * (2 * k + SPARE) + _LINE * k
        held = held_memory()
        fit = (self.limit - held - WORK) // each
        if fit < 1:
            raise DataError(
                f"a search of one query takes about {_mb(WORK + each)} beside the {_mb(held)} that the "
                f"program, the model and the index hold, and --max-memory allows {_mb(self.limit)} in "
                "all; raise it, or lower -k"
            )
        begun, self._begun = self._begun, True
        return fit if begun else min(fit, FIRST)


def parts(count: int, k: int, room: Room | None) -> Iterator[slice]:
    """Queries 0 … count - 1 in consecutive parts, each as large as there is room for then; None: one."""
    done = 0
    while done < count:
        fit = count if room is None else room.queries(k)
        yield slice(done, min(done + fit, count))
        done += fit


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
