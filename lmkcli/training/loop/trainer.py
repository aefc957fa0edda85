"""The training loop: a subclass of transformers' Trainer.

The Trainer provides processes, checkpoints and schedules. This module replaces its batches, gradients,
weight precision and log. The loop is independent of the contents of a batch and of the loss; both come from
a `TrainingTask`.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerState
from transformers.utils.logging import disable_progress_bar

from lmkcli.errors import DataError
from lmkcli.models.devices import choose_device, peak_bytes
from lmkcli.models.exact_weights import exact_value
from lmkcli.models.model_files import loading
from lmkcli.progress import Report
from lmkcli.training.loop import checkpoints
from lmkcli.training.loop.checkpoints import WEIGHTS
from lmkcli.training.loop.development import Dev, best
from lmkcli.training.loop.tensorboard import Board
from lmkcli.training.objectives.objective import Loss
from lmkcli.training.step.distributed import (
    any_process,
    broadcast_scores,
    total_counts,
    wait_for_all,
    world_size,
)
from lmkcli.training.step.optimizer import parameter_groups, rounded, widen
from lmkcli.training.train_settings import LoopSettings, read_betas

_CUT = "cut_"  # the start of the names of counts in the history


class LoopBatch(Protocol):
    """The interface of batches: the part of a training step that one process runs."""

    @property
    def step(self) -> int:
        """The number of the step, from 0."""

    @property
    def examples(self) -> list[str]:
        """The ids of the examples, for messages."""

    @property
    def tokens(self) -> int:
        """The number of positions that the model processes."""

    @property
    def cut(self) -> Mapping[str, int]:
        """How many texts lost tokens, by names such as 'cut_queries': the same names for all batches."""


class BatchSource(Protocol):
    """The interface of the batches of one process. The loop iterates over it once."""

    def __len__(self) -> int:
        """Return the number of steps of the whole training."""

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches, from the current step on."""


class LossStep(Protocol):
    """The interface for computing the gradients of one batch."""

    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        """Add the gradients of the batch to the parameters and return its loss.

        The loss is the loss of the whole batch of all processes, multiplied by the number of processes. DDP
        averages gradients over processes, but the gradient of the batch is their sum. `model` is the module
        that synchronises processes.
        """

    def check(self, parts: Mapping[str, float], step: int) -> None:
        """Raise DataError if the parts of the loss of a step show that the training has failed."""


class TrainingTask(NamedTuple):
    """The module to train, and the step, batches, settings and development set for it."""

    module: nn.Module
    step: LossStep
    feed: BatchSource
    settings: LoopSettings
    dev: Dev | None = None


