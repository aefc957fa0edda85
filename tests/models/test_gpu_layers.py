"""Fused layers of GPUs: Without a GPU, Triton's interpreter runs their kernels."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import (
    AutoModel,
    BertConfig,
    GemmaConfig,
    GPTJConfig,
    GteConfig,
    LlamaConfig,
    MistralConfig,
    ModernBertConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    XLMRobertaConfig,
)
from transformers.activations import ACT2FN

pytest.importorskip("triton", reason="Triton has wheels for Linux on x86-64 only")
from triton.runtime.errors import PTXASError

from lmkcli.models import attention, gpu_kernels, gpu_layers
from lmkcli.models.fast_paths import ReplacedModules
from lmkcli.models.transformer import Transformer

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 100,
    "num_attention_heads": 4, "pad_token_id": 0,
}  # fmt: skip
GROUPED: dict[str, Any] = {**SMALL, "num_key_value_heads": 2}
# a model, and the classes of its parts that run as kernels
MODELS: list[tuple[PretrainedConfig, dict[str, int]]] = [
    (BertConfig(**SMALL), {"BertSelfOutput": 2, "BertOutput": 2}),
    (XLMRobertaConfig(**SMALL), {"XLMRobertaSelfOutput": 2, "XLMRobertaOutput": 2}),
    (
        ModernBertConfig(**SMALL, local_attention=8, global_attn_every_n_layers=2),
        {"ModernBertAttention": 2, "ModernBertMLP": 2},
    ),
    (LlamaConfig(**GROUPED), {"LlamaAttention": 2, "LlamaMLP": 2, "LlamaRMSNorm": 5}),
    (MistralConfig(**GROUPED), {"MistralAttention": 2, "MistralMLP": 2, "MistralRMSNorm": 5}),
    (Qwen2Config(**GROUPED), {"Qwen2Attention": 2, "Qwen2MLP": 2, "Qwen2RMSNorm": 5}),
    (
        Qwen3Config(**GROUPED, head_dim=16),
        {"Qwen3Attention": 2, "Qwen3MLP": 2, "Qwen3RMSNorm": 9},
    ),
    # its norms multiply by 1 + weight, and are left as they are
    (
        GemmaConfig(**GROUPED, head_dim=16, hidden_activation="gelu_pytorch_tanh"),
        {"GemmaAttention": 2, "GemmaMLP": 2},
    ),
]


@pytest.fixture(params=MODELS, ids=lambda each: each[0].model_type)
def model(request: pytest.FixtureRequest) -> tuple[Transformer, dict[str, int]]:
    config, parts = request.param
    torch.manual_seed(0)
    module = AutoModel.from_config(config).eval().to(DEVICE)
    for parameter in module.parameters():  # norms of new models are trivial
        parameter.data.add_(torch.randn_like(parameter) * 0.05)
    opened = Transformer(module, 48, 1000, DEVICE, "fp32")
    module.set_attn_implementation(attention.NAME)
    opened.packed = True
    return opened, parts


def fused(model: Transformer) -> tuple[ReplacedModules, dict[str, int]]:
    replaced, parts = ReplacedModules(), {}
    for module in list(model.module.modules()):
        if forward := gpu_layers.fused_forward(module):
            replaced.replace(module, "forward", forward)
            name = type(module).__name__
            parts[name] = parts.get(name, 0) + 1
    return replaced, parts


def sequences() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(1, 100, n).astype(np.int32) for n in (3, 21, 1, 9)]


def test_states_and_gradients_are_those_of_the_model(
    model: tuple[Transformer, dict[str, int]],
) -> None:
    transformer, expected = model
    weights = list(transformer.module.parameters())

    def gradients() -> list[torch.Tensor | None]:
        states = transformer.states(sequences())
        loss = (states * torch.linspace(-1, 1, states.numel()).view_as(states)).sum()
        return list(torch.autograd.grad(loss, weights, allow_unused=True))

    with torch.inference_mode():
        plain = transformer.states(sequences())
    plain_gradients = gradients()
    replaced, parts = fused(transformer)
    assert parts == expected
    with torch.inference_mode():
        torch.testing.assert_close(transformer.states(sequences()), plain, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients(), plain_gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    replaced.restore()
    assert not any("forward" in vars(module) for module in transformer.module.modules())


def test_layers_that_are_replaced_later_are_used() -> None:
    module = AutoModel.from_config(BertConfig(**SMALL)).encoder.layer[0].output.to(DEVICE).eval()
    forward = gpu_layers.fused_forward(module)
    assert forward is not None
    module.dense = torch.nn.Linear(100, 48).to(DEVICE)  # as LoRA does
    inner, residual = torch.randn(3, 100, device=DEVICE), torch.randn(3, 48, device=DEVICE)
    with torch.no_grad():
        torch.testing.assert_close(forward(inner, residual), module(inner, residual))


@pytest.mark.parametrize("kind", [BertConfig, ModernBertConfig, GteConfig])
def test_passes_without_gradients_are_those_of_the_model_that_is_trained(kind: Any) -> None:
    """Gradient caching runs a pass without gradients, with dropout and with adapters; so do scores."""
    names = ("hidden_dropout_prob", "mlp_dropout", "embedding_dropout", "attention_dropout")
    dropout = {name: 0.5 for name in names if hasattr(kind(), name)}
    module = AutoModel.from_config(kind(**SMALL, **dropout)).train().to(DEVICE)
    replaced, _ = fused(Transformer(module, 48, 1000, DEVICE, "fp32"))
    for layer in list(module.modules()):
        for name, child in layer.named_children():
            if type(child) is nn.Linear and name in ("dense", "Wo", "down_proj"):
                adapted = nn.Linear(child.in_features, child.out_features).to(DEVICE)
                setattr(layer, name, adapted)
    ids = torch.arange(1, 22, device=DEVICE)[None]

    def states() -> torch.Tensor:
        torch.manual_seed(0)
        with torch.no_grad():
            return module(input_ids=ids).last_hidden_state  # type: ignore[no-any-return]

    found = [states(), module.eval() and states()]
    module.train()
    replaced.restore()
    for one, other in zip(found, [states(), module.eval() and states()], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


class FeedForward(nn.Module):
    """A gated feed-forward that may do more than its layers show."""

    def __init__(self, limit: float = torch.inf, factor: float = 1, dropout: float = 0) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (nn.Linear(8, 8) for _ in range(3))
        self.act_fn, self.limit, self.factor, self.rate = nn.SiLU(), limit, factor, dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = self.act_fn(self.gate_proj(x)) * self.up_proj(x).clamp(max=self.limit)
        product = functional.dropout(product, self.rate, self.training)
        return self.down_proj(product * self.factor)  # type: ignore[no-any-return]


def test_feed_forwards_that_do_more_are_left_alone() -> None:
    assert gpu_layers.fused_forward(FeedForward().train()) is not None
    assert gpu_layers.fused_forward(FeedForward(limit=10)) is None
    assert gpu_layers.fused_forward(FeedForward(factor=1.01)) is None
    dropping, x = FeedForward(dropout=0.5).to(DEVICE), torch.randn(3, 8, device=DEVICE)
    forward = gpu_layers.fused_forward(dropping)
    assert forward is not None
    torch.manual_seed(0)
    found = forward(x)
    torch.manual_seed(0)
    torch.testing.assert_close(found, dropping(x))
    dropping.eval()
    torch.testing.assert_close(forward(x), dropping(x))


class LaterEpsilon(nn.Module):
    """A norm that adds epsilon to the root, not to the mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(16)), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x / (x.square().mean(-1, keepdim=True).sqrt() + self.eps)


