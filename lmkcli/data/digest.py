"""Digests of documents: of one, and of a collection whatever the order of its documents."""

import hashlib
import json
from collections.abc import Iterable

from lmkcli.data.collection import Doc


def doc_hash(doc: Doc) -> bytes:
    """32 bytes that change with the id, the title, the text or the contexts (each closed by its length)."""
    digest = hashlib.sha256()
    contexts = [json.dumps(doc.context)] if doc.context else []
    for field in (doc.id, doc.title, doc.text, *contexts):
        data = field.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()


class CollectionDigest:
    """An order-free digest: the count and the sum modulo 2**256 of the documents' hashes.

    Being a sum, the digests of parts add up to the digest of the whole.
    """

    def __init__(self, count: int = 0, total: int = 0) -> None:
        self.count = count
        self.total = total

    def add(self, doc_hash: bytes) -> None:
        """Count one document in."""
        self.count += 1
        self.total = (self.total + int.from_bytes(doc_hash, "little")) % (1 << 256)

    def __str__(self) -> str:
        return f"{self.count}:{self.total:064x}"

    @classmethod
    def sum(cls, digests: Iterable[str]) -> "CollectionDigest":
        """The digest of the union of parts, each given as its text."""
        whole = cls()
        for text in digests:
            count, total = text.split(":")
            whole.count += int(count)
            whole.total = (whole.total + int(total, 16)) % (1 << 256)
        return whole
