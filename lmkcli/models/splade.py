"""SPLADE: hidden states to sparse vectors over the vocabulary.

A masked-language-model head maps each state to a logit for every token of the vocabulary. The weight of a
term is log(1 + relu(logit)). The vector of a text has the maximum of the weights over its marked positions
(arXiv 2109.10086), or their sum (arXiv 2107.05720). Some models take the logarithm twice (arXiv 2504.14839).

Positions times vocabulary are many numbers: 4,096 positions of BERT have half a gigabyte of logits. The
pooling therefore computes the logits in blocks of whole vectors. The vectors stay on the device as a matrix:
the number of terms with a weight is unknown, so a GPU would be waited for to select them there.
"""

from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

from lmkcli.models.forward import Marks, Pooling
from lmkcli.pooling.table import Expanding
from lmkcli.store.vectors import cut

# Logits in memory at a time: 32 MB in float32 on a CPU. With such small blocks, a GPU would wait for Python.
LOGITS = {"cpu": 1 << 23, "cuda": 1 << 27}


class GivenStates(nn.Module):
    """Replaces the encoder of a masked-language model. Returns the states that it is called with."""

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> BaseModelOutput:
        """Return [1, n, d] as the last hidden states."""
        return BaseModelOutput(last_hidden_state=inputs_embeds)


class VocabularyHead(nn.Module):
    """The head of a masked-language model: states [n, d] to logits [n, vocabulary].

    `masked` is the whole model with GivenStates in the place of its encoder. So every architecture applies
    its own head.
    """

    def __init__(self, masked: Any) -> None:
        super().__init__()
        self.masked = masked
        weight = masked.get_output_embeddings().weight
        self.vocabulary, self._dtype = len(weight), weight.dtype
        # how many states have logits at a time
        self.block = max(1, LOGITS[weight.device.type] // len(weight))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[n, d] -> [n, vocabulary], in the dtype of the weights."""
        logits: torch.Tensor = self.masked(inputs_embeds=states[None].to(self._dtype)).logits[0]
        return logits


class SpladePooling(Pooling):
    """Language head -> weights of terms -> maximum or sum over the marked positions."""

    def __init__(self, head: VocabularyHead, expanding: Expanding) -> None:
        super().__init__(head, nn.Sequential())
        self._maximum, self._logarithms = expanding.reduction == "max", expanding.logarithms
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
