"""What a retriever of another framework returns for a question: passages with their places."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lmkcli.operations.search import OpenIndex, open_index

_NOT_METADATA = ("text", "passage")


class Retrieved(NamedTuple):
    """A passage, or a whole document if chunks have no vectors of their own.

    id: unique for each passage: 'doc', or 'doc#chunk' with the number of the chunk. text: the text of the
    passage. document: the id of its document. metadata: the facts of the hit in `Hits.as_json`, but `begin`
    and `end` count the characters of the document's text without its title.
    """

    id: str
    text: str
    document: str
    score: float
    metadata: dict[str, Any]


def opened(index: OpenIndex | str | Path) -> OpenIndex:
    """Return an open index; a path is opened. Raises DataError if it cannot be searched."""
    return index if isinstance(index, OpenIndex) else open_index(index)


def retrieve(
    index: OpenIndex, question: str, k: int, where: str | Sequence[str] = ()
) -> Iterator[Retrieved]:
    """Search for a question, and return its passages, best first; `where` as of `OpenIndex.search`."""
    hits = index.search(question, k, where)
    for hit, facts in zip(hits, hits.as_json(), strict=True):
        passage, titled = hit.passage, len(hit.content) - len(hit.text)
        for name in {"begin", "end"} & facts.keys():  # a passage may start in the title
            facts[name] = max(0, facts[name] - titled)
        yield Retrieved(
            hit.id if passage is None else f"{hit.id}#{passage.chunk}",
            hit.text if passage is None else passage.text,
            hit.id,
            hit.score,
            {name: value for name, value in facts.items() if name not in _NOT_METADATA},
        )
