"""Adapters: a model as what it adds to another one, in peft's layout, merged when it is opened.

A folder with adapter_config.json holds the low-rank matrices of LoRA (arXiv 2106.09685) and, whole, the
few tensors that are other ones, such as a longer table of positions. Opening it makes an ordinary model
folder in $XDG_CACHE_HOME/lmk/merged, once; everything else reads that.
"""

import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmkcli.errors import DataError
from lmkcli.reading import parsed
from lmkcli.system import caches

CONFIG = "adapter_config.json"
# Kinds of LoRA that are not read here.
_OTHERS = ("use_dora", "fan_in_fan_out", "rank_pattern", "alpha_pattern")
_FIX = "merge it with peft (merge_and_unload), and give the folder of the result"


def is_adapter(folder: Path) -> bool:
    """Whether a folder adds to another model and has no weights of its own."""
    return (folder / CONFIG).is_file() and not any(folder.glob("model*.safetensors"))


def merged(folder: Path, locate: Callable[[str], Path]) -> Path:
    """The model folder that an adapter and its base make together; `locate` finds the base's encoder.

    DataError for an adapter of another kind than LoRA, or whose tensors are not the base's.
    """
    config = _config(folder)
    base = locate(str(config["base_model_name_or_path"]))
    target = _cache() / _key(folder, base)
    if not target.is_dir():
        from lmkcli.models.merging import write  # here: the result is found without torch

        target.parent.mkdir(parents=True, exist_ok=True)
        growing = Path(tempfile.mkdtemp(dir=target.parent, prefix=".growing-"))
        try:
            write(growing, folder, base, config["scale"])
            _move(growing, target)
        finally:
            shutil.rmtree(growing, ignore_errors=True)
    return target


def _config(folder: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = parsed((folder / CONFIG).read_text("utf-8"))
        kind, _ = config["peft_type"], config["base_model_name_or_path"] + ""
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise DataError(f"{folder / CONFIG} cannot be read ({error!r}); {_FIX}") from None
    odd = [name for name in _OTHERS if config.get(name)]
    if kind != "LORA" or odd or rank < 1 or not math.isfinite(alpha):
        raise DataError(f"{folder} is an adapter of another kind ({odd or kind}); {_FIX}")
    root = rank**0.5 if config.get("use_rslora") else rank
    return {**config, "scale": alpha / root}


def _key(folder: Path, base: Path) -> str:
    """Of the adapter's bytes, and of where the base is and when it was last changed."""
    whole_key = hashlib.sha256(os.fsencode(base))
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        whole_key.update(os.fsencode(file.relative_to(folder)) + file.read_bytes())
    for file in sorted(base.glob("*")):
        whole_key.update(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}".encode())
    return whole_key.hexdigest()[:32]


def _move(growing: Path, target: Path) -> None:
    try:
        growing.rename(target)
    except OSError:
        if not target.is_dir():  # else another process was first
            raise


def _cache() -> Path:
    return caches.own() / "merged"
