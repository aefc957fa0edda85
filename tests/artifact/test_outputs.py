"""Existing outputs: lmk replaces and removes only files that it has written."""

import json
import shutil
from pathlib import Path

import pytest
from msgspec import structs

from lmkcli.artifact import manifest, outputs
from lmkcli.artifact.kinds import WrittenFile
from lmkcli.errors import DataError
from tests import manifests

PART = "00000of00001-000000000000-000000000003"


def test_a_missing_path_an_empty_folder_and_a_device_are_empty(tmp_path: Path) -> None:
    assert outputs.is_empty(tmp_path / "nowhere")
    assert outputs.is_empty(tmp_path)
    assert outputs.is_empty(Path("/dev/null"))
    (tmp_path / ".hidden").write_text("")
    assert not outputs.is_empty(tmp_path)
    assert not outputs.is_empty(tmp_path / ".hidden")


def test_files_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    """So the manifests of two equal folders are equal, whatever the order on the disk is."""
    names = sorted(f"{stem}/{number}" for stem in "ab" for number in range(10, 20))
    for name in reversed(names[::2] + names[1::2]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [*outputs.files_in(tmp_path)] == names


def claim(path: Path, kind: str = "vectors") -> None:
    """Make a path an artifact: a folder, or for the kind 'run' a file with its manifest."""
    text = manifest.as_text(manifests.KINDS[kind]())
    if kind == "run":
        path.write_text("q Q0 d 1 1 x\n")
        outputs.sidecar(path).write_text(text)
        return
    path.mkdir(exist_ok=True)
    (path / manifest.NAME).write_text(text)


def test_a_path_with_a_manifest_of_lmk_is_an_artifact(tmp_path: Path) -> None:
    run, folder = tmp_path / "run.trec", tmp_path / "vectors"
    run.write_text("q Q0 d 1 1 x\n")
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    assert not outputs.is_artifact(run)
    assert not outputs.is_artifact(folder)
    for content in ("", "{}", "[1]", '{"manifest_version": 3, "name": "An extension"}', "[" * 9999):
        outputs.sidecar(run).write_text(content)
        (folder / manifest.NAME).write_text(content)
        assert not outputs.is_artifact(run)
        assert not outputs.is_artifact(folder)
        with pytest.raises(DataError):
            outputs.clear(folder)
    claim(run, "run")
    claim(folder)
    assert outputs.is_artifact(run)
    assert outputs.is_artifact(folder)
    (folder / manifest.NAME).write_text('{"kind": "photographs", "format": 1}')
    assert not outputs.is_artifact(folder)
    assert outputs.sidecar(run).name == "run.trec.json"


def test_clearing_removes_an_artifact_and_its_manifest(tmp_path: Path) -> None:
    run, folder = tmp_path / "run.trec", tmp_path / "vectors"
    claim(run, "run")
    claim(folder)
    (folder / "parts").mkdir()
    assert outputs.clear(run) == []
    assert outputs.clear(folder) == []
    assert list(tmp_path.iterdir()) == []


def test_a_killed_removal_can_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half-removed folder is still an artifact, but no longer complete."""
    folder = tmp_path / "vectors"
    (folder / "done").mkdir(parents=True)
    (folder / "done/0of1.json").write_text("{}")
    (folder / f"parts/{PART}").mkdir(parents=True)
    claim(folder)
    remove = shutil.rmtree

    def killed(path: Path) -> None:
        if path.name.endswith("parts"):
            raise KeyboardInterrupt
        remove(path)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            outputs.clear(folder)
    assert outputs.is_artifact(folder)
    assert not (folder / "done").exists()
    outputs.clear(folder)
    assert not folder.exists()


def test_a_path_without_a_manifest_is_not_removed(tmp_path: Path) -> None:
    run, folder = tmp_path / "notes.txt", tmp_path / "thesis"
    run.write_text("mine")
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    for path in (run, folder):
        with pytest.raises(FileNotFoundError):
            outputs.clear(path)
    assert run.read_text() == (folder / "thesis.tex").read_text() == "mine"


OWN = {
    "vectors": ["generation.json", "update.lock", "done/0of1.json", f"parts/{PART}/vectors.npy",
                f"parts/{PART}/part.json", "parts/.growing-0-77-8/docs.parquet", ".removed.done/1of2.json",
                ".generation.json.12.34"],
    "index": ["built.json", "1/files.json", "1/any/name.xyz", "1/name", ".2.12.34.56/any/name",
              ".removed.3/name"],
    "export": [],
    "model": ["training.json", "log.jsonl", "checkpoints/checkpoint-3/optimizer.pt",
              "checkpoints/.growing/optimizer.pt", ".growing/model.safetensors", "tensorboard/events.out.1"],
    "shards": ["00000of00002-0.npz", "shared-queries-0.npz", "shared-common.index",
               ".shared-common.index.1.2"],
}  # fmt: skip
FOREIGN = [
    "thesis.tex", "parts.txt", "done/thesis.tex", f"parts/{PART}/thesis.tex", "parts/photos/1.jpg",
    "bm25/thesis.tex", "1/thesis.tex", "1/any/thesis.tex", "2024/1.jpg", "faiss.index", "vectors/a.npy",
    ".hidden", ".removed.photos/1.jpg", "adapter/thesis.tex", "heads/thesis.tex",
    "tensorboard/thesis.tex", "checkpoints/notes.txt", "checkpoints/checkpoint-x/a", "queries-0.npz",
]  # fmt: skip


@pytest.mark.parametrize("kind", OWN)
def test_only_the_names_that_lmk_writes_are_removed(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "artifact"
    for name in (*OWN[kind], *FOREIGN):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    if kind == "index":
        names = {"any/name.xyz": [4, ""], "name": [4, ""], "../built.json": [4, ""]}
        (folder / "1" / "files.json").write_text(json.dumps(names))
    claim(folder, kind)
    rest = outputs.clear(folder)
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert left == set(FOREIGN)
    assert rest == sorted({name.partition("/")[0] for name in FOREIGN})


def test_the_manifest_of_an_export_lists_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for name in ("config.json", "1_Pooling/config.json", "notes.txt", "1_Pooling/notes.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    (tmp_path / "outside").write_text("mine")
    files = ["config.json", "1_Pooling/config.json", "../outside", str(tmp_path / "outside")]
    listed = {name: manifest.written(folder / name) for name in files}
    made = structs.replace(manifests.export(), files=listed)
    (folder / manifest.NAME).write_text(manifest.as_text(made))
    assert outputs.clear(folder) == ["1_Pooling", "notes.txt"]
    assert (tmp_path / "outside").exists()
    assert not (folder / "config.json").exists()
    assert not (folder / "1_Pooling/config.json").exists()


def test_a_listed_file_that_was_edited_belongs_to_the_user(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("README.md", "config.json"):
        (folder / name).write_text("{}")
    listed = {name: manifest.written(folder / name) for name in ("README.md", "config.json")}
    made = structs.replace(manifests.export(), files=listed)
    (folder / manifest.NAME).write_text(manifest.as_text(made))
    (folder / "README.md").write_text("my notes")
    assert outputs.clear(folder) == ["README.md"]
    assert (folder / "README.md").read_text() == "my notes"


def test_a_link_in_the_place_of_a_listed_file_stays(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "mine").write_text("{}")
    listed = {"config.json": manifest.written(tmp_path / "mine")}
    made = structs.replace(manifests.export(), files=listed)
    (folder / manifest.NAME).write_text(manifest.as_text(made))
    (folder / "config.json").symlink_to(tmp_path / "mine")
    assert outputs.clear(folder) == ["config.json"]
    assert (tmp_path / "mine").read_text() == "{}"


@pytest.mark.parametrize("kind", ["model", "export", "vectors", "index", "tokens"])
def test_a_manifest_of_another_person_selects_no_other_file(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "artifact"
    claim(folder, kind)
    files = ["thesis.tex", "notes/thesis.tex", ".bashrc", "setup.py", "../outside"]
    guess = WrittenFile(len("mine"), "0" * 64)
    made = structs.replace(manifests.KINDS[kind](), files=dict.fromkeys(files, guess))
    text = manifest.as_text(made)
    (tmp_path / "outside").write_text("mine")
    for name in files[:4]:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    (folder / manifest.NAME).write_text(text)
    assert outputs.clear(folder) == [".bashrc", "notes", "setup.py", "thesis.tex"]
    assert (folder / "notes" / "thesis.tex").read_text() == "mine"
    assert (tmp_path / "outside").read_text() == "mine"


def test_the_target_of_a_link_stays(tmp_path: Path) -> None:
    folder, away = tmp_path / "vectors", tmp_path / "away"
    away.mkdir()
    (away / "part.json").write_text("mine")
    claim(folder)
    (folder / "parts").symlink_to(away)
    (tmp_path / "link").symlink_to(folder)
    assert outputs.clear(tmp_path / "link") == []
    assert (away / "part.json").read_text() == "mine"
    assert list(folder.iterdir()) == []
    assert (tmp_path / "link").is_dir()


def test_the_manifest_of_a_run_does_not_replace_another_file(tmp_path: Path) -> None:
    outputs.check_sidecar(tmp_path / "results")
    (tmp_path / "results.json").write_text('{"mine": 1}')
    with pytest.raises(DataError, match=r"results\.json exists"):
        outputs.check_sidecar(tmp_path / "results")
    claim(tmp_path / "results", "run")
    outputs.check_sidecar(tmp_path / "results")


@pytest.mark.parametrize("error", [DataError("x"), OSError(5, "Input/output error"), KeyError("x")])
def test_every_error_removes_the_claim(tmp_path: Path, error: Exception) -> None:
    folder = tmp_path / "vectors"

    def fail() -> None:
        with outputs.rollback_on_error(folder):
            claim(folder)
            raise error

    with pytest.raises(type(error)):
        fail()
    assert not folder.exists()
