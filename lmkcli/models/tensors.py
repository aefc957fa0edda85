"""Weight files of any origin: safetensors, or pickles of which torch loads nothing but tensors."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from lmkcli.models.files import check_file, loading
from lmkcli.models.weight_files import check_headers


def read_tensors(file: Path, what: str) -> dict[str, Tensor]:
    """Return the tensors of a file by name. DataError, with `what`, if it is not a file of tensors."""
    with loading(f"{file}, {what},"):
        check_file(file)
        check_headers([file])
        if file.suffix == ".safetensors":
            return load_file(file)
        loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
        return {str(name): value for name, value in loaded.items() if isinstance(value, Tensor)}
