"""The pooler `gate`: the mean of states that pass through learned gates, one for each dimension."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lmkcli.errors import UsageError
from lmkcli.models.model_files import loading
from lmkcli.models.model_folder import ModelFolder
from lmkcli.pooling.table import Pooler

FOLDER, FILE = "gate", "gate.safetensors"  # in a model folder


class Gate(nn.Module):
    """States [n, dim] times sigmoid(weights), [dim] (the protocol `lmkcli.models.heads.StateModule`)."""

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the gated states, [n, dim]."""
        return states * torch.sigmoid(self.weights)

    @classmethod
    def open(cls, folder: ModelFolder) -> "Gate":
        """Load the gates of a model folder. Raises UsageError if it has none."""
        file = folder.path / FOLDER / FILE
        if not file.is_file():
            raise UsageError(f"--pool gate: {folder.name} has no {FOLDER}/{FILE}; use --pool mean")
        with loading(str(file)):
            return cls(load_file(file)["weights"].float())

    @classmethod
    def create(cls, dim: int) -> "Gate":
        """Return new gates, which are half open."""
        return cls(torch.zeros(dim))

    @classmethod
    def write(cls, learned: dict[str, torch.Tensor], source: ModelFolder, growing: Path) -> None:
        """Write trained gates into a new model folder."""
        (growing / FOLDER).mkdir(exist_ok=True)
        save_file(learned, growing / FOLDER / FILE)


GATE = Pooler("gate", "every", module="lmk_example.gate:Gate")
