"""The head that predicts tokens from states, and its loss in blocks that fit into memory."""

from collections.abc import Iterable
from typing import Any, cast

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.activations import ACT2FN

from lmkcli.models.folder import ModelFolder

BLOCK = 1 << 24  # logits that exist at once
# Where the released masked language models keep what this head has: dense, norm, bias.
_RELEASED = (
    ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions"),
    ("head.dense", "head.norm", "decoder"),  # ModernBERT
    ("lm_head.dense", "lm_head.layer_norm", "lm_head"),  # RoBERTa, MPNet
    ("vocab_transform", "vocab_layer_norm", "vocab_projector"),  # DistilBERT
)


class LanguageHead(nn.Module):
    """dense -> activation -> norm -> the table of tokens, and a bias for each of these (BERT, §A.2)."""

    def __init__(self, width: int, rows: int, activation: str, norm: nn.Module) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.act: nn.Module = ACT2FN[activation]
        self.norm = norm
        self.bias = nn.Parameter(torch.zeros(rows))

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        """[m, width], and the table [rows, width] -> logits [m, rows]."""
        return functional.linear(self.norm(self.act(self.dense(states))), table, self.bias)

    def surprise(self, states: Tensor, targets: Tensor, table: Tensor) -> Tensor:
        """The summed cross-entropy of `targets` [m] in float32; logits exist block by block."""
        rows = max(1, BLOCK // len(table))
        if len(states) <= rows:
            return self._surprise(states, targets, table)
        parts = zip(states.split(rows), targets.split(rows), strict=True)  # type: ignore[no-untyped-call]
        sums = [again(self._surprise, part, wanted, table) for part, wanted in parts]
        return torch.stack(sums).sum()

    def _surprise(self, states: Tensor, targets: Tensor, table: Tensor) -> Tensor:
        logits = self(states, table)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return functional.cross_entropy(wide, targets, reduction="sum")


def again(function: Any, *tensors: Tensor) -> Tensor:
    """`function` of the tensors; in the backward pass it is computed again instead of kept."""
    return cast(Tensor, checkpoint(function, *tensors, use_reentrant=False))


def language_head(config: Any, rows: int) -> LanguageHead:
    """A head with random weights for the states of a model of this configuration."""
    names = ("hidden_act", "hidden_activation", "activation", "activation_function")
    activation = next((getattr(config, name) for name in names if hasattr(config, name)), "gelu")
    head = LanguageHead(
        int(config.hidden_size),
        rows,
        activation,
        nn.LayerNorm(config.hidden_size, eps=epsilon(config)),
    )
    return head.apply(initialiser(config))


def epsilon(config: Any) -> float:
    """What keeps the norms of a model from dividing by nothing."""
    names = ("layer_norm_eps", "norm_eps")
    return float(next((getattr(config, name) for name in names if hasattr(config, name)), 1e-12))


def initialiser(config: Any) -> Any:
    """Sets a module's weights as BERT's are at the beginning: normal, biases 0."""
    deviation = float(getattr(config, "initializer_range", 0.02))

    def initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=deviation)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    return initialise


def released(folder: ModelFolder) -> dict[str, Tensor]:
    """The weights of a masked language model's head by the names of LanguageHead; empty without one."""
    head: dict[str, Tensor] = {}
    for file in sorted(folder.encoder.glob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            names = set(weights.keys())
            for theirs, ours in _names():
                if theirs in names:
                    head[ours] = weights.get_tensor(theirs)
    return head if "dense.weight" in head else {}


def _names() -> Iterable[tuple[str, str]]:
    for dense, norm, bias in _RELEASED:
        for part, ours in ((dense, "dense"), (norm, "norm")):
            yield from ((f"{part}.{kind}", f"{ours}.{kind}") for kind in ("weight", "bias"))
        yield f"{bias}.bias", "bias"
