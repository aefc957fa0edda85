"""Merging: the weights of an adapter are the same on every machine."""

import torch

from lmkcli.models.lora import merge


def test_the_order_of_additions_does_not_change_the_sum() -> None:
    torch.manual_seed(0)
    first, second = torch.randn(16, 40).half(), torch.randn(24, 16).half()
    base, order = torch.randn(24, 40), torch.randperm(16)
    results = [
        merge(
            {
                "layer.base_layer.weight": base,
                "layer.lora_A.default.weight": a,
                "layer.lora_B.default.weight": b,
            },
            scale=2.0,
        )["layer.weight"]
        for a, b in ((first, second), (first[order], second[:, order]))
    ]
    assert torch.equal(*results)
    assert results[0].dtype == torch.float32
