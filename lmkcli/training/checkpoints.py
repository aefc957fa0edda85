"""Checkpoints of a training, and the model folder that it finally writes.

During training, the folder contains its manifest, log.jsonl and checkpoints/. The model's files are
written at the end, training.json last: a folder without training.json belongs to an unfinished training.
"""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lmkcli import manifest
from lmkcli.encoding.resolving import Resolved
from lmkcli.encoding.sentence_folder import (
    module_folders,
    projection_folders,
    write_files,
)
from lmkcli.models.folder import HEADS, TRAINED
from lmkcli.models.latent import file_names
from lmkcli.models.merging import merge
from lmkcli.reading import parsed
from lmkcli.system.atomic import atomic_file
from lmkcli.training import parts

FOLDER, LOG, CARD, ADAPTER = "checkpoints", "log.jsonl", "README.md", "adapter"
_STATE = "trainer_state.json"  # the file that the Trainer writes last
_GROWING = ".growing"


def latest(folder: Path) -> Path | None:
    """Return the latest complete checkpoint of a training, or None."""
    complete = [path for path in (folder / FOLDER).glob("checkpoint-*") if _is_complete(path)]
    return max(complete, key=step_of, default=None)


def _is_complete(checkpoint: Path) -> bool:
    """Return whether the last file of a checkpoint is complete."""
    try:
        numbered = checkpoint.name.rpartition("-")[2].isdecimal()
        return numbered and isinstance(parsed((checkpoint / _STATE).read_text("utf-8")), dict)
    except (OSError, ValueError):
        return False


def step_of(checkpoint: Path | None) -> int:
    """Return the number of finished steps of a checkpoint; 0 without a checkpoint."""
    return int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0


def trim_log(folder: Path, step: int) -> None:
    """Drop the lines of steps after `step`, because the training will repeat them."""
    log = folder / LOG
    if not log.is_file():
        return
    with atomic_file(log) as temporary, open(log, encoding="utf-8", errors="replace") as lines:
        kept = (line for line in lines if _is_before(line, step))
        temporary.write_text("".join(kept), encoding="utf-8")


def _is_before(line: str, step: int) -> bool:
    """Return whether a line of the log is complete and belongs to a step up to `step`."""
    try:
        return line.endswith("\n") and bool(parsed(line)["step"] <= step)
    except (ValueError, TypeError, KeyError):
        return False


def is_done(folder: Path) -> bool:
    """Return whether the training is finished and its model is written."""
    return (folder / TRAINED).is_file()


def publish(
    folder: Path,
    resolved: Resolved,
    module: nn.Module,
    learned: dict[str, Tensor],
    facts: dict[str, Any],
) -> None:
    """Write the model's files into its folder, training.json last.

    Trained adapters are merged into the weights, and also saved in adapter/.
    """
    growing = folder / _GROWING
    shutil.rmtree(growing, ignore_errors=True)
    growing.mkdir()
    write_files(resolved, growing)
    _write_encoder(growing, module.encoder, merge(learned, parts.ALPHA))
    _write_modules(growing, resolved, learned)
    _write_latent(growing, resolved, learned)
    _write_adapter(growing, resolved, module, learned)
    _write_heads(growing, learned)
    _copy_mode(growing, folder / manifest.NAME)
    for entry in sorted(growing.iterdir()):
        _move(entry, folder / entry.name)
    growing.rmdir()
    with atomic_file(folder / CARD) as temporary:
        temporary.write_text(_card(folder, resolved, facts), encoding="utf-8")
    with atomic_file(folder / TRAINED) as temporary:
        temporary.write_text(json.dumps(facts, indent=1, ensure_ascii=False), encoding="utf-8")
    remove_checkpoints(folder)


def _copy_mode(growing: Path, like: Path) -> None:
    """Give all files the permissions of `like`; safetensors creates files that only the owner can read."""
    for file in growing.rglob("*"):
        if file.is_file():
            file.chmod(like.stat().st_mode & 0o777)


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a finished training, but no other files."""
    for checkpoint in (folder / FOLDER).glob("checkpoint-*"):
        shutil.rmtree(checkpoint, ignore_errors=True)
    with suppress(OSError):
        (folder / FOLDER).rmdir()  # fails if the user added files


def _move(entry: Path, target: Path) -> None:
    """Move an entry to `target`. If `target` is an existing folder, move the entry's files into it."""
    if not target.is_dir():
        os.replace(entry, target)
        return
    for file in entry.iterdir():
        os.replace(file, target / file.name)
    entry.rmdir()


