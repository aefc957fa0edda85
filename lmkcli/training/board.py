"""TensorBoard: the lines of a training's log as its scalars, where it is installed."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lmkcli.errors import UsageError

FOLDER = "tensorboard"


def check_installed() -> None:
    """UsageError, with how to install it, where TensorBoard is not there."""
    if find_spec("tensorboard") is None:
        raise UsageError("--tensorboard: pip install tensorboard, or drop it")


class Board:
    """Writes into the folder of a model, from one step on: what was there of later ones is hidden."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # here: tensorboard may not be installed

        self._writer: Any = SummaryWriter(str(folder / FOLDER), purge_step=step)

    def add(self, line: Mapping[str, Any]) -> None:
        """One line of the log; the scores of several collections by their names."""
        numbers = {name: value for name, value in line.items() if isinstance(value, int | float)}
        numbers |= {f"dev/{name}": value for name, value in line.get("dev", {}).items()}
        step = int(numbers.pop("step"))
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()
