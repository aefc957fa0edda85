"""Fused layers of TITE for CPUs: what follows a linear layer is computed in the same oneDNN call."""

import torch
from torch import nn

from lmkcli.models.fused import Linear, Undo
from lmkcli.models.tite.layers import Residual, TiteEncoder, TiteMLP

_GELUS = {"gelu_pytorch_tanh": "tanh", "gelu": "none"}


class Activated(Linear):
    """GELU(x @ W.T + b), exact or by tanh."""

    def __init__(self, linear: nn.Linear, algorithm: str) -> None:
        super().__init__(linear, "gelu")
        self.algorithm = algorithm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]."""
        return torch.ops.mkldnn._linear_pointwise(  # type: ignore[no-any-return]
            x, self.weight, self.bias, "gelu", [], self.algorithm
        )


class Added(Linear):
    """x @ W.T + b + residual."""

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """[..., in] and [..., out] -> [..., out]."""
        return torch.ops.mkldnn._linear_pointwise.binary(  # type: ignore[no-any-return]
            x, residual, self.weight, self.bias, "add"
        )


def fuse(encoder: TiteEncoder) -> Undo:
    """Replace linear layers in place, for inference alone; nothing where this build of torch cannot."""
    undo = Undo()
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return undo
    try:
        for owner in encoder.modules():
            if isinstance(owner, TiteMLP) and owner.hidden_act in _GELUS:
                activated = Activated(owner.intermediate_dense, _GELUS[owner.hidden_act])
                undo.replace(owner, "intermediate_dense", activated)
                undo.replace(owner, "act", nn.Identity())
            for name, module in list(owner.named_children()):
                if type(module) is Residual:
                    undo.replace(owner, name, Added(module))
                elif type(module) is nn.Linear:
                    undo.replace(owner, name, Linear(module))
    except (AttributeError, RuntimeError, NotImplementedError):
        undo()  # an operation that this build lacks: the model is as it was
    return undo
