"""Training logs: the lines of a model's log.jsonl as curves over the steps."""

import json
from pathlib import Path
from typing import Any

from lmkcli import manifest
from lmkcli.errors import DataError

Curves = dict[str, list[tuple[float, float]]]

LOG = "log.jsonl"
_BESIDE = {"step", "epoch", "loss", "grad_norm", "learning_rate", "tokens_per_second", "memory"}


def panels(folder: Path) -> dict[str, Curves]:
    """What is drawn of a training: its loss with its parts, the learning rate, and each development set.

    DataError where nothing was logged yet.
    """
    lines = _read(folder / LOG)
    losses = [line for line in lines if "loss" in line]
    scored = [line for line in lines if "score" in line]
    if not losses:
        raise DataError(
            f"{folder / LOG} has no line with a loss yet; train on, or set --log-every lower"
        )
    parts = [name for name in losses[0] if name not in _BESIDE]
    shown = ["loss", *(parts if len(parts) > 1 else [])]
    drawn = {
        "loss": {name: _curve(losses, name) for name in shown},
        "learning rate": {"learning rate": _curve(losses, "learning_rate")},
    }
    if scored:
        dev = manifest.read(folder, "model").identity["dev"]
        drawn[dev["measure"]] = {
            name: [(line["step"], line["dev"][name]) for line in scored]
            for name in scored[0]["dev"]
        }
    return drawn


def _curve(lines: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(line["step"], line[name]) for line in lines if name in line]


def _read(log: Path) -> list[dict[str, Any]]:
    """The whole lines of a log: a training that is running may be writing the last."""
    try:
        text = log.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    except (OSError, ValueError) as error:
        raise DataError(f"{log} is no log of a training: {error}") from None
