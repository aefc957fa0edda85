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
def test_the_cache_folders_are_those_of_the_libraries(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "IR_DATASETS_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    words = [sys.executable, "-c", LIBRARIES]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ)
    assert [str(caches.hub_cache()), str(caches.ir_datasets_cache())] == done.stdout.split()


def test_the_size_of_a_folder_excludes_the_targets_of_links(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "deep")
    place = caches.inspect_folder(tmp_path, 60)
    assert (place.bytes, place.whole, place.writable) == (5, True, True)
    assert place.free > 0
    assert not caches.inspect_folder(tmp_path, -1).whole  # too little time to count all files


def test_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    place = caches.inspect_folder(tmp_path / "a" / "b", 1)
    assert (place.bytes, place.whole, place.writable) == (0, True, True)
    (tmp_path / "file").touch()
    assert not caches.inspect_folder(tmp_path / "file", 1).writable
