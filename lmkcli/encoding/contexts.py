"""Contexts before chunks that are embedded alone: tokenized by themselves, and placed before them."""

from typing import NamedTuple

import numpy as np

from lmkcli.data.contexts import contexts, own_begin
from lmkcli.models.tokenizer import Tokenizer
from lmkcli.pooling.placement import Content, Placement, Placer
from lmkcli.store.tokens import TokenRow


class ContextTokens(NamedTuple):
    """Tokens of the contexts of one document's chunks, and how many of these did not fit."""

    tokens: int = 0
    lost: int = 0


NO_CONTEXTS = ContextTokens()


class PlacedDocument(NamedTuple):
    """The inputs of one document, and what contexts are in them."""

    placement: Placement
    contexts: ContextTokens = NO_CONTEXTS


def placed_in_context(
    rows: list[TokenRow], how: str, tokenizer: Tokenizer, placer: Placer
) -> list[PlacedDocument]:
    """The inputs of documents whose chunks stand each behind its context.

    Token numbers count in the rows as they are given, also where a title is the context and therefore in
    no chunk. DataError where a document has another number of contexts than of chunks.
    """
    firsts = [_first(row, how) for row in rows]
    contents = [_content(row, first, placer) for row, first in zip(rows, firsts, strict=True)]
    texts = [
        contexts(row.doc, how, _begins(row, first, content))
        for row, first, content in zip(rows, firsts, contents, strict=True)
    ]
    distinct = list(dict.fromkeys(text for each in texts for text in each))
    ids = dict(zip(distinct, tokenizer.contexts(distinct), strict=True))
    return [
        _placed(content._replace(contexts=[ids[text] for text in each]), first, placer)
        for content, first, each in zip(contents, firsts, texts, strict=True)
    ]


def _first(row: TokenRow, how: str) -> int:
    """The first token of a document that is in a chunk."""
    own = own_begin(row.doc, how)
    return int(np.searchsorted(row.spans[:, 1], own, side="left")) if own else 0


def _content(row: TokenRow, first: int, placer: Placer) -> Content:
    """A document's tokens from `first` on; of chunks before, those that the collection gave stay, empty."""
    ends = row.ends
    if ends is not None:
        ends = np.maximum(ends - first, 0)
        ends = ends if placer.gran == "given" else ends[ends > 0]
    return placer.content(row.ids[first:], row.prompt, ends)


def _begins(row: TokenRow, first: int, content: Content) -> list[int]:
    """Where the chunks begin, in characters of the document."""
    stops = content.ends + first
    starts = np.concatenate([[first], stops[:-1]])
    ranges = np.stack([starts, stops], axis=1).astype(np.int32)
    return [int(begin) for begin in row.characters(ranges)[:, 0]]


def _placed(content: Content, first: int, placer: Placer) -> PlacedDocument:
    placement = placer.place(content)
    total = sum(map(len, content.contexts))
    moved = placement._replace(covers=placement.covers + first, kept=placement.kept + first)
    return PlacedDocument(moved, ContextTokens(total, total - placement.context))