class LossTrainer(Trainer):
    """A Trainer with a step that computes the gradients of a whole batch."""

    def __init__(
        self, task: TrainingTask, args: TrainingArguments, report: Report, log: Path
    ) -> None:
        widen(task.module)
        self._window = _LogWindow()
        callback = _StepCallback(report, self._window, task.dev)
        super().__init__(model=task.module, args=args, callbacks=[callback])
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        self.task = task
        self._module, self._step, self._feed, self._settings, self._dev = task
        self._report, self._log = report, log
        self._board: Board | None = None
        # texts that lost tokens: in this process since it started, and in all processes before
        self._cut: Counter[str] = Counter()
        self._cut_before: dict[str, int] = {}
        # `report` shows the progress; transformers would add bars for saving.
        disable_progress_bar()  # type: ignore[no-untyped-call]

    def get_train_dataloader(self) -> Any:
        """Return the batches of this process."""
        return self._feed

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Create AdamW over the float32 weights."""
        groups = parameter_groups(self._module, self._settings.weight_decay)
        settings = self._settings
        self.optimizer = torch.optim.AdamW(
            groups, settings.lr, read_betas(settings.adam_betas), settings.adam_epsilon
        )
        return self.optimizer

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> Tensor:
        """Compute the gradients of a LoopBatch. DataError for a loss that is not finite, or without terms."""
        model.train()
        loss = self._step(model, inputs)
        total, parts = loss.fetched()
        self._window.add(total, parts, inputs.tokens)
        if not math.isfinite(total):
            names = ", ".join(inputs.examples[:5])
            raise DataError(
                f"the loss of step {inputs.step} is {total} (examples {names} …); lower --lr, or "
                "train with --dtype fp32 (checkpoints are kept)"
            )
        self._step.check(parts, inputs.step)
        self._cut.update(inputs.cut)
        # the Trainer adds it up on its device; a pretext step sums its losses on the CPU
        return loss.total.detach().to(self.args.device) / world_size()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Write a line of log.jsonl, with the loss parts and the speed since the previous line."""
        if "loss" in logs:
            self._write_line({**logs, **self._window.close()})

    def _write_line(self, facts: dict[str, Any]) -> None:
        line = {"step": self.state.global_step, **facts}
        self.state.log_history.append(line)
        if self.is_world_process_zero():
            with open(self._log, "a", encoding="utf-8") as file:
                file.write(json.dumps({k: _short(v) for k, v in line.items()}) + "\n")
            if self._settings.tensorboard:
                self._board = self._board or Board(self._log.parent, line["step"])
                self._board.add(line)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Score the current weights. Save a checkpoint if they are the best; stop if patience runs out."""
        dev, previous = self._dev, best(self.state.log_history)
        scored = [line["step"] for line in self.state.log_history if "score" in line]
        done = self.state.global_step in scored
        if dev is None or done:  # the Trainer evaluates a second time after the last step
            return {}
        start = time.monotonic()
        self._module.eval()
        with rounded(self._module):
            scores, terms = broadcast_scores(dev.scorer(self._module))
        score = sum(scores.values()) / len(scores)
        seconds = time.monotonic() - start
        self._write_line({"dev": scores, "score": score, **terms, "seconds": seconds})
        self._window.exclude(seconds)
        better = previous is None or score > previous["score"]
        ended = dev.exhausted(self.state.log_history)
        self.control.should_save |= better or ended
        self.control.should_training_stop |= ended
        found = f"{dev.scorer.measure} {score:.4f}"
        if terms:
            found += f", {terms_line(terms)}"
        self._report_score(found, None if better else previous)
        return {}

    def _report_score(self, found: str, previous: Mapping[str, Any] | None) -> None:
        if self.is_world_process_zero():
            comparison = (
                f"{previous['score']:.4f} of step {previous['step']} is better"
                if previous
                else "best yet"
            )
            self._report.note(f"step {self.state.global_step}: {found}, {comparison}")

    def cut(self) -> dict[str, int]:
        """Return how many texts lost tokens since the start of the training, in all processes together.

        All processes must call this at the same time. A text counts each time that it is read.
        """
        now = total_counts(self._cut, self.args.device)
        # A process that only publishes the model has read no text, so the names come from both.
        names = {**self._cut_before, **now}
        return {name: self._cut_before.get(name, 0) + now.get(name, 0) for name in names}

    @property
    def ended(self) -> bool:
        """Whether the training is finished: all steps are done, or patience is exhausted."""
        dev, state = self._dev, self.state
        early = dev is not None and dev.exhausted(state.log_history)
        return early or state.global_step >= state.max_steps

    def learned(self) -> dict[str, Tensor]:
        """Return all weights in float32. With a development set, these are the best-scoring weights."""
        step = _best_step(self.state)
        return load_file(self._folder / f"checkpoint-{step}" / WEIGHTS) if step else self.weights()

    @property
    def _folder(self) -> Path:
        return Path(self.args.output_dir or "")

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save a checkpoint, which appears under its name when it is complete."""
        growing, name = self._folder / checkpoints.GROWING, f"checkpoint-{self.state.global_step}"
        optimizer: Any = self.optimizer
        states = [self._module.state_dict(), optimizer.state_dict()]
        needed, first = checkpoints.tensor_bytes(states), self.is_world_process_zero()
        if cut := self.cut():
            self.state.log_history.append({"step": self.state.global_step, **cut})
        with checkpoints.saving(growing, name, needed, first):
            wait_for_all()
            super()._save_checkpoint(model, trial)
            wait_for_all()  # each process saves the state of its random generators
            if first:
                target, best_step = self._folder / name, _best_step(self.state)
                checkpoints.publish_checkpoint(growing / name, target, best_step)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._folder / checkpoints.GROWING)  # where the Trainer saves checkpoints

    def _save(
        self, output_dir: str | None = None, state_dict: Mapping[str, Tensor] | None = None
    ) -> None:
        """Save the weights in float32, without a pickle of the training arguments."""
        folder = Path(output_dir or self.args.output_dir or "")
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.weights(), folder / WEIGHTS)

    def weights(self) -> dict[str, Tensor]:
        """Return all current weights by name; frozen ones as they were before rounding."""
        named = self._module.named_parameters(remove_duplicate=False)
        frozen = {name: exact_value(p) for name, p in named if not p.requires_grad}
        state = {**self._module.state_dict(), **frozen}
        return {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        checkpoint = Path(resume_from_checkpoint)
        with _resuming(resume_from_checkpoint):
            self._module.load_state_dict(load_file(checkpoint / WEIGHTS))
            state = TrainerState.load_from_json(str(checkpoint / checkpoints.STATE))
            for line in state.log_history:
                counts = {name: int(n) for name, n in line.items() if name.startswith(_CUT)}
                self._cut_before = counts or self._cut_before
            step = _best_step(state)
        if step and step != checkpoints.step_of(checkpoint):
            checkpoints.check(
                self._folder / f"checkpoint-{step}",
                f"it has the best weights so far; remove all checkpoints in {self._folder}, and run the same "
                "command again to start again",
            )

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with _resuming(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        name = "rng_state.pth" if world_size() == 1 else f"rng_state_{self.args.process_index}.pth"
        if checkpoint and not (Path(checkpoint) / name).exists():
            self._report.note(
                f"{checkpoint} was saved by another number of processes; random choices such as dropout "
                "differ from those of an undisturbed training"
            )
        with _resuming(checkpoint):
            super()._load_rng_state(checkpoint)


def terms_line(terms: Mapping[str, float]) -> str:
    """Return the mean numbers of terms in words."""
    return f"{terms['doc_terms']:.1f} terms per document, {terms['query_terms']:.1f} per query"


def _best_step(state: TrainerState) -> int | None:
    """Return the step of the best score; None without scores."""
    line = best(state.log_history)
    return line["step"] if line else None


def _resuming(checkpoint: str | None) -> AbstractContextManager[None]:
    """Return a context that reports unreadable checkpoint files, with a remedy."""
    return loading(f"{checkpoint} (delete it; the same command then continues without it)")


def arguments(settings: LoopSettings, checkpoints: Path) -> TrainingArguments:
    """Convert the settings to transformers' arguments. This also initialises the process group."""
    return TrainingArguments(
        output_dir=str(checkpoints),
        max_steps=settings.steps,
        learning_rate=settings.lr,
        **_schedule(settings),
        warmup_steps=round(settings.warmup * settings.steps)
        if settings.warmup < 1
        else int(settings.warmup),
        max_grad_norm=settings.max_grad_norm,
        seed=settings.seed,
        save_strategy="steps",
        save_steps=settings.save_every or settings.steps,
        logging_steps=settings.log_every,
        logging_nan_inf_filter=False,
        report_to=[],
        disable_tqdm=True,
        ignore_data_skip=True,  # the feed starts at the right step
        ddp_broadcast_buffers=False,
        ddp_find_unused_parameters=False,
        use_cpu=choose_device(settings.device).type == "cpu",
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )


def _schedule(settings: LoopSettings) -> dict[str, Any]:
    """Return the arguments of the schedule of the learning rate."""
    if not settings.min_lr_rate:
        return {"lr_scheduler_type": settings.schedule}
    floor = {"min_lr_rate": settings.min_lr_rate}
    return {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": floor}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


class _LogWindow:
    """Losses, tokens and time since the previous line of the log."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._parts: dict[str, list[float]] = {}
        self._loss = math.nan
        self._tokens, self._since = 0, time.monotonic()

    def add(self, loss: float, parts: Mapping[str, float], tokens: int) -> None:
        """Add one step."""
        for name, part in parts.items():
            self._parts.setdefault(name, []).append(part)
        self._loss = loss
        self._tokens += tokens

    def exclude(self, seconds: float) -> None:
        """Exclude time that was not spent on training."""
        self._since += seconds

    def progress(self) -> str:
        """Return the last loss and the tokens per second, for the progress line."""
        seconds = max(time.monotonic() - self._since, 1e-9)
        pace = f"{self._tokens / seconds:,.0f} tokens/s{' per process' if world_size() > 1 else ''}"
        return f"loss {self._loss / world_size():.4g}, {pace}"

    def close(self) -> dict[str, float]:
        """Return the values for the log, and start a new window.

        The values are the means of the loss parts, and the tokens per second and the peak memory in bytes of
        this process.
        """
        seconds = max(time.monotonic() - self._since, 1e-9)
        means = {name: sum(values) / len(values) for name, values in self._parts.items()}
        means |= {"tokens_per_second": self._tokens / seconds, "memory": float(peak_bytes())}
        self._reset()
        return means


class _StepCallback(TrainerCallback):
    """Schedules the work after each step: progress, log, scoring, and the checkpoint after a signal."""

    def __init__(self, report: Report, window: _LogWindow, dev: Dev | None) -> None:
        self._report, self._window, self._dev = report, window, dev

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report the steps before the resumption, so they do not count for the speed."""
        # The Trainer has read the steps between logs and checkpoints from the checkpoint; the settings apply.
        state.compute_steps(args, state.max_steps)
        self._report.progress(state.global_step, state.max_steps, "steps")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Request the log line and score of the last step, and a checkpoint after a signal."""
        last = state.global_step >= state.max_steps
        detail = self._window.progress()
        self._report.progress(state.global_step, state.max_steps, "steps", detail)
        control.should_log |= last
        if self._dev is not None:
            control.should_evaluate |= last or state.global_step % self._dev.every == 0
            # A run that was killed after patience ran out resumes with one more step, then stops. The
            # weights of this step are not published.
            control.should_training_stop |= self._dev.exhausted(state.log_history)
        if any_process(self._report.stopping(), args.device) and not last:
            control.should_save = control.should_training_stop = True
