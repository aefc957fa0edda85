"""The loop: transformers' Trainer, which brings processes, checkpoints and schedules.

Ours are the batches, their gradients, the weights' precision and what is logged. The loop knows neither
what a batch holds nor what is minimised: `Learning` brings both.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.utils.logging import disable_progress_bar

from lmkcli.errors import DataError
from lmkcli.models.devices import choose_device
from lmkcli.models.files import loading
from lmkcli.progress import Report
from lmkcli.system.memory import peak_memory
from lmkcli.training.board import Board
from lmkcli.training.development import Dev, best
from lmkcli.training.gathering import agreed, anywhere, world
from lmkcli.training.objective import Loss
from lmkcli.training.optimizer import MasterAdamW, decayed
from lmkcli.training.settings import LoopSettings

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
    dev: Dev | None = None


class LossTrainer(Trainer):
    """Trains a module by the gradients of whole batches."""

    def __init__(
        self, learning: Learning, args: TrainingArguments, report: Report, log: Path
    ) -> None:
        self._seen = _Seen()
        flow = _Flow(report, self._seen, learning.dev)
        super().__init__(model=learning.module, args=args, callbacks=[flow])
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        self.learning = learning
        self._module, self._step, self._feed, self._settings, self._dev = learning
        self._report, self._log = report, log
        self._board: Board | None = None
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
        if "loss" in logs:
            self._note({**logs, **self._seen.taken()})

    def _note(self, facts: dict[str, Any]) -> None:
        line = {"step": self.state.global_step, **facts}
        self.state.log_history.append(line)
        if self.is_world_process_zero():
            with open(self._log, "a", encoding="utf-8") as file:
                file.write(json.dumps({k: _short(v) for k, v in line.items()}) + "\n")
            if self._settings.tensorboard:
                self._board = self._board or Board(self._log.parent, line["step"])
                self._board.add(line)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Scores the module as it is: the best so far is saved, and patience may be exhausted."""
        dev, before = self._dev, best(self.state.log_history)
        scored = [line["step"] for line in self.state.log_history if "score" in line]
        done = self.state.global_step in scored
        if dev is None or done:  # the Trainer asks again after the last step
            return {}
        start = time.monotonic()
        self._module.eval()
        scores = agreed(dev.scorer(self._module))
        score = sum(scores.values()) / len(scores)
        seconds = time.monotonic() - start
        self._note({"dev": scores, "score": score, "seconds": seconds})
        self._seen.leave_out(seconds)
        better = before is None or score > before["score"]
        if better:
            self.state.best_global_step = self.state.global_step  # whose checkpoint is then kept
        ended = dev.exhausted(self.state.log_history)
        self.control.should_save |= better or ended
        self.control.should_training_stop |= ended
        self._say(dev.scorer.measure, score, None if better else before)
        return {}

    def _say(self, measure: str, score: float, before: Mapping[str, Any] | None) -> None:
        if self.is_world_process_zero():
            best_yet = (
                f"{before['score']:.4f} of step {before['step']} is better"
                if before
                else "best yet"
            )
            self._report.note(f"step {self.state.global_step}: {measure} {score:.4f}, {best_yet}")

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to do: all steps are done, or patience is exhausted."""
        dev, state = self._dev, self.state
        early = dev is not None and dev.exhausted(state.log_history)
        return early or state.global_step >= state.max_steps

    def learned(self) -> dict[str, Tensor]:
        """Everything learned, in float32: of the step that scored best where a set was scored."""
        step = self.state.best_global_step
        if not step:
            return self.precise_state()
        return load_file(Path(self.args.output_dir or "") / f"checkpoint-{step}" / WEIGHTS)

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
        with _resuming(resume_from_checkpoint):
            self._module.load_state_dict(load_file(Path(resume_from_checkpoint) / WEIGHTS))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with _resuming(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _resuming(checkpoint):
            super()._load_rng_state(checkpoint)


def _resuming(checkpoint: str | None) -> AbstractContextManager[None]:
    """What is wrong with a checkpoint's files, with what to do about it."""
    return loading(f"{checkpoint} (delete it, and the same command goes on without it)")


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
        use_cpu=choose_device(settings.device).type == "cpu",
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
        self._loss = math.nan
        self._tokens, self._since = 0, time.monotonic()

    def add(self, loss: Loss, batch: Batch) -> None:
        """One step."""
        for name, part in loss.parts.items():
            self._parts.setdefault(name, []).append(float(part))
        self._loss = loss.total.item()
        self._tokens += batch.tokens

    def leave_out(self, seconds: float) -> None:
        """Time that is not training's."""
        self._since += seconds

    def pace(self) -> str:
        """The last loss, and tokens a second, for the progress."""
        seconds = max(time.monotonic() - self._since, 1e-9)
        return f", loss {self._loss / world():.4g}, {self._tokens / seconds:,.0f} tokens/s"

    def taken(self) -> dict[str, float]:
        """The means of the parts, tokens a second of this process, its peak of memory in bytes."""
        seconds = max(time.monotonic() - self._since, 1e-9)
        means = {name: sum(values) / len(values) for name, values in self._parts.items()}
        means |= {"tokens_per_second": self._tokens / seconds, "memory": float(peak_held())}
        self._forget()
        return means


class _Flow(TrainerCallback):
    """What is due after a step: progress, a line of the log, a scoring; after a signal the end."""

    def __init__(self, report: Report, seen: _Seen, dev: Dev | None) -> None:
        self._report, self._seen, self._dev = report, seen, dev

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """What was done before does not count for the pace."""
        self._report.progress(state.global_step, state.max_steps, "steps")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A signal leaves a checkpoint; the last step has its line in the log, and its score."""
        last = state.global_step >= state.max_steps
        self._report.progress(state.global_step, state.max_steps, f"steps{self._seen.pace()}")
        control.should_log |= last
        if self._dev is not None:
            control.should_evaluate |= last or state.global_step % self._dev.every == 0
            # killed after it was exhausted: the checkpoint went on for a step, which is not published
            control.should_training_stop |= self._dev.exhausted(state.log_history)
        if anywhere(self._report.stopping(), args.device) and not last:
            control.should_save = control.should_training_stop = True
