"""Fused layers for CPUs: a linear layer with what follows it in one oneDNN call.

In bf16 on a CPU, GELU, the bias and the residual addition cost as much as a third of an encoder when
each is a pass of its own over the activations. oneDNN computes them while a tile is in the cache.
Found by shape, not by name of a model: whatever has BERT's `dense` + `intermediate_act_fn`, its
`dense` + `LayerNorm` over (hidden_states, input_tensor), or the parts of ModernBERT's layers.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from lmkcli.models.attention import Pack, packed_attention

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

    def onto(self, x: torch.Tensor, other: torch.Tensor, how: str) -> torch.Tensor:
        """`other` 'add' or 'mul' (x @ W.T + b), in the same pass."""
        return torch.ops.mkldnn._linear_pointwise.binary(  # type: ignore[no-any-return]
            x, other, self.weight, self.bias, how
        )


class ResidualNorm(nn.Module):
    """LayerNorm(x @ W.T + b + residual): the end of BERT's attention and of its feed-forward."""

    def __init__(self, linear: nn.Linear, norm: nn.Module) -> None:
        super().__init__()
        self.linear = Linear(linear)
        self.norm = norm

    def forward(self, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
        """[..., in] and [..., out] -> [..., out]."""
        return self.norm(self.linear.onto(hidden_states, input_tensor, "add"))  # type: ignore[no-any-return]


class Gated(nn.Module):
    """h + (gelu(x @ A.T) * (x @ B.T)) @ C.T: ModernBERT's feed-forward with its residual."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        into: Any = mlp.Wi
        self.gelu, self.gate = (Linear(half, after) for half, after in _halves(into))
        self.out = Linear(mlp.Wo)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """[..., d] and [..., d] -> [..., d]."""
        gated = self.gate.onto(x, self.gelu(x), "mul")
        return self.out.onto(gated, residual, "add")


def _halves(linear: nn.Linear) -> Iterator[tuple[nn.Linear, str]]:
    """The two halves of what a linear layer puts out, as layers of their own."""
    weights = linear.weight.detach().chunk(2)
    biases = (None, None) if linear.bias is None else linear.bias.detach().chunk(2)
    for weight, bias, after in zip(weights, biases, ("gelu", "none"), strict=True):
        half = nn.Linear(1, 1, bias=bias is not None)
        half.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            half.bias = nn.Parameter(bias, requires_grad=False)
        yield half, after


class RotaryLayer(nn.Module):
    """A layer of ModernBERT: the rotation in the model's dtype, GELU, gate and residuals fused.

    transformers rotates queries and keys in float32, in seven passes over memory; on a CPU that costs
    more than the linear layers.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        attn = layer.attn
        self.attn_norm, self.mlp_norm = layer.attn_norm, layer.mlp_norm
        self.attention_type = layer.attention_type
        self.qkv, self.out, self.mlp = Linear(attn.Wqkv), Linear(attn.Wo), Gated(layer.mlp)
        self.width, self.sliding_window = int(attn.head_dim), attn.sliding_window

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        pack: Pack | None = None,
        **rest: Any,
    ) -> torch.Tensor:
        """[1, tokens, d] -> [1, tokens, d]; `position_embeddings` are cosine and sine [1, tokens, width]."""
        if attention_mask is not None or position_embeddings is None:
            raise ValueError("this layer runs packed inputs alone")
        tokens = hidden_states.shape[1]
        qkv = self.qkv(self.attn_norm(hidden_states)).view(tokens, 3, -1, self.width)
        query, key = rotated(qkv[:, :2], *position_embeddings).unbind(1)
        query, key, value = (x.transpose(0, 1)[None] for x in (query, key, qkv[:, 2]))
        seen, _none = packed_attention(
            self, query, key, value, None, self.width**-0.5, self.sliding_window, False, pack,
            rest.get("groups"),
        )  # fmt: skip
        hidden_states = self.out.onto(seen.reshape(1, tokens, -1), hidden_states, "add")
        return self.mlp(self.mlp_norm(hidden_states), hidden_states)  # type: ignore[no-any-return]


def rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """x * cosine + rotate_half(x) * sine in the dtype of x.

    x [tokens, ..., heads, width]; cosine and sine [1, tokens, width], whose halves are the same.
    """
    half = x.shape[-1] // 2
    shape = (len(x), *(1 for _ in x.shape[1:-1]), half)
    cos, sin = (table[0, :, :half].to(x.dtype).view(shape) for table in (cosine, sine))
    first, second = x[..., :half], x[..., half:]
    turned = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    torch.mul(first, cos, out=turned[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=turned[..., half:]).addcmul_(first, sin)
    return turned


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
            if fused := _fused(module):
                undo.replace(owner, name, fused)
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
    """A layer of ModernBERT, or BERT's dense, dropout, LayerNorm with a residual, as one module."""
    parts = dict(module.named_children())
    if set(parts) == {"attn_norm", "attn", "mlp_norm", "mlp"} and _is_rotary(module):
        return RotaryLayer(module)
    if set(parts) == {"dense", "LayerNorm", "dropout"} and type(parts["dense"]) is nn.Linear:
        return ResidualNorm(parts["dense"], parts["LayerNorm"])
    return None


def _is_rotary(layer: Any) -> bool:
    """Whether queries, keys and values come from one layer, and an exact GELU is gated."""
    linear = (getattr(layer.attn, "Wqkv", None), getattr(layer.mlp, "Wi", None))
    return all(type(part) is nn.Linear for part in linear) and _exact(layer.mlp.act)


def _before_gelu(owner: Any, name: str) -> bool:
    """Whether a linear layer is BERT's `dense` whose output goes to an exact GELU."""
    return name == "dense" and _exact(getattr(owner, "intermediate_act_fn", None))


def _exact(gelu: Any) -> bool:
    exact = isinstance(gelu, nn.GELU) and gelu.approximate == "none"
    return exact or type(gelu).__name__ == "GELUActivation"
