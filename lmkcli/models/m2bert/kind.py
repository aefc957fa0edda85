"""M2-BERT as a model kind: one vector for each input, padded to full length or not at all."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.utils import logging as transformers_logging

from lmkcli.errors import UsageError
from lmkcli.models.devices import TORCH, choose_device, native_dtype
from lmkcli.models.files import loading
from lmkcli.models.folder import ModelFolder
from lmkcli.models.forward import ModelOptions
from lmkcli.models.m2bert.config import M2BertConfig
from lmkcli.models.m2bert.model import M2BertModel
from lmkcli.pooling.placement import Ints
from lmkcli.system.memory import free_memory

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


@dataclass
class M2Bert:
    """A loaded M2-BERT. `pad_to` is the model's length, or 0 where padding is hidden from it."""

    module: Any
    dim: int
    limit: int
    device: torch.device
    dtype: str
    pad_to: int
    packed: bool = False
    why_padded: str = ""  # padding is part of the model
    one_vector: bool = True

    @property
    def weight_bytes(self) -> int:
        """What the weights take in memory, with the filters' transforms that are kept."""
        own: int = sum(p.numel() * p.element_size() for p in self.module.parameters())
        kept = any(conv.keep for conv in self.module.long_convs)
        return own + (_filter_bytes(self.module) if kept else 0)

    def states(
        self,
        sequences: list[Ints],
        attended: list[int] | None = None,
        positions: list[Ints] | None = None,
    ) -> torch.Tensor:
        """The vectors [sequences, dim]; `attended` and `positions` have no meaning for it."""
        vectors: torch.Tensor = self._run(sequences)[0].pooler_output
        return vectors

    def token_states(self, sequences: list[Ints]) -> torch.Tensor:
        """The states of all positions [positions, dim], padding left out."""
        output, mask = self._run(sequences)
        states: torch.Tensor = output.last_hidden_state[mask.to(self.device)]
        return states

    def _run(self, sequences: list[Ints]) -> tuple[Any, torch.Tensor]:
        """What the model makes of the inputs, and where they are no padding."""
        lengths = np.array([len(sequence) for sequence in sequences])
        mask = torch.arange(self.pad_to or _steps(int(lengths.max()), self.limit)) < torch.tensor(
            lengths[:, None]
        )
        ids = torch.full(mask.shape, self.module.config.pad_token_id or 0)
        ids[mask] = torch.from_numpy(np.concatenate(sequences)).long()
        output = self.module(
            ids.to(self.device), mask.long().to(self.device), mask_padding=not self.pad_to
        )
        return output, mask


def _steps(length: int, limit: int) -> int:
    """The least of 4, 5, 6 or 7 times a power of two: few lengths need few transforms of filters."""
    power = 1 << max(0, (length - 1).bit_length() - 3)
    return min(-(-length // power) * power, limit)


def _filter_bytes(model: Any) -> int:
    config: M2BertConfig = model.config
    return 8 * config.hidden_size * (config.limit + 1) * len(model.long_convs)


def open_model(folder: ModelFolder, options: ModelOptions) -> M2Bert:
    """The M2-BERT of a folder on a device, ready to run; DataError when it cannot be loaded.

    Filters and transforms are fp32 whatever the dtype. No code of the folder is run. With `pad_to_max`
    inputs are padded to the model's length, as the released vectors were made.
    """
    if options.extend:
        raise UsageError(
            f"--extend {options.extend}: {folder.name} has as many positions as filters"
        )
    device = choose_device(options.device)
    dtype = native_dtype(device) if options.dtype == "auto" else options.dtype
    with loading(f"the M2-BERT of {folder.name}"):
        model = M2BertModel.from_pretrained(folder.encoder, dtype=TORCH[dtype]).to(device).eval()
    model.requires_grad_(options.trainable)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()
    for conv in model.long_convs:
        conv.keep = _filter_bytes(model) < free // 2
    limit = model.config.limit
    pad_to = limit if options.pad_to_max else 0
    return M2Bert(model, model.config.hidden_size, limit, device, dtype, pad_to)
