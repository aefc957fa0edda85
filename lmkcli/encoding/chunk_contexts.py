"""Contexts of chunks: texts before chunks that are encoded separately, such as a title or headings.

A context is tokenized separately, and each chunk with its context is one input. Token numbers of a placement
always refer to the token rows. If the title is the context, no chunk contains the title: the first chunk
starts at the first token after it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lmkcli.data.contexts import contexts_of, own_start
from lmkcli.models.tokenizer import Tokenizer
from lmkcli.pooling.placement import Content, Placement, Placer
from lmkcli.store.tokens import TokenRow


class ContextTokens(NamedTuple):
    """How many tokens the contexts of one document's chunks have, and how many of them did not fit."""

    tokens: int = 0
    lost: int = 0


NO_CONTEXTS = ContextTokens()


class PlacedDocument(NamedTuple):
    """The inputs of one document, and the tokens of contexts in them."""

    placement: Placement
    contexts: ContextTokens = NO_CONTEXTS


def placed_in_context(
    rows: Sequence[TokenRow], how: str, tokenizer: Tokenizer, placer: Placer
) -> list[PlacedDocument]:
    """Place documents with each chunk after its context.

    Raises DataError for a document with a different number of contexts than of chunks.
    """
    firsts = [_first_token(row, how) for row in rows]
    contents = [_content(row, first, placer) for row, first in zip(rows, firsts, strict=True)]
    texts = [
        contexts_of(row.doc, how, _chunk_starts(row, first, content))
        for row, first, content in zip(rows, firsts, contents, strict=True)
    ]
    distinct = list(dict.fromkeys(text for each in texts for text in each))
    ids = dict(zip(distinct, tokenizer.contexts(distinct), strict=True))
    documents = []
    for content, first, each in zip(contents, firsts, texts, strict=True):
        content = content._replace(contexts=[ids[text] for text in each])
        placement = placer.place(content)
        total = sum(map(len, content.contexts))
        shifted = placement._replace(covers=placement.covers + first, kept=placement.kept + first)
        documents.append(PlacedDocument(shifted, ContextTokens(total, total - placement.context)))
    return documents


def _first_token(row: TokenRow, how: str) -> int:
    """Return the number of the first token of a document that belongs to a chunk."""
    start = own_start(row.doc, how)
    return int(np.searchsorted(row.spans[:, 1], start, side="left")) if start else 0


def _content(row: TokenRow, first: int, placer: Placer) -> Content:
    """Return the tokens of a document from `first` on, cut into chunks.

    Chunks of the collection before `first` become empty chunks, because each of them has a context.
    """
    ends = row.ends
    if ends is not None:
        ends = np.maximum(ends - first, 0)
        ends = ends if placer.gran == "given" else ends[ends > 0]
    return placer.content(row.ids[first:], row.prompt, ends)


def _chunk_starts(row: TokenRow, first: int, content: Content) -> list[int]:
    """Return the position of each chunk's first character in the document's content."""
    stops = content.ends + first
    starts = np.concatenate([[first], stops[:-1]])
    ranges = np.stack([starts, stops], axis=1).astype(np.int32)
    return [int(start) for start in row.characters(ranges)[:, 0]]
