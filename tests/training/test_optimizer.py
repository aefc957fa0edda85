"""Half-precision weights learn as their float32 copies do."""

import torch
from torch import nn

from lmkcli.training.optimizer import MasterAdamW, parameter_groups


def steps(module: nn.Module, optimizer: torch.optim.Optimizer, count: int = 200) -> None:
    torch.manual_seed(0)
    for _ in range(count):
        x = torch.randn(16, 8)
        loss = (module(x.to(next(module.parameters()).dtype)).float() - x.flip(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def linear(dtype: torch.dtype) -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(8, 8).to(dtype)


def test_float32_weights_are_those_of_adamw() -> None:
    mine, theirs = linear(torch.float32), linear(torch.float32)
    steps(mine, MasterAdamW(parameter_groups(mine, 0.01), lr=1e-3))
    steps(theirs, torch.optim.AdamW(parameter_groups(theirs, 0.01), lr=1e-3))
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_small_steps_of_half_precision_weights_are_not_lost() -> None:
    """At this rate plain bf16 weights hardly move: each step vanishes in their eight bits."""
    mine, plain, wanted = linear(torch.bfloat16), linear(torch.bfloat16), linear(torch.float32)
    optimizer = MasterAdamW(parameter_groups(mine, 0.0), lr=2e-4)
    steps(mine, optimizer)
    steps(plain, torch.optim.AdamW(plain.parameters(), lr=2e-4, weight_decay=0.0))
    steps(wanted, torch.optim.AdamW(wanted.parameters(), lr=2e-4, weight_decay=0.0))
    far = (wanted.weight - plain.weight.float()).abs().mean()
    near = (wanted.weight - optimizer.precise(mine)["weight"]).abs().mean()
    assert near < far / 3
    torch.testing.assert_close(mine.weight, optimizer.precise(mine)["weight"].bfloat16())


def test_state_goes_on_where_it_was() -> None:
    whole, first, second = (linear(torch.bfloat16) for _ in range(3))
    steps(whole, MasterAdamW(parameter_groups(whole, 0.01), lr=1e-3), 7)
    begun = MasterAdamW(parameter_groups(first, 0.01), lr=1e-3)
    torch.manual_seed(0)
    batches = [torch.randn(16, 8) for _ in range(7)]

    def run(module: nn.Linear, optimizer: MasterAdamW, some: list[torch.Tensor]) -> None:
        for x in some:
            optimizer.zero_grad()
            loss = (module(x.bfloat16()).float() - x.flip(1)).pow(2).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    run(first, begun, batches[:3])
    again = MasterAdamW(parameter_groups(second, 0.01), lr=1e-3)
    again.load_state_dict(begun.state_dict())
    run(second, again, batches[3:])
    torch.testing.assert_close(second.weight, whole.weight, rtol=0, atol=0)


def test_biases_and_frozen_weights_have_no_decay() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 3))
    module[2].requires_grad_(False)
    matrices, rest = parameter_groups(module, 0.1)
    assert [len(group["params"]) for group in (matrices, rest)] == [1, 3]
    assert (matrices["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
