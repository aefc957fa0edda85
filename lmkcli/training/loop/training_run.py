"""Run a training: claim its folder, resume from its last checkpoint, and write its model."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from lmkcli import __version__
from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import ModelFacts, ModelIdentity, ModelManifest
from lmkcli.artifact.outputs import rollback_on_error
from lmkcli.data.collection import WHOLE, Shard
from lmkcli.encoding.resolution import ResolvedRecipe
from lmkcli.errors import DataError, LmkError, Stopped
from lmkcli.models.forward import Model
from lmkcli.progress import Note, Report, mute
from lmkcli.system.atomic import LOCK_FILE, locked
from lmkcli.training.loop import checkpoints
from lmkcli.training.loop.trainer import LossTrainer, TrainingTask, arguments
from lmkcli.training.step.distributed import any_process, leave_group
from lmkcli.training.step.gradients import Budget
from lmkcli.training.train_settings import LoopSettings
from lmkcli.training.training_record import JobRecord, TrainingRecord

# Default size of a pass: positions times the width of the states. Training memory is proportional to it.
CPU_STATES, GPU_STATES = 6_291_456, 50_331_648
# Settings that a resumed training may change.
MACHINE = ("device", "batch_tokens", "save_every", "log_every", "tensorboard")


@dataclass(frozen=True)
class Start:
    """The start of a process: the finished steps, its share of every batch, and its function for notes."""

    step: int = 0
    shard: Shard = WHOLE
    note: Note = mute


class Job(Protocol):
    """The interface of training jobs. A job is planned before its model is opened."""

    @property
    def resolved(self) -> ResolvedRecipe:
        """The model to train, and the recipe that its folder will declare."""

    @property
    def settings(self) -> LoopSettings:
        """The settings, with the final number of `steps`."""

    @property
    def identity(self) -> ModelIdentity:
        """The values that a resumed training must share with the original."""

    def task(self, start: Start) -> TrainingTask:
        """Open the model and return the task for the training loop."""

    def record(self, history: list[dict[str, float]]) -> JobRecord:
        """Return the entries of training.json that each kind of job writes in its own way."""

    def publish(
        self, folder: Path, module: nn.Module, learned: dict[str, Tensor], record: TrainingRecord
    ) -> None:
        """Write the model into the folder: `module` with the weights `learned` in float32."""


def run(job: Job, folder: Path, report: Report, callbacks: Sequence[Any] = ()) -> None:
    """Train into `folder`. After a signal, save a checkpoint and raise Stopped.

    `callbacks` are additional callbacks of transformers' Trainer.
    """
    models = job.resolved.recipe.located()
    facts = ModelFacts(**manifest.environment(report.call), models=models)
    described = ModelManifest(identity=job.identity, facts=facts)
    if (folder / manifest.NAME).is_file():
        manifest.claim(folder, described)  # another training is refused at once
    with _locked_by_first(folder, job.settings), rollback_on_error(folder):
        manifest.claim(folder, described)
        if checkpoints.is_done(folder):
            checkpoints.remove_checkpoints(folder)  # a killed process may have left checkpoints
        else:
            step = _train(job, folder, report, callbacks)
            leave_group()
            if step is not None:
                raise Stopped(
                    f"stopped after {step} of {job.settings.steps} steps; run the same command again to "
                    "continue"
                )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder. At the end, remove the lock file."""
    with locked(folder):
        try:
            yield
        finally:
            (folder / LOCK_FILE).unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()  # fails unless an error left the folder empty


@contextmanager
def _locked_by_first(folder: Path, settings: LoopSettings) -> Iterator[None]:
    """Lock a folder in the first of the processes that train together; all stop if that fails."""
    with ExitStack() as stack:
        in_first(lambda: stack.enter_context(_locked(folder)), folder, settings)
        yield


def in_first(change: Callable[[], object], folder: Path, settings: LoopSettings) -> None:
    """Change a folder in the first of the processes that train together, such as those of torchrun.

    The other processes wait. If the change fails, all processes stop: the first with its error, the others
    with Stopped.
    """
    refused: LmkError | None = None
    if os.environ.get("RANK", "0") == "0":
        try:
            change()
        except LmkError as error:
            refused = error
    if os.environ.get("WORLD_SIZE", "1") != "1":
        device = arguments(settings, folder / checkpoints.FOLDER).device
        if any_process(refused is not None, device):
            leave_group()
            refused = refused or Stopped(f"{folder} is being changed by another training")
    if refused:
        raise refused


def open_trainer(job: Job, folder: Path, report: Report, step: int = 0) -> LossTrainer:
    """Return a training loop that starts after `step` steps and writes into `folder`."""
    args = arguments(job.settings, folder / checkpoints.FOLDER)
    start = Start(step, Shard(args.process_index, args.world_size), report.note)
    return LossTrainer(job.task(start), args, report, folder / checkpoints.LOG)


def _train(job: Job, folder: Path, report: Report, callbacks: Sequence[Any]) -> int | None:
    """Train and write the model. Return None, or the last step if a signal stopped the training."""
    checkpoint = checkpoints.latest(folder)
    trainer = open_trainer(job, folder, report, checkpoints.step_of(checkpoint))
    if trainer.is_world_process_zero():
        checkpoints.trim_log(folder, checkpoints.step_of(checkpoint))
    for callback in callbacks:
        trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if not trainer.ended:
        return trainer.state.global_step
    cut = trainer.cut()
    if trainer.is_world_process_zero():
        record = _record(job, trainer.state.log_history, cut)
        manifest.record_facts(folder, ModelManifest, **cut)
        learned = trainer.learned()
        _check_finite(learned)
        job.publish(folder, trainer.task.module, learned, record)
    return None


def _record(job: Job, history: list[dict[str, float]], cut: Mapping[str, int]) -> TrainingRecord:
    """Return the contents of training.json. `cut` counts the texts that lost tokens (`LossTrainer.cut`)."""
    identity = job.identity  # computed once, because it reads all training data
    own = job.record(history)
    record: TrainingRecord = {
        "version": __version__,
        "steps": job.settings.steps,
        "data": identity.data,
        "granularities": identity.granularities,
        "recipe": job.resolved.recipe.identity(),
        "settings": asdict(job.settings),
        "curve": [line for line in history if "loss" in line],
        "base": own["base"],
        "objective": own["objective"],
        "sources": own["sources"],
        "loaded_by": own["loaded_by"],
    }
    if "dev" in own:
        record["dev"] = own["dev"]
    if cut:  # a pre-training counts nothing
        record["cut_queries"] = cut["cut_queries"]
        record["cut_documents"] = cut["cut_documents"]
    return record


def _check_finite(learned: Mapping[str, Tensor]) -> None:
    """Raise DataError if weights are not finite.

    The loss shows non-finite weights one step later, so only the last step needs this check.
    """
    broken = [name for name, value in learned.items() if not value.isfinite().all()]
    if broken:
        raise DataError(
            f"the weights are not finite after the last step ({broken[0]} …); no model was written; lower "
            "--lr, or train with --dtype fp32"
        )


def budget(model: Model, settings: LoopSettings, note: Note, parts: int = 1) -> Budget:
    """Return the number of positions per pass, from --batch-tokens or a default for the device.

    `parts` divides the default. Pre-training uses smaller packs, because it needs no second pass for several
    packs.
    """
    states = (GPU_STATES if model.device.type == "cuda" else CPU_STATES) // parts
    return Budget(model, settings.batch_tokens or max(512, states // model.dim), note)
