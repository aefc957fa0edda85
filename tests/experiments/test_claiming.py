"""Claiming: a grid replaces no file that no grid wrote."""

from pathlib import Path

import pytest

from lmkcli.errors import DataError
from lmkcli.experiments import claiming
from lmkcli.experiments.cells import Cell
from lmkcli.experiments.plan import Plan


@pytest.mark.parametrize("name", claiming.NAMES)
def test_a_file_of_somebody_else_is_no_place_for_results(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"mine": 1}')
    with pytest.raises(DataError, match=name):
        claiming.check(tmp_path)


def test_nothing_other_files_and_results_are_places_for_results(tmp_path: Path) -> None:
    claiming.check(tmp_path / "new")
    (tmp_path / "thesis.tex").touch()
    claiming.check(tmp_path)
    Plan([Cell("a", {})], {"a": ()}, {}, []).write(tmp_path)
    for name in ("report.html", "scores.jsonl"):
        (tmp_path / name).touch()
    claiming.check(tmp_path)
