"""Gradients of a batch in packs are those of the batch."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from lmkcli.errors import DataError
from lmkcli.models.forward import ForwardPass, ModelOptions, Pooling
from lmkcli.models.lookup import read_model
from lmkcli.models.transformer import open_model
from lmkcli.pooling.placement import Input
from lmkcli.training.objectives.objective import Loss
from lmkcli.training.step.gradients import Budget, Gradients
from tests import tiny

Models = Callable[[str], Path]


def inputs(lengths: tuple[int, ...]) -> list[Input]:
    random = np.random.default_rng(0)
    return [
        Input(
            random.integers(5, tiny.VOCABULARY, n).astype(np.int32),
            np.arange(0, n, 3, dtype=np.int32),
            np.full(-(-n // 3), i, np.int32),
            n,
        )
        for i, n in enumerate(lengths)
    ]


def forward_of(folder: Path) -> ForwardPass:
    model = open_model(read_model(str(folder)), ModelOptions("fp32", "cpu", trainable=True))
    return ForwardPass(model, Pooling(torch.nn.Identity(), torch.nn.Sequential()))


def contrastive(vectors: torch.Tensor) -> Loss:
    """The first half against the second; what is whose depends on the order."""
    unit = torch.nn.functional.normalize(vectors, dim=1)
    half = len(unit) // 2
    logits = unit[:half] @ unit[half:].T / 0.05
    total = torch.nn.functional.cross_entropy(logits, torch.arange(half))
    return Loss(total, {"own": total.detach()})


def gradients(forward: ForwardPass, tokens: int) -> tuple[float, dict[str, torch.Tensor]]:
    forward.zero_grad()
    loss = Gradients(forward, Budget(forward.model, tokens))(
        forward, inputs((5, 40, 17, 1, 40, 9, 22, 31)), contrastive
    )
    found = {n: p.grad.clone() for n, p in forward.named_parameters() if p.grad is not None}
    return float(loss.total.detach()), found


@pytest.mark.parametrize("name", ["bert", "modernbert", "mpnet"])
@pytest.mark.parametrize("tokens", [1, 50, 100])
def test_packs_give_the_gradients_of_the_whole(tiny_model: Models, name: str, tokens: int) -> None:
    forward = forward_of(tiny_model(name))
    whole, wanted = gradients(forward, 10_000)
    cached, found = gradients(forward, tokens)
    assert cached == pytest.approx(whole, rel=1e-6)
    assert found.keys() == wanted.keys()
    for key in wanted:
        scale = float(wanted[key].abs().max())
        assert float((found[key] - wanted[key]).abs().max()) <= 1e-6 + 1e-5 * scale, key


def test_dropout_drops_the_same_in_both_passes(tiny_model: Models) -> None:
    """Each pack draws what it would draw alone: the gradient is that of the loss that was seen."""
    forward = forward_of(tiny_model("bert")).train()
    seen: list[torch.Tensor] = []
    real = forward.forward

    def spy(given: list[Input]) -> torch.Tensor:
        seen.append(real(given))
        return seen[-1]

    forward.forward = spy  # type: ignore[method-assign]
    torch.manual_seed(3)
    Gradients(forward, Budget(forward.model, 60))(forward, inputs((20, 40, 17, 30)), contrastive)
    first, again = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert len(first) > 1
    for one, other in zip(first, again, strict=True):
        torch.testing.assert_close(one, other)
    assert not torch.allclose(first[0], real(inputs((40,))))


def test_where_memory_runs_out_packs_become_smaller(
    tiny_model: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = forward_of(tiny_model("bert"))
    _, wanted = gradients(forward, 10_000)
    real, notes = forward.forward, []

    def small(given: list[Input]) -> torch.Tensor:
        if sum(len(one.ids) for one in given) > 60:
            torch.empty(1 << 50)  # no CPU has so much
        return real(given)

    forward.forward = small  # type: ignore[method-assign]
    forward.zero_grad()
    runner = Gradients(forward, Budget(forward.model, 10_000, notes.append))
    runner(forward, inputs((5, 40, 17, 1, 40, 9, 22, 31)), contrastive)
    assert runner.budget.tokens <= 60
    assert "--batch-tokens" in notes[0]
    for name, parameter in forward.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-4, atol=1e-6)
    forward.forward = lambda given: small([*given, *inputs((61,))])  # type: ignore[method-assign]
    with pytest.raises(DataError, match="does not fit"):
        runner(forward, inputs((5, 6)), contrastive)
