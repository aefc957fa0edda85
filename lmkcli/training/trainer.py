"""The loop: transformers' Trainer, which brings processes, checkpoints and schedules.

Ours are the batches, the gradients of a batch of any size, the weights' precision and what is logged.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.utils.logging import disable_progress_bar

from lmkcli.errors import DataError
from lmkcli.models.forward import Finish, ForwardPass
from lmkcli.pooling.placement import Input
from lmkcli.progress import Report
from lmkcli.settings import TrainSettings
from lmkcli.system.memory import peak_memory
from lmkcli.training.feeding import Feed, TrainBatch
from lmkcli.training.gathering import gathered, world
from lmkcli.training.gradients import Gradients
from lmkcli.training.objective import Embedded, Loss, Objective
from lmkcli.training.optimizer import MasterAdamW, decayed

WEIGHTS = "weights.safetensors"  # of a checkpoint: everything that was learned, in float32


class Learning(NamedTuple):
    """What learns, what is minimised, from which batches, and how."""

    forward: ForwardPass
    objective: Objective
    feed: Feed
    settings: TrainSettings


class LossTrainer(Trainer):
    """Trains a forward pass by an objective over the vectors of whole batches."""

    def __init__(
        self, learning: Learning, args: TrainingArguments, report: Report, log: Path
    ) -> None:
        super().__init__(model=learning.forward, args=args, callbacks=[_Stopping(report)])
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        self._forward, self._objective, self._feed, self._settings = learning
        self._report, self._log, self._seen = report, log, _Seen()
        self._gradients: Gradients | None = None
        disable_progress_bar()  # type: ignore[no-untyped-call]  # of saving: progress is the caller's

    def get_train_dataloader(self) -> Any:
        """The batches; each process makes its own."""
        return self._feed

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """AdamW over float32 master weights."""
        groups = decayed(self._forward, self._settings.weight_decay)
        self.optimizer = MasterAdamW(groups, lr=self._settings.lr)
        return self.optimizer

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> Tensor:
        """The gradients of a TrainBatch; DataError when its loss is not a finite number."""
        model.train()
        if self._gradients is None:
            tokens = self._settings.batch_tokens
            self._gradients = Gradients(self._forward, model, tokens, self._report.note)
        loss = self._gradients(_inputs(inputs), self._loss(inputs))
        self._seen.add(loss, inputs)
        if not math.isfinite(loss.total.item()):
            names = ", ".join(inputs.examples[:5])
            raise DataError(
                f"the loss of step {inputs.step} is {loss.total.item()} (examples {names} …): the last "
                "checkpoint is kept; lower --lr, or train with --dtype fp32"
            )
        return loss.total.detach() / world()

    def _loss(self, batch: TrainBatch) -> Callable[[Tensor], Loss]:
        queries, passages = batch.queries, batch.passages
        split = [int(queries.counts.sum()), int(passages.counts.sum())]

        def loss_of(vectors: Tensor) -> Loss:
            mine = vectors.split(split)  # type: ignore[no-untyped-call]
            sides = self._feed.sides[0]  # how vectors are finished is the same for all sources
            found = self._objective(
                gathered(_embedded(sides.query.finish, mine[0], queries.counts)),
                gathered(_embedded(sides.passage.finish, mine[1], passages.counts)),
                batch.facts.to(vectors.device),
            )
            # processes average their gradients, and each has its part of one sum
            return Loss(found.total * world(), found.parts)

        return loss_of

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
            optimizer.precise(self._forward)
            if isinstance(optimizer, MasterAdamW)
            else self._forward.state_dict()
        )
        return {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self._forward.load_state_dict(load_file(Path(resume_from_checkpoint) / WEIGHTS))


def arguments(settings: TrainSettings, checkpoints: Path) -> TrainingArguments:
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


def _inputs(batch: TrainBatch) -> list[Input]:
    """All inputs of a batch, queries first, numbered over both."""
    first = int(batch.queries.counts.sum())
    return [*batch.queries.inputs, *batch.passages.behind(first)]


def _embedded(finish: Finish, vectors: Tensor, counts: Tensor) -> Embedded:
    """Vectors as they are compared; one a text where windows are averaged."""
    done = finish(vectors, counts)
    return Embedded(done, None if finish.average else counts.to(vectors.device))


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


class _Seen:
    """What went by since the last line of the log."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._parts: dict[str, list[float]] = {}
        self._tokens, self._since = 0, time.monotonic()

    def add(self, loss: Loss, batch: TrainBatch) -> None:
        """One step."""
        for name, part in loss.parts.items():
            self._parts.setdefault(name, []).append(float(part))
        self._tokens += batch.queries.tokens + batch.passages.tokens

    def taken(self) -> dict[str, float]:
        """The means of the parts, tokens a second of this process, its peak of memory in bytes."""
        seconds = max(time.monotonic() - self._since, 1e-9)
        found = {name: sum(values) / len(values) for name, values in self._parts.items()}
        found |= {"tokens_per_second": self._tokens / seconds, "memory": float(peak_memory())}
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
