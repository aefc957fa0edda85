"""Devices and dtypes, and the meaning of `auto` on this machine."""

import os

import torch

from lmkcli.errors import DataError, UsageError
from lmkcli.spec.values import Device
from lmkcli.system.hardware import peak_memory

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# oneDNN, which computes bf16 products on CPUs, and torch's binding of it each cache compiled code for
# the last 1,024 shapes, megabytes each. Every pack of texts has a new shape, so that a training kept
# gigabytes of code.
_SMALL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}


def choose_device(name: str) -> torch.device:
    """Return the device of a name; 'auto' is the first GPU, else the CPU. DataError for a missing GPU."""
    for variable, shapes in _SMALL_CACHES.items():  # the libraries read them at the first product
        os.environ.setdefault(variable, shapes)
    if name == "all" or "," in name:
        raise UsageError(f"--device {name}: only lmk encode and exact search use several devices")
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


def devices_of(name: str) -> list[Device]:
    """Return the devices of a list, or of 'all' GPUs. Raises DataError if there is no GPU."""
    if name != "all":
        return [Device(each) for each in name.split(",")]
    if not torch.cuda.device_count():
        raise DataError(f"--device {name}: this machine has no CUDA device; use --device cpu")
    return [Device(f"cuda:{number}") for number in range(torch.cuda.device_count())]


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor from the CPU to a device; to a GPU from pinned memory, so that Python does not wait."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether the error means a lack of memory: on a GPU, pinned, or on a CPU with a limit."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return "can't allocate memory" in str(error) or "CUDA error: out of memory" in str(error)


def peak_bytes() -> int:
    """Return the peak memory of this process in bytes, or of its GPU if it computes on one."""
    if torch.cuda.is_available() and torch.cuda.memory_allocated():
        return int(torch.cuda.max_memory_allocated())
    return peak_memory()


def native_dtype(device: torch.device) -> str:
    """Return bf16 if the device computes it natively (AMX, AVX512-BF16, Ampere and later), else fp32."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"
    native = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return "bf16" if native else "fp32"
