"""Rehearsal: what a training will see, and what it will take, before anything is written."""

import math
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from torch import nn

from lmkcli.progress import Report
from lmkcli.training.development import Dev
from lmkcli.training.feeding import Feed
from lmkcli.training.running import Job, Start, open_trainer
from lmkcli.training.showing import PlacedText
from lmkcli.training.trainer import peak_held

TIMED = 5  # steps, after one to warm up
_EXAMPLES = 2048  # in the batches whose tokens are counted


class Rehearsal(NamedTuple):
    """What was found. `tokens` (positions of the whole training) is an estimate from `counted` batches.

    `seconds` of the whole training follow from `tokens_per_second` of the steps that were timed; `scoring`
    of them go into its development set, which was scored once.
    `memory` is the peak in bytes of this process, or of its GPU.
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


class Rehearsed(Job, Protocol):
    """A training that can say what its texts look like."""

    def __len__(self) -> int:
        """Examples, or texts."""

    def feed(self, start: Start) -> Feed[Any]:
        """The batches of one process."""

    def shown(self, batch: Any) -> list[list[PlacedText]]:
        """The texts of the first examples of a batch."""

    def unscored(self) -> Self:
        """The same without checkpoints and development set."""


def rehearse(job: Rehearsed, dev: Dev | None, report: Report) -> Rehearsal:
    """Counts, places and times the first steps of a training; its folder is neither read nor written."""
    feed = job.feed(Start())
    wanted = max(TIMED + 1, _EXAMPLES // job.settings.batch_size)
    sample = list(islice(feed.batches(), wanted))
    tokens = np.array([batch.tokens for batch in sample])
    times, scoring = _steps(job, dev, report)
    first, last = (1, len(times) - 1) if len(times) > 1 else (0, 0)
    pace = tokens[first : last + 1].sum() / max(sum(times[first:]), 1e-9)
    total = tokens.mean() * job.settings.steps
    return Rehearsal(
        len(job), job.settings.steps, round(total), len(sample),
        max(batch.longest for batch in sample), job.shown(sample[0]), len(times[first:]),
        float(pace), float(total / pace) + scoring, scoring, peak_held(),
    )  # fmt: skip


class _Enough(Exception):
    """The steps that were to be timed are done."""


def _steps(job: Rehearsed, dev: Dev | None, report: Report) -> tuple[list[float], float]:
    """Seconds of each of the first steps, and of all scorings, on a model that is then forgotten."""
    ends: list[float] = []  # of what was reported: the beginning, then each step

    def tick(done: int, total: int | None, unit: str) -> None:
        ends.append(time.perf_counter())
        report.progress(done, min(TIMED + 1, job.settings.steps), unit)
        report.check_stop()
        if done > TIMED:
            raise _Enough

    with TemporaryDirectory(prefix="lmk-rehearsal-") as name:
        trainer = open_trainer(job.unscored(), Path(name), report._replace(progress=tick))
        with suppress(_Enough):
            trainer.train()
    scoring = _scoring(dev, job.settings.steps, trainer.learning.module) if dev else 0.0
    return np.diff(ends).tolist(), scoring


def _scoring(dev: Dev, steps: int, module: nn.Module) -> float:
    start = time.perf_counter()
    dev.scorer(module.eval())
    return (time.perf_counter() - start) * math.ceil(steps / dev.every)