def _write_encoder(growing: Path, encoder: Any, learned: dict[str, Tensor]) -> None:
    """Write the encoder's weights and configuration in float32, in the layout of transformers."""
    patterns = ("model*.safetensors*", "pytorch_model*", "model.bin")
    for old in [file for pattern in patterns for file in growing.glob(pattern)]:
        old.unlink()
    prefix = "encoder."
    state = {k.removeprefix(prefix): v for k, v in learned.items() if k.startswith(prefix)}
    before = encoder.config.dtype
    encoder.config.dtype = torch.float32
    encoder.save_pretrained(growing, state_dict=state)
    encoder.config.dtype = before


def _write_latent(growing: Path, resolved: Resolved, learned: dict[str, Tensor]) -> None:
    """Write the weights of a latent attention under the names of its file."""
    if resolved.recipe.doc.pool == "latent" and resolved.folder.latent is not None:
        prefix = "pooling.token_head.0."
        state = {k.removeprefix(prefix): v for k, v in learned.items() if k.startswith(prefix)}
        save_file(file_names(state), growing / resolved.folder.latent.name / "model.safetensors")


def _write_adapter(
    growing: Path, resolved: Resolved, module: nn.Module, learned: dict[str, Tensor]
) -> None:
    """Write the adapter: the difference between the model and its base model."""
    base, folder = resolved.recipe.doc.model, growing / ADAPTER
    if not parts.write_adapter(folder, base, module, learned):
        return
    modules = [Path(one["path"]) for one in json.loads((growing / "modules.json").read_text())]
    for path in filter(lambda path: path.name, modules):
        shutil.copytree(growing / path, folder / path)
    for pattern in ("modules.json", "config_sentence_transformers.json", "sentence_*_config.json"):
        for file in growing.glob(pattern):
            shutil.copyfile(file, folder / file.name)


def _write_modules(growing: Path, resolved: Resolved, learned: dict[str, Tensor]) -> None:
    """Write the weights of the modules on vectors and on states under sentence-transformers' names."""
    source = resolved.folder
    after = zip(source.modules, module_folders(source), strict=True)
    before = zip(source.projections, projection_folders(source), strict=True)
    places = [
        *((f"pooling.sentence_modules.{number}.", *each) for number, each in enumerate(after)),
        *((f"pooling.token_head.{number}.", *each) for number, each in enumerate(before)),
    ]
    for stem, module, path in places:
        name, within = ("linear", "0.") if module.kind == "Dense" else ("norm", "")
        prefix = stem + within
        state = {
            f"{name}.{k.removeprefix(prefix)}": v
            for k, v in learned.items()
            if k.startswith(prefix)
        }
        if state:
            (growing / path / "pytorch_model.bin").unlink(missing_ok=True)
            save_file(state, growing / path / "model.safetensors")


def _write_heads(growing: Path, learned: dict[str, Tensor]) -> None:
    """Write the heads of a pre-training, so that a later pre-training can continue with them."""
    prefix = f"{HEADS}."
    state = {k.removeprefix(prefix): v for k, v in learned.items() if k.startswith(prefix)}
    if state:
        (growing / HEADS).mkdir(exist_ok=True)
        save_file(state, growing / HEADS / "model.safetensors")


def _scores(facts: dict[str, Any]) -> str:
    """Return the development scores of the published weights as a Markdown section."""
    if "dev" not in facts:
        return ""
    dev, published = facts["dev"], facts["dev"]["published"]
    rows = "\n".join(f"| {name} | {value:.4f} |" for name, value in published["dev"].items())
    return f"""## Scores

Scores of step {published["step"]:,}, the best of {len(dev["curve"])} scored steps.

| collection | {dev["measure"]} |
|---|---|
{rows}

"""


def _card(folder: Path, resolved: Resolved, facts: dict[str, Any]) -> str:
    """Return the model card."""
    doc = resolved.recipe.doc
    settings = "\n".join(f"| {name} | {value} |" for name, value in facts["settings"].items())
    sources = "\n".join(
        f"- `{one['name']}`: {one['examples']:,} examples, weight {one['weight']:g}"
        for one in facts["sources"]
    )
    gran = f" --gran {doc.gran}" if doc.gran else ""
    return f"""---
library_name: sentence-transformers
tags: [sentence-transformers, sentence-similarity, feature-extraction, lmk]
---

# {Path(os.path.abspath(folder)).name}

{facts["base"]}, trained with lmk {facts["version"]}: `--pool {doc.pool}{gran}`, \
{doc.max_length} positions, objective {facts["objective"]}, {facts["steps"]:,} steps.

## Use

```
lmk encode COLLECTION -m {folder.name} -o vectors/
```

```python
from sentence_transformers import SentenceTransformer

model = {facts["loaded_by"]}
```

{_scores(facts)}## Training data

{sources}

Digest of the examples: `{facts["data"]}`.

| setting | |
|---|---|
{settings}
"""
