"""Devices and dtypes: what `auto` means on this machine."""

import os

import torch

from lmkcli.errors import DataError

TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# What computes bf16 products on CPUs (oneDNN, and torch's binding of it) keeps what it has compiled for the
# last 1,024 shapes, megabytes each. Packs of texts are of ever new shapes: a training held gigabytes of them.
_COMPILED = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}


def choose_device(name: str) -> torch.device:
    """'auto' is the first GPU, else the CPU; DataError for a GPU that is not there."""
    for variable, shapes in _COMPILED.items():  # read at the first product
        os.environ.setdefault(variable, shapes)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DataError(f"--device {name}: write auto, cpu, cuda or cuda:0") from None
    if device.type not in ("cpu", "cuda"):
        raise DataError(f"--device {name}: write auto, cpu, cuda or cuda:0")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DataError(
            f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices; use --device cpu"
        )
    return device


def ran_out(error: RuntimeError) -> bool:
    """Whether an error says that memory is full: a GPU's, or a CPU's where a limit is set (ulimit -v)."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def native_dtype(device: torch.device) -> str:
    """bf16 where it is computed natively (AMX, AVX512-BF16, Ampere and later), else fp32."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"
    native = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return "bf16" if native else "fp32"