def test_norms_with_another_epsilon_are_left_alone() -> None:
    assert gpu_layers.fused_forward(nn.RMSNorm(16, eps=1e-6)) is not None
    assert gpu_layers.fused_forward(LaterEpsilon()) is None


def test_rotation_of_neighbours_is_left_alone() -> None:
    config = GPTJConfig(vocab_size=100, n_embd=48, n_layer=1, n_head=4, rotary_dim=8)
    module = AutoModel.from_config(config)
    kinds = [type(each).__name__ for each in module.modules() if gpu_layers.fused_forward(each)]
    assert not kinds


def test_a_kernel_that_cannot_be_compiled_leaves_the_model_unfused(
    model: tuple[Transformer, dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old GPUs compile kernels for float32 only; each start tries one such kernel."""

    class Failing:
        def __getitem__(self, grid: Any) -> Any:
            raise PTXASError("no bf16")

    for name in ("_norm", "_rotate", "_gated"):
        monkeypatch.setattr(gpu_kernels, name, Failing())
    monkeypatch.setattr("lmkcli.models.transformer.fuse", lambda *_: fused(model[0])[0])
    fast = model[0].check(fusing=True)
    assert (fast.fused, fast.packed) == (False, True)


@pytest.mark.parametrize("width", [100, 128, 384])
def test_norms(width: int) -> None:
    x, residual = torch.randn(2, 3, 7, width, device=DEVICE)
    weight, bias = torch.randn(2, width, device=DEVICE)
    torch.testing.assert_close(
        gpu_kernels.normed(x, weight, bias, 1e-5, residual=residual),
        functional.layer_norm(x + residual, (width,), weight, bias, 1e-5),
    )
    torch.testing.assert_close(
        gpu_kernels.normed(x, weight, None, 1e-6, centre=False),
        functional.rms_norm(x, (width,), weight, 1e-6),
    )


@pytest.mark.parametrize("kind", gpu_layers.ACTIVATIONS)
def test_gates(kind: str) -> None:
    both = torch.randn(6, 2 * 1200, device=DEVICE, requires_grad=True)
    x, gate = both.chunk(2, -1)
    found, expected = gpu_kernels.gated(x, gate, kind), gpu_layers.ACTIVATIONS[kind](x) * gate
    torch.testing.assert_close(found, expected)
    grad = torch.randn_like(found)
    torch.testing.assert_close(
        *(torch.autograd.grad(each, both, grad)[0] for each in (found, expected))
    )


def test_activations_are_recognised_by_what_they_compute() -> None:
    assert gpu_layers.activation_kind(torch.nn.GELU(approximate="tanh")) == "gelu_tanh"
    assert gpu_layers.activation_kind(torch.nn.SiLU()) == "silu"
    assert gpu_layers.activation_kind(torch.nn.ReLU()) == ""
    assert gpu_layers.activation_kind(ACT2FN["gelu_10"]) == ""  # limited to 10
    assert gpu_layers.activation_kind(None) == ""


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_products_of_rows(dtype: torch.dtype) -> None:
    rows = torch.randn(15, 300, device=DEVICE).to(dtype)
    queries = torch.randn(3, 300, dtype=torch.float64, device=DEVICE)
    found = torch.empty(3, 5, dtype=torch.float64, device=DEVICE)
    gpu_kernels.row_products(rows, queries, found)
    expected = torch.einsum("qnd,qd->qn", rows.double().view(3, 5, 300), queries)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
