"""AdamW with float32 master weights, for models that compute in half precision.

The model's weights are bf16, so the forward pass needs no casts. A bf16 number has 8 significant bits, and
small updates would be rounded away. So the optimizer updates float32 copies and rounds them to bf16.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class MasterAdamW(torch.optim.Optimizer):
    """AdamW over float32 copies (masters) of the parameters.

    After each step, each parameter is its master, rounded to the parameter's dtype. A float32 parameter is
    its own master and needs no copy.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], **settings: Any) -> None:
        model_groups = [{**group, "params": list(group["params"])} for group in groups]
        super().__init__(model_groups, {})
        masters = [
            {**group, "params": [_master(p) for p in group["params"]]} for group in model_groups
        ]
        self.inner = torch.optim.AdamW(masters, **settings)
        self.param_groups = self.inner.param_groups  # schedulers set the learning rate here
        self.defaults = self.inner.defaults
        self._pairs = [
            (parameter, master)
            for group, master_group in zip(model_groups, self.inner.param_groups, strict=True)
            for parameter, master in zip(group["params"], master_group["params"], strict=True)
        ]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for parameter, master in self._pairs:
            if master is not parameter:
                master.grad = None if parameter.grad is None else parameter.grad.float()
        self.inner.step()
        for parameter, master in self._pairs:
            if master is not parameter:
                parameter.copy_(master)
                master.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of the parameters."""
        for parameter, _ in self._pairs:
            parameter.grad = None if set_to_none else torch.zeros_like(parameter)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of AdamW and the masters."""
        return {
            **self.inner.state_dict(),
            "masters": [master.detach() for _, master in self._pairs],
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a result of `state_dict`, and set the parameters to the rounded masters."""
        masters: list[Tensor] = state_dict["masters"]
        rest = {key: value for key, value in state_dict.items() if key != "masters"}
        self.inner.load_state_dict(rest)
        self.param_groups = self.inner.param_groups
        for (parameter, master), saved in zip(self._pairs, masters, strict=True):
            master.copy_(saved)
            parameter.copy_(master)

    def precise(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the state dict of `module` with the masters in place of the rounded parameters."""
        masters = {id(parameter): master for parameter, master in self._pairs}
        parameters = dict(module.named_parameters(remove_duplicate=False))
        return {
            name: masters.get(id(parameters[name]), value) if name in parameters else value
            for name, value in module.state_dict().items()
        }


def _master(parameter: nn.Parameter) -> nn.Parameter:
    if parameter.dtype in (torch.float32, torch.float64):
        return parameter
    return nn.Parameter(parameter.detach().float())


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two parameter groups: matrices with weight decay, and biases and norms without.

    Frozen parameters are in neither group.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
