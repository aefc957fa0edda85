"""Texts for pre-training, placed and masked as a batch asks for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmkcli.data.collection import WHOLE, Shard
from lmkcli.pooling.placement import Content, Input
from lmkcli.training.chance import dice
from lmkcli.training.corpus import Corpus, Text
from lmkcli.training.masking import Masking, Vocabulary
from lmkcli.training.placing import TrainingSide
from lmkcli.training.pretraining import PretrainBatch
from lmkcli.training.sampling import Batch


@dataclass(frozen=True)
class TextLayout:
    """How a text becomes an input. With several `grans` each chunk has a length drawn for it (LMK, §5.3).

    `doubled` chunks the special tokens around a text with it, as the official code does.
    """

    side: TrainingSide
    grans: tuple[str, ...] = ()
    doubled: bool = False

    def __call__(self, text: Text, chance: np.random.Generator) -> Input:
        """The one input of a text."""
        placer = self.side.placers[0]
        ids = text.ids[: placer.limit]
        if self.doubled:
            special = placer.special
            ids = np.concatenate([special.prefix, ids, special.suffix]).astype(np.int32)
        if len(self.grans) > 1:
            ends = drawn_ends(len(ids), [int(gran) for gran in self.grans], chance)
            content = Content(ids, ends, text.prompt)
        else:
            own = None if text.ends is None else np.unique(np.minimum(text.ends, len(ids)))
            content = placer.content(ids, text.prompt, own)
        return placer.place(content).inputs[0]

    def kept(self, length: int) -> int:
        """Tokens that an input keeps of a text that is longer than it, at the least."""
        endless = Text(np.zeros(length, np.int32), np.zeros(0, np.int32), None)
        placers = [
            (placer, placer.content(endless.ids, endless.prompt, None))
            for placer in self.side.placers
        ]
        return min(placer.place(content).kept for placer, content in placers)


def drawn_ends(
    length: int, sizes: Sequence[int], chance: np.random.Generator
) -> "np.ndarray[Any, np.dtype[np.int32]]":
    """Exclusive ends of chunks, each of a size drawn for it; the last may be shorter."""
    most = -(-length // min(sizes)) or 1
    ends = np.cumsum(chance.choice(np.array(sizes), most))
    return np.append(ends[ends < length], length).astype(np.int32)


@dataclass(frozen=True)
class Masked:
    """Places and masks the texts of a batch, for one process."""

    corpus: Corpus
    layout: TextLayout
    masking: Masking
    vocabulary: Vocabulary
    seed: int
    shard: Shard = WHOLE

    def __call__(self, batch: Batch) -> PretrainBatch:
        """This process's share; what is drawn for a text depends on its place in the whole batch."""
        mine = self.shard.rows(len(batch.examples))
        texts = []
        for place in mine:
            chance = dice(self.seed, "masks", batch.step, place)
            placed = self.layout(self.corpus[int(batch.examples[place])], chance)
            texts.append(self.masking(placed, self.vocabulary, chance))
        names = [self.corpus.name(int(batch.examples[place])) for place in mine]
        return PretrainBatch(batch.step, names, texts)
