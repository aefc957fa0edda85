"""Weights that transformers reads into memory instead of mapping their files.

A program that shortens a mapped file, such as a download into the same folder, would end this process with
SIGBUS.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import modeling_utils

from lmkcli.models.tensors import check_tensors
from lmkcli.models.weight_files import is_quantized, needed_weights
from lmkcli.system.hardware import free_memory

# One thread at a time replaces and restores the function of transformers
_LOADING = threading.RLock()


@contextmanager
def unmapped(folder: Path) -> Iterator[dict[str, Any]]:
    """Provide arguments for `from_pretrained`, with which it reads the weights of a folder into memory.

    If the memory is too small for the files and the model together, it maps the files. DataError for a folder
    without weights, and for pickled weights that are no real numbers.
    """
    needed = 2 * sum(file.stat().st_size for file in needed_weights(folder))
    with _LOADING:
        mapped = needed >= free_memory()
        reader: Any = modeling_utils
        mapping = reader.load_state_dict  # it maps pickled weights, whatever its arguments are
        integers = is_quantized(folder)

        def read(file: Any, *words: Any, **settings: Any) -> Any:
            if mapped:
                loaded = mapping(file, *words, **settings)
            else:
                loaded = torch.load(file, map_location="cpu", weights_only=True)
            check_tensors(Path(file), loaded, integers)
            return loaded

        reader.load_state_dict = read
        try:
            yield {} if mapped else {"disable_mmap": True}
        finally:
            reader.load_state_dict = mapping
