"""Checkpoints of a training, and the model folder that it finally writes.

During training, the folder contains its manifest, log.jsonl and checkpoints/. A checkpoint appears under its
name when all its files are complete; digests.json lists them. The model's files are written at the end,
training.json last: a folder without training.json belongs to an unfinished training.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lmkcli.artifact import manifest
from lmkcli.artifact.outputs import checkpoints as existing
from lmkcli.artifact.outputs import files_in
from lmkcli.catalog import pooler_row
from lmkcli.encoding.resolution import ResolvedRecipe, open_pooler, representation_of
from lmkcli.encoding.sentence_folder import (
    module_folders,
    projection_folders,
    write_files,
)
from lmkcli.errors import DataError, LmkError
from lmkcli.models.heads import state_module
from lmkcli.models.lora import merge
from lmkcli.models.model_folder import HEADS, TRAINED
from lmkcli.models.prediction_head import MaskedModel
from lmkcli.system import disk
from lmkcli.system.atomic import atomic_file, make_folder, sync, sync_tree
from lmkcli.system.input_files import file_digest, int_range, parse_json, read_json
from lmkcli.text.formatting import size
from lmkcli.training.step import trainable
from lmkcli.training.training_record import DevRecord, TrainingRecord

FOLDER, LOG, CARD, ADAPTER = "checkpoints", "log.jsonl", "README.md", "adapter"
GROWING = ".growing"  # folder of files that are not complete
_DIGESTS = "digests.json"  # in a checkpoint: its step, and the SHA-256 of each other file
WEIGHTS = "weights.safetensors"  # in a checkpoint: all weights in float32
_Steps = Annotated[int, int_range(1, 1 << 33)]
_HEADER, _MARGIN = 500, 1_000_000  # bytes in addition to those of a tensor, and of all tensors
STATE = "trainer_state.json"  # in a checkpoint: the state of the Trainer, with the log
_REQUIRED = (WEIGHTS, STATE, "optimizer.pt", "scheduler.pt")


class _Digests(TypedDict):
    step: int
    files: dict[str, str]


class _Line(TypedDict):
    step: _Steps
    loss: NotRequired[float]
    score: NotRequired[float]
    dev: NotRequired[dict[str, float]]


class _State(TypedDict):
    """The fields of the Trainer's state that its loop reads."""

    global_step: _Steps
    logging_steps: _Steps
    eval_steps: _Steps
    save_steps: _Steps
    best_model_checkpoint: str | None
    log_history: list[_Line]
    stateful_callbacks: dict[str, Any]
    total_flos: float


def step_of(checkpoint: Path | None) -> int:
    """Return the number of finished steps of a checkpoint; 0 without a checkpoint."""
    return int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0


def latest(folder: Path) -> Path | None:
    """Return the latest checkpoint of a training, or None. Raises DataError if it is damaged."""
    checkpoint = max(existing(folder).values(), key=step_of, default=None)
    if checkpoint:
        earlier = "continue from the checkpoint before it, or from the start"
        check(checkpoint, f"remove {checkpoint}, and run the same command again to {earlier}")
    return checkpoint


def check(checkpoint: Path, remedy: str) -> None:
    """Raise DataError if a file of a checkpoint is missing, or has changed since it was saved."""

    def file(name: str) -> Path:
        if not (checkpoint / name).is_file():
            raise DataError(f"{checkpoint / name} is missing; {remedy}")
        return checkpoint / name

    saved = read_json(file(_DIGESTS), _Digests, remedy)
    read_json(file(STATE), _State, remedy)
    for name in sorted({*_REQUIRED, *saved["files"]}):
        if file_digest(file(name)) != saved["files"].get(name):
            raise DataError(f"{checkpoint / name} has changed since it was saved; {remedy}")
    if saved["step"] != step_of(checkpoint):
        raise DataError(f"{checkpoint} was saved at step {saved['step']}; {remedy}")


