"""AdamW with float32 master weights, for models that compute in half precision.

The model's own weights are bf16, so that nothing is cast in the forward pass; steps that would vanish in
their eight bits are taken on a float32 copy.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class MasterAdamW(torch.optim.Optimizer):
    """AdamW over float32 copies; after each step the parameters are their copies, rounded.

    Parameters that are float32 already are their own copies.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], **settings: Any) -> None:
        own = [{**group, "params": list(group["params"])} for group in groups]
        super().__init__(own, {})
        masters = [{**group, "params": [_master(p) for p in group["params"]]} for group in own]
        self.inner = torch.optim.AdamW(masters, **settings)
        self.param_groups = self.inner.param_groups  # schedulers set the rate of these
        self.defaults = self.inner.defaults
        self._pairs = [
            (parameter, master)
            for mine, theirs in zip(own, self.inner.param_groups, strict=True)
            for parameter, master in zip(mine["params"], theirs["params"], strict=True)
        ]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of all parameters that have a gradient."""
        for parameter, master in self._pairs:
            if master is not parameter:
                master.grad = None if parameter.grad is None else parameter.grad.float()
        self.inner.step()
        for parameter, master in self._pairs:
            if master is not parameter:
                parameter.copy_(master)
                master.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the parameters."""
        for parameter, _ in self._pairs:
            parameter.grad = None if set_to_none else torch.zeros_like(parameter)

    def state_dict(self) -> dict[str, Any]:
        """The state of AdamW, and the copies."""
        return {
            **self.inner.state_dict(),
            "masters": [master.detach() for _, master in self._pairs],
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What `state_dict` gave; the parameters become the copies, rounded."""
        masters: list[Tensor] = state_dict["masters"]
        rest = {key: value for key, value in state_dict.items() if key != "masters"}
        self.inner.load_state_dict(rest)
        self.param_groups = self.inner.param_groups
        for (parameter, master), saved in zip(self._pairs, masters, strict=True):
            master.copy_(saved)
            parameter.copy_(master)

    def precise(self, module: nn.Module) -> dict[str, Tensor]:
        """The state dict of `module` with the copies in the place of what was rounded."""
        masters = {id(parameter): master for parameter, master in self._pairs}
        own = dict(module.named_parameters(remove_duplicate=False))
        return {
            name: masters.get(id(own[name]), value) if name in own else value
            for name, value in module.state_dict().items()
        }


def _master(parameter: nn.Parameter) -> nn.Parameter:
    if parameter.dtype in (torch.float32, torch.float64):
        return parameter
    return nn.Parameter(parameter.detach().float())


def decayed(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups: matrices with decay, biases and norms without; what is frozen in neither."""
    trained = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
