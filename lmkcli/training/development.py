"""Development sets: a training that is scored as it goes keeps its best weights, and may end early.

What searches and evaluates stands behind training; whoever starts one brings a `Scorer`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch import nn


class Scorer(Protocol):
    """Scores what is trained, as it stands."""

    @property
    def measure(self) -> str:
        """The name of what is measured; more is better."""

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the scores, beside the model; JSON values."""

    def __call__(self, module: nn.Module) -> dict[str, float]:
        """The measure's value on each collection, by name."""


class Dev(NamedTuple):
    """What scores, and how many steps apart.

    `patience` is how many scorings without a better one end the training; 0: none do.
    """

    scorer: Scorer
    every: int
    patience: int = 0

    @property
    def identity(self) -> dict[str, Any]:
        """What two trainings must share to end alike."""
        return {**self.scorer.identity, "every": self.every, "patience": self.patience}

    def facts(self, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What training.json says: every scoring, and whose weights were published."""
        curve = [dict(line) for line in history if "score" in line]
        return {**self.identity, "curve": curve, "published": best(curve)}

    def exhausted(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Whether so many scorings in a row were no better than one before."""
        scores = [_score(line) for line in history if "score" in line]
        since = len(scores) - 1 - scores.index(max(scores)) if scores else 0
        return 0 < self.patience <= since


def best(history: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The line of a training's log with the best score, the first of equals; None without any."""
    return max((line for line in history if "score" in line), key=_score, default=None)


def _score(line: Mapping[str, Any]) -> float:
    return float(line["score"])
