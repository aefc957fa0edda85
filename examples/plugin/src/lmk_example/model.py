"""The model kind `bag`: the state of a token is its row in a table of embeddings."""

from dataclasses import dataclass

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, PretrainedConfig

from lmkcli.models.devices import TORCH_DTYPES, choose_device, native_dtype
from lmkcli.models.forward import ModelOptions
from lmkcli.models.model_files import loading
from lmkcli.models.model_folder import ModelFolder
from lmkcli.store.token_blocks import Ints


class BagConfig(PretrainedConfig):
    """The configuration of a model; transformers needs it to find the tokenizer."""

    model_type = "bag-of-words"


AutoConfig.register("bag-of-words", BagConfig)


class Table(nn.Module):
    """The weights: a row for each token."""

    def __init__(self, embeddings: nn.Embedding) -> None:
        super().__init__()
        self.embeddings = embeddings

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the table of the token ids, as models of transformers do."""
        return self.embeddings

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of some tokens, [tokens, dim]."""
        states: torch.Tensor = self.embeddings(ids)
        return states


@dataclass
class Bag:
    """A loaded model (the protocol `lmkcli.models.forward.Model`)."""

    module: Table
    device: torch.device
    dtype: str
    limit: int = 1 << 20
    packed: bool = True
    why_padded: str = ""
    one_vector: bool = False
    pad_to: int = 0

    @property
    def dim(self) -> int:
        """The number of dimensions of a state."""
        return self.module.embeddings.embedding_dim

    @property
    def weight_bytes(self) -> int:
        """The size of the weights in bytes."""
        weight = self.module.embeddings.weight
        return weight.numel() * weight.element_size()

    def states(
        self,
        sequences: list[Ints],
        attended: list[int] | None = None,
        positions: list[Ints] | None = None,
    ) -> torch.Tensor:
        """Return the rows of all tokens, [tokens, dim]; they do not depend on other tokens."""
        ids = torch.from_numpy(np.concatenate(sequences).astype(np.int64)).to(self.device)
        states: torch.Tensor = self.module(ids)
        return states

    def token_states(self, sequences: list[Ints]) -> torch.Tensor:
        """Return the states of all tokens."""
        return self.states(sequences)


def open_bag(folder: ModelFolder, options: ModelOptions) -> Bag:
    """Load the table of a folder, `embeddings` [tokens, dim], onto a device."""
    device = choose_device(options.device)
    dtype = native_dtype(device) if options.dtype == "auto" else options.dtype
    with loading(folder.name):
        table = load_file(folder.encoder / "model.safetensors")["embeddings"]
    weights = table.to(device, TORCH_DTYPES[dtype])
    embeddings = nn.Embedding.from_pretrained(weights, freeze=not options.trainable)
    return Bag(Table(embeddings), device, dtype)
