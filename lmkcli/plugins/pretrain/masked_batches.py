"""Batches of pre-training: texts that are placed and masked on request."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmkcli.data.collection import WHOLE, Shard
from lmkcli.plugins.pretrain.corpus import Corpus, Text
from lmkcli.plugins.pretrain.masking import Masking, MaskingVocabulary
from lmkcli.plugins.pretrain.pretext import PretrainBatch
from lmkcli.pooling.chunks import Chunks
from lmkcli.pooling.placement import Input
from lmkcli.spec.values import Granularity
from lmkcli.store.ragged import Longs
from lmkcli.store.token_blocks import TokenBlock
from lmkcli.training.data.inputs import TrainingSide
from lmkcli.training.data.sampling import ExampleBatch, seeded_rng


@dataclass(frozen=True)
class TextLayout:
    """The settings that turn a text into a model input.

    With several `grans`, the length of each chunk is drawn from them (LMK, §6.3). `doubled` adds the special
    tokens to the text before chunking, as the official code does; they then occur twice.
    """

    side: TrainingSide
    grans: tuple[Granularity, ...] = ()
    doubled: bool = False

    def __call__(self, text: Text, rng: np.random.Generator) -> Input:
        """Return the input of a text; texts have no windows in pre-training."""
        placer = self.side.placers[0]
        ids = text.ids[: placer.limit]
        if self.doubled:
            special = placer.special
            ids = np.concatenate([special.prefix, ids, special.suffix]).astype(np.int32)
        ends, chunks = text.ends, None
        if len(self.grans) > 1:
            drawn = drawn_ends(len(ids), [int(gran) for gran in self.grans], rng)
            chunks = Chunks(drawn, np.array([len(drawn)]))
        elif ends is not None:
            ends = np.unique(np.minimum(ends, len(ids)))
        return placer.place(TokenBlock.one(ids, text.prompt, ends), chunks).inputs[0]

    def kept(self, length: int) -> int:
        """Return the minimum number of text tokens in an input of `length` positions.

        The other positions contain special tokens and landmarks. Their number depends on the granularity, so
        this is the minimum over all granularities.
        """
        ids = np.zeros(length, np.int32)
        return min(placer.place_text(ids).kept for placer in self.side.placers)


def drawn_ends(length: int, sizes: Sequence[int], rng: np.random.Generator) -> Longs:
    """Draw a size for each chunk of `length` tokens and return the exclusive ends.

    The last chunk may be shorter than its size.
    """
    most = -(-length // min(sizes)) or 1
    ends = np.cumsum(rng.choice(np.array(sizes), most))
    return np.append(ends[ends < length], length)


@dataclass(frozen=True)
class MaskedBatches:
    """Places and masks the texts of a batch for one process."""

    corpus: Corpus
    layout: TextLayout
    masking: Masking
    vocabulary: MaskingVocabulary
    seed: int
    shard: Shard = WHOLE

    def __call__(self, batch: ExampleBatch) -> PretrainBatch:
        """Return this process's share of the batch.

        The random numbers of a text depend on its place in the whole batch, not on the number of processes.
        """
        local = self.shard.rows(len(batch.examples))
        texts = []
        for place in local:
            rng = seeded_rng(self.seed, "masks", batch.step, place)
            placed = self.layout(self.corpus[int(batch.examples[place])], rng)
            texts.append(self.masking(placed, self.vocabulary, rng))
        names = [self.corpus.name(int(batch.examples[place])) for place in local]
        return PretrainBatch(batch.step, names, texts)
