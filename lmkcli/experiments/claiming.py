"""Claiming: a grid writes its results where nothing is, or where a grid wrote before."""

import os
from pathlib import Path

from lmkcli.errors import DataError
from lmkcli.experiments import plan, report, scores, slurm
from lmkcli.experiments.steps import STEPS

NAMES = (plan.NAME, STEPS, scores.LOG, report.NAME, slurm.FOLDER)


def check(folder: Path) -> None:
    """DataError where files that no grid wrote have the names of what it writes into a folder."""
    theirs = [name for name in NAMES if os.path.lexists(folder / name)]
    if theirs and not plan.is_there(folder):
        raise DataError(
            f"{folder} holds {', '.join(theirs)} and no plan of a grid, so that they are not lmk's: nothing "
            "was touched; choose another output"
        )
