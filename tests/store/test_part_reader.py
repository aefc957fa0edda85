"""Reading parts: summaries."""

import json
from pathlib import Path

import pytest

from lmkcli.errors import DataError
from lmkcli.store.parts import part_summary
from tests.store.test_part_writer import DOCS, written


def test_the_error_of_a_damaged_summary_names_the_remedy(tmp_path: Path) -> None:
    name = written(tmp_path, DOCS)
    path = tmp_path / "parts" / str(name) / "part.json"
    assert json.loads(path.read_text())["docs"] == 3
    for broken in (lambda: path.write_text("{"), path.unlink):
        broken()
        with pytest.raises(DataError, match="delete this part"):
            part_summary(tmp_path, name)
