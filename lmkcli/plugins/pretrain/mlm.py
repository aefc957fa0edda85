"""MLM: predict the masked tokens (Devlin et al. 2019, §3.1)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from lmkcli.models.forward import Model
from lmkcli.models.prediction_head import language_head
from lmkcli.plugins.pretrain.masking import MaskedText, Masking
from lmkcli.plugins.pretrain.pretext import EncodedTexts, HeadOptions, masked_language


class Mlm(nn.Module):
    """Cross-entropy of the hidden tokens, averaged over the hidden tokens of the batch.

    The accuracy, the share of hidden tokens with the largest logit, is only logged.
    """

    masking: ClassVar[Masking] = Masking(share=0.3)
    weights: ClassVar[Mapping[str, float]] = {"mlm": 1.0, "accuracy": 0.0}

    def __init__(self, model: Model, options: HeadOptions) -> None:
        super().__init__()
        encoder: Any = model.module
        table = encoder.get_input_embeddings().weight
        self.language = language_head(encoder.config, len(table))

    def forward(self, encoded: EncodedTexts) -> Tensor:
        """Return the summed loss of the hidden tokens, and the number of correct ones, [2]."""
        return masked_language(encoded, self.language)

    def counts(self, texts: Sequence[MaskedText]) -> list[int]:
        """Return the number of hidden tokens, for both parts."""
        return [sum(len(text.hidden) for text in texts)] * 2
