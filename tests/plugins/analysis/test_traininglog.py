"""Training logs: the curves, and errors for logs that no training wrote."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lmkcli.errors import DataError
from lmkcli.plugins.analysis import traininglog
from tests.damage import damage

LOSS = {"step": 2, "loss": 2.5, "infonce": 2.5, "grad_norm": 9.0, "learning_rate": 1e-5}


def log(folder: Path, *lines: Any) -> Path:
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    (folder / "log.jsonl").write_text(text)
    return folder


def test_the_loss_and_the_learning_rate_over_the_steps(tmp_path: Path) -> None:
    later = LOSS | {"step": 4, "loss": 2.0, "learning_rate": 0.0}
    panels = traininglog.panels(log(tmp_path, LOSS, later, '{"step": 6, "lo'))
    assert panels == {
        "loss": {"loss": [(2, 2.5), (4, 2.0)]},
        "learning rate": {"learning rate": [(2, 1e-5), (4, 0.0)]},
    }


@pytest.mark.parametrize(
    "line",
    [
        *(
            "[]\n",
            "1\n",
            "loss\n",
            "[" * 9000 + "\n",
            '{"loss": 1.0}\n',
            '{"step": 1, "step": 2}\n',
        ),
        *({**LOSS, "step": wrong} for wrong in ("2", None, -1, 10**400, 2.5)),
        *({**LOSS, "loss": wrong} for wrong in ("2", None, [], 10**400)),
        *({**LOSS, "dev": wrong} for wrong in (None, 1.0, {"scifact": "0.5"})),
        {**LOSS, "dev": {"scifact": 0.5}},  # without a manifest, which has the measure
    ],
)
def test_a_line_that_no_training_writes_is_refused(tmp_path: Path, line: Any) -> None:
    with pytest.raises(DataError, match=str(tmp_path)):
        traininglog.panels(log(tmp_path, LOSS, line))


def test_a_log_without_an_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").symlink_to("/dev/zero")
    with pytest.raises(DataError, match="is a device"):
        traininglog.panels(tmp_path)


def test_a_log_that_is_damaged_at_random_is_refused_or_read(tmp_path: Path) -> None:
    for seed in range(200):
        folder = tmp_path / str(seed)
        folder.mkdir()
        log(folder, *(LOSS | {"step": step} for step in range(3)), {"step": 3, "dev": {"a": 0.5}})
        description = damage(folder / "log.jsonl", Random(seed))
        try:
            traininglog.panels(folder)
        except DataError:
            pass
        except Exception as error:
            raise AssertionError(f"seed {seed}: {description}") from error
