"""Rehearsal: what a training will see, and what it will take, before anything is written."""

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from torch import nn

from lmkcli.models.tokenizer import Tokenizer
from lmkcli.pooling.placement import Input
from lmkcli.progress import Report
from lmkcli.training.feeding import Feed, Place, TrainBatch
from lmkcli.training.job import TrainJob
from lmkcli.training.placing import Placed
from lmkcli.training.running import Start, open_trainer
from lmkcli.training.trainer import peak_held

SHOWN = 3  # examples
TIMED = 5  # steps, after one to warm up
_QUERIES = 2048  # in the batches whose tokens are counted
_POSITIONS = 64  # of a text are shown


class PlacedText(NamedTuple):
    """A text as the model reads it: `words` is decoded, marked tokens stand in «».

    `positions` is how many there are, `reach` one more than the highest number that one of them has.
    """

    side: str  # query, positive or negative
    gran: str
    positions: int
    reach: int
    words: str


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


def rehearse(job: TrainJob, report: Report) -> Rehearsal:
    """Counts, places and times the first steps of a training; its folder is neither read nor written."""
    feed = job.feed(Start())
    wanted = max(TIMED + 1, _QUERIES // job.settings.batch_size)
    sample = list(islice(feed.batches(), wanted))
    tokens = np.array([batch.tokens for batch in sample])
    times, scoring = _steps(job, report)
    first, last = (1, len(times) - 1) if len(times) > 1 else (0, 0)
    pace = tokens[first : last + 1].sum() / max(sum(times[first:]), 1e-9)
    total = tokens.mean() * job.settings.steps
    inputs = [one for batch in sample for one in (*batch.queries.inputs, *batch.passages.inputs)]
    return Rehearsal(
        len(job.examples), job.settings.steps, round(total), len(sample),
        max(len(one.ids) for one in inputs), list(_shown(feed, sample[0])), len(times[first:]),
        float(pace), float(total / pace) + scoring, scoring, peak_held(),
    )  # fmt: skip


class _Enough(Exception):
    """The steps that were to be timed are done."""


def _steps(job: TrainJob, report: Report) -> tuple[list[float], float]:
    """Seconds of each of the first steps, and of all scorings, on a model that is then forgotten."""
    ends = [0.0]

    def tick(done: int, total: int | None, unit: str) -> None:
        ends.append(time.perf_counter())
        report.progress(done, min(TIMED + 1, job.settings.steps), unit)
        report.check_stop()
        if done > TIMED:
            raise _Enough

    unsaved = replace(job.settings, save_every=job.settings.steps + 1)
    with TemporaryDirectory(prefix="lmk-rehearsal-") as name:
        ours = replace(job, settings=unsaved, dev=None)
        trainer = open_trainer(ours, Path(name), report._replace(progress=tick))
        ends[0] = time.perf_counter()
        with suppress(_Enough):
            trainer.train()
    return np.diff(ends).tolist(), _scoring(job, trainer.learning.module)


def _scoring(job: TrainJob, module: nn.Module) -> float:
    if job.dev is None:
        return 0.0
    start = time.perf_counter()
    job.dev.scorer(module.eval())
    return (time.perf_counter() - start) * math.ceil(job.settings.steps / job.dev.every)


def _shown(feed: Feed[Place], batch: TrainBatch) -> Iterator[list[PlacedText]]:
    """The first examples of a batch: the query, the positive, and a negative where there is one."""
    tokenizer = feed.place.sides[0].passage.tokenizer
    for number in range(min(SHOWN, len(batch.examples))):
        mine = [int(row) for row in batch.facts.groups[number] if row >= 0]
        yield [
            _placed(batch.queries, number, "query", tokenizer),
            _placed(batch.passages, mine[0], "positive", tokenizer),
            *(_placed(batch.passages, row, "negative", tokenizer) for row in mine[1:2]),
        ]


def _placed(side: Placed, number: int, name: str, tokenizer: Tokenizer) -> PlacedText:
    inputs = side.text(number)
    words = " | ".join(_words(one, tokenizer) for one in inputs)
    positions = sum(len(one.ids) for one in inputs)
    reach = max(
        len(one.ids) if one.positions is None else 1 + int(one.positions.max()) for one in inputs
    )
    return PlacedText(name, side.grans[number], positions, reach, words)


def _words(one: Input, tokenizer: Tokenizer) -> str:
    """The text of an input, its marked tokens in «» unless all of them are marked."""
    ids = one.ids[:_POSITIONS]
    marks = [mark for mark in one.marks.tolist() if mark < len(ids)]
    marks = [] if len(one.marks) == len(one.ids) else marks
    pieces = []
    for start, stop in zip([0, *(mark + 1 for mark in marks)], [*marks, len(ids)], strict=True):
        pieces.append(tokenizer.text(ids[start:stop]))
        pieces += [f"«{token}»" for token in tokenizer.tokens(ids[stop : stop + 1])]
    left = len(one.ids) - len(ids)
    return " ".join(filter(None, pieces)) + (f" … and {left:,} positions" if left else "")
