"""What may happen to an output that is there already."""

import shutil
from pathlib import Path

import pytest

from lmkcli import manifest
from lmkcli.store import outputs


def test_nothing_an_empty_folder_and_a_device_are_empty(tmp_path: Path) -> None:
    assert outputs.is_empty(tmp_path / "nowhere")
    assert outputs.is_empty(tmp_path)
    assert outputs.is_empty(Path("/dev/null"))
    (tmp_path / ".hidden").write_text("")
    assert not outputs.is_empty(tmp_path)
    assert not outputs.is_empty(tmp_path / ".hidden")


def test_only_what_lmk_made_is_an_artifact(tmp_path: Path) -> None:
    run, folder = tmp_path / "run.trec", tmp_path / "vectors"
    run.write_text("q Q0 d 1 1 x\n")
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    assert not outputs.is_artifact(run)
    assert not outputs.is_artifact(folder)
    outputs.sidecar(run).write_text("{}")
    (folder / manifest.NAME).write_text("{}")
    assert outputs.is_artifact(run)
    assert outputs.is_artifact(folder)
    assert outputs.sidecar(run).name == "run.trec.json"


def test_clearing_removes_an_artifact_and_its_manifest(tmp_path: Path) -> None:
    run, folder = tmp_path / "run.trec", tmp_path / "vectors"
    for path in (run, outputs.sidecar(run)):
        path.write_text("{}")
    (folder / "parts").mkdir(parents=True)
    (folder / manifest.NAME).write_text("{}")
    outputs.clear(run)
    outputs.clear(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_removal_that_was_killed_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-removed, it is still an artifact, and no longer says that it is complete."""
    folder = tmp_path / "vectors"
    for name in ("parts/a", "done"):
        (folder / name).mkdir(parents=True)
    (folder / "done/0of1.json").write_text("{}")
    (folder / manifest.NAME).write_text("{}")

    def killed(path: Path) -> None:
        if path.name.endswith("parts"):
            raise KeyboardInterrupt
        shutil.rmtree(path)

    with monkeypatch.context() as patch:
        patch.setattr(outputs, "_remove", killed)
        with pytest.raises(KeyboardInterrupt):
            outputs.clear(folder)
    assert outputs.is_artifact(folder)
    assert not (folder / "done").exists()
    outputs.clear(folder)
    assert not folder.exists()


def test_what_has_no_manifest_is_not_cleared(tmp_path: Path) -> None:
    run, folder = tmp_path / "notes.txt", tmp_path / "thesis"
    run.write_text("mine")
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    for path in (run, folder):
        with pytest.raises(FileNotFoundError):
            outputs.clear(path)
    assert run.read_text() == (folder / "thesis.tex").read_text() == "mine"
