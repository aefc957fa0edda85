"""The head of a masked language model in training: it predicts tokens from states.

It needs little memory. Logits [tokens, vocabulary] exist for one block of rows at a time, and the backward
pass computes them again instead of storing them (`recomputed`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForMaskedLM
from transformers.activations import ACT2FN
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

from lmkcli.models.model_folder import ModelFolder
from lmkcli.models.tensors import chosen_tensors
from lmkcli.models.weight_files import weight_files

LOGITS_BLOCK = 1 << 24  # logits in memory at a time
# Names of the head in released masked language models: dense, norm, and the owner of the bias.
_RELEASED = (
    ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions"),
    ("head.dense", "head.norm", "decoder"),  # ModernBERT
    ("lm_head.dense", "lm_head.layer_norm", "lm_head"),  # RoBERTa, MPNet
    ("vocab_transform", "vocab_layer_norm", "vocab_projector"),  # DistilBERT
)


def recomputed(function: Any, *tensors: Tensor) -> Tensor:
    """Return `function(*tensors)`; the backward pass computes it again instead of keeping activations."""
    return cast(Tensor, checkpoint(function, *tensors, use_reentrant=False))


class LanguageHead(nn.Module):
    """dense -> activation -> norm -> product with the token table, plus one bias per token (BERT, §A.2)."""

    def __init__(self, width: int, rows: int, activation: str, norm: nn.Module) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.act: nn.Module = ACT2FN[activation]
        self.norm = norm
        self.bias = nn.Parameter(torch.zeros(rows))

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        """[m, width], and the token table [rows, width] -> logits [m, rows]."""
        return functional.linear(self.norm(self.act(self.dense(states))), table, self.bias)

    def summed_loss(self, states: Tensor, targets: Tensor, table: Tensor) -> Tensor:
        """Return the summed cross-entropy of `targets` [m] in float32, computed block by block."""
        return self.loss_and_hits(states, targets, table)[0]

    def loss_and_hits(self, states: Tensor, targets: Tensor, table: Tensor) -> Tensor:
        """Return the summed cross-entropy, and the number of targets with the largest logit, [2]."""

        def both(part: Tensor, wanted: Tensor, table: Tensor) -> Tensor:
            logits = self(part, table)
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
            loss = functional.cross_entropy(wide, wanted, reduction="sum")
            hits = (wide.detach().argmax(1) == wanted).sum()
            return torch.stack([loss, hits.to(loss.dtype)])

        rows = max(1, LOGITS_BLOCK // len(table))
        if len(states) <= rows:
            return both(states, targets, table)
        parts = zip(states.split(rows), targets.split(rows), strict=True)  # type: ignore[no-untyped-call]
        sums = [recomputed(both, part, wanted, table) for part, wanted in parts]
        return torch.stack(sums).sum(0)


def language_head(config: Any, rows: int) -> LanguageHead:
    """Create a head with random weights for the states of a model with this configuration."""
    names = ("hidden_act", "hidden_activation", "activation", "activation_function")
    activation = next((getattr(config, name) for name in names if hasattr(config, name)), "gelu")
    norm = nn.LayerNorm(config.hidden_size, eps=norm_epsilon(config))
    head = LanguageHead(int(config.hidden_size), rows, activation, norm)
    return head.apply(initialiser(config))


def norm_epsilon(config: Any) -> float:
    """Return the epsilon of a model's norms, which avoids division by zero."""
    names = ("layer_norm_eps", "norm_eps")
    return float(next((getattr(config, name) for name in names if hasattr(config, name)), 1e-12))


def initialiser(config: Any) -> Callable[[nn.Module], None]:
    """Return a function that initialises a module as in BERT: normal weights, zero biases."""
    deviation = float(getattr(config, "initializer_range", 0.02))

    def initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=deviation)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    return initialise


def released_head(folder: ModelFolder) -> dict[str, Tensor]:
    """Return the head's weights of a masked language model by the names of LanguageHead.

    The dictionary is empty if the folder has no such head.
    """
    names = {theirs: own for row in _RELEASED for own, theirs in _released_names(*row).items()}
    head: dict[str, Tensor] = {}
    files = weight_files(folder.encoder)
    for file in (each for each in files if each.suffix == ".safetensors"):
        for name, value in chosen_tensors(file, names, "the weights").items():
            head[names[name]] = value
    return head if "dense.weight" in head else {}


def _released_names(dense: str, norm: str, bias: str) -> dict[str, str]:
    """Return the names of LanguageHead's tensors in a masked language model."""
    named = {"dense": dense, "norm": norm}
    names = {
        f"{own}.{kind}": f"{part}.{kind}"
        for own, part in named.items()
        for kind in ("weight", "bias")
    }
    return names | {"bias": f"{bias}.bias"}


class MaskedModel(NamedTuple):
    """A masked language model of an encoder's architecture, without weights.

    names: the names of LanguageHead's tensors in the model. table: the name of the last layer's matrix, if
    the model does not share the token table with it; else empty.
    """

    module: Any
    names: dict[str, str]
    table: str

    @classmethod
    def of(cls, config: Any) -> "MaskedModel | None":
        """Return the model; None if the architecture has none, or one with another kind of head."""
        if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
            return None
        with torch.device("meta"):
            module = AutoModelForMaskedLM.from_config(config)  # type: ignore[no-untyped-call]
        inner = f"{module.base_model_prefix}."
        # A shared tensor has one name here.
        own = {name for name, _ in module.named_parameters() if not name.startswith(inner)}
        tables = {name for name in own if name.endswith(".decoder.weight")}
        for row in _RELEASED:
            names = _released_names(*row)
            if own - tables == set(names.values()) and len(tables) < 2:
                return cls(module, names, "".join(tables))
        return None
