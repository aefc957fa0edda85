"""What is written atomically is the old or the new, whole."""

import os
from pathlib import Path

import pytest

from lmkcli.system.atomic import atomic_file, atomic_folder


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def fail() -> None:
        with atomic_file(path) as temporary:
            temporary.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text() == "old"
    with atomic_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_folder_is_there_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def fail() -> None:
        with atomic_folder(path) as growing:
            (growing / "one").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert os.listdir(tmp_path) == []
    for content in ("first", "second"):
        with atomic_folder(path) as growing:
            (growing / "one").write_text(content)
        assert (path / "one").read_text() == content
        assert os.listdir(tmp_path) == ["a"]
