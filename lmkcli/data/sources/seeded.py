"""What collections that are made from a seed share: choices that are the same everywhere, options."""

import hashlib
from collections.abc import Sequence
from typing import TypeVar

from lmkcli.errors import UsageError

Item = TypeVar("Item")


class Draws:
    """A stream of random numbers that depends on its key alone (SHA-256 of key and counter)."""

    def __init__(self, *key: object) -> None:
        self._key = ":".join(map(str, key))
        self._count = 0

    def below(self, n: int) -> int:
        """A number from 0 to n - 1, each as likely (but for one part in 2**64 or so)."""
        self._count += 1
        digest = hashlib.sha256(f"{self._key}#{self._count}".encode()).digest()
        return int.from_bytes(digest[:16], "big") % n

    def one(self, items: Sequence[Item]) -> Item:
        """One of the items."""
        return items[self.below(len(items))]

    def some(self, items: Sequence[Item], k: int) -> list[Item]:
        """`k` different items in random order; k is at most their number."""
        left = list(items)
        for i in range(k):
            j = i + self.below(len(left) - i)
            left[i], left[j] = left[j], left[i]
        return left[:k]


def whole_number(name: str, options: dict[str, str], key: str, default: int, least: int = 0) -> int:
    """The option `key` of 'name,key=value', a number from `least` on; UsageError for anything else."""
    text = options.get(key)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < least:
        raise UsageError(f"{name},{key}={text}: write a whole number, {least} or more")
    return int(text)
