"""The source `numbers/N`: a document for each number below N, and a query for each."""

from collections.abc import Iterator

from lmkcli.data.collection import (
    WHOLE,
    Collection,
    CountedDocs,
    Doc,
    DocStream,
    Qrel,
    Query,
    Shard,
    check_options,
)
from lmkcli.errors import UsageError

DIGITS = "zero one two three four five six seven eight nine".split()


class Numbers(Collection):
    """The documents '0' … 'N - 1': the digits of each number in words."""

    def __init__(self, name: str, count: int) -> None:
        self.name, self._count = name, count
        self.settings = {}

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        """Return the documents of one shard."""
        numbers = shard.rows(self._count)
        return CountedDocs(lambda: (Doc(str(n), _words(n)) for n in numbers), len(numbers))

    def queries(self) -> Iterator[Query]:
        """Yield a query for each document."""
        yield from (Query(f"q{n}", _words(n)) for n in range(self._count))

    def qrels(self) -> Iterator[Qrel]:
        """Yield the judgements: each query has one relevant document."""
        yield from (Qrel(f"q{n}", str(n), 1) for n in range(self._count))


def _words(number: int) -> str:
    return " ".join(DIGITS[int(digit)] for digit in str(number))


def open_numbers(name: str, options: dict[str, str]) -> Numbers:
    """Open 'numbers/N'. Raises UsageError for other names."""
    check_options(name, options, ())
    count = name.removeprefix("numbers/")
    if not count.isdigit():
        raise UsageError(f"{name}: write the number of documents, such as numbers/20")
    return Numbers(name, int(count))
