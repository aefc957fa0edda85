"""Random numbers for generated collections: the same on every machine and in every version of Python."""

import hashlib
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


class KeyedRng:
    """A stream of random numbers that depends only on its key (SHA-256 of key and counter)."""

    def __init__(self, *key: object) -> None:
        self._key = ":".join(map(str, key))
        self._count = 0

    def below(self, n: int) -> int:
        """Return a random number from 0 to n - 1, uniform up to about one part in 2**64."""
        self._count += 1
        digest = hashlib.sha256(f"{self._key}#{self._count}".encode()).digest()
        return int.from_bytes(digest[:16], "big") % n

    def choice(self, items: Sequence[Item]) -> Item:
        """Return one random item."""
        return items[self.below(len(items))]

    def sample(self, items: Sequence[Item], k: int) -> list[Item]:
        """`k` different items in random order, with `k` at most their number (Fisher-Yates shuffle)."""
        left = list(items)
        for i in range(k):
            j = i + self.below(len(left) - i)
            left[i], left[j] = left[j], left[i]
        return left[:k]
