"""Devices: recognise full memory, and keep the memory of products bounded."""

import os
import sys

import pytest
import torch

from lmkcli.models.devices import is_out_of_memory, native_dtype
from tests.forkserver import ForkServer

SHAPES = """
import torch
from lmkcli.models.devices import choose_device
choose_device("cpu")
weight = torch.randn(1536, 384, dtype=torch.bfloat16, requires_grad=True)
def step(rows):
    texts = torch.randn(rows, 384, dtype=torch.bfloat16, requires_grad=True)
    (texts @ weight.t()).float().sum().backward()
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmHWM"].split()[0])  # the peak of getrusage starts at the parent's
start = step(600)
print(max(step(599 - number) for number in range(150)) - start)
"""


def test_full_memory_differs_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as full:
        torch.empty(1 << 50)  # no CPU has so much
    assert is_out_of_memory(full.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))  # of pinned memory
    with pytest.raises(RuntimeError) as other:
        torch.ones(2) @ torch.ones(3)
    assert not is_out_of_memory(other.value)


@pytest.mark.skipif(
    sys.platform != "linux" or native_dtype(torch.device("cpu")) != "bf16",
    reason="products in bf16 are not compiled here",
)
def test_products_of_new_shapes_do_not_fill_the_memory(forkserver: ForkServer) -> None:
    def grown(**variables: str) -> int:
        return int(forkserver.execute(SHAPES, env=os.environ | variables))

    default = grown(ONEDNN_PRIMITIVE_CACHE_CAPACITY="1024", LRU_CACHE_CAPACITY="1024")
    assert grown() < default / 3
