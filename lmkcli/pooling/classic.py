"""The poolers cls, last, mean, mean@k, latent, model and splade: the usual input with other marks.

Source: arXiv 2601.21525 §3.
"""

from dataclasses import dataclass

import numpy as np

from lmkcli.errors import UsageError
from lmkcli.pooling.block_placement import (
    ArrangedBlock,
    Longs,
    WindowBlock,
    plain_block,
    separator_places,
)
from lmkcli.pooling.placement import (
    SHARED,
    Arrangement,
    Content,
    Expanding,
    Ints,
    PoolerTraits,
    SpecialTokens,
    plain,
    separators,
)
from lmkcli.store.ragged import ranges


class _UsualInput:
    """Places special tokens as the tokenizer does for any text."""

    chunked = False

    def reserved(self, special: SpecialTokens) -> int:
        return len(special.prefix) + len(special.suffix)

    def check(self, special: SpecialTokens) -> None:
        """Accept every tokenizer."""


class _OnePosition(_UsualInput):
    """Marks one position."""

    per = "input"
    position = 0

    def arrange(
        self, content: Content, special: SpecialTokens, limit: int, marked_from: int
    ) -> Arrangement:
        ids, kept = plain(content, special, limit)
        mark = self.position % max(1, len(ids))  # the model determines the vector of an empty input
        return Arrangement(ids, np.array([mark], np.int32), np.full(1, SHARED, np.int32), kept)

    def arrange_block(
        self, windows: WindowBlock, special: SpecialTokens, limit: int
    ) -> ArrangedBlock:
        ids, lengths, kept = plain_block(windows, special, limit)
        marks = self.position % np.maximum(lengths, 1)
        ones = np.ones_like(lengths)
        return ArrangedBlock(ids, lengths, marks, np.full_like(ones, SHARED), ones, kept)


@dataclass(frozen=True)
class Cls(_OnePosition):
    """Marks position 0, the state of the first special token."""

    traits = PoolerTraits(sentence_mode="cls_token")

    def check(self, special: SpecialTokens) -> None:
        if not special.prefix:
            raise UsageError(
                "--pool cls needs a tokenizer with a special token before the text; try mean or last"
            )


@dataclass(frozen=True)
class Last(_OnePosition):
    """Marks the last position: EOS of a decoder, SEP of an encoder."""

    position = -1
    traits = PoolerTraits(sentence_mode="lasttoken", appends_eos=True)


@dataclass(frozen=True)
class ModelVector(_OnePosition):
    """Marks the only vector that the model itself makes from an input (TITE, M2-BERT)."""

    per = "model"