def publish_checkpoint(growing: Path, checkpoint: Path, best: int | None) -> None:
    """Move a complete checkpoint to its name, and remove all others but the one of the step `best`."""
    files = {file.name: file_digest(file) for file in sorted(growing.iterdir())}
    saved: _Digests = {"step": step_of(checkpoint), "files": files}
    (growing / _DIGESTS).write_text(json.dumps(saved, indent=1), encoding="utf-8")
    sync_tree(growing)
    _sync_log(checkpoint.parents[1])
    shutil.rmtree(checkpoint, ignore_errors=True)
    growing.rename(checkpoint)
    sync(checkpoint.parent)
    for step, other in existing(checkpoint.parents[1]).items():
        if step not in (step_of(checkpoint), best):
            shutil.rmtree(other, ignore_errors=True)


@contextmanager
def saving(growing: Path, what: str, needed: int, first: bool = True) -> Iterator[None]:
    """Provide an empty folder for `needed` bytes, and remove it at the end. The `first` process does both.

    torch reports a full disk without the cause. So after every error the disk is tested, and DataError is
    raised if the files do not fit, or if the library could not write them for another reason.
    """
    if first:
        shutil.rmtree(growing, ignore_errors=True)
        make_folder(growing.parent)
        growing.mkdir()
    free = shutil.disk_usage(growing.parent).free
    try:
        yield
    except Exception as error:
        if isinstance(error, LmkError):
            raise
        full = disk.reason(error) if disk.is_full_disk(error) else ""
        full = full or disk.shortage(growing.parent, needed + _MARGIN)
        if not full and disk.is_native_write_error(error):
            cause = disk.probe(growing.parent) or "the system reported an error of the device"
            raise DataError(
                f"{what} could not be written to {growing.parent} ({cause}); complete checkpoints were "
                "kept. Check the disk and run the same command again"
            ) from error
        if not full:
            raise
        raise DataError(
            f"{full}: {what} needs {size(needed)}, and {growing.parent} had "
            f"{size(free)} left; complete checkpoints were kept. Free some space and run the same command "
            "again"
        ) from error
    finally:
        if first:
            shutil.rmtree(growing, ignore_errors=True)


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
        return line.endswith("\n") and bool(parse_json(line)["step"] <= step)
    except (ValueError, TypeError, KeyError):
        return False


def _sync_log(folder: Path) -> None:
    log = folder / LOG
    if log.is_file():
        sync(log)


def is_done(folder: Path) -> bool:
    """Return whether the training is finished and its model is written."""
    return (folder / TRAINED).is_file()


def publish(
    folder: Path,
    resolved: ResolvedRecipe,
    module: nn.Module,
    learned: dict[str, Tensor],
    record: TrainingRecord,
) -> None:
    """Write the model's files into its folder, training.json last.

    Trained adapters are merged into the weights, and also saved in adapter/.
    """
    growing = folder / GROWING
    with saving(growing, "the model", tensor_bytes(learned)):
        write_files(resolved, growing)
        others = _write_model(growing, module, merge(learned, trainable.ALPHA))
        _write_modules(growing, resolved, others)
        _write_pooler(growing, resolved, others)
        _write_adapter(growing, resolved, module, learned)
        _write_heads(growing, others)
        (growing / CARD).write_text(_card(folder, resolved, record), encoding="utf-8")
        _copy_mode(growing, folder / manifest.NAME)
        sync_tree(growing)
        _sync_log(folder)
        manifest.record_files(folder, files_in(growing))
        for entry in sorted(growing.iterdir()):
            _move(entry, folder / entry.name)
    with atomic_file(folder / TRAINED) as temporary:
        temporary.write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")
    remove_checkpoints(folder)


