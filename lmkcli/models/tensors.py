"""Weight files of any origin: safetensors, or pickles of which torch loads nothing but tensors.

Files are read into memory instead of being mapped. A program that shortens a mapped file, such as a download
into the same folder, would end this process with SIGBUS.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

from lmkcli.models.files import check_file, loading
from lmkcli.models.weight_files import check_headers, weight_files
from lmkcli.system.hardware import free_memory


def read_tensors(file: Path, what: str) -> dict[str, Tensor]:
    """Return the tensors of a file by name. DataError, with `what`, if it is not a file of tensors."""
    with loading(f"{file}, {what},"):
        check_file(file)
        check_headers([file])
        if file.suffix == ".safetensors":
            return load(file.read_bytes())
        loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
        return {str(name): value for name, value in loaded.items() if isinstance(value, Tensor)}


def unmapped(folder: Path) -> dict[str, Any]:
    """Return the argument of `from_pretrained` that makes transformers read weights into memory.

    Empty if the memory is not large enough for the files and the model together.
    """
    needed = 2 * sum(file.stat().st_size for file in weight_files(folder))
    return {"disable_mmap": True} if needed < free_memory() else {}
