"""TensorBoard: write the training log as scalars. The package tensorboard is optional."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lmkcli.errors import UsageError

FOLDER = "tensorboard"


def check_installed() -> None:
    """Raise UsageError with installation instructions if TensorBoard is missing."""
    if find_spec("tensorboard") is None:
        raise UsageError(
            "--tensorboard: the package is missing; run pip install tensorboard, or drop the flag"
        )


class Board:
    """Writes scalars into tensorboard/ of a model folder, from `step` on.

    A resumed training writes some steps again. TensorBoard hides the older entries of these steps.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # here: tensorboard may not be installed

        self._writer: Any = SummaryWriter(str(folder / FOLDER), purge_step=step)

    def add(self, line: Mapping[str, Any]) -> None:
        """Write one line of the log; the score of each development collection becomes dev/NAME."""
        numbers = {name: value for name, value in line.items() if isinstance(value, int | float)}
        numbers |= {f"dev/{name}": value for name, value in line.get("dev", {}).items()}
        step = int(numbers.pop("step"))
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()
