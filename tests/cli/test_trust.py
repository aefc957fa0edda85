"""Artifacts from strangers: what they name does not run and is not downloaded unless the user says so."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lmkcli import manifest
from lmkcli.models.folder import read_model
from lmkcli.store.vectors import Vectors

Models = Callable[[str], Path]
Lmk = Callable[..., Any]

CODE = """
from pathlib import Path
from transformers import BertConfig, BertModel

Path({marker!r}).touch()

class Config(BertConfig):
    model_type = "strange-{name}"

class Model(BertModel):
    config_class = Config
"""


class Stranger(NamedTuple):
    """A folder of vectors, an index and a run over it whose model brings code; who runs it is seen."""

    vectors: Path
    index: Path
    model: Path
    ran: Path


@pytest.fixture
def stranger(lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path) -> Stranger:
    made = Stranger(*(tmp_path / name for name in ("vectors", "index", "model", "ran")))
    shutil.copytree(tiny_model("bert"), made.model)
    code = CODE.format(marker=str(made.ran), name=tmp_path.name)
    (made.model / "strange.py").write_text(code)
    # the weights' digest covers the configuration, so it is there before anything is encoded
    own = {"AutoConfig": "strange.Config", "AutoModel": "strange.Model"}
    edit(made.model / "config.json", auto_map=own)
    lmk("encode", beir, "-m", made.model, "--pool", "mean", "-o", made.vectors)
    lmk("index", made.vectors, "-o", made.index)
    assert not made.ran.exists()  # BERT's own class reads it without the flag
    edit(made.model / "config.json", model_type=f"strange-{tmp_path.name}", auto_map=own)
    recorded = json.loads((made.vectors / manifest.NAME).read_text())
    for side in recorded["identity"]["recipe"].values():
        side |= {"trust_remote_code": True, "weights": read_model(str(made.model)).weights_digest}
    (made.vectors / manifest.NAME).write_text(json.dumps(recorded))
    return made


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_code_beside_a_model_runs_only_where_this_command_line_says_so(
    lmk: Lmk, stranger: Stranger, beir: Path, tmp_path: Path
) -> None:
    run = tmp_path / "r.trec"
    lines = (["search", stranger.vectors, "-q", "x"], ["search", stranger.vectors, beir, "-o", run])
    for line in (*lines, ["verify", stranger.vectors]):
        err = lmk(*line, code=3).err
        for named in (stranger.vectors, stranger.model, "--trust-remote-code"):
            assert str(named) in err
    assert not stranger.ran.exists()
    lmk("search", stranger.vectors, "-q", "rivers", "--trust-remote-code")
    assert stranger.ran.exists()  # the model is one whose code would have run


def test_an_index_and_a_reranking_ask_too(
    lmk: Lmk, stranger: Stranger, beir: Path, tmp_path: Path
) -> None:
    built = stranger.index / "built.json"
    facts = json.loads(built.read_text())
    facts["of"]["vectors"] = Vectors(stranger.vectors).digest()
    built.write_text(json.dumps(facts))
    lmk("index", beir, "--kind", "bm25", "-o", tmp_path / "bm25")
    for line in (
        ["search", stranger.index, "-q", "rivers"],
        ["search", tmp_path / "bm25", "-q", "rivers", "--rerank", stranger.vectors],
    ):
        assert "--trust-remote-code" in lmk(*line, code=3).err
    assert not stranger.ran.exists()


def test_a_record_that_asks_for_code_is_made_again_only_with_the_flag(
    lmk: Lmk, stranger: Stranger
) -> None:
    recorded = json.loads((stranger.vectors / manifest.NAME).read_text())
    recorded["facts"]["call"]["trust_remote_code"] = True
    (stranger.vectors / manifest.NAME).write_text(json.dumps(recorded))
    err = lmk("repro", stranger.vectors, code=3).err
    assert str(stranger.model) in err
    assert "--trust-remote-code" in err
    assert not stranger.ran.exists()
    lmk("repro", stranger.vectors, "--trust-remote-code")
    assert stranger.ran.exists()


@pytest.mark.parametrize("verb", ["compact", "export", "repro", "demo"])
def test_a_record_asks_for_no_verb_that_makes_no_artifact(
    lmk: Lmk, stranger: Stranger, verb: str
) -> None:
    recorded = json.loads((stranger.vectors / manifest.NAME).read_text())
    recorded["facts"]["call"] = {"verb": verb, "folder": str(stranger.vectors)}
    (stranger.vectors / manifest.NAME).write_text(json.dumps(recorded))
    assert "makes no artifact" in lmk("repro", stranger.vectors, code=3).err


def test_a_hub_name_in_a_manifest_is_not_downloaded(
    lmk: Lmk, stranger: Stranger, beir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def download(name: str, local_files_only: bool = False, **_: Any) -> str:
        asked.append(local_files_only)
        raise OSError("not in the cache")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("lmkcli.models.folder.snapshot_download", download)
    recorded = json.loads((stranger.vectors / manifest.NAME).read_text())
    for side in recorded["facts"]["models"].values():
        side |= {"model": "stranger/model", "revision": "abc"}
    (stranger.vectors / manifest.NAME).write_text(json.dumps(recorded))
    trust = "--trust-remote-code"
    for line in (
        ["search", stranger.vectors, "-q", "x", trust],
        ["verify", stranger.vectors, trust],
    ):
        err = lmk(*line, code=3).err
        assert "lmk fetch -m stranger/model --revision abc" in err
    assert set(asked) == {True}  # the cache alone was looked into
    asked.clear()
    lmk("search", stranger.vectors, "-q", "x", trust, "--model", "stranger/model", code=3)
    assert asked == [False]  # whoever names it himself may download it
