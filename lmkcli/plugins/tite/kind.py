"""TITE as a model kind: one vector per sequence; if no layer pools, one state per token.

On a CPU, layers are fused: oneDNN computes activations and residuals in the call of the linear layer
before them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import nn
from transformers.utils import logging as transformers_logging

from lmkcli.errors import DataError, UsageError
from lmkcli.models.consent import opening
from lmkcli.models.devices import TORCH_DTYPES, choose_device, native_dtype, to_device
from lmkcli.models.exact_weights import keep_exact
from lmkcli.models.fast_paths import (
    FastPath,
    FusedLinear,
    ReplacedModules,
    cached_fast_path,
    fast_path_key,
)
from lmkcli.models.forward import ModelOptions
from lmkcli.models.model_files import loading
from lmkcli.models.model_folder import ModelFolder
from lmkcli.models.unmapped import unmapped
from lmkcli.models.weight_files import weight_files
from lmkcli.plugins.tite.config import TiteConfig
from lmkcli.plugins.tite.model import Residual, TiteEncoder, TiteMLP, TiteModel
from lmkcli.store.token_blocks import Ints

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
_TABLE = "embeddings.word_embeddings.weight"
_GELUS = {"gelu_pytorch_tanh": "tanh", "gelu": "none"}  # names of oneDNN's algorithms


@dataclass
class Tite:
    """A loaded TITE. `states` has one row per sequence, its vector, or one per token if no layer pools."""

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
        """Return vectors [sequences, dim], zeros for empty sequences; [tokens, dim] if no layer pools.

        Padding is never computed. Only the first `attended[i]` tokens of sequence i are read. `positions` are
        ignored.
        """
        if attended is not None and not self.one_vector:
            raise DataError("a TITE without pooling cannot expand queries; use another model")
        if attended is not None:
            sequences = [s[:count] for s, count in zip(sequences, attended, strict=True)]
        lengths = np.array([len(sequence) for sequence in sequences], np.int64)
        ids = to_device(torch.from_numpy(np.concatenate(sequences).astype(np.int64)), self.device)
        vectors: torch.Tensor = self.module.packed(ids, lengths)
        if lengths.all() or not self.one_vector:
            return vectors
        filled = to_device(torch.from_numpy(np.flatnonzero(lengths)), self.device)
        return vectors.new_zeros(len(sequences), self.dim).index_copy(0, filled, vectors)

    def token_states(self, sequences: list[Ints]) -> torch.Tensor | None:
        """Return [tokens, dim]; None if the layers pool the tokens."""
        return None if self.one_vector else self.states(sequences)

    @torch.inference_mode()
    def check(self) -> FastPath:
        """Compare a pack through fused layers with each sequence alone through the plain layers."""
        rng = np.random.default_rng(0)
        lengths = [min(n, self.limit) for n in (1, 2, 7, 20, 40, 75)]
        size = self.module.config.vocab_size
        sequences = [rng.integers(1, size, n).astype(np.int32) for n in lengths]
        alone = torch.cat([self.states([sequence]) for sequence in sequences]).double()
        replaced = fuse(self.module.encoder)
        cosines = torch.cosine_similarity(alone, self.states(sequences).double())
        replaced.restore()
        tolerance = 1e-5 if self.dtype == "fp32" else 2e-3
        return FastPath(fused=bool(1 - cosines.min() < tolerance), packed=True)


def open_model(folder: ModelFolder, options: ModelOptions) -> Tite:
    """Load the TITE of a folder onto a device. DataError if it cannot be loaded.

    The folder's own code never runs, and positions cannot be extended.
    """
    if options.extend:
        raise UsageError(
            f"--extend {options.extend}: the layers of {folder.name} pool a fixed number of positions; "
            "drop it"
        )
    device = choose_device(options.device)
    dtype = native_dtype(device) if options.dtype == "auto" else options.dtype
    model = _load(folder, dtype)
    if options.trainable:
        stored = TiteConfig.from_pretrained(str(folder.encoder)).dtype
        keep_exact(model, lambda: _load(folder, "fp32"), stored)
    model.to(device).eval().requires_grad_(options.trainable)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    config = model.config
    opened = Tite(
        model, config.hidden_size, config.longest, device, dtype, size, one_vector=config.pools
    )
    fusing = device.type == "cpu" and not options.trainable
    key = fast_path_key(folder.weights_digest, dtype, device, ("", fusing))
    with loading(f"the TITE of {folder.name}", "cannot be run"):
        fused = fusing and cached_fast_path(key, opened.check).fused
    if fused:
        fuse(model.encoder)
    return opened


def _load(folder: ModelFolder, dtype: str) -> Any:
    """Load the model. Raises DataError if a tensor is missing or unknown, so no weight is random.

    The token table in the file determines `vocab_size`: fine-tuning with marker tokens adds two rows to it.
    """
    from_pretrained: Any = TiteModel.from_pretrained
    with (
        opening(folder.encoder, f"the TITE of {folder.name}", trust=False),
        unmapped(folder.encoder) as arguments,
    ):
        declared, _ = TiteConfig.get_config_dict(str(folder.encoder))
        for file in weight_files(folder.encoder):
            if file.suffix != ".safetensors":
                continue
            with safe_open(file, "pt") as weights:
                for name in weights.keys():  # noqa: SIM118 (no mapping)
                    if name.removeprefix("tite.") == _TABLE:
                        declared["vocab_size"] = weights.get_slice(name).get_shape()[0]
        config = TiteConfig.from_dict(declared)
        model, loaded = from_pretrained(
            str(folder.encoder), config=config, dtype=TORCH_DTYPES[dtype], output_loading_info=True,
            **arguments,
        )  # fmt: skip
    for verb, names in (
        ("lack", loaded["missing_keys"]),
        ("have unknown", loaded["unexpected_keys"]),
    ):
        if names:
            raise DataError(
                f"the weights of {folder.name} {verb} {len(names)} tensors ({min(names)} …); "
                "give a folder with weights for its config.json"
            )
    return model


class FusedResidual(FusedLinear):
    """x @ W.T + b + residual."""

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """[..., in] and [..., out] -> [..., out]."""
        return self.combined(x, residual, "add")


def fuse(encoder: TiteEncoder) -> ReplacedModules:
    """Replace linear layers by fused layers in place, for inference only.

    Nothing is replaced if this build of torch has no oneDNN, or lacks one of its operations.
    """
    replaced = ReplacedModules()
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return replaced
    try:
        for owner in encoder.modules():
            if isinstance(owner, TiteMLP) and owner.hidden_act in _GELUS:
                fused = FusedLinear(owner.intermediate_dense, _GELUS[owner.hidden_act])
                replaced.replace(owner, "intermediate_dense", fused)
                replaced.replace(owner, "act", nn.Identity())
            for name, module in list(owner.named_children()):
                if type(module) is Residual:
                    replaced.replace(owner, name, FusedResidual(module))
                elif type(module) is nn.Linear:
                    replaced.replace(owner, name, FusedLinear(module))
    except (AttributeError, RuntimeError, NotImplementedError):
        replaced.restore()
    return replaced