def tensor_bytes(value: Any) -> int:
    """Return the bytes of the tensors in nested dictionaries and lists, in files in float32."""

    def tensors(each: Any) -> Iterator[Tensor]:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, dict):
            yield from (tensor for inner in each.values() for tensor in tensors(inner))
        elif isinstance(each, list):
            yield from (tensor for inner in each for tensor in tensors(inner))

    return sum(4 * tensor.numel() + _HEADER for tensor in tensors(value))


def _copy_mode(growing: Path, like: Path) -> None:
    """Give all files the permissions of `like`; safetensors creates files that only the owner can read."""
    for file in growing.rglob("*"):
        if file.is_file():
            file.chmod(like.stat().st_mode & 0o777)


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a finished training, but no other files."""
    for checkpoint in (*existing(folder).values(), folder / FOLDER / GROWING):
        shutil.rmtree(checkpoint, ignore_errors=True)
    with suppress(OSError):
        (folder / FOLDER).rmdir()  # fails if the user added files


def _move(entry: Path, target: Path) -> None:
    """Move an entry to `target`. If both are folders, move what is in it."""
    if not target.is_dir():
        os.replace(entry, target)
        return
    for below in entry.iterdir():
        _move(below, target / below.name)
    sync(target)
    entry.rmdir()


def _write_model(growing: Path, module: Any, learned: dict[str, Tensor]) -> dict[str, Tensor]:
    """Write the encoder's weights and configuration in float32, in the layout of transformers.

    If the encoder has a language head, write both as a masked language model. Return the other weights.
    """
    for pattern in ("model*.safetensors*", "pytorch_model*", "model.bin"):
        for old in growing.glob(pattern):
            old.unlink()
    model, encoder = module.encoder, _part(learned, "encoder.")
    if masked := _language_head(module, learned) or _masked(module, learned):
        model, head, learned = masked
        prefix = f"{model.base_model_prefix}."
        encoder = {prefix + k: v for k, v in encoder.items() if not k.startswith("pooler.")}
        encoder |= head
    before = model.config.dtype
    model.config.dtype = torch.float32
    model.save_pretrained(growing, state_dict=encoder)
    model.config.dtype = before
    return learned


def _language_head(
    module: Any, learned: dict[str, Tensor]
) -> tuple[Any, dict[str, Tensor], dict[str, Tensor]] | None:
    """Return the same as `_masked` for a model whose vectors are made by its language head."""
    masked = trainable.masked_part(module)
    if masked is None:
        return None
    # The names of parameters contain a shared tensor once. It belongs to the encoder.
    own = [name for name, _ in module.named_parameters() if name.startswith(trainable.HEAD)]
    head = {name.removeprefix(trainable.HEAD): learned[name] for name in own}
    return masked, head, {}


def _masked(
    module: Any, learned: dict[str, Tensor]
) -> tuple[Any, dict[str, Tensor], dict[str, Tensor]] | None:
    """Return a masked language model, the tensors of its head under its names, and the other weights.

    None without a head, or if the architecture has another kind of head.
    """
    prefix = f"{HEADS}.language."
    own = _part(learned, prefix)
    made = MaskedModel.of(module.encoder.config) if own else None
    if made is None or own.keys() != made.names.keys():
        return None
    head = {made.names[name]: value for name, value in own.items()}
    if made.table:
        head[made.table] = learned["encoder." + _name_of_table(module.encoder)]
    rest = {name: value for name, value in learned.items() if not name.startswith(prefix)}
    return made.module, head, rest


def _name_of_table(encoder: Any) -> str:
    table = encoder.get_input_embeddings().weight
    names = (name for name, parameter in encoder.named_parameters() if parameter is table)
    return str(next(names))


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _write_pooler(growing: Path, resolved: ResolvedRecipe, learned: dict[str, Tensor]) -> None:
    """Write the weights of the pooler, if it has weights."""
    if weights := state_module(open_pooler(resolved.recipe.doc.pool)):
        weights.write(_part(learned, "pooling.token_head.0."), resolved.folder, growing)


def _write_adapter(
    growing: Path, resolved: ResolvedRecipe, module: nn.Module, learned: dict[str, Tensor]
) -> None:
    """Write the adapter: the difference between the model and its base model."""
    base, folder = resolved.recipe.doc.model, growing / ADAPTER
    if not trainable.write_adapter(folder, base, module, learned):
        return
    modules = [Path(one["path"]) for one in json.loads((growing / "modules.json").read_text())]
    pooler = Path(pooler_row(resolved.recipe.doc.pool).weights)
    for path in filter(lambda path: path.name, (*modules, pooler)):
        shutil.copytree(growing / path, folder / path)
    for pattern in ("modules.json", "config_sentence_transformers.json", "sentence_*_config.json"):
        for file in growing.glob(pattern):
            shutil.copyfile(file, folder / file.name)


def _write_modules(growing: Path, resolved: ResolvedRecipe, learned: dict[str, Tensor]) -> None:
    """Write the weights of the modules on vectors and on states under sentence-transformers' names."""
    source = resolved.folder
    after = zip(source.modules, module_folders(source), strict=True)
    before = zip(source.projections, projection_folders(source), strict=True)
    places = [
        *((f"pooling.sentence_modules.{number}.", *each) for number, each in enumerate(after)),
        *((f"pooling.token_head.{number}.", *each) for number, each in enumerate(before)),
    ]
    for stem, module, path in places:
        within = "norm." if module.kind == "LayerNorm" else ""
        state = {f"{within}{name}": value for name, value in _part(learned, stem).items()}
        if state:
            (growing / path / "pytorch_model.bin").unlink(missing_ok=True)
            save_file(state, growing / path / "model.safetensors")


