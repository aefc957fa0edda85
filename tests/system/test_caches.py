import os
import subprocess
import sys
from pathlib import Path

import pytest

from lmkcli.system import caches

LIBRARIES = """
import huggingface_hub.constants, ir_datasets
print(huggingface_hub.constants.HF_HUB_CACHE)
print(ir_datasets.util.home_path())
"""
SETTINGS: list[dict[str, str]] = [
    {},
    {"HF_HOME": "~/models", "IR_DATASETS_HOME": "{}/collections"},
    {"HF_HOME": "{}/models", "HF_HUB_CACHE": "{}/other"},
    {"XDG_CACHE_HOME": "{}/cache"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: " ".join(each) or "none")
def test_the_caches_are_where_the_libraries_keep_them(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "IR_DATASETS_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    words = [sys.executable, "-c", LIBRARIES]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ)
    assert [str(caches.hub()), str(caches.ir_datasets())] == done.stdout.split()


def test_a_folder_is_counted_without_what_links_lead_to(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "deep")
    place = caches.look(tmp_path, 60)
    assert (place.bytes, place.whole, place.writable) == (5, True, True)
    assert place.free > 0
    assert not caches.look(tmp_path, -1).whole  # there was no time to count all


def test_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    place = caches.look(tmp_path / "a" / "b", 1)
    assert (place.bytes, place.whole, place.writable) == (0, True, True)
    (tmp_path / "file").touch()
    assert not caches.look(tmp_path / "file", 1).writable
