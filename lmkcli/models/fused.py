"""Fused layers for CPUs: a linear layer with what follows it in one oneDNN call.

In bf16 on a CPU, GELU, the bias and the residual addition cost as much as a third of an encoder when
each is a pass of its own over the activations. oneDNN computes them while a tile is in the cache.
Found by shape, not by name of a model: whatever has BERT's `dense` + `intermediate_act_fn`, and
`dense` + `LayerNorm` over (hidden_states, input_tensor).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

ROWS = 8192  # activations for which oneDNN lays the weights out; others work too, a little slower


class Linear(nn.Module):
    """x @ W.T + b with an optional exact GELU, weights in oneDNN's own layout."""

    def __init__(self, linear: nn.Linear, after: str = "none") -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.after = after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]."""
        algorithm = "none" if self.after == "gelu" else ""
        return torch.ops.mkldnn._linear_pointwise(  # type: ignore[no-any-return]
            x, self.weight, self.bias, self.after, [], algorithm
        )


class ResidualNorm(nn.Module):
    """LayerNorm(x @ W.T + b + residual): the end of BERT's attention and of its feed-forward."""

    def __init__(self, linear: nn.Linear, norm: nn.Module) -> None:
        super().__init__()
        self.linear = Linear(linear)
        self.norm = norm

    def forward(self, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
        """[..., in] and [..., out] -> [..., out]."""
        added = torch.ops.mkldnn._linear_pointwise.binary(
            hidden_states, input_tensor, self.linear.weight, self.linear.bias, "add"
        )
        return self.norm(added)  # type: ignore[no-any-return]


class Undo:
    """The modules that were replaced, so that a model can be put back."""

    def __init__(self) -> None:
        self._replaced: list[tuple[nn.Module, str, Any]] = []

    def replace(self, owner: nn.Module, name: str, module: nn.Module) -> None:
        """Put `module` in the place of an attribute."""
        self._replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, module)

    def __call__(self) -> None:
        """Put everything back."""
        for owner, name, module in reversed(self._replaced):
            setattr(owner, name, module)
        self._replaced = []


def fuse(model: nn.Module) -> Undo:
    """Replace what can be fused in place; nothing where this build of torch has no oneDNN."""
    undo = Undo()
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return undo
    try:
        for owner, name, module in list(_children(model)):
            if made := _fused(module):
                undo.replace(owner, name, made)
        for owner, name, module in list(_children(model)):
            if type(module) is nn.Linear:
                undo.replace(
                    owner, name, Linear(module, "gelu" if _before_gelu(owner, name) else "none")
                )
        for owner in list(model.modules()):
            dense = getattr(owner, "dense", None)
            if isinstance(dense, Linear) and dense.after == "gelu":
                undo.replace(owner, "intermediate_act_fn", nn.Identity())
    except (AttributeError, RuntimeError, NotImplementedError):
        undo()  # an operation that this build lacks: the model is as it was
    return undo


def _children(model: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    for owner in model.modules():
        for name, module in owner.named_children():
            yield owner, name, module


def _fused(module: Any) -> nn.Module | None:
    """BERT's dense, dropout, LayerNorm with a residual, as one module."""
    parts = dict(module.named_children())
    if set(parts) != {"dense", "LayerNorm", "dropout"} or type(parts["dense"]) is not nn.Linear:
        return None
    return ResidualNorm(parts["dense"], parts["LayerNorm"])


def _before_gelu(owner: Any, name: str) -> bool:
    """Whether a linear layer is BERT's `dense` whose output goes to an exact GELU."""
    gelu = getattr(owner, "intermediate_act_fn", None)
    exact = isinstance(gelu, nn.GELU) and gelu.approximate == "none"
    return name == "dense" and (exact or type(gelu).__name__ == "GELUActivation")
