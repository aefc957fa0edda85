"""Weight files of any origin: safetensors, or pickles of which torch loads nothing but tensors.

Files are read into memory instead of being mapped. A program that shortens a mapped file, such as a download
into the same folder, would end this process with SIGBUS.
"""

import json
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

from lmkcli.models.model_files import check_file, loading
from lmkcli.models.weight_files import check_headers, check_numbers


def read_tensors(file: Path, what: str) -> dict[str, Tensor]:
    """Return the tensors of a file by name. DataError, with `what`, if it is not a file of tensors."""
    with loading(f"{file}, {what},"):
        check_file(file)
        check_headers([file])
        if file.suffix == ".safetensors":
            return load(file.read_bytes())
        loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
        found = {str(name): value for name, value in loaded.items() if isinstance(value, Tensor)}
        check_tensors(file, found)
        return found


def check_tensors(file: Path, tensors: Mapping[str, Any], integers: bool = False) -> None:
    """Check the tensors of a pickled file as `check_numbers` does; other values are left to its reader."""
    check_numbers(
        file,
        (
            (str(name), "C" if value.is_complex() else "F" if value.is_floating_point() else "I")
            for name, value in tensors.items()
            if isinstance(value, Tensor)
        ),
        integers,
    )


def chosen_tensors(file: Path, names: Container[str], what: str) -> dict[str, Tensor]:
    """Return some tensors of a safetensors file; names that it does not contain are left out.

    Their bytes become a file of their own in memory, which the library checks like any other. DataError,
    with `what`, if it is not a file of tensors.
    """
    with loading(f"{file}, {what},"), open(file, "rb") as opened:
        check_headers([file], integers=True)  # those of the model were checked when it was opened
        length = int.from_bytes(opened.read(8), "little")
        entries = json.loads(opened.read(min(length, file.stat().st_size)))
        found, parts, total = {}, [], 0
        for name in (name for name in entries if name in names):
            begin, end = entries[name]["data_offsets"]
            if not 0 <= begin <= end:
                raise ValueError(f"the tensor {name} has impossible offsets")
            opened.seek(8 + length + begin)
            parts.append(opened.read(min(end - begin, file.stat().st_size)))
            found[name] = {**entries[name], "data_offsets": [total, total + len(parts[-1])]}
            total += len(parts[-1])
        header = json.dumps(found).encode()
        return load(b"".join([len(header).to_bytes(8, "little"), header, *parts]))
