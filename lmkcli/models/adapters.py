"""Adapters: models that are stored as a difference to another model, in peft's layout.

A folder with an adapter_config.json contains the low-rank matrices of LoRA (arXiv 2106.09685). It may
also contain whole tensors that replace those of the base, such as a longer table of positions. Opening
it merges base and adapter into an ordinary model folder in $XDG_CACHE_HOME/lmk/merged, once. All other
code reads that folder.
"""

import hashlib
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from lmkcli.catalog import POOLERS
from lmkcli.errors import DataError
from lmkcli.models.model_files import (
    MATRICES,
    TEXTS,
    WEIGHTS,
    Adapter,
    Count,
    Scales,
    listed_modules,
    model_files,
)
from lmkcli.models.model_folder import HEADS
from lmkcli.models.weight_files import weight_files
from lmkcli.system import caches
from lmkcli.system.atomic import atomic_folder, locked
from lmkcli.system.disk import is_full_disk, number
from lmkcli.system.input_files import file_digest, read_json

CONFIG = "adapter_config.json"
_NOT_MERGED = {CONFIG, "README.md"}
_FORM = b"2"  # of merged folders; another one merges again
# Keys of adapter_config.json that lmk obeys, and those without an effect on a trained adapter. The tensors
# themselves show which layers they belong to. Any other key with a value is refused.
_OBEYED = {
    *("peft_type", "base_model_name_or_path", "r", "lora_alpha", "rank_pattern", "alpha_pattern"),
    *("use_rslora", "bias", "lora_bias", "modules_to_save", "init_lora_weights", "fan_in_fan_out"),
    "use_dora",
}
_WITHOUT_EFFECT = {
    *("task_type", "inference_mode", "auto_mapping", "peft_version", "revision", "lora_dropout"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
    *("megatron_core", "qalora_group_size", "merge_weights", "ephemeral_gpu_offload"),
    *("eva_config", "corda_config", "loftq_config", "lora_ga_config", "runtime_config"),
}
# Ways to initialize the matrices that leave the weights of the base model unchanged
_PLAIN_STARTS = (None, True, False, "true", "gaussian", "eva")
_FIX = "merge it with peft (merge_and_unload), and give the folder of the result"
# Names of layers, or ends of them; other patterns of peft are regular expressions of any cost
_LAYERS = re.compile(r"\^?[\w.]+")
# An adapter is smaller than its base, and a tiny base may get a long table of positions.
_MAX_SHARE, _MAX_BYTES = 4, 1 << 30


class _Config(TypedDict):
    """The fields of adapter_config.json that lmk reads."""

    peft_type: str
    base_model_name_or_path: str
    r: Count
    lora_alpha: float
    use_rslora: NotRequired[bool | None]
    use_dora: NotRequired[bool | None]
    lora_bias: NotRequired[bool | None]
    rank_pattern: NotRequired[dict[str, Count] | None]
    alpha_pattern: NotRequired[dict[str, float] | None]


def is_adapter(folder: Path) -> bool:
    """Return whether a folder has an adapter and no weights of a whole model."""
    return (folder / CONFIG).is_file() and not any(folder.glob("model*.safetensors"))


def unused(folder: Path) -> tuple[str, ...]:
    """Return a note on adapters in the folders of a model, such as those of jina-embeddings-v3 for tasks."""
    names = sorted(file.parent.name for file in folder.glob(f"*/{CONFIG}"))
    if not names:
        return ()
    return (
        f"the model has adapters that its vectors do not contain ({', '.join(names)}); to use one, give its "
        f"folder: -m {folder / names[0]}",
    )


def merged(folder: Path, encoder_of: Callable[[str], Path]) -> Path:
    """Return the merged model folder of an adapter and its base, from the cache if present.

    `encoder_of` returns the encoder folder of the base's name. DataError for adapters that are neither LoRA
    nor DoRA, and for tensors that do not belong to the base.
    """
    config = _config(folder)
    base = encoder_of(config["base_model_name_or_path"])
    adapter = _adapter(folder, config)
    _check_size(adapter.matrices, base)
    cache = caches.lmk_cache()
    target = cache / "merged" / _key(adapter, base)
    if target.is_dir():
        return target
    from lmkcli.models.lora import (
        write_merged,
    )  # imports torch, which a cached result does not need

    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(cache, waiting=lambda line: None):
        for entry in target.parent.glob(
            ".*"
        ):  # of a process that was killed: no other one writes now
            shutil.rmtree(entry, ignore_errors=True)
        if not target.is_dir():
            try:
                with atomic_folder(target) as growing:
                    write_merged(growing, adapter, base)
            except Exception as error:
                if not is_full_disk(error):
                    raise
                # libraries drop the number, or name the file that was read
                code = number(error)
                raise OSError(code, os.strerror(code), str(cache)) from error
    return target


def _config(folder: Path) -> _Config:
    """Return the checked configuration of an adapter."""
    config: dict[str, Any] = dict(read_json(folder / CONFIG, _Config, _FIX))
    if config["peft_type"] != "LORA":
        raise DataError(f"{folder} is an adapter of another kind ({config['peft_type']}); {_FIX}")
    start = config.get("init_lora_weights")
    unknown = [name for name in sorted(set(config) - _OBEYED - _WITHOUT_EFFECT) if config[name]]
    unknown += [f"init_lora_weights = {start!r}"] if start not in _PLAIN_STARTS else []
    if unknown:
        raise DataError(
            f"{folder / CONFIG} has {unknown[0]}, a variant of LoRA that lmk does not merge; {_FIX}"
        )
    if config.get("use_dora") and config.get("lora_bias"):
        raise DataError(
            f"{folder / CONFIG} has both use_dora and lora_bias, which peft does not combine; {_FIX}"
        )
    alphas = [config["lora_alpha"], *(config.get("alpha_pattern") or {}).values()]
    if not all(map(math.isfinite, alphas)):
        raise DataError(f"{folder / CONFIG} has a lora_alpha that is not finite; {_FIX}")
    for key in ("rank_pattern", "alpha_pattern"):
        for pattern in config.get(key) or {}:
            if not _LAYERS.fullmatch(pattern):
                raise DataError(
                    f"{folder / CONFIG} selects layers in {key} by {pattern[:80]!r}, and lmk reads only "
                    f"names of layers; {_FIX}"
                )
    return config  # type: ignore[return-value]


def _adapter(folder: Path, config: _Config) -> Adapter:
    """Find the files of an adapter. DataError for those that a copy could not read to their end."""
    files = model_files(folder, TEXTS | WEIGHTS, inside=folder)
    pickled = folder / MATRICES.replace(".safetensors", ".bin")  # of older releases of peft
    matrices = pickled if pickled in files and folder / MATRICES not in files else folder / MATRICES
    if matrices not in files:
        raise DataError(f"{matrices} is missing; download the adapter again")
    texts = [each for each in files if each.suffix in TEXTS and each.name not in _NOT_MERGED]
    listed = listed_modules(folder) if (folder / "modules.json") in texts else []
    named = [module["path"] for module in listed if module["path"]] + [HEADS]
    named += [row.weights for row in POOLERS.values() if row.weights]
    modules = {
        path: model_files(folder / path, TEXTS | WEIGHTS, inside=folder)
        for path in named
        if (folder / path).is_dir()
    }
    scales = Scales(
        config["r"],
        config["lora_alpha"],
        config.get("rank_pattern") or {},
        config.get("alpha_pattern") or {},
        bool(config.get("use_rslora")),
        bool(config.get("use_dora")),
    )
    return Adapter(folder, matrices, texts, modules, scales)


def _check_size(matrices: Path, base: Path) -> None:
    """Raise DataError for more matrices than the base can use, before their bytes are read."""
    size = matrices.stat().st_size
    if size > _MAX_SHARE * sum(file.stat().st_size for file in weight_files(base)) + _MAX_BYTES:
        raise DataError(f"{matrices} has {size:,} bytes, far more than its base model {base}")


def _key(adapter: Adapter, base: Path) -> str:
    """Return a digest of the adapter's bytes, and of the base's path, sizes and times of change.

    A program can set the time of modification, but not the time of the last change of a file's state.
    """
    key = hashlib.sha256(_FORM + os.fsencode(base))
    files = [adapter.folder / CONFIG, adapter.matrices, *adapter.texts]
    for file in sorted([*files, *(each for group in adapter.modules.values() for each in group)]):
        key.update(os.fsencode(file.relative_to(adapter.folder)) + file_digest(file).encode())
    for file in sorted({*model_files(base, TEXTS | WEIGHTS), *weight_files(base)}):
        facts, name = file.stat(), file.relative_to(base)
        key.update(f"{name} {facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns}".encode())
    return key.hexdigest()[:32]
