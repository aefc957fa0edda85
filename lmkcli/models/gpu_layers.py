"""Layers on GPUs: norms, rotations and gates of a model run as kernels of `gpu_kernels.py`.

The model keeps all its modules and weights, so that adapters, training and export see the same model. Only
the `forward` of these modules is replaced:

- norms that divide by the root mean square,
- BERT's `dense`, dropout and `LayerNorm` with a residual,
- feed-forwards that multiply an activation by a gate,
- attention that rotates queries and keys: its own code runs with another function for the rotation.

A part is replaced only if it computes what its kernel computes: for norms, gates and rotations, this is tried
with random numbers. `Transformer.check` compares the whole model with its own code afterwards.
"""

import copy
from collections.abc import Callable
from functools import cache, lru_cache
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Forward = Callable[..., Any]
ROTATION = "apply_rotary_pos_emb"  # the name of the rotation in transformers

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}


@cache
def kernels() -> Any:
    """Return the module of kernels. ImportError without Triton, which PyTorch for GPUs installs."""
    from lmkcli.models import gpu_kernels  # imported here: it takes half a second

    return gpu_kernels


@lru_cache(maxsize=8)
def kernels_run(device: torch.device) -> bool:
    """Return whether this is a GPU for which Triton is installed and can compile a kernel."""
    if device.type != "cuda":
        return False
    x = torch.ones(2, 8, device=device)
    try:
        kernels().normed(x, x[0], None, 1e-6)
    except Exception:  # no Triton, no compiler, an old driver, an old GPU: the layers run unfused
        return False
    return True


def fused_forward(module: Any) -> Forward | None:
    """Return a faster `forward` of a module; None if it has no part that a kernel computes."""
    return _residual_norm(module) or _rms_norm(module) or _gate(module) or _attention(module)


