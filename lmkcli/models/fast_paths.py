"""Fast paths through a model: fused layers, and the cached results of their checks.

On GPUs, `gpu_layers.py` finds the layers that can be fused. On CPUs this module does it. A CPU in bf16 spends
up to a third of an encoder's time on GELU, biases and residual additions if each is a separate pass over the
activations. oneDNN computes them while a tile of the linear layer's output is still in the cache. Layers are
recognised by their structure, not by the name of the model:

- BERT's `dense` followed by `intermediate_act_fn`,
- BERT's `dense`, dropout and `LayerNorm` with a residual,
- the layers of ModernBERT.

A model uses a fast path (fused layers, packed inputs) only after a check: on a few random sequences, its
states must equal those of the plain model. The check takes seconds on a CPU, so its result is cached.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import torch
import transformers
from torch import nn

from lmkcli import __version__
from lmkcli.artifact.manifest import digest
from lmkcli.models.attention import Pack, packed_attention
from lmkcli.models.gpu_layers import fused_forward, kernels_run
from lmkcli.system import caches
from lmkcli.system.atomic import atomic_file
from lmkcli.system.input_files import parse_json

# oneDNN optimises the layout of the weights for this number of rows. Other numbers are a little slower.
ROWS = 8192
_CHECK = 5  # the version of the check; a cached result of another version is not used


class FusedLinear(nn.Module):
    """x @ W.T + b, with an optional GELU in the same pass. The weights have oneDNN's own layout.

    `gelu` is 'none' for the exact GELU, 'tanh' for its approximation, and empty for no GELU.
    """

    def __init__(self, linear: nn.Linear, gelu: str = "") -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.gelu = gelu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]."""
        return torch.ops.mkldnn._linear_pointwise(  # type: ignore[no-any-return]
            x, self.weight, self.bias, "gelu" if self.gelu else "none", [], self.gelu
        )

    def combined(self, x: torch.Tensor, other: torch.Tensor, operation: str) -> torch.Tensor:
        """Return `other` 'add' or 'mul' (x @ W.T + b), computed in one pass."""
        return torch.ops.mkldnn._linear_pointwise.binary(  # type: ignore[no-any-return]
            x, other, self.weight, self.bias, operation
        )


