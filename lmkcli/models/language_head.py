"""Language heads: hidden states to a logit for every token of the vocabulary.

Positions times vocabulary are many numbers: 4,096 positions of BERT have half a gigabyte of logits. So a
caller computes the logits of `VocabularyHead.block` states at a time.
"""

from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

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
