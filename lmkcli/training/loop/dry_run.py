"""Dry run: preview the inputs of a training and estimate its cost, without writing anything."""

import math
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from torch import nn

from lmkcli.models.devices import peak_bytes
from lmkcli.progress import Report
from lmkcli.system.atomic import temporary_folder
from lmkcli.training.data.batches import Feed
from lmkcli.training.data.inputs import PlacedText
from lmkcli.training.loop.development import Dev
from lmkcli.training.loop.training_run import Job, Start, open_trainer
from lmkcli.training.step.optimizer import rounded

TIMED = 5  # number of timed steps, after one warm-up step
_EXAMPLES = 2048  # number of examples in the batches for counting tokens


class DryRun(NamedTuple):
    """The results of a rehearsal.

    tokens: positions of the whole training, estimated from `counted` batches.
    longest: positions of the longest input in these batches.
    shown: previews of the first examples.
    timed: the number of timed steps.
    seconds: estimated duration of the whole training, from `tokens_per_second` of the timed steps.
    scoring: the part of `seconds` for evaluations on the development set, estimated from one evaluation.
    memory: the peak memory of this process, or of its GPU, in bytes.
    """

    examples: int
    steps: int
    tokens: int
    counted: int
    longest: int
    shown: list[list[PlacedText]]
    timed: int
    tokens_per_second: float
    seconds: float
    scoring: float
    memory: int


class DryRunJob(Job, Protocol):
    """The interface of jobs that can be rehearsed."""

    def __len__(self) -> int:
        """Return the number of examples or texts."""

    def feed(self, start: Start) -> Feed[Any]:
        """Return the batches of one process."""

    def shown(self, batch: Any) -> list[list[PlacedText]]:
        """Return previews of the first examples of a batch."""

    def without_scoring(self) -> Self:
        """Return the same job without checkpoints and development set."""


def rehearse(job: DryRunJob, dev: Dev | None, report: Report) -> DryRun:
    """Count tokens, preview inputs and time the first steps, without access to the training's folder."""
    feed = job.feed(Start())
    wanted = max(TIMED + 1, _EXAMPLES // job.settings.batch_size)
    sample = list(islice(feed.batches(), wanted))
    tokens = np.array([batch.tokens for batch in sample])
    times, scoring = _steps(job, dev, report)
    first, last = (1, len(times) - 1) if len(times) > 1 else (0, 0)
    pace = tokens[first : last + 1].sum() / max(sum(times[first:]), 1e-9)
    total = tokens.mean() * job.settings.steps
    return DryRun(
        len(job), job.settings.steps, round(total), len(sample),
        max(batch.longest for batch in sample), job.shown(sample[0]), len(times[first:]),
        float(pace), float(total / pace) + scoring, scoring, peak_bytes(),
    )  # fmt: skip


class _Enough(Exception):
    """Raised after the last timed step."""


def _steps(job: DryRunJob, dev: Dev | None, report: Report) -> tuple[list[float], float]:
    """Train a temporary model; return the seconds of the first steps, and of all evaluations together."""
    ends: list[float] = []  # times of the progress reports: the start, then the end of each step

    def tick(done: int, total: int | None, unit: str, detail: str = "") -> None:
        ends.append(time.perf_counter())
        report.progress(done, min(TIMED + 1, job.settings.steps), unit, detail)
        report.check_stop()
        if done > TIMED:
            raise _Enough

    with temporary_folder("rehearsal") as name:
        trainer = open_trainer(job.without_scoring(), Path(name), report._replace(progress=tick))
        with suppress(_Enough):
            trainer.train()
    scoring = _scoring(dev, job.settings.steps, trainer.task.module) if dev else 0.0
    return np.diff(ends).tolist(), scoring


def _scoring(dev: Dev, steps: int, module: nn.Module) -> float:
    start = time.perf_counter()
    with rounded(module):
        dev.scorer(module.eval())
    return (time.perf_counter() - start) * math.ceil(steps / dev.every)
