"""Contexts of chunks: texts before chunks that are encoded separately, such as a title or headings.

A context is tokenized separately, and each chunk with its context is one input. Token numbers of a placement
always refer to the token rows. If the title is the context, no chunk contains the title: the first chunk
starts at the first token after it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lmkcli.data.contexts import contexts_of, own_start
from lmkcli.models.tokenizer import Tokenizer
from lmkcli.pooling.placement import PlacedBlock, Placer
from lmkcli.store.token_blocks import DocBlock, TextTokens, TokenBlock, TokenRow


class ContextTokens(NamedTuple):
    """How many tokens the contexts of one document's chunks have, and how many of them did not fit."""

    tokens: int
    lost: int


class PlacedDocuments(NamedTuple):
    """The inputs of some documents, and the tokens of contexts in them, if their chunks have contexts."""

    placed: PlacedBlock
    contexts: list[ContextTokens] | None = None


def placed_in_context(
    rows: Sequence[TokenRow], how: str, tokenizer: Tokenizer, placer: Placer
) -> PlacedDocuments:
    """Place documents with each chunk after its context.

    Raises DataError for a document with a different number of contexts than of chunks.
    """
    firsts = np.array([_first_token(row, how) for row in rows], np.int64)
    block = TokenBlock.of([_own(row, int(n), placer) for row, n in zip(rows, firsts, strict=True)])
    chunks = placer.chunks(block)
    of_chunks = np.repeat(np.arange(len(block)), chunks.counts)
    ranges = np.stack([chunks.starts, chunks.ends], axis=1) + firsts[of_chunks, None]
    whole = DocBlock.of(rows).tokens
    characters = whole.characters(of_chunks, ranges.astype(np.int32))[:, 0].tolist()
    texts = [
        contexts_of(row.doc, how, characters[first : first + count])
        for row, first, count in zip(
            rows, chunks.firsts.tolist(), chunks.counts.tolist(), strict=True
        )
    ]
    distinct = list(dict.fromkeys(text for each in texts for text in each))
    ids = dict(zip(distinct, tokenizer.contexts(distinct), strict=True))
    totals = [sum(len(ids[text]) for text in each) for each in texts]
    placed = placer.place(
        block, replace(chunks, contexts=[ids[text] for each in texts for text in each])
    )
    of_vectors = np.repeat(firsts, placed.vectors).astype(np.int32)
    shifted = placed._replace(covers=placed.covers + of_vectors[:, None], kept=placed.kept + firsts)
    lost = (np.array(totals) - placed.context).tolist()
    return PlacedDocuments(shifted, list(map(ContextTokens, totals, lost)))


def _first_token(row: TokenRow, how: str) -> int:
    """Return the number of the first token of a document that belongs to a chunk."""
    start = own_start(row.doc, how)
    return int(np.searchsorted(row.spans[:, 1], start, side="left")) if start else 0


def _own(row: TokenRow, first: int, placer: Placer) -> TextTokens:
    """Return the tokens of a document from `first` on.

    Chunks of the collection before `first` become empty chunks, because each of them has a context.
    """
    ends = row.ends
    if ends is not None:
        ends = np.maximum(ends - first, 0)
        ends = ends if placer.gran == "given" else ends[ends > 0]
    return TextTokens(row.ids[first:], row.spans[first:], row.prompt, ends)