class ResidualNorm(nn.Module):
    """LayerNorm(x @ W.T + b + residual): the end of BERT's attention and of its feed-forward."""

    def __init__(self, linear: nn.Linear, norm: nn.Module) -> None:
        super().__init__()
        self.linear = FusedLinear(linear)
        self.norm = norm

    def forward(self, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
        """[..., in] and [..., out] -> [..., out]."""
        summed = self.linear.combined(hidden_states, input_tensor, "add")
        return self.norm(summed)  # type: ignore[no-any-return]


class GatedFeedForward(nn.Module):
    """h + (gelu(x @ A.T) * (x @ B.T)) @ C.T: ModernBERT's feed-forward with its residual h.

    ModernBERT has A and B in one layer `Wi`. Here they are two layers, so that the GELU is fused into
    the first and the product into the second.
    """

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        weights = mlp.Wi.weight.detach().chunk(2)
        biases = (None, None) if mlp.Wi.bias is None else mlp.Wi.bias.detach().chunk(2)
        halves = []
        for weight, bias, gelu in zip(weights, biases, ("none", ""), strict=True):
            half = nn.Linear(1, 1, bias=bias is not None)  # its parameters are replaced
            half.weight = nn.Parameter(weight, requires_grad=False)
            if bias is not None:
                half.bias = nn.Parameter(bias, requires_grad=False)
            halves.append(FusedLinear(half, gelu))
        self.gelu, self.gate = halves
        self.out = FusedLinear(mlp.Wo)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """[..., d] and [..., d] -> [..., d]."""
        gated = self.gate.combined(x, self.gelu(x), "mul")
        return self.out.combined(gated, residual, "add")


class RotaryLayer(nn.Module):
    """A layer of ModernBERT: rotation in the model's dtype; GELU, gate and residuals fused.

    transformers rotates queries and keys in float32, in seven passes over memory. On a CPU that costs
    more than the linear layers.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        attn = layer.attn
        self.attn_norm, self.mlp_norm = layer.attn_norm, layer.mlp_norm
        self.attention_type = layer.attention_type
        self.qkv, self.out = FusedLinear(attn.Wqkv), FusedLinear(attn.Wo)
        self.mlp = GatedFeedForward(layer.mlp)
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
            raise ValueError("this layer accepts only packed inputs")
        tokens = hidden_states.shape[1]
        qkv = self.qkv(self.attn_norm(hidden_states)).view(tokens, 3, -1, self.width)
        query, key = rotated(qkv[:, :2], *position_embeddings).unbind(1)
        query, key, value = (x.transpose(0, 1)[None] for x in (query, key, qkv[:, 2]))
        attended, _ = packed_attention(
            self, query, key, value, None, self.width**-0.5, self.sliding_window, False, pack,
            rest.get("groups"),
        )  # fmt: skip
        hidden_states = self.out.combined(attended.reshape(1, tokens, -1), hidden_states, "add")
        return self.mlp(self.mlp_norm(hidden_states), hidden_states)  # type: ignore[no-any-return]


def rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Return x * cosine + rotate_half(x) * sine in the dtype of x.

    x is [tokens, ..., heads, width]; cosine and sine are [1, tokens, width], and their two halves are equal.
    """
    half = x.shape[-1] // 2
    shape = (len(x), *(1 for _ in x.shape[1:-1]), half)
    cos, sin = (table[0, :, :half].to(x.dtype).view(shape) for table in (cosine, sine))
    first, second = x[..., :half], x[..., half:]
    result = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    torch.mul(first, cos, out=result[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=result[..., half:]).addcmul_(first, sin)
    return result


class ReplacedModules:
    """Replaces modules or methods of modules, and can restore the original ones."""

    def __init__(self) -> None:
        self._replaced: list[tuple[nn.Module, str, Any]] = []

    def replace(self, owner: nn.Module, name: str, value: nn.Module | Callable[..., Any]) -> None:
        """Replace the attribute `name` of `owner`, which is a module or a method."""
        method = not isinstance(value, nn.Module)
        self._replaced.append((owner, name, None if method else getattr(owner, name)))
        setattr(owner, name, value)

    def restore(self) -> None:
        """Put all original modules and methods back."""
        for owner, name, module in reversed(self._replaced):
            if module is None:
                delattr(owner, name)  # the method of the class is visible again
            else:
                setattr(owner, name, module)
        self._replaced = []


def can_fuse(device: torch.device, trainable: bool) -> bool:
    """Return whether layers on a device may be fused."""
    return kernels_run(device) or (device.type == "cpu" and not trainable)


def fuse(model: nn.Module, device: torch.device) -> ReplacedModules:
    """Replace all layers that can be fused on a device, in place."""
    replaced = ReplacedModules()
    if device.type != "cuda":
        return _fuse_on_cpu(model)
    for module in list(model.modules()):
        if forward := fused_forward(module):
            replaced.replace(module, "forward", forward)
    return replaced


def _fuse_on_cpu(model: nn.Module) -> ReplacedModules:
    """Fuse layers with oneDNN; none if this build of torch lacks it, or one of its operations."""
    replaced = ReplacedModules()
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return replaced
    try:
        for owner, name, module in list(_children(model)):
            if fused := _fused(module):
                replaced.replace(owner, name, fused)
        for owner, name, module in list(_children(model)):
            if type(module) is nn.Linear:
                act = getattr(owner, "intermediate_act_fn", None)  # of BERT's feed-forward
                gelu = "none" if name == "dense" and _is_exact_gelu(act) else ""
                replaced.replace(owner, name, FusedLinear(module, gelu))
        for owner in list(model.modules()):
            dense = getattr(owner, "dense", None)
            if isinstance(dense, FusedLinear) and dense.gelu:
                replaced.replace(owner, "intermediate_act_fn", nn.Identity())
    except (AttributeError, RuntimeError, NotImplementedError):
        replaced.restore()
    return replaced


def _children(model: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    for owner in model.modules():
        for name, module in owner.named_children():
            yield owner, name, module


def _fused(module: Any) -> nn.Module | None:
    """Return the fused version of a ModernBERT layer, or of BERT's dense, dropout and LayerNorm."""
    parts = dict(module.named_children())
    if set(parts) == {"attn_norm", "attn", "mlp_norm", "mlp"}:
        # queries, keys and values come from one layer, and the feed-forward gates an exact GELU
        linears = (getattr(module.attn, "Wqkv", None), getattr(module.mlp, "Wi", None))
        if all(type(part) is nn.Linear for part in linears) and _is_exact_gelu(module.mlp.act):
            return RotaryLayer(module)
    if set(parts) == {"dense", "LayerNorm", "dropout"} and type(parts["dense"]) is nn.Linear:
        return ResidualNorm(parts["dense"], parts["LayerNorm"])
    return None


def _is_exact_gelu(module: Any) -> bool:
    exact = isinstance(module, nn.GELU) and module.approximate == "none"
    return exact or type(module).__name__ == "GELUActivation"


# Which sequences run in one call: of any lengths, of equal lengths, or one
Together = Literal["any", "equal", "one"]


class FastPath(NamedTuple):
    """The fast path that a check allows: fused layers, packed inputs, and the reason for padding.

    `together` tells which sequences can run in one call without a change of their states.
    """

    fused: bool
    packed: bool
    why_padded: str = ""
    together: Together = "any"
    dim: int = (
        0  # the dimensions of the states; some models project them to other than `hidden_size`
    )


def fast_path_key(weights: str, dtype: str, device: torch.device, options: tuple[str, bool]) -> str:
    """Return a digest of everything that the check may depend on.

    `weights` is the digest of the weights. `options` contains the kind of position extension, and whether
    layers are fused.
    """
    chip = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else torch.backends.cpu.get_cpu_capability()
    )
    versions = [_CHECK, __version__, torch.__version__, transformers.__version__]
    return digest([weights, dtype, device.type, chip, *options, versions])


def cached_fast_path(key: str, check: Callable[[], FastPath]) -> FastPath:
    """Return the fast path of this key. If the cache lacks it, `check` finds it, and it is stored.

    The cache has one small file per key in $XDG_CACHE_HOME/lmk/routes (default ~/.cache/lmk/routes). If
    the file cannot be read or written, every start of lmk calls `check` again.
    """
    path = caches.lmk_cache() / "routes" / f"{key[:32]}.json"
    try:
        return FastPath(**parse_json(path.read_text()))
    except (OSError, ValueError, TypeError):
        fast_path = check()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            temporary.write_text(json.dumps(fast_path._asdict()))
    except OSError:
        pass
    return fast_path
