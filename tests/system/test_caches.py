import os
import subprocess
import sys
from pathlib import Path

import pytest

from lmkcli.system import caches
from tests.conftest import Lmk

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


def test_a_cached_commit_without_a_branch_is_named(
    lmk: Lmk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a download with --revision: the cache has the commit, and not the name of its branch."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    commit = "0123456789abcdef0123456789abcdef01234567"
    for kind in ("model", "dataset"):
        folder = tmp_path / f"hf/hub/{kind}s--org--tiny/snapshots/{commit}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    (tmp_path / "d.jsonl").write_text('{"id": "a", "text": "b"}')
    words = ("encode", tmp_path / "d.jsonl", "-m", "org/tiny", "--offline", "-o", tmp_path / "v")
    assert f"--revision {commit}" in lmk(*words, code=3).err
    words = ("index", "hf:org/tiny", "--kind", "bm25", "--offline", "-o", tmp_path / "b")
    assert f"hf:org/tiny,revision={commit}" in lmk(*words, code=3).err
