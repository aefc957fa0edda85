"""M2-BERT as a model kind: one vector per input.

Either inputs are padded to the full length, or padding is hidden from the model.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.utils import logging as transformers_logging

from lmkcli.errors import UsageError
from lmkcli.models.devices import TORCH_DTYPES, choose_device, native_dtype, to_device
from lmkcli.models.exact_weights import keep_exact
from lmkcli.models.forward import ModelOptions
from lmkcli.models.model_files import loading
from lmkcli.models.model_folder import ModelFolder
from lmkcli.plugins.m2bert.config import M2BertConfig
from lmkcli.plugins.m2bert.model import M2BertModel
from lmkcli.store.token_blocks import Ints
from lmkcli.system.hardware import free_memory

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


@dataclass
class M2Bert:
    """A loaded M2-BERT. `pad_to` is the model's length, or 0 if padding is hidden from the model."""

    module: Any
    dim: int
    limit: int
    device: torch.device
    dtype: str
    pad_to: int
    packed: bool = False
    why_padded: str = ""  # empty: padding is part of the model, not a fallback
    one_vector: bool = True

    @property
    def weight_bytes(self) -> int:
        """The size of the weights in bytes, with the kept transforms of the filters."""
        own: int = sum(p.numel() * p.element_size() for p in self.module.parameters())
        kept = any(conv.keep for conv in self.module.long_convs)
        return own + (_filter_bytes(self.module) if kept else 0)

    def states(
        self,
        sequences: list[Ints],
        attended: list[int] | None = None,
        positions: list[Ints] | None = None,
    ) -> torch.Tensor:
        """Return the vectors [sequences, dim]; `attended` and `positions` are ignored."""
        vectors: torch.Tensor = self._run(sequences)[0].pooler_output
        return vectors

    def token_states(self, sequences: list[Ints]) -> torch.Tensor:
        """Return the states of all positions without padding, [positions, dim]."""
        output, mask = self._run(sequences)
        rows = to_device(mask.flatten().nonzero()[:, 0], self.device)
        states: torch.Tensor = output.last_hidden_state.flatten(0, 1).index_select(0, rows)
        return states

    def _run(self, sequences: list[Ints]) -> tuple[Any, torch.Tensor]:
        """Return the output of the model, and the mask of positions that are no padding."""
        lengths = np.array([len(sequence) for sequence in sequences])
        mask = torch.arange(self.pad_to or _steps(int(lengths.max()), self.limit)) < torch.tensor(
            lengths[:, None]
        )
        ids = torch.full(mask.shape, self.module.config.pad_token_id or 0)
        ids[mask] = torch.from_numpy(np.concatenate(sequences)).long()
        output = self.module(
            to_device(ids, self.device),
            to_device(mask.long(), self.device),
            mask_padding=not self.pad_to,
        )
        return output, mask


def _steps(length: int, limit: int) -> int:
    """Round a length up to 4, 5, 6 or 7 times a power of two. Fewer lengths need fewer filter transforms."""
    power = 1 << max(0, (length - 1).bit_length() - 3)
    return min(-(-length // power) * power, limit)


def _filter_bytes(model: Any) -> int:
    config: M2BertConfig = model.config
    return 8 * config.hidden_size * (config.limit + 1) * len(model.long_convs)


def open_model(folder: ModelFolder, options: ModelOptions) -> M2Bert:
    """Load the M2-BERT of a folder onto a device. DataError if it cannot be loaded.

    Filters and transforms are fp32 for every dtype. The folder's own code never runs. With `pad_to_max`,
    inputs are padded to the model's length, as for the released vectors.
    """
    if options.extend:
        raise UsageError(
            f"--extend {options.extend}: the filters of {folder.name} have a fixed length; drop it"
        )
    device = choose_device(options.device)
    dtype = native_dtype(device) if options.dtype == "auto" else options.dtype
    with loading(f"the M2-BERT of {folder.name}"):

        def load(dtype: torch.dtype) -> Any:
            return M2BertModel.from_pretrained(folder.encoder, dtype=dtype)

        model = load(TORCH_DTYPES[dtype])
        if options.trainable:
            stored = M2BertConfig.from_pretrained(folder.encoder).dtype
            keep_exact(model, lambda: load(torch.float32), stored)
    model.to(device).eval().requires_grad_(options.trainable)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()
    for conv in model.long_convs:
        conv.keep = _filter_bytes(model) < free // 2
    limit = model.config.limit
    pad_to = limit if options.pad_to_max else 0
    return M2Bert(model, model.config.hidden_size, limit, device, dtype, pad_to)
