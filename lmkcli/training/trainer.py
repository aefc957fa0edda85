"""The loop: transformers' Trainer, which brings processes, checkpoints and schedules.

Ours are the batches, their gradients, the weights' precision and what is logged. The loop knows neither
what a batch holds nor what is minimised: `Learning` brings both.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.utils.logging import disable_progress_bar

from lmkcli.errors import DataError
from lmkcli.progress import Report
from lmkcli.settings import LoopSettings
from lmkcli.system.memory import peak_memory
from lmkcli.training.gathering import world
from lmkcli.training.objective import Loss
from lmkcli.training.optimizer import MasterAdamW, decayed

WEIGHTS = "weights.safetensors"  # of a checkpoint: everything that was learned, in float32


class Batch(Protocol):
    """What one process runs of a step."""

    @property
    def step(self) -> int:
        """Its number, from 0."""

    @property
    def examples(self) -> list[str]:
        """The ids of what it holds, for messages."""

    @property
    def tokens(self) -> int:
        """Positions that go through the model."""


class Feed(Protocol):
    """The batches of one process; a second pass over it is never asked for."""

    def __len__(self) -> int:
        """Steps of the whole training."""

    def __iter__(self) -> Iterator[Any]:
        """The batches, from the step where the training stands."""


class Step(Protocol):
    """Adds the gradients of one batch to the parameters."""

    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        """The loss of the whole batch, of all processes; `model` is what synchronises these.

        Processes average their gradients, so that each has its part of one sum times their number.
        """


class Learning(NamedTuple):
    """What learns, by which gradients, from which batches, and how."""

    module: nn.Module
    step: Step
    feed: Feed
    settings: LoopSettings


class LossTrainer(Trainer):
    """Trains a module by the gradients of whole batches."""

    def __init__(
        self, learning: Learning, args: TrainingArguments, report: Report, log: Path
    ) -> None:
        super().__init__(model=learning.module, args=args, callbacks=[_Stopping(report)])
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        self.learning = learning
        self._module, self._step, self._feed, self._settings = learning
        self._log, self._seen = log, _Seen()
        disable_progress_bar()  # type: ignore[no-untyped-call]  # of saving: progress is the caller's

    def get_train_dataloader(self) -> Any:
        """The batches; each process makes its own."""
        return self._feed

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """AdamW over float32 master weights."""
        groups = decayed(self._module, self._settings.weight_decay)
        self.optimizer = MasterAdamW(groups, lr=self._settings.lr)
        return self.optimizer

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> Tensor:
        """The gradients of a Batch; DataError when its loss is not a finite number."""
        model.train()
        loss = self._step(model, inputs)
        self._seen.add(loss, inputs)
        if not math.isfinite(loss.total.item()):
            names = ", ".join(inputs.examples[:5])
            raise DataError(
                f"the loss of step {inputs.step} is {loss.total.item()} (examples {names} …): the last "
                "checkpoint is kept; lower --lr, or train with --dtype fp32"
            )
        return loss.total.detach() / world()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """One line of log.jsonl; the loss's parts and the pace since the last one with it."""
        line = {"step": self.state.global_step, **logs, **self._seen.taken()}
        self.state.log_history.append(line)
        if self.is_world_process_zero() and "loss" in logs:
            with open(self._log, "a", encoding="utf-8") as file:
                file.write(json.dumps({k: _short(v) for k, v in line.items()}) + "\n")

    def _save(
        self, output_dir: str | None = None, state_dict: Mapping[str, Tensor] | None = None
    ) -> None:
        """The weights in float32, without the arguments' pickle."""
        folder = Path(output_dir or self.args.output_dir or "")
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.precise_state(), folder / WEIGHTS)

    def precise_state(self) -> dict[str, Tensor]:
        """Everything learned, by name, in float32."""
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        state = (
            optimizer.precise(self._module)
            if isinstance(optimizer, MasterAdamW)
            else self._module.state_dict()
        )
        return {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self._module.load_state_dict(load_file(Path(resume_from_checkpoint) / WEIGHTS))


def arguments(settings: LoopSettings, checkpoints: Path) -> TrainingArguments:
    """transformers' words for the settings; processes that train together know of each other from here."""
    return TrainingArguments(
        output_dir=str(checkpoints),
        max_steps=settings.steps,
        learning_rate=settings.lr,
        lr_scheduler_type=settings.schedule,
        warmup_steps=round(settings.warmup * settings.steps)
        if settings.warmup < 1
        else int(settings.warmup),
        max_grad_norm=settings.max_grad_norm,
        seed=settings.seed,
        save_strategy="steps",
        save_steps=settings.save_every or settings.steps,
        save_total_limit=1,
        logging_steps=settings.log_every,
        logging_nan_inf_filter=False,
        report_to=[],
        disable_tqdm=True,
        ignore_data_skip=True,  # the feed begins where it should
        ddp_broadcast_buffers=False,
        ddp_find_unused_parameters=False,
        use_cpu=settings.device == "cpu",
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )


def peak_held() -> int:
    """The most bytes that this process has held at once: of its GPU where it trains on one."""
    if torch.cuda.is_available() and torch.cuda.memory_allocated():
        return int(torch.cuda.max_memory_allocated())
    return peak_memory()


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


class _Seen:
    """What went by since the last line of the log."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._parts: dict[str, list[float]] = {}
        self._tokens, self._since = 0, time.monotonic()

    def add(self, loss: Loss, batch: Batch) -> None:
        """One step."""
        for name, part in loss.parts.items():
            self._parts.setdefault(name, []).append(float(part))
        self._tokens += batch.tokens

    def taken(self) -> dict[str, float]:
        """The means of the parts, tokens a second of this process, its peak of memory in bytes."""
        seconds = max(time.monotonic() - self._since, 1e-9)
        found = {name: sum(values) / len(values) for name, values in self._parts.items()}
        found |= {"tokens_per_second": self._tokens / seconds, "memory": float(peak_held())}
        self._forget()
        return found


class _Stopping(TrainerCallback):
    """After a signal a checkpoint, and the end; the last step has its line in the log."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Progress, and whether to go on."""
        self._report.progress(state.global_step, state.max_steps, "steps")
        control.should_log |= state.global_step >= state.max_steps
        if self._report.stopping() and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True
