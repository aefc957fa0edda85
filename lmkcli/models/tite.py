"""TITE: an encoder that pools its sequence, layer by layer, down to one vector.

An ordinary model of transformers (importing this module registers it with AutoConfig and AutoModel),
and the model kind 'tite' of lmk.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging as transformers_logging

from lmkcli.errors import DataError, UsageError
from lmkcli.models.devices import TORCH, choose_device, native_dtype
from lmkcli.models.folder import ModelFolder
from lmkcli.models.routes import Route, remembered, route_key
from lmkcli.models.tite_config import TiteConfig
from lmkcli.models.tite_fused import fuse
from lmkcli.models.tite_layers import TiteEmbeddings, TiteEncoder
from lmkcli.models.tite_rows import Lengths, places
from lmkcli.placement import Ints

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
_UNREADABLE = (OSError, ValueError, ImportError, KeyError, RuntimeError, SafetensorError)
_TABLE = "embeddings.word_embeddings.weight"


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
        made = self.packed(
            input_ids[mask], mask.sum(1).cpu().numpy().astype(np.int64), layers if shown else None
        )
        filled = mask.any(1, keepdim=True) if self.config.pools else mask
        last = made.new_zeros(*filled.shape, self.config.hidden_size)
        last = last.masked_scatter(filled[..., None], made)
        output = BaseModelOutput(last, tuple(layers[:1] + layers) if shown else None)
        wanted = self.config.return_dict if return_dict is None else return_dict
        return output if wanted else output.to_tuple()


AutoConfig.register("tite", TiteConfig)
AutoModel.register(TiteConfig, TiteModel)


@dataclass
class Tite:
    """A loaded TITE. `states` has one row for each sequence, which is its vector."""

    model: Any
    dim: int
    limit: int
    device: torch.device
    dtype: str
    weight_bytes: int
    packed: bool = True
    why_padded: str = ""
    one_vector: bool = True
    pad_to: int = 0

    def states(self, sequences: list[Ints], attended: list[int] | None = None) -> torch.Tensor:
        """[sequences, dim]; zeros for one without tokens. No padded batch is ever computed.

        Only the first `attended` tokens of a sequence are read.
        """
        if attended is not None:
            sequences = [s[:count] for s, count in zip(sequences, attended, strict=True)]
        lengths = np.array([len(sequence) for sequence in sequences], np.int64)
        ids = torch.from_numpy(np.concatenate(sequences).astype(np.int64)).to(self.device)
        with torch.inference_mode():
            made: torch.Tensor = self.model.packed(ids, lengths)
            if lengths.all():
                return made
            filled = torch.from_numpy(np.flatnonzero(lengths)).to(self.device)
            return made.new_zeros(len(sequences), self.dim).index_copy(0, filled, made)

    def check(self) -> Route:
        """Whether a pack through fused layers equals each sequence alone through plain ones."""
        random = np.random.default_rng(0)
        lengths = [min(n, self.limit) for n in (1, 2, 7, 20, 40, 75)]
        size = self.model.config.vocab_size
        sequences = [random.integers(1, size, n).astype(np.int32) for n in lengths]
        alone = torch.cat([self.states([sequence]) for sequence in sequences]).double()
        undo = fuse(self.model.encoder)
        apart = 1 - torch.cosine_similarity(alone, self.states(sequences).double()).min()
        undo()
        return Route(fused=bool(apart < (1e-5 if self.dtype == "fp32" else 2e-3)), packed=True)


def open_model(folder: ModelFolder, dtype: str, device: str, trust: bool, extend: str = "") -> Tite:
    """The TITE of a folder on a device, ready to run; DataError when it cannot be loaded.

    `dtype` is fp32, bf16, fp16 or auto: bf16 where the hardware computes it natively, else fp32.
    `trust` has no effect, for no code of the folder is run; positions cannot be extended.
    """
    if extend:
        raise UsageError(f"--extend {extend}: {folder.name} pools so many positions and no more")
    chosen = choose_device(device)
    dtype = native_dtype(chosen) if dtype == "auto" else dtype
    model = _load(folder, dtype).to(chosen).eval()
    if not model.config.pools:
        raise DataError(
            f"{folder.name} pools in no layer (kernel_sizes in config.json), so it makes no vector"
        )
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    made = Tite(model, model.config.hidden_size, model.config.longest, chosen, dtype, size)
    if (
        chosen.type == "cpu"
        and remembered(route_key(folder.weights_digest, dtype, chosen, ""), made.check).fused
    ):
        fuse(model.encoder)
    return made


def _load(folder: ModelFolder, dtype: str) -> Any:
    """The model, all of whose tensors come from the folder."""
    from_pretrained: Any = TiteModel.from_pretrained
    try:
        declared, _ = TiteConfig.get_config_dict(str(folder.encoder))
        config = TiteConfig.from_dict(declared | _vocabulary(folder.encoder))
        model, loaded = from_pretrained(
            str(folder.encoder), config=config, dtype=TORCH[dtype], output_loading_info=True
        )
    except _UNREADABLE as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"the TITE of {folder.name} cannot be loaded: {first}") from None
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
