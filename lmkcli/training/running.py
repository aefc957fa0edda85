"""Running a training: its folder claimed, its last checkpoint taken up, its model published."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from lmkcli import __version__, manifest
from lmkcli.data.collection import WHOLE, Shard
from lmkcli.encoding.resolving import Resolved
from lmkcli.encoding.sentence_folder import model_files
from lmkcli.errors import DataError, Stopped
from lmkcli.manifest import Manifest
from lmkcli.models.forward import Model
from lmkcli.progress import Note, Report, mute
from lmkcli.store.outputs import rollback_on_error
from lmkcli.training import checkpoints
from lmkcli.training.gathering import leave_group
from lmkcli.training.gradients import Budget
from lmkcli.training.settings import LoopSettings
from lmkcli.training.trainer import Learning, LossTrainer, arguments

# Positions that go through at once, times the width of the states: what training keeps of them.
CPU_STATES, GPU_STATES = 6_291_456, 50_331_648
# Settings of the machine, which two trainings need not share to be one.
MACHINE = ("device", "batch_tokens", "save_every", "log_every", "tensorboard")


@dataclass(frozen=True)
class Start:
    """Where a process begins: the steps that are done, its share of every batch, where notes go."""

    step: int = 0
    shard: Shard = WHOLE
    note: Note = mute


class Job(Protocol):
    """What will be learned, from what, and how; planned before a model is opened."""

    @property
    def resolved(self) -> Resolved:
        """The model that is trained, and the recipe that its folder will declare."""

    @property
    def settings(self) -> LoopSettings:
        """How; `steps` is how many there will be."""

    @property
    def identity(self) -> dict[str, Any]:
        """What two trainings must share to be one."""

    def learning(self, start: Start) -> Learning:
        """The model, opened, and what it learns from."""

    def facts(self, history: list[dict[str, float]]) -> dict[str, Any]:
        """What training.json says beside what it says of every training."""

    def publish(
        self, folder: Path, module: nn.Module, learned: dict[str, Tensor], facts: dict[str, Any]
    ) -> None:
        """Put the model into the folder: `module`, with the weights `learned` in float32."""


def run(job: Job, folder: Path, report: Report, watching: Sequence[Any] = ()) -> None:
    """Train into `folder`; Stopped with a checkpoint when a signal asks for it.

    `watching` are callbacks of transformers' Trainer.
    """
    facts = {**manifest.environment(report.call), "models": job.resolved.recipe.located()}
    facts["files"] = [file.name for file in model_files(job.resolved.folder.encoder)]
    described = Manifest("model", job.identity, facts=facts)
    with rollback_on_error(folder):
        manifest.claim(folder, described)
        if checkpoints.is_done(folder):
            checkpoints.tidy(folder)  # a kill may have left them
        else:
            step = _train(job, folder, report, watching)
            leave_group()
            if step is not None:
                raise Stopped(
                    f"stopped after {step} of {job.settings.steps} steps; run the same command again to "
                    "continue"
                )


def open_trainer(job: Job, folder: Path, report: Report, step: int = 0) -> LossTrainer:
    """The loop with all that it needs, ready to go on after so many steps; it writes into `folder`."""
    args = arguments(job.settings, folder / checkpoints.FOLDER)
    start = Start(step, Shard(args.process_index, args.world_size), report.note)
    return LossTrainer(job.learning(start), args, report, folder / checkpoints.LOG)


def _train(job: Job, folder: Path, report: Report, watching: Sequence[Any]) -> int | None:
    """The step at which a signal ended it; None when the model is published."""
    before = checkpoints.latest(folder)
    trainer = open_trainer(job, folder, report, checkpoints.step_of(before))
    if trainer.is_world_process_zero():
        checkpoints.trim_log(folder, checkpoints.step_of(before))
    for callback in watching:
        trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=str(before) if before else None)
    if not trainer.ended:
        return trainer.state.global_step
    if trainer.is_world_process_zero():
        facts = training_facts(job, trainer.state.log_history)
        learned = trainer.learned()
        _check_finite(learned)
        job.publish(folder, trainer.learning.module, learned, facts)
    return None


def training_facts(job: Job, history: list[dict[str, float]]) -> dict[str, Any]:
    """What training.json says."""
    identity = job.identity  # once: it reads all that is learned from
    return {
        "version": __version__,
        "steps": job.settings.steps,
        "data": identity["data"],
        "granularities": identity["granularities"],
        "recipe": job.resolved.recipe.identity(),
        "settings": asdict(job.settings),
        "curve": [line for line in history if "loss" in line],
        **job.facts(history),
    }


def _check_finite(learned: Mapping[str, Tensor]) -> None:
    """DataError for weights that the last step spoilt; the steps before would have had such a loss."""
    spoilt = [name for name, value in learned.items() if not value.isfinite().all()]
    if spoilt:
        raise DataError(
            f"after the last step the weights are not finite ({spoilt[0]} …): no model was written; lower "
            "--lr, or train with --dtype fp32"
        )


def budget(model: Model, settings: LoopSettings, note: Note, parts: int = 1) -> Budget:
    """How many positions go through at once, chosen where the settings leave it open.

    `parts` of what is usual, where smaller packs cost no second pass.
    """
    states = (GPU_STATES if model.device.type == "cuda" else CPU_STATES) // parts
    return Budget(model, settings.batch_tokens or max(512, states // model.dim), note)
