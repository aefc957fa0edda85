"""cls, last, mean, mean@k, model: ordinary inputs with other marks (arXiv 2601.21525 §3)."""

from dataclasses import dataclass

import numpy as np

from lmkcli.errors import UsageError
from lmkcli.pooling.placement import (
    SHARED,
    Arrangement,
    Content,
    Ints,
    SpecialTokens,
    plain,
    separators,
)


class _Ordinary:
    """Special tokens as the tokenizer puts them around any text."""

    chunked = False

    def reserved(self, special: SpecialTokens) -> int:
        return len(special.prefix) + len(special.suffix)

    def check(self, special: SpecialTokens) -> None:
        """Any tokenizer will do."""


class _One(_Ordinary):
    """Marks one position."""

    per = "input"
    position = 0

    def arrange(
        self, content: Content, special: SpecialTokens, limit: int, marked_from: int
    ) -> Arrangement:
        ids, kept = plain(content, special, limit)
        mark = self.position % max(1, len(ids))  # an empty input's vector is up to the model
        return Arrangement(ids, np.array([mark], np.int32), _shared(1), kept)


@dataclass(frozen=True)
class Cls(_One):
    """Marks position 0, the state of the first special token."""

    def check(self, special: SpecialTokens) -> None:
        if not special.prefix:
            raise UsageError(
                "--pool cls needs a tokenizer that begins with a special token; try mean or last"
            )


@dataclass(frozen=True)
class Last(_One):
    """Marks the last position: EOS of a decoder, SEP of an encoder."""

    position = -1


@dataclass(frozen=True)
class Own(_One):
    """Marks the one vector that the model itself makes of an input (TITE, M2-BERT)."""

    per = "model"


@dataclass(frozen=True)
class Mean(_Ordinary):
    """Marks every `step`-th position from 0 on, specials included; step 1 is the plain mean.

    What precedes the content belongs to the first chunk, as in late chunking without a prompt
    (Günther et al., arXiv 2409.04701); separators and what follows belong to none, unless a chunk has nothing
    else.
    """

    step: int = 1

    @property
    def per(self) -> str:
        """Every token has a mark, or some do."""
        return "token" if self.step == 1 else "step"

    def arrange(
        self, content: Content, special: SpecialTokens, limit: int, marked_from: int
    ) -> Arrangement:
        ids, kept = plain(content, special, limit)
        marks = np.arange(0, len(ids), self.step, dtype=np.int32)
        visible = marks[marks >= marked_from]
        marks = visible if len(visible) else marks  # nothing but a prompt: it is all there is
        first = len(special.prefix) + len(content.prompt)
        body = max(len(ids) - first - len(special.suffix), 0)
        return Arrangement(ids, marks, _owners(content, body, marks - first), kept)


def _owners(content: Content, body: int, places: Ints) -> Ints:
    """The chunk of each place; places count from the first content token, `body` of them are content.

    A chunk reaches to the end of its separator, which it owns only when it has no token.
    """
    between = separators(content)
    stops = content.ends + np.arange(1, len(content.ends) + 1) * bool(len(between))
    owners = np.searchsorted(stops, places, side="right").astype(np.int32)
    empty = np.diff(content.ends, prepend=0) == 0
    if len(between):
        owners[np.isin(places, between[~empty[:-1]])] = SHARED
    owners[places >= body] = SHARED
    if empty[-1] and body == len(content.ids) + len(between):
        owners[places == body] = len(empty) - 1  # the suffix ends an empty chunk
    return owners


def _shared(count: int) -> Ints:
    return np.full(count, SHARED, np.int32)
