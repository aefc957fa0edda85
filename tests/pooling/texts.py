"""One text for a placer, with its chunks."""

from typing import NamedTuple

import numpy as np

from lmkcli.pooling.placement import NOTHING, Placement, Placer
from lmkcli.store.token_blocks import Ints, TokenBlock


class Text(NamedTuple):
    """Ids [tokens], prompt and the ends of a splitter. `ends` and `separated` are the placer's chunks."""

    ids: Ints
    prompt: Ints
    pieces: Ints | None
    ends: Ints
    separated: bool

    @property
    def block(self) -> TokenBlock:
        return TokenBlock.one(self.ids, self.prompt, self.pieces)


def text_of(placer: Placer, ids: Ints, prompt: Ints = NOTHING, pieces: Ints | None = None) -> Text:
    chunks = placer.chunks(TokenBlock.one(ids, prompt, pieces))
    return Text(ids, prompt, pieces, chunks.ends.astype(np.int32), chunks.separated)


def place(placer: Placer, text: Text) -> Placement:
    return placer.place_text(text.ids, text.prompt, text.pieces)