@dataclass(frozen=True)
class EveryKth(_UsualInput):
    """Marks every `step`-th position, starting at 0, including special tokens.

    For chunks, everything before the content belongs to the first chunk, as in late chunking without a prompt
    (Günther et al., arXiv 2409.04701). Separators and everything after the content belong to no chunk, unless
    a chunk has no other token.
    """

    step: int = 1

    @property
    def per(self) -> str:
        """'token' if every position has a mark, else 'step'."""
        return "token" if self.step == 1 else "step"

    def arrange(
        self, content: Content, special: SpecialTokens, limit: int, marked_from: int
    ) -> Arrangement:
        ids, kept = plain(content, special, limit)
        marks = np.arange(0, len(ids), self.step, dtype=np.int32)
        visible = marks[marks >= marked_from]
        marks = visible if len(visible) else marks  # only a prompt: average the prompt
        first = len(special.prefix) + len(content.prompt)
        body = max(len(ids) - first - len(special.suffix), 0)
        return Arrangement(ids, marks, _owners(content, body, marks - first), kept)

    def arrange_block(
        self, windows: WindowBlock, special: SpecialTokens, limit: int
    ) -> ArrangedBlock:
        ids, lengths, kept = plain_block(windows, special, limit)
        all_marks = -(-lengths // self.step)
        hidden = -(-windows.marked_from // self.step)
        hidden[hidden >= all_marks] = 0  # only a prompt: average the prompt
        counts = all_marks - hidden
        marks = ranges(hidden, counts) * self.step
        first = len(special.prefix) + windows.prompts
        bodies = np.maximum(lengths - first - len(special.suffix), 0)
        of_marks = np.repeat(np.arange(len(windows)), counts)
        owners = _block_owners(windows, bodies, marks - first[of_marks], of_marks)
        return ArrangedBlock(ids, lengths, marks, owners, counts, kept)


class Mean(EveryKth):
    """Marks every position."""

    traits = PoolerTraits(sentence_mode="mean_tokens")


class Latent(EveryKth):
    """Marks every position. The states pass through the latent attention of the model folder first."""

    traits = PoolerTraits(token_head=True)


class Splade(EveryKth):
    """Marks every position. The maximum of the weights of terms replaces the mean of states (SPLADE v2)."""

    traits = PoolerTraits(expanding=Expanding("max"))


class SpladeSum(EveryKth):
    """As Splade, with the sum of the weights (SPLADE v1)."""

    traits = PoolerTraits(expanding=Expanding("sum"))


class SpladeLog(EveryKth):
    """As Splade, with weights log(1 + log(1 + relu(logit))) (OpenSearch)."""

    traits = PoolerTraits(expanding=Expanding("max", 2))


def _owners(content: Content, body: int, places: Ints) -> Ints:
    """Return the chunk of each marked position, [m].

    places: [m], the marks, counted from the first content token; `body` positions are content. A chunk
    extends to the end of its separator, but owns the separator only if the chunk has no token.
    """
    between = separators(content)
    stops = content.ends + np.arange(1, len(content.ends) + 1) * bool(len(between))
    owners = np.searchsorted(stops, places, side="right").astype(np.int32)
    empty = np.diff(content.ends, prepend=0) == 0
    if len(between):
        owners[np.isin(places, between[~empty[:-1]])] = SHARED
    owners[places >= body] = SHARED
    if empty[-1] and body == len(content.ids) + len(between):
        owners[places == body] = len(empty) - 1  # an empty last chunk owns the suffix
    return owners


def _block_owners(windows: WindowBlock, bodies: Longs, places: Longs, of_marks: Longs) -> Longs:
    """Return the chunk of each marked position of many windows, as `_owners` does for one.

    bodies: [windows]. places, of_marks: [m], the marks, counted from the first content token, and their
    windows.
    """
    if (windows.chunks == 1).all() and windows.ends.all():  # one chunk each, which is not empty
        return np.where(places < bodies[of_marks], 0, SHARED)
    between = windows.separator is not None and bool((windows.chunks > 1).any())
    has_separators = (windows.chunks > 1) & (windows.separator is not None)
    stops = windows.ends + (windows.chunk_numbers + 1) * has_separators[windows.chunk_windows]
    # One search for all windows: numbers of window i are between i * apart and (i + 1) * apart.
    largest = max(int(stops.max(initial=0)), int(places.max(initial=0)))
    apart = largest - int(places.min(initial=0)) + 1
    firsts = np.cumsum(windows.chunks) - windows.chunks
    values = places + of_marks * apart
    owners = np.searchsorted(stops + windows.chunk_windows * apart, values, side="right")
    owners = owners - firsts[of_marks]
    empty = windows.ends == windows.chunk_starts
    if between:
        separates = (windows.chunk_numbers < windows.chunks[windows.chunk_windows] - 1) & ~empty
        separators = (separator_places(windows) + windows.chunk_windows * apart)[separates]
        owners[np.isin(values, separators)] = SHARED
    owners[places >= bodies[of_marks]] = SHARED
    last = firsts + windows.chunks - 1
    separated = windows.lengths + has_separators * (windows.chunks - 1)
    owns_suffix = empty[last] & (bodies == separated)  # an empty last chunk
    owned = owns_suffix[of_marks] & (places == bodies[of_marks])
    owners[owned] = (windows.chunks - 1)[of_marks][owned]
    return owners