def _residual_norm(module: Any) -> Forward | None:
    """LayerNorm(dense(x) + residual): the end of BERT's attention and of its feed-forward."""
    parts = dict(module.named_children())
    if (
        set(parts) != {"dense", "LayerNorm", "dropout"}
        or type(parts["LayerNorm"]) is not nn.LayerNorm
    ):
        return None
    norm = parts["LayerNorm"]
    if len(norm.normalized_shape) != 1 or norm.weight is None:
        return None

    def forward(self: Any, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> Any:
        # The kernel has no backward pass and no dropout, which training also needs without gradients
        if torch.is_grad_enabled() or self.training:
            return type(self).forward(self, hidden_states, input_tensor)
        x, norm = self.dense(hidden_states), self.LayerNorm  # LoRA replaces layers later
        return kernels().normed(x, norm.weight, norm.bias, norm.eps, residual=input_tensor)

    return MethodType(forward, module)


def _rms_norm(module: Any) -> Forward | None:
    """weight * x / sqrt(mean(x²) + eps): the norm of Llama and its successors."""
    names = {name for name, _ in module.named_parameters()}
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if names != {"weight"} or module.weight.ndim != 1 or not isinstance(eps, float):
        return None
    width = len(module.weight)
    x = torch.randn(3, width, generator=torch.Generator().manual_seed(0))
    x *= torch.tensor([[1e-3], [1], [1e3]])  # the first row shows eps
    try:
        with torch.no_grad():
            alone = copy.deepcopy(module).cpu().float()
            expected = functional.rms_norm(x, (width,), alone.weight, eps)
            if not torch.allclose(alone(x), expected, rtol=1e-4, atol=1e-5):
                return None
    except Exception:  # it needs something else than states
        return None

    def forward(self: Any, x: torch.Tensor) -> Any:
        if torch.is_grad_enabled():
            return functional.rms_norm(x, (width,), self.weight, eps)
        return kernels().normed(x, self.weight, None, eps, centre=False)

    return MethodType(forward, module)


def _gate(module: Any) -> Forward | None:
    """down(act(gate(x)) * up(x)), as in Llama; or the same with one layer for both, as in ModernBERT."""
    names = {
        name for name, child in module.named_children() if any(True for _ in child.parameters())
    }
    if names == {"gate_proj", "up_proj", "down_proj"}:
        kind = activation_kind(getattr(module, "act_fn", None))
        layers: dict[str, nn.Module] = {
            "gate_proj": _Half(0), "up_proj": _Half(1), "down_proj": nn.Identity()
        }  # fmt: skip

        def forward(self: Any, x: torch.Tensor) -> Any:
            if self.training and not trains:
                return type(self).forward(self, x)
            gate, up = self.gate_proj(x), self.up_proj(x)
            product = kernels().gated(gate.flatten(0, -2), up.flatten(0, -2), kind)
            return self.down_proj(product.view(*x.shape[:-1], -1))

    elif names == {"Wi", "Wo"}:
        kind = activation_kind(getattr(module, "act", None))
        layers = {"Wi": nn.Identity(), "Wo": nn.Identity(), "drop": nn.Identity()}

        def forward(self: Any, x: torch.Tensor) -> Any:
            if self.training and not trains:
                return type(self).forward(self, x)
            both = self.Wi(x).flatten(0, -2)
            width = both.shape[1] // 2
            product = kernels().gated(both[:, :width], both[:, width:], kind)
            return self.Wo(self.drop(product.view(*x.shape[:-1], -1)))

    else:
        return None
    if not kind or not _multiplies(module, layers, kind, training=False):
        return None
    trains = _multiplies(module, layers, kind, training=True)
    return MethodType(forward, module)


class _Half(nn.Module):
    """Return one half of each vector: a linear layer with known results."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.chunk(2, -1)[self._number]


def _multiplies(module: Any, layers: dict[str, nn.Module], kind: str, training: bool) -> bool:
    """Return whether a feed-forward with these layers computes act(first half) * second half, and no more.

    More can be a limit of large numbers, a factor, or dropout in training.
    """
    x = torch.randn(2, 8, 2 * 64, generator=torch.Generator().manual_seed(0))
    x[1] *= 100
    first, second = x.chunk(2, -1)
    try:
        alone = copy.copy(module)  # without its weights
        others = set(module._modules) - set(layers)
        alone.__dict__["_modules"] = {
            **{name: copy.deepcopy(module._modules[name]) for name in others}, **layers
        }  # fmt: skip
        with torch.no_grad(), torch.random.fork_rng([]):
            found = alone.train(training)(x)
        return torch.allclose(found, ACTIVATIONS[kind](first) * second, rtol=1e-5, atol=1e-5)
    except Exception:  # it needs more than the results of its layers
        return False


def activation_kind(activation: Any) -> str:
    """Return the name of an activation in ACTIVATIONS; empty for another one."""
    x = torch.cat([torch.linspace(-6, 6, 97), torch.linspace(-1000, 1000, 97)])  # some have limits
    for name, function in ACTIVATIONS.items():
        try:
            if torch.allclose(activation(x), function(x), rtol=1e-6, atol=1e-6):
                return name
        except Exception:  # no activation at all
            return ""
    return ""


def _attention(module: Any) -> Forward | None:
    """Attention that rotates queries and keys by the function ROTATION of transformers."""
    kind: Any = type(module)
    substituted = _with_rotation(kind)
    return MethodType(substituted, module) if substituted else None


@lru_cache(maxsize=64)
def _with_rotation(kind: Any) -> FunctionType | None:
    """Return the `forward` of a class with the kernel's rotation; None if it rotates otherwise."""
    own = kind.forward
    if ROTATION not in getattr(getattr(own, "__code__", None), "co_names", ()):
        return None
    slow = own.__globals__.get(ROTATION)
    if slow is None or not _rotates_halves(slow):
        return None

    def rotation(
        q: torch.Tensor,
        k: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        *rest: Any,
        **more: Any,
    ) -> Any:
        width = q.shape[-1]
        packed = q.ndim == 4 and len(q) == 1 and cos.shape == (1, q.shape[2], width)
        if not packed or k.shape[-1] != width or rest or more.get("unsqueeze_dim", 1) != 1:
            return slow(q, k, cos, sin, *rest, **more)
        return tuple(
            kernels().rotated(x[0].transpose(0, 1), cos[0], sin[0]).transpose(0, 1)[None]
            for x in (q, k)
        )

    names = own.__globals__ | {ROTATION: rotation}
    made = FunctionType(own.__code__, names, own.__name__, own.__defaults__, own.__closure__)
    made.__kwdefaults__ = own.__kwdefaults__
    return made


def _rotates_halves(rotation: Any) -> bool:
    """Return whether a function rotates the two halves of vectors, and not neighbours."""
    random = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 3, 8, generator=random) for heads in (4, 2))
    angles = torch.randn(1, 3, 4, generator=random).repeat(1, 1, 2)
    cos, sin = angles.cos(), angles.sin()
    try:
        found = rotation(q, k, cos, sin)
        for x, other in zip((q, k), found, strict=True):
            first, second = x.chunk(2, -1)
            expected = x * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]
            if not torch.allclose(other, expected, atol=1e-5):
                return False
    except Exception:  # it has other arguments
        return False
    return True
