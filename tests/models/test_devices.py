"""Devices: what says that memory is full, and what products keep of it."""

import os
import subprocess
import sys

import pytest
import torch

from lmkcli.models.devices import native_dtype, ran_out

SHAPES = """
import torch
from lmkcli.models.devices import choose_device
choose_device("cpu")
weight = torch.randn(1536, 384, dtype=torch.bfloat16, requires_grad=True)
def step(rows):
    texts = torch.randn(rows, 384, dtype=torch.bfloat16, requires_grad=True)
    (texts @ weight.t()).float().sum().backward()
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmHWM"].split()[0])  # getrusage's peak would begin with the parent's
begin = step(600)
print(max(step(599 - number) for number in range(300)) - begin)
"""


def test_full_memory_is_told_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as full:
        torch.empty(1 << 50)  # no CPU has so much
    assert ran_out(full.value)
    assert ran_out(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(RuntimeError) as other:
        torch.ones(2) @ torch.ones(3)
    assert not ran_out(other.value)


@pytest.mark.skipif(
    sys.platform != "linux" or native_dtype(torch.device("cpu")) != "bf16",
    reason="products in bf16 are not compiled here",
)
def test_products_of_ever_new_shapes_do_not_fill_the_memory() -> None:
    def grown(**variables: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", SHAPES],
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            check=True,
            capture_output=True,
            text=True,
        )
        return int(done.stdout)

    as_it_was = grown(ONEDNN_PRIMITIVE_CACHE_CAPACITY="1024", LRU_CACHE_CAPACITY="1024")
    assert grown() < as_it_was / 3