def _write_heads(growing: Path, learned: dict[str, Tensor]) -> None:
    """Write the other heads of a pre-training, so that a later pre-training can continue with them."""
    state = _part(learned, f"{HEADS}.")
    if state:
        (growing / HEADS).mkdir(exist_ok=True)
        save_file(state, growing / HEADS / "model.safetensors")


def _scores(dev: DevRecord | None) -> str:
    """Return the development scores of the published weights as a Markdown section."""
    if not dev or not (published := dev["published"]):
        return ""
    rows = "\n".join(f"| {name} | {value:.4f} |" for name, value in published["dev"].items())
    return f"""## Scores

Scores of step {published["step"]:,}, the best of {len(dev["curve"])} scored steps.

| collection | {dev["measure"]} |
|---|---|
{rows}

"""


def _card(folder: Path, resolved: ResolvedRecipe, record: TrainingRecord) -> str:
    """Return the model card. Its title is the name of the folder, as that of an upload is its repository."""
    doc, name = resolved.recipe.doc, Path(os.path.abspath(folder)).name
    settings = "\n".join(f"| {key} | {value} |" for key, value in record["settings"].items())
    sources = "\n".join(
        f"- `{one['name']}`: {one['examples']:,} examples, weight {one['weight']:g}"
        for one in record["sources"]
    )
    gran = f" --gran {doc.gran}" if doc.gran else ""
    special = representation_of(doc.pool).sentence_class
    kind = special.name if special else "SentenceTransformer"
    tags = special.tags if special else "sentence-similarity"
    return f"""---
library_name: sentence-transformers
tags: [sentence-transformers, {tags}, feature-extraction, lmk]
---

# {name}

{record["base"]}, trained with lmk {record["version"]}: `--pool {doc.pool}{gran}`, \
{doc.max_length} positions, objective {record["objective"]}, {record["steps"]:,} steps.

## Use

```
lmk encode COLLECTION -m {name}/ -o vectors/
```

```python
from sentence_transformers import {kind}

model = {record["loaded_by"].replace("(folder", f"({json.dumps(name)}")}
```

{_scores(record.get("dev"))}## Training data

{sources}

Digest of the examples: `{record["data"]}`.

| setting | |
|---|---|
{settings}
"""
