"""SPLADE: hidden states to sparse vectors over the vocabulary.

A masked-language-model head maps each state to a logit for every token of the vocabulary. The weight of a
term is log(1 + relu(logit)). The vector of a text has the maximum of the weights over its marked positions
(arXiv 2109.10086), or their sum (arXiv 2107.05720). Some models take the logarithm twice (arXiv 2504.14839).

Positions times vocabulary are many numbers: 4,096 positions of BERT have half a gigabyte of logits. The
pooling therefore computes the logits in blocks of whole vectors. The vectors stay on the device as a matrix:
the number of terms with a weight is unknown, so a GPU would be waited for to select them there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import nn

from lmkcli.encoding.representation import PooledPack
from lmkcli.models.forward import Pooling
from lmkcli.models.language_head import VocabularyHead
from lmkcli.plugins.sparse.sparse_vectors import Entries, SparseRows, collected
from lmkcli.pooling.placement import PlacedBlock
from lmkcli.pooling.reductions import Marks
from lmkcli.spec.recipe import EncoderConfig
from lmkcli.store.ragged import cut


class SpladePooling(Pooling):
    """Language head -> weights of terms -> maximum or sum over the marked positions.

    `logarithms`: how often the weight of a term is log(1 + weight).
    """

    def __init__(
        self, head: VocabularyHead, of_marks: Literal["max", "sum"], logarithms: int
    ) -> None:
        super().__init__(head, nn.Sequential())
        self._maximum, self._logarithms = of_marks == "max", logarithms
        self._block, self._vocabulary = head.block, head.vocabulary

    def forward(self, states: torch.Tensor, marks: Marks) -> torch.Tensor:
        """[rows, d] -> [marks.vectors, vocabulary] in float32."""
        marked = states.index_select(0, marks.marks)
        vectors = marked.new_empty((marks.vectors, self._vocabulary), dtype=torch.float32)
        starts = marks.starts
        for first, stop in cut(starts, self._block):
            part = marked[starts[first] : starts[stop]]
            vectors[first:stop] = self._vectors(part, marks.counts[first:stop].tolist())
        return vectors

    def _vectors(self, marked: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Return whole vectors of a block of marked states, [len(counts), vocabulary].

        A vector with more marks than a block is alone, and its logits are reduced part by part.
        """
        if len(marked) <= self._block:
            logits = torch.split(self.token_head(marked), counts)
            reduced = torch.stack([self._reduced(each) for each in logits])
        else:
            parts = torch.split(marked, self._block)
            several = torch.stack([self._reduced(self.token_head(part)) for part in parts])
            reduced = several.amax(0, True) if self._maximum else several.sum(0, True)
        return self._weights(reduced) if self._maximum else reduced

    def _reduced(self, logits: torch.Tensor) -> torch.Tensor:
        """[m, vocabulary] -> [vocabulary]. Weights rise with logits, so the maximum needs no weights."""
        return logits.amax(0).float() if self._maximum else self._weights(logits.float()).sum(0)

    def _weights(self, logits: torch.Tensor) -> torch.Tensor:
        weights = logits.relu()
        for _ in range(self._logarithms):
            weights = weights.log1p()
        return weights


@dataclass(frozen=True)
class TermWeights:
    """The end of encoding: the weights of a term in the windows of a text become their maximum, or their sum.

    dim: the size of the vocabulary.
    """

    side: EncoderConfig
    dim: int
    summed: bool
    large: bool = True

    def __call__(self, placed: PlacedBlock, packs: Iterator[PooledPack]) -> SparseRows:
        """Return the vectors of placed texts."""
        none = np.zeros(0, np.int64)  # without texts, there is no pack
        vectors, terms, weights = [none], [none], [none.astype(np.float32)]
        for pack in packs:
            dense = pack.vectors.numpy()
            # weights that are not finite stay, because the caller refuses them: NaN != 0
            places = np.flatnonzero(dense != 0)
            rows, columns = np.divmod(places, dense.shape[1])
            vectors.append(pack.numbers[rows])
            terms.append(columns)
            weights.append(dense.reshape(-1)[places])
        counts = placed.vectors
        numbers = np.concatenate(vectors)
        if self.side.unit == "doc":
            numbers = np.repeat(np.arange(len(counts)), counts)[numbers]
            counts = np.ones_like(counts)
        entries = Entries(numbers, np.concatenate(terms), np.concatenate(weights))
        return collected(entries, counts, self.dim, self.summed).finished(self.side)
