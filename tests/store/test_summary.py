"""What parts say of themselves."""

import json
from pathlib import Path

import pytest

from lmkcli.errors import DataError
from lmkcli.store.summary import part_summary
from tests.store.test_part_writer import DOCS, grown


def test_a_broken_summary_says_what_to_delete(tmp_path: Path) -> None:
    name = grown(tmp_path, DOCS)
    path = tmp_path / "parts" / str(name) / "part.json"
    assert json.loads(path.read_text())["docs"] == 3
    for broken in (lambda: path.write_text("{"), path.unlink):
        broken()
        with pytest.raises(DataError, match="delete this part"):
            part_summary(tmp_path, name)
