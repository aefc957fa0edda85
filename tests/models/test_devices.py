"""Devices: what says that memory is full."""

import pytest
import torch

from lmkcli.models.devices import ran_out


def test_full_memory_is_told_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as full:
        torch.empty(1 << 50)  # no CPU has so much
    assert ran_out(full.value)
    assert ran_out(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(RuntimeError) as other:
        torch.ones(2) @ torch.ones(3)
    assert not ran_out(other.value)
