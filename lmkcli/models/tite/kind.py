"""TITE as a model kind: each sequence comes out as one vector; where no layer pools, as states."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from transformers.utils import logging as transformers_logging

from lmkcli.errors import DataError, UsageError
from lmkcli.models.devices import TORCH, choose_device, native_dtype
from lmkcli.models.files import loading
from lmkcli.models.folder import ModelFolder
from lmkcli.models.forward import ModelOptions
from lmkcli.models.routes import Route, remembered, route_key
from lmkcli.models.tite.config import TiteConfig
from lmkcli.models.tite.fused import fuse
from lmkcli.models.tite.model import TiteModel
from lmkcli.pooling.placement import Ints

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
_TABLE = "embeddings.word_embeddings.weight"


@dataclass
class Tite:
    """A loaded TITE. `states` has one row for each sequence, which is its vector, or one for each token."""

    module: Any
    dim: int
    limit: int
    device: torch.device
    dtype: str
    weight_bytes: int
    one_vector: bool
    packed: bool = True
    why_padded: str = ""
    pad_to: int = 0

    def states(
        self,
        sequences: list[Ints],
        attended: list[int] | None = None,
        positions: list[Ints] | None = None,
    ) -> torch.Tensor:
        """[sequences, dim], zeros for one without tokens; [tokens, dim] where no layer pools.

        No padded batch is ever computed. Only the first `attended` tokens of a sequence are read;
        `positions` have no meaning for it.
        """
        if attended is not None and not self.one_vector:
            raise DataError(
                "a TITE whose layers do not pool cannot fill up queries; use another model"
            )
        if attended is not None:
            sequences = [s[:count] for s, count in zip(sequences, attended, strict=True)]
        lengths = np.array([len(sequence) for sequence in sequences], np.int64)
        ids = torch.from_numpy(np.concatenate(sequences).astype(np.int64)).to(self.device)
        vectors: torch.Tensor = self.module.packed(ids, lengths)
        if lengths.all() or not self.one_vector:
            return vectors
        filled = torch.from_numpy(np.flatnonzero(lengths)).to(self.device)
        return vectors.new_zeros(len(sequences), self.dim).index_copy(0, filled, vectors)

    def token_states(self, sequences: list[Ints]) -> None:
        """None: tokens are pooled on the way."""

    @torch.inference_mode()
    def check(self) -> Route:
        """Whether a pack through fused layers equals each sequence alone through plain ones."""
        random = np.random.default_rng(0)
        lengths = [min(n, self.limit) for n in (1, 2, 7, 20, 40, 75)]
        size = self.module.config.vocab_size
        sequences = [random.integers(1, size, n).astype(np.int32) for n in lengths]
        alone = torch.cat([self.states([sequence]) for sequence in sequences]).double()
        undo = fuse(self.module.encoder)
        apart = 1 - torch.cosine_similarity(alone, self.states(sequences).double()).min()
        undo()
        return Route(fused=bool(apart < (1e-5 if self.dtype == "fp32" else 2e-3)), packed=True)


def open_model(folder: ModelFolder, options: ModelOptions) -> Tite:
    """The TITE of a folder on a device, ready to run; DataError when it cannot be loaded.

    No code of the folder is run, whatever the options say; positions cannot be extended.
    """
    if options.extend:
        raise UsageError(
            f"--extend {options.extend}: {folder.name} pools so many positions and no more"
        )
    device = choose_device(options.device)
    dtype = native_dtype(device) if options.dtype == "auto" else options.dtype
    model = _load(folder, dtype).to(device).eval().requires_grad_(options.trainable)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    config = model.config
    opened = Tite(
        model, config.hidden_size, config.longest, device, dtype, size, one_vector=config.pools
    )
    fusing = device.type == "cpu" and not options.trainable
    key = route_key(folder.weights_digest, dtype, device, ("", fusing))
    if fusing and remembered(key, opened.check).fused:
        fuse(model.encoder)
    return opened


def _load(folder: ModelFolder, dtype: str) -> Any:
    """The model, all of whose tensors come from the folder."""
    from_pretrained: Any = TiteModel.from_pretrained
    with loading(f"the TITE of {folder.name}"):
        declared, _ = TiteConfig.get_config_dict(str(folder.encoder))
        config = TiteConfig.from_dict(declared | _vocabulary(folder.encoder))
        model, loaded = from_pretrained(
            str(folder.encoder), config=config, dtype=TORCH[dtype], output_loading_info=True
        )
    for which, names in (
        ("lack", loaded["missing_keys"]),
        ("have unknown", loaded["unexpected_keys"]),
    ):
        if names:
            raise DataError(
                f"the weights of {folder.name} {which} {len(names)} tensors ({min(names)} …); "
                "give a folder whose weights belong to its config.json"
            )
    return model


def _vocabulary(folder: Path) -> dict[str, int]:
    """The rows of the table of tokens, which fine-tuning with marker tokens makes two more."""
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118 (no mapping)
                if name.removeprefix("tite.") == _TABLE:
                    return {"vocab_size": weights.get_slice(name).get_shape()[0]}
    return {}
