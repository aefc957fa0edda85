"""Training logs: the lines of log.jsonl in a model folder as curves over the steps."""

from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import ModelManifest
from lmkcli.errors import DataError
from lmkcli.system.input_files import bounded_lines, check_finite, int_range, parse_json, validate

Curves = dict[str, list[tuple[float, float]]]

LOG = "log.jsonl"
_FIX = "give the folder of a training"
_TERMS = ("doc_terms", "query_terms")  # mean numbers of terms, if dimensions are terms
_NOT_LOSSES = {
    *("step", "epoch", "loss", "grad_norm", "learning_rate", "tokens_per_second", "memory"),
    "accuracy",  # of masked tokens
    *_TERMS,
}


def panels(folder: Path) -> dict[str, Curves]:
    """Return the curves of a training: the loss with its parts, the learning rate, and each development set.

    Vectors of terms also have the mean numbers of terms, and masked tokens their accuracy.

    DataError if there is no line with a loss, and for lines that a training does not write.
    """
    lines = _read(folder / LOG)
    losses = [line for line in lines if "loss" in line]
    scored = [line for line in lines if "dev" in line]
    if not losses:
        raise DataError(
            f"{folder / LOG} has no line with a loss yet; train on, or set --log-every lower"
        )
    parts = [name for name in losses[0] if name not in _NOT_LOSSES]
    shown = ["loss", *(parts if len(parts) > 1 else [])]
    curves = {
        "loss": {name: _curve(losses, name) for name in shown},
        "learning rate": {"learning rate": _curve(losses, "learning_rate")},
    }
    if "accuracy" in losses[0]:
        curves["accuracy"] = {"accuracy": _curve(losses, "accuracy")}
    if all(name in losses[0] for name in _TERMS):
        curves["terms"] = {name: _curve(losses, name) for name in _TERMS}
    if scored:
        curves[_measure(folder)] = {
            name: [(line["step"], line["dev"][name]) for line in scored if name in line["dev"]]
            for name in scored[0]["dev"]
        }
    return curves


class _Dev(TypedDict):
    measure: str


def _measure(folder: Path) -> str:
    """Return the measure of the development sets."""
    dev = manifest.read(folder, ModelManifest).identity.dev
    return validate(dev, _Dev, f"the manifest of {folder}, identity.dev,", _FIX)["measure"]


def _curve(lines: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(line["step"], line[name]) for line in lines if name in line]


class _Line(TypedDict):
    step: Annotated[int, int_range(0, 1 << 53)]
    dev: NotRequired[dict[str, float]]


def _read(log: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a log; a running training may not have completed the last line."""
    try:
        check_finite(log)
        with open(log, "rb") as file:
            lines = enumerate(bounded_lines(file, log), 1)
            return [_line(line, f"{log} line {n}") for n, line in lines if line.endswith(b"\n")]
    except OSError as error:
        raise DataError(f"{log} is not the log of a training: {error}") from None


def _line(text: bytes, where: str) -> dict[str, Any]:
    """Return the numbers of one line by name, and the scores of development sets under 'dev'."""
    try:
        line = parse_json(text.decode("utf-8"))
    except ValueError as error:
        raise DataError(f"{where} is not a line of a training log: {error}") from None
    known = dict(validate(line, _Line, where, _FIX))
    numbers = {name: value for name, value in known.items() if name != "dev"}
    validate(numbers, dict[str, float], where, _FIX)
    return known
