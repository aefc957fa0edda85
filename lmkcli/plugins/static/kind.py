"""A table of embeddings as a model kind: the state of a token is its row.

The layouts are those of sentence-transformers (`embedding.weight`) and of model2vec (`embeddings`, with an
optional row number and weight for each token).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from lmkcli.errors import DataError, UsageError
from lmkcli.models.devices import TORCH_DTYPES, choose_device, to_device
from lmkcli.models.forward import ModelOptions
from lmkcli.models.model_files import loading
from lmkcli.models.model_folder import NO_LIMIT, ModelFolder
from lmkcli.models.tensors import read_tensors
from lmkcli.store.token_blocks import Ints


class EmbeddingTable(nn.Module):
    """The rows of all tokens, and a row of zeros: the vector of a text without tokens."""

    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__()
        weight = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
        self.rows: nn.Embedding = nn.Embedding(len(weight), weight.shape[1], _weight=weight)

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the table."""
        table: nn.Embedding = self.rows
        return table


@dataclass
class StaticModel:
    """A loaded table; `states` looks up the rows of tokens."""

    module: Any  # an EmbeddingTable
    dim: int
    device: torch.device
    dtype: str
    limit: int = NO_LIMIT
    packed: bool = True
    why_padded: str = ""
    one_vector: bool = False
    pad_to: int = 0

    @property
    def weight_bytes(self) -> int:
        """The size of the table in bytes."""
        weight: torch.Tensor = self.module.rows.weight
        return weight.numel() * weight.element_size()

    def states(
        self,
        sequences: list[Ints],
        attended: list[int] | None = None,
        positions: list[Ints] | None = None,
    ) -> torch.Tensor:
        """Return the rows of all tokens, [tokens, dim]. Positions and attention have no meaning."""
        ids = torch.from_numpy(np.concatenate(sequences).astype(np.int64))
        rows: torch.Tensor = self.module.rows(to_device(ids, self.device))
        return rows

    def token_states(self, sequences: list[Ints]) -> torch.Tensor:
        """Return `states`: each state belongs to one token."""
        return self.states(sequences)


def open_model(folder: ModelFolder, options: ModelOptions) -> StaticModel:
    """Load the table of a folder onto a device. DataError if it cannot be loaded."""
    if options.extend:
        raise UsageError(f"--extend {options.extend}: {folder.name} has no positions; drop it")
    device = choose_device(options.device)
    dtype = "fp32" if options.dtype == "auto" else options.dtype  # a lookup gains nothing from bf16
    with loading(f"the table of {folder.name}"):
        rows = _rows(folder)
        count = Tokenizer.from_file(str(folder.encoder / "tokenizer.json")).get_vocab_size()
    if len(rows) < count:
        raise DataError(
            f"the table of {folder.name} has {len(rows)} rows, and its tokenizer has {count} tokens; "
            "download the model again"
        )
    module = EmbeddingTable(rows[:count].to(TORCH_DTYPES[dtype])).to(device).eval()
    module.requires_grad_(options.trainable)
    return StaticModel(module, rows.shape[1], device, dtype)


def _rows(folder: ModelFolder) -> torch.Tensor:
    """Return the row of each token in float32, [tokens, dim]."""
    file = folder.encoder / "model.safetensors"
    file = file if file.exists() else folder.encoder / "pytorch_model.bin"
    tensors = read_tensors(file, "a table of embeddings")
    rows = tensors.get("embedding.weight", tensors.get("embeddings"))
    if rows is None or rows.ndim != 2:
        raise DataError(f"{file} has no matrix embedding.weight or embeddings; give another model")
    if "embedding.weight" in tensors:
        return rows.float()
    if "mapping" in tensors:
        rows = rows[tensors["mapping"].long()]
    if "weights" not in tensors:
        return rows.float()
    # as sentence-transformers, which rounds the product to the dtype of the file
    return (rows.float() * tensors["weights"][:, None]).to(rows.dtype).float()
