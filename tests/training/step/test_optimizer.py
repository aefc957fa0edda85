"""Half-precision models train float32 weights, and compute with rounded copies of them."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lmkcli.training.step.optimizer import parameter_groups, rounded, widen
from tests import levels


def linear(dtype: torch.dtype) -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(8, 8).to(dtype)


def steps(module: nn.Linear, count: int = 200, weight_decay: float = 0.0) -> None:
    """Train with AdamW at a rate that hardly moves plain bf16 weights."""
    optimizer = torch.optim.AdamW(parameter_groups(module, weight_decay), lr=2e-4)
    torch.manual_seed(0)
    for _ in range(count):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        with rounded(module):
            loss = (module(x.to(module.weight.dtype)).float() - x.flip(1)).pow(2).mean()
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def test_small_steps_of_half_precision_weights_are_not_lost() -> None:
    mine, plain, wanted = linear(torch.bfloat16), linear(torch.bfloat16), linear(torch.float32)
    widen(mine)
    for module in (mine, plain, wanted):
        steps(module)
    far = (wanted.weight - plain.weight.float()).abs().mean()
    near = (wanted.weight - mine.weight).abs().mean()
    assert near < far / 3
    assert mine.weight.dtype == torch.float32


def test_a_model_in_float32_is_trained_as_it_is() -> None:
    mine, plain = linear(torch.float32), linear(torch.float32)
    widen(mine)
    with rounded(mine):
        assert mine.weight is next(mine.parameters())
    assert torch.equal(mine.weight, plain.weight)


def test_inside_the_context_a_model_is_that_of_half_precision() -> None:
    """Shared parameters stay shared, frozen ones keep their dtype, and everything is restored."""
    model, plain = (
        nn.ModuleDict({"a": linear(torch.bfloat16), "b": linear(torch.bfloat16)}) for _ in "ab"
    )
    for each in (model, plain):
        each["b"].weight = each["a"].weight
        each["b"].bias.requires_grad_(False)
    before = dict(model.named_parameters(remove_duplicate=False))
    widen(model)
    x = torch.randn(4, 8).bfloat16()
    with rounded(model):
        assert torch.equal(model["b"](model["a"](x)), plain["b"](plain["a"](x)))
        assert model["a"].weight is model["b"].weight
    after = dict(model.named_parameters(remove_duplicate=False))
    assert all(after[name] is parameter for name, parameter in before.items())
    assert model["b"].bias.dtype == torch.bfloat16
    assert model["a"].weight.dtype == torch.float32


@pytest.mark.parametrize("recompute", [False, True])
def test_the_gradient_of_many_packs_is_the_exact_sum_of_their_gradients(recompute: bool) -> None:
    """2,048 packs: bf16 sums would be wrong by percents."""
    count, pieces = 2048, []
    rng = levels.rng("packs")
    torch.manual_seed(rng.randrange(1 << 30))
    packs = torch.randn(count, 4, 8).bfloat16()
    mine, plain = linear(torch.bfloat16), linear(torch.bfloat16)
    widen(mine)

    def backward(module: nn.Module, x: torch.Tensor) -> None:
        y = checkpoint(module, x, use_reentrant=False) if recompute else module(x)
        y.float().pow(2).sum().backward()

    with rounded(mine):
        for x in packs:
            backward(mine, x)
    for x in packs:
        plain.weight.grad = None
        backward(plain, x)
        assert plain.weight.grad is not None
        pieces.append(plain.weight.grad.double())
    wanted = torch.stack(pieces).sum(0)
    assert mine.weight.grad is not None
    assert (mine.weight.grad - wanted).norm() < 1e-4 * wanted.norm()


def test_a_continued_optimizer_is_the_same() -> None:
    def train(module: nn.Module, optimizer: torch.optim.Optimizer, batches: torch.Tensor) -> None:
        for x in batches:
            optimizer.zero_grad()
            with rounded(module):
                (module(x.bfloat16()).float() - x.flip(1)).pow(2).mean().backward()
            optimizer.step()

    torch.manual_seed(0)
    batches = torch.randn(7, 16, 8)
    whole, first, second = (linear(torch.bfloat16) for _ in range(3))
    optimizers = []
    for module in (whole, first, second):
        widen(module)
        optimizers.append(torch.optim.AdamW(parameter_groups(module, 0.01), lr=1e-3))
    train(whole, optimizers[0], batches)
    train(first, optimizers[1], batches[:3])
    second.load_state_dict(first.state_dict())
    optimizers[2].load_state_dict(optimizers[1].state_dict())
    train(second, optimizers[2], batches[3:])
    assert torch.equal(second.weight, whole.weight)


def test_biases_and_frozen_weights_have_no_decay() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 3))
    module[2].requires_grad_(False)
    matrices, rest = parameter_groups(module, 0.1)
    assert [len(group["params"]) for group in (matrices, rest)] == [1, 3]
    assert (matrices["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
