"""The poolers cls, last, mean, mean@k, latent, model and splade: the usual input with other marks.

Source: arXiv 2601.21525 §3.
"""

from dataclasses import dataclass

import numpy as np

from lmkcli.errors import UsageError
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
