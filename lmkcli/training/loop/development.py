"""Development sets: score a model during training, keep its best weights, and stop early.

This package must not import search and evaluation, so the caller passes a `Scorer`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

from torch import nn

from lmkcli.training.training_record import DevRecord


class DevScores(NamedTuple):
    """The measure's value on each collection, by name.

    `terms` are the mean numbers of terms of documents and queries (doc_terms, query_terms); empty for dense
    vectors.
    """

    scores: dict[str, float]
    terms: dict[str, float] = {}  # noqa: RUF012


class WeightScorer(Protocol):
    """The interface for scoring the current weights of a model."""

    @property
    def measure(self) -> str:
        """The name of the measure; higher is better."""

    @property
    def identity(self) -> dict[str, Any]:
        """All inputs of the scores except the model, as JSON values."""

    def __call__(self, module: nn.Module) -> DevScores:
        """Score the weights on each collection."""


class Dev(NamedTuple):
    """A scorer and its schedule.

    every: the number of steps between evaluations. patience: the number of evaluations without improvement
    that end the training; 0 disables early stopping.
    """

    scorer: WeightScorer
    every: int
    patience: int = 0

    @property
    def identity(self) -> dict[str, Any]:
        """The values that two trainings must share to select the same weights."""
        return {**self.scorer.identity, "every": self.every, "patience": self.patience}

    def record(self, history: Sequence[Mapping[str, Any]]) -> DevRecord:
        """Return the entry of training.json: all evaluations, and the evaluation of the published weights."""
        curve = [dict(line) for line in history if "score" in line]
        return cast(DevRecord, {**self.identity, "curve": curve, "published": best(curve)})

    def exhausted(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the last `patience` evaluations brought no improvement."""
        scores = [_score(line) for line in history if "score" in line]
        since = len(scores) - 1 - scores.index(max(scores)) if scores else 0
        return 0 < self.patience <= since


def best(history: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the log line with the best score, the first line if scores are equal; None without scores."""
    return max((line for line in history if "score" in line), key=_score, default=None)


def _score(line: Mapping[str, Any]) -> float:
    return float(line["score"])
