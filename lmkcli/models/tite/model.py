"""TITE as a transformers class: `TiteModel`, and AutoConfig and AutoModel know it by its type."""

from typing import cast

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from lmkcli.errors import DataError
from lmkcli.models.tite.config import TiteConfig
from lmkcli.models.tite.layers import TiteEmbeddings, TiteEncoder
from lmkcli.models.tite.rows import Lengths, places


class TiteModel(PreTrainedModel):  # type: ignore[no-untyped-call]
    """TITE without heads; its parameters are named as in the released checkpoints."""

    config: TiteConfig
    config_class = TiteConfig
    base_model_prefix = "tite"
    _no_split_modules = ["TiteLayer"]  # noqa: RUF012 (as transformers declares it)
    _keys_to_ignore_on_load_unexpected = [r"^heads\.", r"^lm_decoder\."]  # noqa: RUF012

    def __init__(self, config: TiteConfig) -> None:
        super().__init__(config)
        self.embeddings = TiteEmbeddings(config)
        self.encoder = TiteEncoder(config)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module:
        """The table of tokens."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Another table of tokens, of the same width."""
        self.embeddings.word_embeddings = cast(nn.Embedding, value)

    def packed(
        self, ids: torch.Tensor, lengths: Lengths, layers: list[torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Sequences side by side [tokens] -> one row for each that is not empty, [n, width].

        Where nothing is pooled, one row for each token. The states after the embeddings and after
        each layer are put into `layers`. DataError for a sequence that there are no positions for.
        """
        longest = int(lengths.max(initial=0))
        if longest > self.config.longest:
            raise DataError(
                f"a sequence of {longest} tokens is longer than TITE's {self.config.longest} positions; "
                "cut it (--max-length; in Python truncation=True of the tokenizer)"
            )
        if not longest:
            return cast(torch.Tensor, self.embeddings.word_embeddings(ids))  # no rows
        states = self.embeddings(ids, torch.from_numpy(places(lengths)).to(ids.device))
        if layers is not None:
            layers.append(states)
        return cast(torch.Tensor, self.encoder(states, lengths, layers))

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutput | tuple[torch.Tensor, ...]:
        """[batch, length] -> `last_hidden_state` [batch, 1, width]; zeros for a row of padding alone.

        A model that pools nothing gives [batch, length, width]. `hidden_states` are packed, for
        padding is never computed: twice the embeddings, as in the official code, then each layer.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        mask = mask.bool()
        layers: list[torch.Tensor] = []
        shown = (
            self.config.output_hidden_states
            if output_hidden_states is None
            else output_hidden_states
        )
        states = self.packed(
            input_ids[mask], mask.sum(1).cpu().numpy().astype(np.int64), layers if shown else None
        )
        filled = mask.any(1, keepdim=True) if self.config.pools else mask
        last = states.new_zeros(*filled.shape, self.config.hidden_size)
        last = last.masked_scatter(filled[..., None], states)
        output = BaseModelOutput(last, tuple(layers[:1] + layers) if shown else None)
        wanted = self.config.return_dict if return_dict is None else return_dict
        return output if wanted else output.to_tuple()


AutoConfig.register("tite", TiteConfig)
AutoModel.register(TiteConfig, TiteModel)
